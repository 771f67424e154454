package owner

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"holdfast/internal/runnable"
	"holdfast/owner/snapshot"
)

// patchOf is a turn's patch with its manifest.
func (w *workbench) patchOf(id TaskID, turn int) ([]byte, Changes) {
	w.t.Helper()
	p, m, err := w.s.Patch(context.Background(), id, turn)
	if err != nil {
		w.t.Fatal(err)
	}
	return p, m
}

// clone is a checkout of a commit that nothing of the task has touched.
func (w *workbench) clone(commit string) string {
	w.t.Helper()
	dir := filepath.Join(w.dir, "clone")
	w.git("clone", "-q", "--no-checkout", w.repo, dir)
	w.in(dir, "checkout", "-q", "--detach", commit)
	return dir
}

func (w *workbench) in(dir string, args ...string) {
	w.t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1"}
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// wantTree fails unless the folder has exactly the content of a snapshot.
func wantTree(t testing.TB, dir string, want Digest) {
	t.Helper()
	tree, err := snapshot.Take(context.Background(), dir, snapshot.Options{Exclude: excluded, At: time.Now()})
	if err != nil || treeDigest(tree) != want {
		t.Fatalf("the folder is %s, want %s: %v", treeDigest(tree), want, err)
	}
}

func states(m Changes) map[string]string {
	s := map[string]string{}
	for _, c := range m.Changes {
		s[c.Path] = c.Kind + " " + c.State
	}
	return s
}

// TestPatchMakesTheCandidate: two turns, every kind of change; their patches, read when workspace and repository are
// gone, make exactly the candidates out of the commit.
func TestPatchMakesTheCandidate(t *testing.T) {
	w := newWorkbench(t)
	if err := os.Mkdir(filepath.Join(w.repo, "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(w.repo, "old", "bin"), []byte("\x00\x01binary\xff"))
	writeFile(t, filepath.Join(w.repo, "gone"), []byte("no newline at the end"))
	writeFile(t, filepath.Join(w.repo, "moved from"), []byte("moves\n"))
	writeFile(t, filepath.Join(w.repo, "script"), []byte("#!/bin/sh\n"))
	w.git("add", "-A")
	w.git("commit", "-q", "-m", "more")
	w.submit("t", PromptCommand)
	first := w.execute("t", w.grant("t", `echo more >>file; rm gone; mv "moved from" "moved \"to\" \\here"; chmod +x script
printf '\000\002\377' >old/bin; printf '\377\000new' >made.bin; mkdir -p new/deep; : >new/deep/empty; ln -s ../file new/link
printf 'a\r\nb' >new/crlf`, writing), nil)
	wantEnding(t, first, Finished, ExecFinished, "exit 0")
	w.nextTurn("t", "second")
	second := w.execute("t", w.grant("t", `echo once more >>file; rm -r new/deep; rm new/link; ln -s file new/link; rm made.bin; echo x >made.bin
rm -r old; echo now a file >old`, writing), nil)
	wantEnding(t, second, Finished, ExecFinished, "exit 0")

	clone := w.clone(first.Run.Admission.SourceRevision)
	for _, gone := range []string{w.repo, first.Worktree.Path} {
		if err := os.RemoveAll(gone); err != nil {
			t.Fatal(err)
		}
	}
	wantTree(t, clone, first.Run.Admission.SourceSnapshot)
	for i, run := range []*Run{first.Run, second.Run} {
		patch, m := w.patchOf("t", i+1)
		if !m.Complete || m.Omitted != 0 {
			t.Fatalf("turn %d is not complete: %v", i+1, states(m))
		}
		file := filepath.Join(w.dir, "patch")
		writeFile(t, file, patch)
		w.in(clone, "apply", file)
		wantTree(t, clone, run.Result.Candidate)
	}
	c, b, err := w.s.Artifact("t", 1, "made.bin")
	if err != nil || string(b) != "\xff\x00new" || c.Kind != "added" || c.After.Digest != DigestOf(b) {
		t.Fatalf("%+v, %q, %v", c, b, err)
	}
	if _, b, err = w.s.Artifact("t", 0, "made.bin"); err != nil || string(b) != "x\n" {
		t.Fatalf("the newest turn's is %q, %v", b, err)
	}
	for path, code := range map[string]string{"gone": "not_found", "never": "not_found", "/etc/passwd": "not_found", "../file": "not_found"} {
		if _, _, err := w.s.Artifact("t", 1, path); !isRefusal(err, code) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := w.s.Changes("t", 3); !isRefusal(err, "not_found") {
		t.Fatalf("a turn that never was: %v", err)
	}
	if err := w.s.Check(func(path string, ok bool, detail string) {
		if !ok {
			t.Errorf("check: %s: %s", path, detail)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestHostileCandidate: what cannot be retained safely is listed with its reason, is in no patch, and runs nothing.
func TestHostileCandidate(t *testing.T) {
	w := newWorkbench(t)
	mark := filepath.Join(w.dir, "mark")
	evil := filepath.Join(w.dir, "evil")
	if err := runnable.Write(evil, []byte("#!/bin/sh\necho ran >"+mark+"\ncat\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.submit("t", PromptCommand)
	got := w.execute("t", w.grant("t", `mkfifo pipe; echo x >one; ln one two; ln -s /etc/passwd out; ln -s ../../out climb; mkdir d; ln -s d/../../up winding
ln -s file in; printf x >"$(printf 'new\nline')"; printf x >"$(printf 'bad\377name')"; echo fine >fine
head -c 1100000 /dev/zero >large; printf '* filter=evil diff=evil merge=evil text\n' >.gitattributes
mkdir -p sub/.git/hooks sub/.git/objects sub/.git/refs; echo 'ref: refs/heads/main' >sub/.git/HEAD
printf '[core]\n\tfsmonitor = `+evil+`\n\thooksPath = hooks\n[filter "evil"]\n\tclean = `+evil+`\n\tsmudge = `+evil+`\n[diff "evil"]\n\ttextconv = `+evil+`\n\tcommand = `+evil+`\n' >sub/.git/config
cp sub/.git/config .gitconfig; echo '#!/bin/sh' >sub/.git/hooks/post-checkout; chmod +x sub/.git/hooks/post-checkout; echo in >sub/file`, writing), nil)
	wantEnding(t, got, Finished, ExecFinished, "exit 0")
	patch, m := w.patchOf("t", 1)
	if m.Complete {
		t.Fatal("complete")
	}
	s := states(m)
	for path, want := range map[string]string{
		"pipe": "added special", "one": "added hard_link", "two": "added hard_link", "out": "added link_out", "climb": "added link_out",
		"winding": "added link_out", "in": "added symlink", "new\uFFFDline": "added unsafe_name", "bad\uFFFDname": "added unsafe_name",
		"fine": "added retained", "large": "added over_limit", ".gitattributes": "added retained", "sub": "added directory",
		"sub/.git/config": "added nested_git", "sub/.git/hooks/post-checkout": "added nested_git", "sub/file": "added retained",
	} {
		if s[path] != want {
			t.Errorf("%q is %q, want %q", path, s[path], want)
		}
	}
	if i := slices.IndexFunc(m.Changes, func(c Change) bool { return string(c.Raw) == "new\nline" }); i < 0 {
		t.Error("the exact name is lost")
	}
	clone := w.clone(got.Run.Admission.SourceRevision)
	file := filepath.Join(w.dir, "patch")
	writeFile(t, file, patch)
	w.in(clone, "apply", file)
	if b := readFile(t, filepath.Join(clone, "sub", "file")); string(b) != "in\n" {
		t.Fatalf("%q", b)
	}
	for _, path := range []string{"pipe", "out", "sub/.git", "large"} {
		if _, err := os.Lstat(filepath.Join(clone, path)); err == nil {
			t.Errorf("the patch makes %s", path)
		}
	}
	w.nextTurn("t", "again")
	w.execute("t", w.grant("t", "true", writing), nil)
	if _, err := os.Lstat(mark); err == nil {
		t.Fatal("git ran a program of the candidate's")
	}
}

// TestRetainedBytesAreTheSnapshots: what changes between the snapshot and the reading is not kept as the candidate's.
func TestRetainedBytesAreTheSnapshots(t *testing.T) {
	for _, row := range []struct {
		name string
		do   func(dir string) error
	}{
		{"other text", func(d string) error { return os.WriteFile(d+"/d/f", []byte("TEXT"), 0o600) }},
		{"its folder became a link to the same file", func(d string) error {
			return firstError(os.Rename(d+"/d", d+"/e"), os.Symlink("e", d+"/d"))
		}},
		{"a second name", func(d string) error { return os.Link(d+"/d/f", d+"/g") }},
		{"gone", func(d string) error { return os.Remove(d + "/d/f") }},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorkbench(t)
			dir := filepath.Join(w.dir, "tree")
			empty, err := snapshot.Take(context.Background(), w.repo, snapshot.Options{Exclude: []string{".git", "file"}})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(dir+"/d", 0o755); err != nil {
				t.Fatal(err)
			}
			writeFile(t, dir+"/d/f", []byte("text"))
			tree, err := snapshot.Take(context.Background(), dir, snapshot.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := row.do(dir); err != nil {
				t.Fatal(err)
			}
			e := &execution{parts: testParts(nil), store: w.s, id: "t", turn: 1}
			m, _, err := e.retain(context.Background(), &admittedTurn{source: empty, place: place{workspace: dir}}, tree)
			if err != nil || m.Complete || states(m)["d/f"] != "added unavailable" {
				t.Fatalf("%v, %v", states(m), err)
			}
		})
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestChangesBounds(t *testing.T) {
	empty := &snapshot.Tree{}
	many := &snapshot.Tree{}
	for range maxChanges + 3 {
		many.Entries = append(many.Entries, snapshot.Entry{Path: strings.Repeat("p", len(many.Entries)%7+1), Kind: snapshot.Directory})
	}
	if changes, omitted := differences(empty, many); len(changes) != maxChanges || omitted != 3 {
		t.Fatalf("%d changes, %d omitted", len(changes), omitted)
	}
	long := &snapshot.Tree{}
	for range 2000 {
		long.Entries = append(long.Entries, snapshot.Entry{Path: strings.Repeat("p", 4000), Kind: snapshot.Directory})
	}
	if changes, omitted := differences(empty, long); omitted == 0 || len(changes)*4000 > maxChangeNames {
		t.Fatalf("%d changes, %d omitted", len(changes), omitted)
	}
}

func TestManifestOfAnotherTurn(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	run := w.execute("t", w.grant("t", "echo x >x", writing), nil).Run
	m, err := w.s.Changes("t", 1)
	if err != nil || !m.valid("t", run) {
		t.Fatalf("%+v, %v", m, err)
	}
	for name, change := range map[string]func(m *Changes){
		"version": func(m *Changes) { m.V = "holdfast.retained-changes.v2" }, "task": func(m *Changes) { m.TaskID = "u" },
		"turn": func(m *Changes) { m.Turn = 2 }, "source": func(m *Changes) { m.Source = m.Candidate },
		"candidate": func(m *Changes) { m.Candidate = m.Source }, "a path that climbs": func(m *Changes) { m.Changes[0].Path = "../x" },
		"an absolute path": func(m *Changes) { m.Changes[0].Path = "/x" }, "no side": func(m *Changes) { m.Changes[0].After = nil },
		"a blob without digest": func(m *Changes) { m.Changes[0].After = &Side{Kept: true} },
	} {
		other := m
		other.Changes = slices.Clone(m.Changes)
		if change(&other); other.valid("t", run) {
			t.Errorf("%s: a manifest that is not the run's counts", name)
		}
	}
}
