package nip

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr/nip44"
	"pgregory.net/rapid"
)

type vectors44 struct {
	Encrypt []struct {
		Sec1, Sec2, Conversation, Nonce, Plaintext, Payload string
	}
	Long []struct {
		Conversation, Nonce, Pattern string
		Repeat                       int
		PlaintextSHA256              string `json:"plaintext_sha256"`
		PayloadSHA256                string `json:"payload_sha256"`
	}
	Conversation    []struct{ Sec1, Pub2, Conversation string }
	BadConversation []struct{ Sec1, Pub2 string } `json:"bad_conversation"`
	MessageKeys     []struct {
		Conversation, Nonce, Cipher, Mac string
		CipherNonce                      string `json:"cipher_nonce"`
	} `json:"message_keys"`
	BadPayload []struct{ Conversation, Payload, Why string } `json:"bad_payload"`
}

func TestNIP44Vectors(t *testing.T) {
	var v vectors44
	readVector(t, "nip44.json", &v)
	for _, row := range v.Encrypt {
		a, errA := ParseSecretKey(row.Sec1)
		b, errB := ParseSecretKey(row.Sec2)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		key, err := conversationKey(a, b.Public())
		if err != nil || hex.EncodeToString(key) != row.Conversation {
			t.Errorf("conversation key %x %v, want %s", key, err, row.Conversation)
		}
		got, err := encrypt44(key, []byte(row.Plaintext), mustHex(row.Nonce))
		if err != nil || got != row.Payload {
			t.Errorf("encrypt %q: %s %v", row.Plaintext, got, err)
		}
		plain, err := decrypt44(key, row.Payload)
		if err != nil || string(plain) != row.Plaintext {
			t.Errorf("decrypt: %q %v, want %q", plain, err, row.Plaintext)
		}
	}
	for _, row := range v.Long {
		plain := strings.Repeat(row.Pattern, row.Repeat)
		if string(DigestOf([]byte(plain))) != "sha256:"+row.PlaintextSHA256 {
			t.Fatal("the vector's plaintext was not built right")
		}
		got, err := encrypt44(mustHex(row.Conversation), []byte(plain), mustHex(row.Nonce))
		if err != nil || string(DigestOf([]byte(got))) != "sha256:"+row.PayloadSHA256 {
			t.Errorf("encrypt %d times %q: %v", row.Repeat, row.Pattern, err)
		}
		back, err := decrypt44(mustHex(row.Conversation), got)
		if err != nil || string(back) != plain {
			t.Errorf("decrypt %d times %q: %v", row.Repeat, row.Pattern, err)
		}
	}
	for _, row := range v.Conversation {
		a, err := ParseSecretKey(row.Sec1)
		if err != nil {
			t.Fatal(err)
		}
		key, err := conversationKey(a, PubKey(row.Pub2))
		if err != nil || hex.EncodeToString(key) != row.Conversation {
			t.Errorf("conversation key %x %v, want %s", key, err, row.Conversation)
		}
	}
	for _, row := range v.BadConversation {
		a, err := ParseSecretKey(row.Sec1)
		if err == nil {
			_, err = conversationKey(a, PubKey(row.Pub2))
		}
		if err == nil {
			t.Errorf("keys %s and %s pass", row.Sec1, row.Pub2)
		}
	}
	for _, row := range v.MessageKeys {
		got, err := deriveKeys(mustHex(row.Conversation), mustHex(row.Nonce))
		if err != nil || hex.EncodeToString(got.cipher) != row.Cipher ||
			hex.EncodeToString(got.nonce) != row.CipherNonce || hex.EncodeToString(got.mac) != row.Mac {
			t.Errorf("message keys of %s differ (%v)", row.Nonce, err)
		}
	}
	for _, row := range v.BadPayload {
		if _, err := decrypt44(mustHex(row.Conversation), row.Payload); err == nil {
			t.Errorf("a payload with %s passes", row.Why)
		}
	}
}

func TestNIP44HostilePayloads(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	good, err := encrypt44(key, []byte("hello"), make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	reframe := func(change func([]byte) []byte) string {
		b, err := base64.StdEncoding.DecodeString(good)
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(change(b))
	}
	for _, row := range []struct {
		name, payload string
		code          Code
	}{
		{"empty", "", Malformed},
		{"only line ends", strings.Repeat("\n", 132), Malformed},
		{"only padding", strings.Repeat("=", 132), Malformed},
		{"a line end inside", good[:64] + "\n\r\n\n" + good[64:], Malformed},
		{"padding inside", good[:64] + "====" + good[68:], Malformed},
		{"one short", good[:len(good)-1], Malformed},
		{"below the least", good[:128], Malformed},
		{"base64url", strings.Repeat("-", 132), Malformed},
		{"not ASCII", strings.Repeat("é", 66), Malformed},
		{"too long", strings.Repeat("A", maxContent+4), Bounds},
		{"version 1", reframe(func(b []byte) []byte { b[0] = 1; return b }), Unsupported},
		{"version 255", reframe(func(b []byte) []byte { b[0] = 255; return b }), Unsupported},
		{"another nonce", reframe(func(b []byte) []byte { b[1] ^= 1; return b }), Malformed},
		{"another body", reframe(func(b []byte) []byte { b[40] ^= 1; return b }), Malformed},
		{"another mac", reframe(func(b []byte) []byte { b[len(b)-1] ^= 1; return b }), Malformed},
		{"mac cut", reframe(func(b []byte) []byte { return append(b[:len(b)-32], make([]byte, 33)...) }), Malformed},
	} {
		t.Run(row.name, func(t *testing.T) {
			plain, err := decrypt44(key, row.payload)
			wantFault(t, err, row.code, layerEnvelope)
			if plain != nil {
				t.Errorf("plaintext %q came with an error", plain)
			}
		})
	}
}

// One payload has one spelling: the unused bits of the last symbol must be zero.
func TestNIP44CanonicalBase64(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	good, err := encrypt44(key, bytes.Repeat([]byte("x"), 40), make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(good, "=") || strings.HasSuffix(good, "==") {
		t.Fatalf("a 131-byte frame should end in one =, got %s", good[len(good)-4:])
	}
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	last := strings.IndexByte(alphabet, good[len(good)-2])
	other := good[:len(good)-2] + string(alphabet[last|1]) + "="
	if other == good {
		t.Fatal("the last symbol already has its low bit set")
	}
	if _, err := decrypt44(key, other); err == nil {
		t.Error("a second spelling passes")
	}
}

// frame pads by hand, to write what encrypt44 never writes.
func frame(t *testing.T, key, padded []byte) string {
	t.Helper()
	s, err := seal44(key, make([]byte, 32), padded)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNIP44Padding(t *testing.T) {
	key := bytes.Repeat([]byte{9}, 32)
	short := func(n, total int) []byte {
		b := make([]byte, 2+total)
		binary.BigEndian.PutUint16(b, uint16(n))
		return b
	}
	long := func(n uint32, total int) []byte {
		b := make([]byte, 6+total)
		binary.BigEndian.PutUint32(b[2:], n)
		return b
	}
	for _, row := range []struct {
		name   string
		padded []byte
		plain  int // -1: refused
	}{
		{"one byte", short(1, 32), 1},
		{"a chunk too many", short(1, 64), -1},
		{"a chunk too few", short(33, 32), -1},
		{"length past the end", short(65_535, 32), -1},
		{"zero", short(0, 32), -1},
		{"extended, least", long(65_536, 65_536), 65_536},
		{"extended, most", long(262_144, 262_144), 262_144},
		{"extended, one over", long(262_145, 294_912), -1},
		{"extended for a short one", long(65_535, 65_536), -1},
		{"extended, huge", long(1<<31, 65_536), -1},
		{"extended, wrong padding", long(65_537, 65_536), -1},
	} {
		t.Run(row.name, func(t *testing.T) {
			plain, err := decrypt44(key, frame(t, key, row.padded))
			if row.plain < 0 && err == nil {
				t.Errorf("%d bytes pass", len(plain))
			}
			if row.plain >= 0 && (err != nil || len(plain) != row.plain) {
				t.Errorf("got %d bytes, %v", len(plain), err)
			}
		})
	}
}

func TestNIP44WritesBounded(t *testing.T) {
	for _, n := range []int{0, maxShortPlain + 1} {
		_, err := encrypt44(make([]byte, 32), make([]byte, n), nil)
		wantFault(t, err, Bounds, layerEnvelope)
	}
	_, err := encrypt44(make([]byte, 32), []byte("a"), make([]byte, 31))
	wantFault(t, err, Malformed, layerEnvelope)
}

// Round trips over the padding's edges, with go-nostr's own code as the peer.
func TestNIP44RoundTrip(t *testing.T) {
	edges := []int{1, 31, 32, 33, 64, 65, 255, 256, 257, 320, 383, 384, 385, 511, 512, 513, 1_024, 1_025, 65_534, 65_535}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.SampledFrom(edges), rapid.IntRange(1, 2_048)).Draw(t, "length")
		plain := bytes.Repeat([]byte{byte('a' + n%26)}, n)
		a := scalar(rapid.IntRange(1, 1<<30).Draw(t, "a"))
		b := scalar(rapid.IntRange(1, 1<<30).Draw(t, "b"))
		ours, err := conversationKey(a, b.Public())
		if err != nil {
			t.Fatal(err)
		}
		payload, err := encrypt44(ours, plain, nil)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := conversationKey(b, a.Public())
		if err != nil {
			t.Fatal(err)
		}
		back, err := decrypt44(theirs, payload)
		if err != nil || !bytes.Equal(back, plain) {
			t.Fatalf("length %d: %v", n, err)
		}
		peer, err := nip44.Decrypt(payload, [32]byte(theirs))
		if err != nil || peer != string(plain) {
			t.Fatalf("peer, length %d: %v", n, err)
		}
		if fromPeer, err := nip44.Encrypt(string(plain), [32]byte(theirs)); err != nil {
			t.Fatal(err)
		} else if back, err := decrypt44(ours, fromPeer); err != nil || !bytes.Equal(back, plain) {
			t.Fatalf("from the peer, length %d: %v", n, err)
		}
	})
}

func wantFault(t *testing.T, err error, code Code, layer string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v, want %s of layer %s", err, code, layer)
	}
	if e.Code != code || e.Layer != layer {
		t.Errorf("%v, want %s of layer %s", e, code, layer)
	}
}
