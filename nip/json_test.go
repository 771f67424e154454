package nip_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"

	"holdfast/nip"
)

// wantFault demands an error of this package with a code and a layer.
func wantFault(t *testing.T, err error, code nip.Code, layer string) {
	t.Helper()
	var e *nip.Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v, want %s of layer %s", err, code, layer)
	}
	if e.Code != code || e.Layer != layer {
		t.Errorf("%v, want %s of layer %s", e, code, layer)
	}
}

func TestCanonicalRefuses(t *testing.T) {
	nest := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, row := range []struct {
		name, in string
		code     nip.Code
	}{
		{"nothing", "", nip.Malformed},
		{"white space", " \n", nip.Malformed},
		{"byte order mark", "\ufeff{}", nip.Malformed},
		{"trailing value", "{} {}", nip.Malformed},
		{"trailing comma", "{},", nip.Malformed},
		{"trailing brace", "{}}", nip.Malformed},
		{"trailing nul", "{}\x00", nip.Malformed},
		{"cut", `{"a":`, nip.Malformed},
		{"comment", "{}//", nip.Malformed},
		{"repeated name", `{"a":1,"a":1}`, nip.Malformed},
		{"repeated name, escaped", `{"a":1,"\u0061":2}`, nip.Malformed},
		{"repeated name, deep", `[{"b":{"a":1,"a":2}}]`, nip.Malformed},
		{"invalid UTF-8 in a value", "{\"a\":\"\xff\"}", nip.Malformed},
		{"invalid UTF-8 in a name", "{\"\xff\":1}", nip.Malformed},
		{"lone high surrogate", `"\ud800"`, nip.Malformed},
		{"lone low surrogate", `"\udc00"`, nip.Malformed},
		{"surrogates swapped", `"\udc00\ud800"`, nip.Malformed},
		{"raw control character", "\"a\tb\"", nip.Malformed},
		{"raw line end", "\"a\nb\"", nip.Malformed},
		{"single quotes", `{'a':1}`, nip.Malformed},
		{"leading zero", `01`, nip.Malformed},
		{"plus sign", `+1`, nip.Malformed},
		{"not a number", `NaN`, nip.Malformed},
		{"fraction", `1.0`, nip.Malformed},
		{"exponent", `1e3`, nip.Malformed},
		{"capital exponent", `1E3`, nip.Malformed},
		{"beyond 2^53-1", `9007199254740992`, nip.Malformed},
		{"beyond -(2^53-1)", `-9007199254740992`, nip.Malformed},
		{"beyond 64 bits", `[18446744073709551616]`, nip.Malformed},
		{"65 deep", nest(65), nip.Bounds},
		{"100,000 deep", strings.Repeat("[", 100_000), nip.Bounds},
		{"over 1 MiB", `"` + strings.Repeat("a", 1<<20) + `"`, nip.Bounds},
	} {
		t.Run(row.name, func(t *testing.T) {
			out, err := nip.Canonical([]byte(row.in))
			wantFault(t, err, row.code, "json")
			if out != nil {
				t.Errorf("output %q came with an error", out)
			}
		})
	}
}

func TestCanonicalForm(t *testing.T) {
	nest := strings.Repeat("[", 64) + strings.Repeat("]", 64)
	for _, row := range []struct{ name, in, want string }{
		{"order and white space", " { \"b\" : 1 ,\n\"a\":[ true, null ] } ", `{"a":[true,null],"b":1}`},
		{"names by UTF-16 unit", `{"\ufb33":1,"\ud83d\ude00":2,"\u20ac":3,"1":4,"\r":5,"\u00f6":6}`,
			"{\"\\r\":5,\"1\":4,\"\u00f6\":6,\"\u20ac\":3,\"\U0001f600\":2,\"\ufb33\":1}"},
		{"escapes", `"\u0008\u0009\u000a\u000c\u000d\u0022\u005c\/\u001f\u007f\u00e9"`,
			`"\b\t\n\f\r\"\\/\u001f` + "\u007f\u00e9\""},
		{"control in lower case hex", `"\u001F"`, `"\u001f"`},
		{"largest integer", `9007199254740991`, `9007199254740991`},
		{"smallest integer", `-9007199254740991`, `-9007199254740991`},
		{"minus zero", `-0`, `0`},
		{"64 deep", nest, nest},
		{"empty name", `{"":""}`, `{"":""}`},
		{"names that differ in case", `{"a":1,"A":2}`, `{"A":2,"a":1}`},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := nip.Canonical([]byte(row.in))
			if err != nil || string(got) != row.want {
				t.Errorf("%s %v, want %s", got, err, row.want)
			}
			again, err := nip.Canonical(got)
			if err != nil || string(again) != row.want {
				t.Errorf("not stable: %s %v", again, err)
			}
		})
	}
}

// Names are sorted by UTF-16 code unit at every level, which differs from byte
// order only beyond the basic plane; and no value is changed.
func TestCanonicalProperty(t *testing.T) {
	name := rapid.StringOfN(rapid.RuneFrom([]rune{'a', 'Z', '0', '"', '\\', '\n', 0x1f, 0x7f, 0xe9, 0x20ac, 0xd7ff,
		0xe000, 0xfb33, 0xfffd, 0xffff, 0x10000, 0x1f600, 0x10ffff}), 0, 4, -1)
	leaf := rapid.OneOf(
		rapid.Map(rapid.Int64Range(-(1<<53-1), 1<<53-1), func(n int64) any { return n }),
		rapid.Map(name, func(s string) any { return s }),
		rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Just[any](nil),
	)
	object := rapid.MapOfN(name, leaf, 0, 6)
	nested := rapid.MapOfN(name, rapid.OneOf(leaf,
		rapid.Map(object, func(m map[string]any) any { return m }),
		rapid.Map(rapid.SliceOfN(leaf, 0, 4), func(l []any) any { return l }),
	), 0, 6)
	rapid.Check(t, func(t *rapid.T) {
		in, err := json.MarshalIndent(nested.Draw(t, "value"), " ", "\t")
		if err != nil {
			t.Fatal(err)
		}
		out, err := nip.Canonical(in)
		if err != nil {
			t.Fatal(err)
		}
		checkOrder(t, json.NewDecoder(strings.NewReader(string(out))))
		var before, after any
		if json.Unmarshal(in, &before) != nil || json.Unmarshal(out, &after) != nil {
			t.Fatal("not JSON")
		}
		a, _ := json.Marshal(before)
		b, _ := json.Marshal(after)
		if string(a) != string(b) {
			t.Fatalf("a value changed: %s to %s", a, b)
		}
		if again, err := nip.Canonical(out); err != nil || string(again) != string(out) {
			t.Fatalf("not stable: %s %v", again, err)
		}
	})
}

func checkOrder(t *rapid.T, dec *json.Decoder) {
	tok, err := dec.Token()
	if err != nil {
		t.Fatal(err)
	}
	if tok != json.Delim('{') && tok != json.Delim('[') {
		return
	}
	var last []uint16
	for first := true; dec.More(); first = false {
		if tok == json.Delim('{') {
			name, err := dec.Token()
			if err != nil {
				t.Fatal(err)
			}
			units := utf16.Encode([]rune(name.(string)))
			if !first && slices.Compare(last, units) >= 0 {
				t.Fatalf("%x stands before %x", last, units)
			}
			last = units
		}
		checkOrder(t, dec)
	}
	if _, err := dec.Token(); err != nil {
		t.Fatal(err)
	}
}

// A transcript step may hold fractions; a number whose canonical form would be
// an integer that readers refuse has none.
func TestStepNumbers(t *testing.T) {
	for in, want := range map[string]string{
		"0.1": "0.1", "1.0": "1", "1e3": "1000", "-0.0": "0", "1e21": "1e+21", "5e-324": "5e-324", "2.50": "2.5",
		"9007199254740991.0": "9007199254740991",
		"9007199254740992.0": "", "1e20": "", "1e400": "", "-1e20": "", "9007199254740992": "",
	} {
		evidence := pageObject()["evidence"].(obj)
		step := obj{"kind": "original", "index": 0, "step": obj{"a": json.Number(in)}}
		page := with(pageObject(), obj{"evidence": with(evidence, obj{"steps": []any{step}})})
		p, err := nip.ParseReply(bytesOf(t, replyObject(ok(obj{"kind": "task", "task": page}))))
		if want == "" {
			wantFault(t, err, nip.Malformed, "json")
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", in, err)
		}
		if got := string(p.Outcome.(nip.TaskPage).Task.Evidence.Steps[0].Step); got != `{"a":`+want+`}` {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
	}
}

func TestDigestOf(t *testing.T) {
	want := nip.Digest("sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
	if got := nip.DigestOf(nil); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
