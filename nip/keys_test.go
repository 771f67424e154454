package nip_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"holdfast/nip"
)

// scalar gives the secret key that is the number n.
func scalar(n int) nip.SecretKey {
	k, err := nip.ParseSecretKey(fmt.Sprintf("%064x", n))
	if err != nil {
		panic(err)
	}
	return k
}

// The four keys of the fixtures.
var (
	hostKey, ownerKey, deviceKey, secondKey = scalar(1), scalar(2), scalar(3), scalar(4)

	host, owner, device, second = hostKey.Public(), ownerKey.Public(), deviceKey.Public(), secondKey.Public()
)

func TestSecretKeyNeverShows(t *testing.T) {
	const secret = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	key, err := nip.ParseSecretKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	type holder struct {
		Key    nip.SecretKey
		hidden nip.SecretKey
	}
	h := holder{key, key}
	var shown []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T"} {
		shown = append(shown, fmt.Sprintf(verb, key), fmt.Sprintf(verb, &key), fmt.Sprintf(verb, h),
			fmt.Sprintf(verb, &h), fmt.Sprintf(verb, []any{h, key}), fmt.Sprintf(verb, map[string]holder{"a": h}))
	}
	shown = append(shown, fmt.Sprint(key), key.String())
	b, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	shown = append(shown, string(b))
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "key", key, "holder", h)
	slog.New(slog.NewTextHandler(&log, nil)).Info("m", "key", key, "holder", h)
	shown = append(shown, log.String())
	for _, s := range shown {
		// In hex, in upper case, and as a list of decimal bytes.
		for _, bad := range []string{"112233", "AABBCC", "aabbcc", "17 34 51", "17,34,51", "0x11, 0x22"} {
			if strings.Contains(s, bad) {
				t.Errorf("the secret shows in %q", s)
			}
		}
	}
	if key.Hex() != secret {
		t.Error("Hex does not give the secret")
	}
	copied := key
	key.Wipe()
	if strings.Trim(copied.Hex(), "0") != "" || copied.Public() != "" {
		t.Error("a wiped key still works")
	}
	if err := copied.Sign(&nip.Event{}); err == nil {
		t.Error("a wiped key signs")
	}
}

func TestZeroSecretKey(t *testing.T) {
	var k nip.SecretKey
	k.Wipe()
	if k.Public() != "" || k.Hex() != "" || k.Sign(&nip.Event{}) == nil {
		t.Error("the zero key acts as a key")
	}
	if _, err := nip.DeriveMailbox(k, host, nip.StreamHints); err == nil {
		t.Error("the zero key derives")
	}
}

func TestParseSecretKey(t *testing.T) {
	const order = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"
	for name, s := range map[string]string{
		"empty": "", "zero": strings.Repeat("0", 64), "the order": order, "all ones": strings.Repeat("f", 64),
		"upper case": strings.Repeat("A", 64), "short": strings.Repeat("1", 63), "long": strings.Repeat("1", 65),
		"not hex": strings.Repeat("g", 64),
	} {
		if _, err := nip.ParseSecretKey(s); err == nil {
			t.Errorf("%s passes", name)
		} else if s != "" && strings.Contains(err.Error(), s) {
			t.Errorf("%s: the error holds the input", name)
		}
	}
	if _, err := nip.ParseSecretKey(order[:63] + "0"); err != nil {
		t.Error("the largest scalar is refused")
	}
}

func TestGenerateSecretKey(t *testing.T) {
	a, err := nip.GenerateSecretKey(rand.Reader)
	if err != nil || !nip.ValidID(a.Hex()) {
		t.Fatal(err)
	}
	if _, err := nip.GenerateSecretKey(bytes.NewReader(make([]byte, 31))); err == nil {
		t.Error("a short source passes")
	}
	if _, err := nip.GenerateSecretKey(bytes.NewReader(make([]byte, 32*20))); err == nil {
		t.Error("a source of zeros passes")
	}
	// Values that are no scalar are read over.
	src := append(bytes.Repeat([]byte{0xff}, 32), bytes.Repeat([]byte{1}, 32)...)
	k, err := nip.GenerateSecretKey(bytes.NewReader(src))
	if err != nil || k.Hex() != strings.Repeat("01", 32) {
		t.Errorf("%s %v", k.Hex(), err)
	}
}

func TestParsePubKey(t *testing.T) {
	const npub = "npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d" // scalar 1
	if got, err := nip.ParseAnyPubKey(npub); err != nil || got != host {
		t.Errorf("npub: %s %v", got, err)
	}
	for name, s := range map[string]string{
		"empty": "", "zero": strings.Repeat("0", 64), "the field's prime": "fffffffffffffffffffffffffffffffffffffffffffffffffffffffefffffc2f",
		"not on the curve": strings.Repeat("0", 63) + "5", "upper case": strings.ToUpper(string(device)),
		"compressed": "02" + string(host), "short": string(host)[:63], "with a line end": string(host) + "\n",
	} {
		if _, err := nip.ParsePubKey(s); err == nil {
			t.Errorf("%s passes", name)
		}
		if _, err := nip.ParseAnyPubKey(s); err == nil {
			t.Errorf("%s passes as any key", name)
		}
	}
	if _, err := nip.ParsePubKey(npub); err == nil {
		t.Error("an npub passes as hex")
	}
	for name, s := range map[string]string{
		"a secret":         "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5",
		"a damaged npub":   npub[:62] + "q",
		"mixed case":       "npub1" + strings.ToUpper(npub[5:]),
		"a long npub":      npub + npub,
		"a short npub":     "npub1",
		"not of the curve": "npub1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqzqujme",
	} {
		if _, err := nip.ParseAnyPubKey(s); err == nil {
			t.Errorf("%s passes", name)
		}
	}
}

func TestNewID(t *testing.T) {
	id, err := nip.NewID(bytes.NewReader(bytes.Repeat([]byte{0xab}, 32)))
	if err != nil || id != strings.Repeat("ab", 32) {
		t.Errorf("%s %v", id, err)
	}
	if _, err := nip.NewID(strings.NewReader("short")); err == nil {
		t.Error("a short source passes")
	}
}
