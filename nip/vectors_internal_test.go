package nip

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// scalar gives the secret key that is the number n.
func scalar(n int) SecretKey {
	k, err := ParseSecretKey(fmt.Sprintf("%064x", n))
	if err != nil {
		panic(err)
	}
	return k
}

func readVector(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "vectors", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

func TestVectorKeys(t *testing.T) {
	var v struct {
		Keys []struct {
			Scalar int
			Public PubKey
		}
		Conversations []struct {
			A, B int
			Key  string
		}
	}
	readVector(t, "keys.json", &v)
	for _, k := range v.Keys {
		if got := scalar(k.Scalar).Public(); got != k.Public {
			t.Errorf("public key of %d: %s, want %s", k.Scalar, got, k.Public)
		}
	}
	for _, c := range v.Conversations {
		for _, pair := range [][2]int{{c.A, c.B}, {c.B, c.A}} {
			got, err := conversationKey(scalar(pair[0]), scalar(pair[1]).Public())
			if err != nil || hex.EncodeToString(got) != c.Key {
				t.Errorf("conversation key of %v: %x %v, want %s", pair, got, err, c.Key)
			}
		}
	}
}

func TestVectorMailboxes(t *testing.T) {
	var v struct {
		Mailboxes []struct {
			A, B    int
			Stream  Stream
			Mailbox Mailbox
		}
	}
	readVector(t, "mailboxes.json", &v)
	for _, m := range v.Mailboxes {
		for _, pair := range [][2]int{{m.A, m.B}, {m.B, m.A}} {
			got, err := DeriveMailbox(scalar(pair[0]), scalar(pair[1]).Public(), m.Stream)
			if err != nil || got != m.Mailbox {
				t.Errorf("mailbox %s of %v: %s %v, want %s", m.Stream, pair, got, err, m.Mailbox)
			}
		}
	}
}

func TestVectorOneLetter(t *testing.T) {
	var v struct {
		A, B                      int
		Nonce, Plaintext, Payload string
	}
	readVector(t, "nip44_one_letter.json", &v)
	key, err := conversationKey(scalar(v.A), scalar(v.B).Public())
	if err != nil {
		t.Fatal(err)
	}
	got, err := encrypt44(key, []byte(v.Plaintext), mustHex(v.Nonce))
	if err != nil || got != v.Payload {
		t.Errorf("payload %q %v", got, err)
	}
	plain, err := decrypt44(key, v.Payload)
	if err != nil || string(plain) != v.Plaintext {
		t.Errorf("plaintext %q %v", plain, err)
	}
}

func TestVectorInvitation(t *testing.T) {
	var v struct {
		Host       PubKey
		Invitation InvitationID
		Capability string
		Issued     int64 `json:"issued_at"`
		Expires    int64 `json:"expires_at"`
		Relay      RelayURL
		Bytes      int
		String     string
	}
	readVector(t, "invitation.json", &v)
	want := Invitation{v.Host, v.Invitation, v.Capability, v.Issued, v.Expires, v.Relay}
	got, err := ParseInvitation(v.String, Profile{}, v.Issued)
	if err != nil || got != want {
		t.Errorf("parse: %v %v", got, err)
	}
	s, err := EncodeInvitation(want, Profile{})
	if err != nil || s != v.String {
		t.Errorf("encode: %s %v", s, err)
	}
}

type sealedVector struct {
	Signer, Recipient int
	Body              string
	BodyBytes         int    `json:"body_bytes"`
	BodyDigest        Digest `json:"body_digest"`
	EnvelopeBytes     int    `json:"envelope_bytes"`
	EnvelopeDigest    Digest `json:"envelope_digest"`
	Nonce             string
	ContentChars      int    `json:"content_chars"`
	ContentSHA256     string `json:"content_sha256"`
	Event             json.RawMessage
}

func TestVectorSealed(t *testing.T) {
	for _, row := range []struct {
		file   string
		recode func([]byte) (Artifact, error)
	}{
		{"sealed_grant.json", func(b []byte) (Artifact, error) {
			g, err := ParseGrant(b, Profile{})
			if err != nil {
				return Artifact{}, err
			}
			return EncodeGrant(g)
		}},
		{"sealed_request_redeem.json", func(b []byte) (Artifact, error) {
			q, err := ParseRequest(b, Profile{})
			if err != nil {
				return Artifact{}, err
			}
			return EncodeRequest(q)
		}},
	} {
		t.Run(row.file, func(t *testing.T) {
			var v sealedVector
			readVector(t, row.file, &v)
			a, err := row.recode([]byte(v.Body))
			if err != nil {
				t.Fatal(err)
			}
			if string(a.Inline) != v.Body || len(a.Inline) != v.BodyBytes || DigestOf(a.Inline) != v.BodyDigest {
				t.Errorf("body %s", a.Inline)
			}
			env, err := encodeEnvelope(a)
			if err != nil || len(env) != v.EnvelopeBytes || DigestOf(env) != v.EnvelopeDigest {
				t.Errorf("envelope %s %v", env, err)
			}
			want, err := ParseEvent(v.Event)
			if err != nil {
				t.Fatal(err)
			}
			tags, err := artifactTags(want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := SealBy(t.Context(), ownKey{scalar(v.Signer), mustHex(v.Nonce), new([32]byte)}, scalar(v.Recipient).Public(), tags.mailbox, a)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(EncodeEvent(got), EncodeEvent(want)) {
				t.Errorf("event\n%s\nwant\n%s", EncodeEvent(got), EncodeEvent(want))
			}
			if DigestOf([]byte(got.Content)) != Digest("sha256:"+v.ContentSHA256) || len(got.Content) != v.ContentChars {
				t.Error("content differs")
			}
			verified, err := VerifyEvent(want)
			if err != nil {
				t.Fatal(err)
			}
			for _, reader := range []int{v.Signer, v.Recipient} {
				o, err := Open(verified, scalar(reader))
				if err != nil {
					t.Fatal(err)
				}
				if string(o.Inline) != v.Body || o.Digest != v.BodyDigest || o.Signer != scalar(v.Signer).Public() ||
					o.Recipient != scalar(v.Recipient).Public() || o.Mailbox != tags.mailbox || o.Schema != a.Schema {
					t.Errorf("opened %+v", o)
				}
			}
		})
	}
}

func TestVectorSummary(t *testing.T) {
	var v struct {
		Task       TaskID
		Sequence   int64
		Phase      Phase
		Headline   string
		Attention  string
		Updated    int64  `json:"updated_at"`
		BodyBytes  int    `json:"body_bytes"`
		BodyDigest Digest `json:"body_digest"`
	}
	readVector(t, "summary.json", &v)
	a, err := EncodeSummary(Summary{scalar(1).Public(), v.Task, v.Sequence, v.Phase, v.Headline, v.Attention, v.Updated})
	if err != nil || len(a.Inline) != v.BodyBytes || DigestOf(a.Inline) != v.BodyDigest {
		t.Errorf("summary %s %v", a.Inline, err)
	}
	if _, err := ParseSummary(a.Inline, a); err != nil {
		t.Error(err)
	}
}

func TestVectorEnrollment(t *testing.T) {
	var v struct {
		Host, Owner int
		Enrollment  EnrollmentID
		Relay       RelayURL
		Rights      Rights
		Issued      int64  `json:"issued_at"`
		Expires     int64  `json:"expires_at"`
		BodyBytes   int    `json:"body_bytes"`
		BodyDigest  Digest `json:"body_digest"`
		Code        string
		CodeDigest  Digest `json:"code_digest"`
	}
	readVector(t, "enrollment.json", &v)
	a, err := EncodeEnrollment(Enrollment{
		v.Enrollment, scalar(v.Host).Public(), scalar(v.Owner).Public(), v.Relay, v.Rights, v.Issued, v.Expires,
	})
	if err != nil || len(a.Inline) != v.BodyBytes || DigestOf(a.Inline) != v.BodyDigest {
		t.Errorf("enrollment %s %v", a.Inline, err)
	}
	if _, err := ParseEnrollment(a.Inline, Profile{}); err != nil {
		t.Error(err)
	}
	for _, typed := range []string{v.Code, "7k3mq9tx", " 7K3M Q9TX"} {
		if got, err := EnrollmentCodeDigest(v.Enrollment, typed); err != nil || got != v.CodeDigest {
			t.Errorf("digest of %q: %s %v", typed, got, err)
		}
	}
}

func TestVectorNudge(t *testing.T) {
	var v struct {
		Host, Device int
		Issued       int64  `json:"issued_at"`
		Expires      int64  `json:"expires_at"`
		BodyBytes    int    `json:"body_bytes"`
		BodyDigest   Digest `json:"body_digest"`
	}
	readVector(t, "nudge.json", &v)
	a, err := EncodeNudge(Nudge{scalar(v.Host).Public(), scalar(v.Device).Public(), v.Issued, v.Expires})
	if err != nil || len(a.Inline) != v.BodyBytes || DigestOf(a.Inline) != v.BodyDigest {
		t.Errorf("nudge %s %v", a.Inline, err)
	}
	if _, err := ParseNudge(a.Inline); err != nil {
		t.Error(err)
	}
}
