package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/owner"
	"holdfast/sandbox"
)

// task view --atif writes one document, to standard output or to a new file, and says what is not whole.
func TestViewATIF(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	s, err := owner.Open(home, owner.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	c := owner.Command{CommandID: "c", TaskID: "t", Action: owner.Action{Submit: &owner.Intent{Title: "a", Prompt: "p",
		Workspace: owner.Workspace{Path: "/w"}, Configuration: owner.Configuration{Adapter: owner.BoundedCommand}}}}
	b, err := owner.EncodeCommand(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(context.Background(), "t", 1, owner.Event{Admitted: &owner.Admission{GrantDigest: owner.DigestOf(nil), Adapter: owner.BoundedCommand,
		Workspace: "/w", Program: "/bin/sh", ProgramDigest: owner.DigestOf(nil), Network: json.RawMessage(`"none"`), Prompt: owner.DigestOf([]byte("p")),
		ReadRevision: 1, TraceFile: owner.TraceName(1), Owner: sandbox.Identity{PID: 7, BootID: "b"}, At: 1}}); err != nil {
		t.Fatal(err)
	}
	trace := `{"type":"session","id":"t-1","agent":{"name":"holdfast","version":"1"},"at":1}` + "\n" +
		`{"type":"step","step_id":1,"at":1,"source":"user","message":"p"}` + "\nx\n" + `{"type":"end","state":"ended"}` + "\n"
	if err := os.WriteFile(filepath.Join(s.TaskDir("t"), owner.TraceName(1)), []byte(trace), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "host.db"), nil, 0o600); err != nil { // a home is known by it
		t.Fatal(err)
	}
	verb := func(want int, args ...string) (stdout, stderr string) {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(append([]string{"task", "view", "t", "--home", home}, args...), strings.NewReader(""), &out, &errs); code != want {
			t.Fatalf("%v: exit %d, %s", args, code, errs.String())
		}
		return out.String(), errs.String()
	}
	doc, said := verb(exitOK, "--atif")
	if !json.Valid([]byte(doc)) || !strings.Contains(doc, `"ATIF-v1.7"`) || !strings.Contains(said, "line 3 not_json") {
		t.Fatalf("%s\n%s", doc, said)
	}
	path := filepath.Join(t.TempDir(), "f.json")
	if out, _ := verb(exitOK, "--atif", "--output", path); !strings.Contains(out, "1 steps in "+path) || !strings.Contains(out, "line 3 not_json") {
		t.Fatal(out)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != doc {
		t.Fatalf("%v, %s", err, b)
	}
	// Never over a file, and nothing of a refused export.
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	verb(exitFailed, "--atif", "--output", path)
	if b, _ := os.ReadFile(path); string(b) != "mine" {
		t.Fatalf("%s", b)
	}
	other := filepath.Join(filepath.Dir(path), "g.json")
	verb(exitFailed, "--atif", "--turn", "2", "--output", other)
	if list, _ := os.ReadDir(filepath.Dir(path)); len(list) != 1 {
		t.Fatalf("%d files", len(list))
	}
	out, _ := verb(exitOK, "--atif", "--turn", "1", "--output", other, "--json")
	var d struct {
		Output, Notes string
		Steps         int
	}
	if json.Unmarshal([]byte(out), &d) != nil || d.Output != other || d.Steps != 1 || d.Notes == "" {
		t.Fatal(out)
	}
	for _, args := range [][]string{{"--turn", "1"}, {"--output", "x"}, {"--atif", "--limit", "3"}, {"--atif", "--cursor", "{}"},
		{"--atif", "--turn", "0"}, {"--atif", "--output", ""}} {
		verb(exitUsage, args...)
	}
}
