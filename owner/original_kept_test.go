package owner

import (
	"os"
	"strings"
	"testing"
)

// What is served of a task's changes, and what never is, also where the store has it.
func TestOriginalKept(t *testing.T) {
	w := newWorkbench(t)
	for _, id := range []TaskID{"t", "u"} {
		w.submit(id, PromptCommand)
	}
	first := w.execute("t", w.grant("t", "echo one >new", writing), nil)
	w.nextTurn("t", "second")
	second := w.execute("t", w.grant("t", "echo two >new", writing), nil)
	w.nextTurn("t", "third")
	w.execute("t", w.grant("t", "true", writing), nil)
	w.execute("u", w.grant("u", "echo of u >new", writing), nil)
	task := w.get("t")
	ref, err := w.s.ChangesOf(&task)
	if err != nil || ref == nil || ref.Turn != 2 || ref.Digest != second.Run.Result.Artifacts {
		t.Fatalf("%+v, %v", ref, err)
	}
	hash := func(d Digest) string { return strings.TrimPrefix(string(d), "sha256:") }
	file := func(text string) string { return "artifact:" + hash(DigestOf([]byte(text))) }
	for _, r := range []struct{ source, code, text string }{
		{"manifest:1", "", ""},
		{"manifest:2", "", ""},
		{"manifest:3", "not_found", ""}, // it changed nothing
		{"manifest:4", "not_found", ""},
		{"manifest:0", "not_found", ""},
		{"manifest:-1", "not_found", ""},
		{"manifest:01", "invalid_command", ""},
		{"manifest:", "invalid_command", ""},
		{file("one\n"), "", "one\n"},
		{file("two\n"), "", "two\n"},
		{file("of u\n"), "not_found", ""},
		{"artifact:" + hash(first.Run.Result.Artifacts), "not_found", ""}, // a manifest is no file
		{"artifact:" + hash(first.Run.Admission.GrantDigest), "not_found", ""},
		{"artifact:" + strings.ToUpper(hash(DigestOf([]byte("one\n")))), "invalid_command", ""},
		{"artifact:../../../host.key", "invalid_command", ""},
		{"artifact", "invalid_command", ""},
		{"blob:1", "invalid_command", ""},
	} {
		for range 2 { // read, and as it is remembered
			b, total, digest, err := w.s.Original("t", r.source, 0, maxOriginal)
			wantCode(t, err, r.code)
			if r.code == "" && (DigestOf(b) != digest || int64(len(b)) != total || r.text != "" && string(b) != r.text) {
				t.Fatalf("%s: %q, %d, %s", r.source, b, total, digest)
			}
		}
	}
	b, total, _, err := w.s.Original("t", file("one\n"), 2, 1)
	if err != nil || string(b) != "e" || total != 4 {
		t.Fatalf("%q of %d, %v", b, total, err)
	}
	if b, _, _, err = w.s.Original("t", file("one\n"), 4, 1); err != nil || len(b) != 0 {
		t.Fatalf("%q, %v", b, err)
	}
	_, _, _, err = w.s.Original("t", file("one\n"), 5, 1)
	wantCode(t, err, "limit_exceeded")

	// Damage under a digest that was served before.
	name := hash(DigestOf([]byte("one\n")))
	path := w.home + "/blobs/sha256/" + name[:2] + "/" + name
	writeFile(t, path, []byte("0ne\n"))
	_, _, _, err = w.s.Original("t", file("one\n"), 0, 4)
	wantErr(t, err, ErrCorrupt)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_, _, _, err = w.s.Original("t", file("one\n"), 0, 4)
	wantErr(t, err, ErrCorrupt)
}
