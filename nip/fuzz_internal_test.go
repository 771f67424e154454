package nip

import (
	"bytes"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
)

func FuzzDecrypt44(f *testing.F) {
	key := bytes.Repeat([]byte{7}, 32)
	for _, n := range []int{1, 32, 33, 300} {
		s, err := encrypt44(key, bytes.Repeat([]byte("a"), n), nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(s, []byte(s))
	}
	f.Add(strings.Repeat("\n", 132), []byte{0, 0, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, payload string, padded []byte) {
		if plain, err := decrypt44(key, payload); err == nil && len(plain) == 0 {
			t.Fatal("an empty plaintext")
		}
		// The same, past the MAC: any padding under a good one.
		if len(padded) < 34 || len(padded) > 1<<18 {
			return
		}
		s, err := seal44(key, make([]byte, 32), padded)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := decrypt44(key, s)
		if err != nil || len(plain) > maxShortPlain {
			return
		}
		if again, err := encrypt44(key, plain, make([]byte, 32)); err != nil || len(again) != len(s) {
			t.Fatalf("%d characters became %d (%v)", len(s), len(again), err)
		}
	})
}

// FuzzOpen gives an honest, signed event any plaintext at all.
func FuzzOpen(f *testing.F) {
	a, err := EncodeGrant(testGrant())
	if err != nil {
		f.Fatal(err)
	}
	plain, err := encodeEnvelope(a)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain, int64(1790000000))
	f.Add([]byte("{}"), int64(0))
	f.Fuzz(func(t *testing.T, plain []byte, at int64) {
		if len(plain) == 0 || len(plain) > maxShortPlain || at < 0 || at > maxInt {
			return
		}
		v := forge(t, plain, at)
		o, err := Open(v, scalar(3))
		var e *Error
		if err != nil {
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
			return
		}
		ev, err := Seal(scalar(1), scalar(3).Public(), o.Mailbox, o.Artifact, nil)
		if errors.As(err, &e) && e.Code == Bounds {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := VerifyEvent(ev)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := Open(again, scalar(3)); err != nil || p.Digest != o.Digest || !bytes.Equal(p.Inline, o.Inline) {
			t.Fatalf("%s became %s (%v)", o.Inline, p.Inline, err)
		}
	})
}

// What a stranger can make us allocate is bounded by a small multiple of what he
// sent, whatever the shape.
func TestHostileAllocations(t *testing.T) {
	const n = 120_000
	shapes := map[string]string{
		"open brackets":  strings.Repeat("[", n),
		"closed nests":   strings.Repeat("[", 64) + strings.Repeat("]", 64),
		"empty objects":  "[" + strings.TrimSuffix(strings.Repeat("{},", n/3), ",") + "]",
		"small integers": "[" + strings.TrimSuffix(strings.Repeat("1,", n/2), ",") + "]",
		"many members":   manyMembers(n / 10),
		"escapes":        `"` + strings.Repeat(`\u0001`, n/6) + `"`,
		"one long name":  `{"` + strings.Repeat("a", n) + `":1}`,
	}
	for name, s := range shapes {
		for where, in := range map[string]string{
			"bare": s, "as requires": `{"v":"x","requires":` + s + `}`, "as op": `{"op":` + s + `}`,
			"as result": `{"v":"openagents.host-reply.v1","requires":[],"request":"a","request_event":"a","host":"a","issued_at":1,"expires_at":2,"result":` + s + `}`,
			"as tags":   `{"id":"a","pubkey":"a","created_at":1,"kind":1,"content":"","sig":"","tags":` + s + `}`,
		} {
			t.Run(name+" "+where, func(t *testing.T) {
				b := []byte(in)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				_, err1 := Canonical(b)
				_, err2 := ParseRequest(b, Profile{})
				_, err3 := ParseReply(b)
				_, err4 := ParseEvent(b)
				_, err5 := ParseGrant(b, Profile{})
				runtime.ReadMemStats(&after)
				if err2 == nil || err3 == nil || err4 == nil || err5 == nil {
					t.Errorf("something passes: %v %v %v %v %v", err1, err2, err3, err4, err5)
				}
				if got := after.TotalAlloc - before.TotalAlloc; got > uint64(200*len(b)+1<<16) {
					t.Errorf("%d bytes allocated for %d", got, len(b))
				}
			})
		}
	}
}

func manyMembers(n int) string {
	m := make(map[string]int, n)
	for i := range n {
		m[strings.Repeat("k", i%3)+string(rune('a'+i%26))+string(rune(0x4e00+i))] = i
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(b)
}
