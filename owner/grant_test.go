package owner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

const aDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// publicGrant is a valid grant of the public schema with members replaced; a nil value takes one away.
func publicGrant(t testing.TB, change map[string]any) []byte {
	return grantWith(t, map[string]any{
		"schema": PublicGrantSchema, "task_id": "t", "intent_digest": aDigest, "expected_revision": 1,
		"program": "/usr/bin/dash", "arguments": []string{"-c", "true"}, "write_workspace": false,
		"wall_seconds": 60, "stream_bytes": 65536, "memory_bytes": 1 << 30,
	}, change)
}

// ourGrant is the same for our own schema.
func ourGrant(t testing.TB, change map[string]any) []byte {
	return grantWith(t, map[string]any{
		"schema": GrantSchema, "task_id": "t", "intent_digest": aDigest, "expected_revision": 1, "expected_source_snapshot": absent{},
		"program": "/usr/bin/dash", "arguments": []string{}, "write_workspace": true,
		"wall_seconds": 60, "stream_bytes": 65536, "memory_bytes": 1 << 30, "requirements": absent{}, "adapter_configuration": absent{},
		"adapter": PromptCommand, "network": "none", "read": []string{}, "environment": []string{},
		"git": "read", "degraded": false, "policy_digest": absent{},
	}, change)
}

// absent encodes as null, where nil means that the member is not there.
type absent struct{}

func (absent) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

func grantWith(t testing.TB, doc, change map[string]any) []byte {
	t.Helper()
	for k, v := range change {
		doc[k] = v
		if v == nil {
			delete(doc, k)
		}
	}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseGrantMeaning(t *testing.T) {
	g, err := ParseGrant(publicGrant(t, map[string]any{"intent_digest": aDigest[len("sha256:"):]}))
	if err != nil {
		t.Fatal(err)
	}
	want := Grant{Schema: PublicGrantSchema, TaskID: "t", IntentDigest: aDigest, ExpectedRevision: 1, Program: "/usr/bin/dash",
		Arguments: []string{"-c", "true"}, WallSeconds: 60, StreamBytes: 65536, MemoryBytes: 1 << 30,
		Adapter: BoundedCommand, Network: json.RawMessage(`"none"`), Read: []string{}, Environment: []string{}, Git: "read"}
	if !reflect.DeepEqual(g, want) {
		t.Fatalf("public grant\n got %+v\nwant %+v", g, want)
	}
	g, err = ParseGrant(ourGrant(t, map[string]any{"network": map[string]any{"allow": []string{"example.org:443"}}, "read": []string{"/opt/x"},
		"environment": []string{"A_KEY"}, "git": "hidden", "degraded": true, "policy_digest": aDigest}))
	if err != nil {
		t.Fatal(err)
	}
	want = Grant{Schema: GrantSchema, TaskID: "t", IntentDigest: aDigest, ExpectedRevision: 1, Program: "/usr/bin/dash",
		Arguments: []string{}, Write: true, WallSeconds: 60, StreamBytes: 65536, MemoryBytes: 1 << 30,
		Adapter: PromptCommand, Network: json.RawMessage(`{"allow":["example.org:443"]}`), Read: []string{"/opt/x"},
		Environment: []string{"A_KEY"}, Git: "hidden", Degraded: true, PolicyDigest: aDigest}
	if !reflect.DeepEqual(g, want) {
		t.Fatalf("our grant\n got %+v\nwant %+v", g, want)
	}
}

func TestParseGrantBounds(t *testing.T) {
	many := func(n int, s string) []string {
		l := make([]string, n)
		for i := range l {
			l[i] = fmt.Sprintf(s, i)
		}
		return l
	}
	allow := func(s string) map[string]any {
		return map[string]any{"network": map[string]any{"allow": []string{s}}}
	}
	type row struct {
		name   string
		change map[string]any
		code   string // "" accepts
	}
	for _, r := range []row{
		{"wall 0", map[string]any{"wall_seconds": 0}, "invalid_command"},
		{"wall 3600", map[string]any{"wall_seconds": 3600}, ""},
		{"wall 3601", map[string]any{"wall_seconds": 3601}, "invalid_command"},
		{"wall fraction", map[string]any{"wall_seconds": 1.5}, "invalid_command"},
		{"wall text", map[string]any{"wall_seconds": "60"}, "invalid_command"},
		{"stream 1023", map[string]any{"stream_bytes": 1023}, "invalid_command"},
		{"stream 1024", map[string]any{"stream_bytes": 1024}, ""},
		{"stream over", map[string]any{"stream_bytes": 1<<20 + 1}, "invalid_command"},
		{"memory under", map[string]any{"memory_bytes": 64<<20 - 1}, "invalid_command"},
		{"memory least", map[string]any{"memory_bytes": 64 << 20}, ""},
		{"memory over", map[string]any{"memory_bytes": int64(8)<<30 + 1}, "invalid_command"},
		{"128 arguments", map[string]any{"arguments": many(128, "%d")}, ""},
		{"129 arguments", map[string]any{"arguments": many(129, "%d")}, "invalid_command"},
		{"NUL argument", map[string]any{"arguments": []string{"a\x00b"}}, "invalid_command"},
		{"number as argument", map[string]any{"arguments": []any{1}}, "invalid_command"},
		{"relative program", map[string]any{"program": "bin/sh"}, "invalid_command"},
		{"unclean program", map[string]any{"program": "/bin/../bin/sh"}, "invalid_command"},
		{"no program", map[string]any{"program": nil}, "invalid_command"},
		{"revision 0", map[string]any{"expected_revision": 0}, "invalid_command"},
		{"short digest", map[string]any{"intent_digest": "abc"}, "invalid_command"},
		{"upper digest", map[string]any{"intent_digest": strings.ToUpper(aDigest[7:])}, "invalid_command"},
		{"bad task", map[string]any{"task_id": ".x"}, "invalid_command"},
		{"null snapshot", map[string]any{"expected_source_snapshot": absent{}}, ""},
		{"a snapshot", map[string]any{"expected_source_snapshot": aDigest[7:]}, ""},
		{"a snapshot that is no digest", map[string]any{"expected_source_snapshot": "v1"}, "invalid_command"},
		{"requirements of another schema", map[string]any{"requirements": map[string]any{}}, "unsupported_schema"},
		{"adapter configuration", map[string]any{"adapter_configuration": map[string]any{}}, "unsupported_schema"},
		{"unknown member", map[string]any{"extra": 1}, "invalid_command"},
		{"other case", map[string]any{"Program": "/bin/sh"}, "invalid_command"},
		{"our member", map[string]any{"network": "host"}, "invalid_command"},
		{"other schema", map[string]any{"schema": "holdfast.execution-grant.v2"}, "unsupported_schema"},
	} {
		t.Run("public/"+r.name, func(t *testing.T) {
			_, err := ParseGrant(publicGrant(t, r.change))
			wantCode(t, err, r.code)
		})
	}
	rows := []row{
		{"wall a day", map[string]any{"wall_seconds": 86400}, ""},
		{"wall over a day", map[string]any{"wall_seconds": 86401}, "invalid_command"},
		{"bounded wall", map[string]any{"wall_seconds": 3601, "adapter": BoundedCommand}, "invalid_command"},
		{"unknown adapter", map[string]any{"adapter": "repository"}, "invalid_command"},
		{"host network", map[string]any{"network": "host"}, ""},
		{"unknown network", map[string]any{"network": "lan"}, "invalid_command"},
		{"allow a name", allow("a-1.example:1"), ""},
		{"allow nothing", map[string]any{"network": map[string]any{"allow": []string{}}}, "invalid_command"},
		{"allow a private address", allow("10.0.0.1:80"), ""},
		{"allow an address of six", allow("[fd12::1]:443"), ""},
		{"allow loopback", allow("127.0.0.1:80"), "invalid_command"},
		{"allow localhost", allow("localhost:80"), "invalid_command"},
		{"allow metadata", allow("169.254.169.254:80"), "invalid_command"},
		{"allow an address in another spelling", allow("0x0a.0.0.1:80"), "invalid_command"},
		{"allow upper case", allow("Example.org:80"), "invalid_command"},
		{"allow a wildcard", allow("*.example:80"), "invalid_command"},
		{"allow port 0", allow("example:0"), "invalid_command"},
		{"allow port 080", allow("example:080"), "invalid_command"},
		{"allow and more", map[string]any{"network": map[string]any{"allow": []string{"a.b:1"}, "deny": 1}}, "invalid_command"},
		{"32 reads", map[string]any{"read": many(32, "/opt/%d")}, ""},
		{"33 reads", map[string]any{"read": many(33, "/opt/%d")}, "invalid_command"},
		{"relative read", map[string]any{"read": []string{"opt"}}, "invalid_command"},
		{"read the root", map[string]any{"read": []string{"/"}}, "invalid_command"},
		{"33 names", map[string]any{"environment": many(33, "N%d")}, "invalid_command"},
		{"name with =", map[string]any{"environment": []string{"A=b"}}, "invalid_command"},
		{"name twice", map[string]any{"environment": []string{"A", "A"}}, "invalid_command"},
		{"git write", map[string]any{"git": "write"}, "invalid_command"},
		{"degraded null", map[string]any{"degraded": absent{}}, "invalid_command"},
		{"policy digest", map[string]any{"policy_digest": aDigest}, ""},
	}
	for _, member := range []string{"schema", "task_id", "intent_digest", "expected_revision", "expected_source_snapshot", "program",
		"arguments", "write_workspace", "wall_seconds", "stream_bytes", "memory_bytes", "requirements", "adapter_configuration",
		"adapter", "network", "read", "environment", "git", "degraded", "policy_digest"} {
		rows = append(rows, row{"without " + member, map[string]any{member: nil}, "invalid_command"})
	}
	for _, r := range rows {
		t.Run("ours/"+r.name, func(t *testing.T) {
			_, err := ParseGrant(ourGrant(t, r.change))
			wantCode(t, err, r.code)
		})
	}
}

func TestParseGrantIsStrictJSON(t *testing.T) {
	good := string(ourGrant(t, nil))
	for _, r := range []struct{ name, text string }{
		{"duplicate member", strings.Replace(good, "{", `{"git":"read",`, 1)},
		{"trailing bytes", good + "{}"},
		{"not an object", "[]"},
		{"empty", ""},
		{"bad UTF-8", strings.Replace(good, "/usr/bin/dash", "/usr/bin/\xff", 1)},
		{"lone surrogate", strings.Replace(good, "/usr/bin/dash", `/usr/bin/\ud800`, 1)},
		{"too long", good + strings.Repeat(" ", maxGrantBytes-len(good)+1)},
		{"deep", strings.Repeat("[", 60_000)},
	} {
		t.Run(r.name, func(t *testing.T) {
			_, err := ParseGrant([]byte(r.text))
			wantCode(t, err, "invalid_command")
		})
	}
	if _, err := ParseGrant([]byte(good + strings.Repeat(" ", maxGrantBytes-len(good)))); err != nil {
		t.Fatalf("white space up to the bound: %v", err)
	}
}

func TestEncodeGrant(t *testing.T) {
	for _, in := range [][]byte{ourGrant(t, map[string]any{"policy_digest": aDigest, "arguments": []string{"<&>", "\u2028"}}), publicGrant(t, nil)} {
		g, err := ParseGrant(in)
		if err != nil {
			t.Fatal(err)
		}
		b, err := EncodeGrant(g)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseGrant(b)
		if err != nil {
			t.Fatal(err)
		}
		g.Schema = GrantSchema
		if !reflect.DeepEqual(again, g) {
			t.Fatalf("read again\n got %+v\nwant %+v", again, g)
		}
		if twice, err := EncodeGrant(again); err != nil || !bytes.Equal(twice, b) {
			t.Fatalf("encoded again: %v\n%s\n%s", err, twice, b)
		}
	}
	_, err := EncodeGrant(Grant{})
	wantCode(t, err, "invalid_command")
}

func FuzzParseGrant(f *testing.F) {
	f.Add(publicGrant(f, nil))
	f.Add(publicGrant(f, map[string]any{"task_id": "t", "requirements": someRequirements()}))
	f.Add(ourGrant(f, map[string]any{"network": map[string]any{"allow": []string{"example.org:443"}}, "environment": []string{"A"}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := ParseGrant(b)
		if err != nil {
			if isRefusal(err, "invalid_command") || isRefusal(err, "unsupported_schema") {
				return
			}
			t.Fatalf("not a refusal: %v", err)
		}
		out, err := EncodeGrant(g)
		if err != nil {
			if len(b) < maxGrantBytes/8 {
				t.Fatalf("accepted but not encoded: %v", err)
			}
			return // escaping can take a document over the bound
		}
		again, err := ParseGrant(out)
		g.Schema = GrantSchema
		if err != nil || !reflect.DeepEqual(again, g) {
			t.Fatalf("read again: %v\n got %+v\nwant %+v", err, again, g)
		}
	})
}
