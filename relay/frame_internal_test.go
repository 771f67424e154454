package relay

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func FuzzParseFrame(f *testing.F) {
	for _, s := range []string{
		`["EVENT","`, `["EVENT","s",{"id":"x"}]`, `["OK","x",true,"duplicate: y"]`, `["EOSE","s"]`, `["CLOSED","s","error: x"]`,
		`["NOTICE","\u202e"]`, `["AUTH","c"]`, `[]`, `["X",[[[]]]]`, `["OK","x",true,"` + strings.Repeat("é", 200) + `"]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := parseFrame(b)
		if err != nil {
			if fr.label != "" || fr.event != nil {
				t.Fatal("an error with a value")
			}
			return
		}
		if len(fr.sub) > maxSubID || len(fr.id) > 64 || len(fr.message) > maxChallenge {
			t.Fatalf("a member beyond its bound: %+v", fr)
		}
		if fr.label != "AUTH" && (len(fr.message) > maxMessage || !utf8.ValidString(fr.message)) {
			t.Fatalf("words %q", fr.message)
		}
		if fr.label == "EVENT" && (len(fr.event) == 0 || fr.event[0] != '{') {
			t.Fatalf("event %q", fr.event)
		}
	})
}

func TestPrefix(t *testing.T) {
	for message, want := range map[string]string{
		"auth-required: x": "auth-required", "duplicate:": "duplicate", "error: a: b": "error",
		"": "", ": x": "", "no colon": "", "Two words: x": "", "UPPER: x": "", strings.Repeat("a", 40) + ": x": "",
	} {
		if got := Prefix(message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}

func TestEncodeFrame(t *testing.T) {
	got := string(EncodeFrame("OK", "a\"b\xff", true, []byte(`{"x":1}`)))
	if want := `["OK","a\"b` + "\ufffd" + `",true,{"x":1}]`; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}

func TestBackoffBounds(t *testing.T) {
	b := backoff{first: retryFirst, last: retryLast}
	for i := range 80 {
		full := min(retryFirst<<min(i, 10), retryLast)
		if d := b.next(); d < full/2 || d > full || d < 500*time.Millisecond {
			t.Fatalf("try %d waits %v, want %v to %v", i, d, full/2, full)
		}
	}
}
