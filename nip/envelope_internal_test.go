package nip

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"
)

const testRelay = "wss://relay.example.com/"

func testGrant() Grant {
	return Grant{
		ID: GrantID(strings.Repeat("1", 64)), Origin: Origin{"invitation", strings.Repeat("2", 64), scalar(1).Public()},
		Host: scalar(1).Public(), Owner: scalar(2).Public(), Device: scalar(3).Public(), Relay: testRelay,
		IssuedAt: 1790000000, ExpiresAt: 1790086400, Rights: StandardRights(),
	}
}

// forge signs an event whose plaintext is whatever the test says.
func forge(t testing.TB, plain []byte, at int64) Verified {
	t.Helper()
	key, err := conversationKey(scalar(1), scalar(3).Public())
	if err != nil {
		t.Fatal(err)
	}
	content, err := encrypt44(key, plain, nil)
	if err != nil {
		t.Fatal(err)
	}
	return signed(t, content, at)
}

func signed(t testing.TB, content string, at int64) Verified {
	t.Helper()
	ev := &Event{Kind: KindArtifact, CreatedAt: nostr.Timestamp(at), Content: content, Tags: nostr.Tags{
		{"p", string(scalar(3).Public())}, {"h", strings.Repeat("1", 64)}, {"t", tagArtifact},
	}}
	if err := scalar(1).Sign(ev); err != nil {
		t.Fatal(err)
	}
	v, err := VerifyEvent(ev)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Each row spoils one thing of a good envelope, and names the code and the layer
// that must notice, so that one fault cannot hide behind another.
func TestOpenRefuses(t *testing.T) {
	a, err := EncodeGrant(testGrant())
	if err != nil {
		t.Fatal(err)
	}
	plain, err := encodeEnvelope(a)
	if err != nil {
		t.Fatal(err)
	}
	type tree = map[string]any
	inner := func(m tree, change func(tree)) {
		body := m["inline"].(tree)
		change(body)
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		if b, err = canonical(b, maxBody, true); err != nil {
			t.Fatal(err)
		}
		art := m["artifact"].(tree)
		art["digest"], art["size"] = DigestOf(b), len(b)
	}
	for _, row := range []struct {
		name   string
		change func(m tree)
		code   Code
		layer  string
	}{
		{"another version", func(m tree) { m["v"] = "openagents.artifact-envelope.v2" }, Unsupported, layerEnvelope},
		{"no version", func(m tree) { delete(m, "v") }, Malformed, layerEnvelope},
		{"a required feature", func(m tree) { m["requires"] = []string{"x"} }, Unsupported, layerEnvelope},
		{"an unknown member", func(m tree) { m["hint"] = 1 }, Malformed, layerEnvelope},
		{"an unknown member of artifact", func(m tree) { m["artifact"].(tree)["hint"] = 1 }, Malformed, layerEnvelope},
		{"meta that is no object", func(m tree) { m["meta"] = 1 }, Malformed, layerEnvelope},
		{"another digest", func(m tree) { m["artifact"].(tree)["digest"] = DigestOf(nil) }, Malformed, layerEnvelope},
		{"a bare digest", func(m tree) { m["artifact"].(tree)["digest"] = strings.Repeat("a", 64) }, Malformed, layerEnvelope},
		{"another size", func(m tree) { m["artifact"].(tree)["size"] = 1 }, Malformed, layerEnvelope},
		{"another media type", func(m tree) { m["artifact"].(tree)["media_type"] = "text/plain" }, Unsupported, layerEnvelope},
		{"no schema", func(m tree) { delete(m["artifact"].(tree), "schema") }, Malformed, layerEnvelope},
		{"another schema", func(m tree) { m["artifact"].(tree)["schema"] = SchemaReply }, Malformed, layerEnvelope},
		{"no inline", func(m tree) { delete(m, "inline") }, Malformed, layerEnvelope},
		{"null inline", func(m tree) { m["inline"] = nil }, Malformed, layerEnvelope},
		{"inline that is a string", func(m tree) { m["inline"] = "{}" }, Malformed, layerEnvelope},
		{"another issued_at", func(m tree) { m["issued_at"] = 1790000001 }, Malformed, layerEnvelope},
		{"retained no time", func(m tree) { m["retain_until"] = 1790000000 }, Malformed, layerEnvelope},
		{"another retain_until", func(m tree) { m["retain_until"] = 1790086401 }, Malformed, layerEnvelope},
		{"the body issued at another time", func(m tree) { inner(m, func(b tree) { b["issued_at"] = 1790000001 }) }, Malformed, layerEnvelope},
		{"the body ends at another time", func(m tree) { inner(m, func(b tree) { b["expires_at"] = 1790000060 }) }, Malformed, layerEnvelope},
		{"the body ends nowhere", func(m tree) { inner(m, func(b tree) { delete(b, "expires_at") }) }, Malformed, layerEnvelope},
		{"the body has no version", func(m tree) { inner(m, func(b tree) { delete(b, "v") }) }, Malformed, layerEnvelope},
		{"a body called a summary", func(m tree) {
			inner(m, func(b tree) { b["v"] = SchemaSummary; delete(b, "issued_at") })
			m["artifact"].(tree)["schema"] = SchemaSummary
		}, Malformed, layerEnvelope},
	} {
		t.Run(row.name, func(t *testing.T) {
			var m tree
			if err := json.Unmarshal(plain, &m); err != nil {
				t.Fatal(err)
			}
			row.change(m)
			b, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			o, err := Open(forge(t, b, 1790000000), scalar(3))
			wantFault(t, err, row.code, row.layer)
			if o.Inline != nil || o.Event != nil {
				t.Error("an artifact came with an error")
			}
		})
	}
	for _, row := range []struct {
		name  string
		plain string
		code  Code
		layer string
	}{
		{"not JSON", "a", Malformed, layerJSON},
		{"a repeated member of inline", strings.Replace(string(plain), `"epoch":0`, `"epoch":0,"epoch":0`, 1), Malformed, layerJSON},
		{"a byte order mark", "\ufeff" + string(plain), Malformed, layerJSON},
		{"trailing data", string(plain) + "0", Malformed, layerJSON},
		{"an integer beyond 2^53-1", strings.Replace(string(plain), `"epoch":0`, `"epoch":9007199254740993`, 1), Malformed, layerJSON},
		{"too deep", strings.Replace(string(plain), `"epoch":0`, `"epoch":`+strings.Repeat("[", 63)+strings.Repeat("]", 63), 1), Bounds, layerJSON},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := Open(forge(t, []byte(row.plain), 1790000000), scalar(3))
			wantFault(t, err, row.code, row.layer)
		})
	}
	t.Run("created at another time", func(t *testing.T) {
		_, err := Open(forge(t, plain, 1790000001), scalar(3))
		wantFault(t, err, Malformed, layerEnvelope)
	})
	t.Run("content that is no payload", func(t *testing.T) {
		_, err := Open(signed(t, strings.Repeat("\n", 132), 1790000000), scalar(3))
		wantFault(t, err, Malformed, layerEnvelope)
	})
	t.Run("neither author nor recipient", func(t *testing.T) {
		_, err := Open(forge(t, plain, 1790000000), scalar(4))
		wantFault(t, err, Forbidden, layerEnvelope)
		_, err = Open(forge(t, plain, 1790000000), SecretKey{})
		wantFault(t, err, Forbidden, layerEnvelope)
	})
	t.Run("not verified", func(t *testing.T) {
		_, err := Open(Verified{}, scalar(3))
		wantFault(t, err, Malformed, layerEvent)
	})
	t.Run("another kind", func(t *testing.T) {
		ev := &Event{Kind: 1, Content: "hello"}
		if err := scalar(1).Sign(ev); err != nil {
			t.Fatal(err)
		}
		v, err := VerifyEvent(ev)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Open(v, scalar(3))
		wantFault(t, err, Malformed, layerEvent)
	})
	t.Run("a recipient off the curve", func(t *testing.T) {
		ev := &Event{Kind: KindArtifact, CreatedAt: 1790000000, Content: strings.Repeat("A", 132), Tags: nostr.Tags{
			{"p", strings.Repeat("0", 63) + "5"}, {"h", strings.Repeat("1", 64)}, {"t", tagArtifact},
		}}
		if err := scalar(1).Sign(ev); err != nil {
			t.Fatal(err)
		}
		v, err := VerifyEvent(ev)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Open(v, scalar(1))
		wantFault(t, err, Malformed, layerEnvelope)
	})
}

// What a reader bears: any member order, meta outside, the shared contract's two
// extra members, and fractions in what nobody decodes.
func TestOpenTolerates(t *testing.T) {
	a, err := EncodeGrant(testGrant())
	if err != nil {
		t.Fatal(err)
	}
	plain, err := encodeEnvelope(a)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(plain, &m); err != nil {
		t.Fatal(err)
	}
	m["meta"] = map[string]any{"x": 1.5}
	m["artifact"].(map[string]any)["sources"] = []int{1}
	m["artifact"].(map[string]any)["event"] = nil
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	o, err := Open(forge(t, b, 1790000000), scalar(3))
	if err != nil || !bytes.Equal(o.Inline, a.Inline) || o.Digest != DigestOf(a.Inline) {
		t.Error(err)
	}
	g, err := ParseGrant(o.Inline, Profile{})
	if err != nil || g.Relay != testRelay {
		t.Error(err)
	}
}

// Other writers seal more than we do: the extended length form is read.
func TestOpenLargeBody(t *testing.T) {
	body := `{"expires_at":1790000060,"issued_at":1790000000,"pad":"` + strings.Repeat("a", 100_000) + `","requires":[],"v":"x"}`
	a := Artifact{Schema: "x", Inline: []byte(body), IssuedAt: 1790000000, RetainUntil: 1790000060}
	_, err := Seal(scalar(1), scalar(3).Public(), Mailbox(strings.Repeat("1", 64)), a, nil)
	wantFault(t, err, Bounds, layerEnvelope)

	plain := `{"artifact":{"digest":"` + string(DigestOf(a.Inline)) + `","media_type":"application/json","schema":"x","size":` +
		strconv.Itoa(len(body)) + `},"inline":` + body + `,"issued_at":1790000000,"requires":[],"retain_until":1790000060,"v":"` +
		schemaEnvelope + `"}`
	padded := make([]byte, 6+paddedLen(len(plain)))
	padded[2], padded[3], padded[4], padded[5] = byte(len(plain)>>24), byte(len(plain)>>16), byte(len(plain)>>8), byte(len(plain))
	copy(padded[6:], plain)
	key, err := conversationKey(scalar(1), scalar(3).Public())
	if err != nil {
		t.Fatal(err)
	}
	o, err := Open(signed(t, frame(t, key, padded), 1790000000), scalar(3))
	if err != nil || !bytes.Equal(o.Inline, a.Inline) {
		t.Error(err)
	}
}

func TestSealRefuses(t *testing.T) {
	good, err := EncodeGrant(testGrant())
	if err != nil {
		t.Fatal(err)
	}
	mailbox := Mailbox(strings.Repeat("1", 64))
	for _, row := range []struct {
		name    string
		mailbox Mailbox
		to      PubKey
		key     SecretKey
		nonce   []byte
		change  func(*Artifact)
	}{
		{"a short mailbox", "11", scalar(3).Public(), scalar(1), nil, func(*Artifact) {}},
		{"a recipient off the curve", mailbox, PubKey(strings.Repeat("0", 64)), scalar(1), nil, func(*Artifact) {}},
		{"no key", mailbox, scalar(3).Public(), SecretKey{}, nil, func(*Artifact) {}},
		{"a short nonce", mailbox, scalar(3).Public(), scalar(1), make([]byte, 31), func(*Artifact) {}},
		{"another schema", mailbox, scalar(3).Public(), scalar(1), nil, func(a *Artifact) { a.Schema = SchemaReply }},
		{"another time", mailbox, scalar(3).Public(), scalar(1), nil, func(a *Artifact) { a.IssuedAt++ }},
		{"another end", mailbox, scalar(3).Public(), scalar(1), nil, func(a *Artifact) { a.RetainUntil++ }},
		{"a body with white space", mailbox, scalar(3).Public(), scalar(1), nil, func(a *Artifact) { a.Inline = append([]byte(" "), a.Inline...) }},
		{"a body that is no object", mailbox, scalar(3).Public(), scalar(1), nil, func(a *Artifact) { a.Inline = []byte("[]") }},
		{"no body", mailbox, scalar(3).Public(), scalar(1), nil, func(a *Artifact) { a.Inline = nil }},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := good
			row.change(&a)
			if ev, err := Seal(row.key, row.to, row.mailbox, a, row.nonce); err == nil || ev != nil {
				t.Errorf("%v sealed", ev)
			}
		})
	}
	ev, err := Seal(scalar(1), scalar(3).Public(), mailbox, good, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Seal(scalar(1), scalar(3).Public(), mailbox, good, nil)
	if err != nil || again.Content == ev.Content {
		t.Error("two seals share a nonce")
	}
	if ev.Tags[0][0] != "p" || ev.Tags[1][0] != "h" || ev.Tags[2][0] != "t" {
		t.Errorf("tags %v", ev.Tags)
	}
}

// The edge of what we produce: 40,960 bytes of plaintext pass, one more is
// bounds, from the encoder already.
func TestPlaintextCeiling(t *testing.T) {
	reply := func(n int) Reply {
		return Reply{
			Request: RequestID(strings.Repeat("a", 64)), RequestEvent: EventID(strings.Repeat("b", 64)),
			Host: scalar(1).Public(), IssuedAt: 1790000000, ExpiresAt: 1790000060,
			Outcome: QueueState{Task: TaskID(strings.Repeat("c", 64)), Items: []QueueItem{
				item("1", 16_384), item("2", 16_384), item("3", n),
			}},
		}
	}
	a, err := EncodeReply(reply(1))
	if err != nil {
		t.Fatal(err)
	}
	env, err := encodeEnvelope(a)
	if err != nil {
		t.Fatal(err)
	}
	room := 1 + maxPlaintext - len(env)
	a, err = EncodeReply(reply(room))
	if err != nil {
		t.Fatal(err)
	}
	// The size member may have grown by a digit, never by more.
	if env, err = encodeEnvelope(a); err != nil || maxPlaintext-len(env) > 1 {
		t.Errorf("%d bytes, %v", len(env), err)
	}
	ev, err := Seal(scalar(1), scalar(3).Public(), Mailbox(strings.Repeat("a", 64)), a, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(EncodeEvent(ev)); n > 65_536-200 {
		t.Errorf("the event has %d bytes, too many for common relays", n)
	}
	_, err = EncodeReply(reply(room + 1))
	wantFault(t, err, Bounds, layerEnvelope)
	_, err = EncodeReply(reply(16_384))
	wantFault(t, err, Bounds, layerSchema)
}

func item(id string, n int) QueueItem {
	text := strings.Repeat("x", n)
	return QueueItem{Command: CommandID(strings.Repeat(id, 64)), Device: scalar(3).Public(), Text: &text}
}

func TestMailboxesDiffer(t *testing.T) {
	seen := make(map[Mailbox]Stream)
	for _, s := range []Stream{StreamPresence, StreamHints, StreamSummaries, StreamNudges, StreamCommands} {
		m, err := DeriveMailbox(scalar(1), scalar(3).Public(), s)
		if err != nil || seen[m] != "" {
			t.Errorf("%s and %s share a mailbox (%v)", s, seen[m], err)
		}
		seen[m] = s
	}
}
