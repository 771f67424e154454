package owner

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPatchOfEveryKind: for each kind of change, what task diff gives is taken by git apply, and makes the candidate.
// One turn for all rows, each in a folder of its own, and the same patch there and back, also by --index, which holds the modes to the
// index.
func TestPatchOfEveryKind(t *testing.T) {
	rows := []struct {
		name, before, script string // before fills the folder, script changes it
	}{
		{"text", "printf 'a\\nb\\nc\\n' >f", "printf 'a\\nB\\nc\\n' >f"},
		{"newline lost", "echo a >f", "printf a >f"},
		{"newline gained", "printf a >f", "echo a >f"},
		{"no newline on either side", "printf 'a\\nb' >f", "printf 'a\\nc' >f"},
		{"emptied", "echo a >f", ": >f"},
		{"filled", ": >f", "echo a >f"},
		{"empty file added", "echo a >f", ": >g"},
		{"empty file removed", "echo a >f; : >g", "rm g"},
		{"empty file made executable", ": >f", "chmod +x f"},
		{"binary edited", "printf '\\000a' >f", "printf '\\000b\\377' >f"},
		{"binary added", "echo a >f", "printf '\\000\\001' >g"},
		{"binary removed", "printf '\\000a' >f; echo a >g", "rm f"},
		{"text to binary", "echo a >f", "printf '\\000' >f"},
		{"binary to text", "printf '\\000' >f", "echo a >f"},
		{"executable", "echo a >f", "chmod +x f"},
		{"not executable", "echo a >f; chmod +x f", "chmod -x f"},
		{"mode and text", "echo a >f", "chmod +x f; echo b >f"},
		{"renamed", "seq 50 >f", "mv f g"},
		{"renamed and edited", "seq 50 >f", "mv f g; echo x >>g"},
		{"renamed in case", "echo a >f", "mv f F"},
		{"swapped", "echo a >f; echo b >g", "mv f h; mv g f; mv h g"},
		{"link added", "echo a >f", "ln -s f l"},
		{"link removed", "echo a >f; ln -s f l", "rm l"},
		{"link leads elsewhere", "echo a >f; echo b >g; ln -s f l", "rm l; ln -s g l"},
		{"dangling link", "echo a >f", "ln -s nothing l"},
		{"file becomes a link", "echo a >f; echo b >g", "rm f; ln -s g f"},
		{"link becomes a file", "echo a >f; ln -s f l", "rm l; echo b >l"},
		{"link to a folder becomes a folder", "mkdir d; echo a >d/f; ln -s d l", "rm l; mkdir l; echo b >l/f"},
		{"folder becomes a link", "mkdir d e; echo a >d/f; echo b >e/f", "rm -r d; ln -s e d"},
		{"folder becomes a file", "mkdir d; echo a >d/f; echo b >d/g", "rm -r d; echo c >d"},
		{"file becomes a folder", "echo a >f", "rm f; mkdir f; echo b >f/g"},
		{"folder removed", "mkdir -p d/e; echo a >d/e/f; echo b >g", "rm -r d"},
		{"line ends", "printf 'a\\r\\nb\\n' >f", "printf 'a\\nb\\r\\n' >f; printf 'x\\r' >g"},
		{"white space", "echo 'a' >f", "printf 'a \\n\\t \\n\\n\\n' >f"},
		{"a long line", "echo a >f", "head -c 100000 /dev/zero | tr '\\000' x >f"},
		{"what looks like a patch", "echo a >f", "printf -- '--- a/x\\n+++ b/x\\n@@ -1 +1 @@\\n-- \\ndiff --git a/f b/f\\n' >f"},
		{"a patch as a last line", "printf 'a\\n' >f", "printf 'a\\n\\\\ No newline at end of file\\n' >f"},
		{"names", "echo a >f", `echo a >' lead'; echo a >'trail '; echo a >'quote"s'; echo a >'back\slash'; echo a >-dash; echo a >'*?[x]'; echo a >:colon; echo a >'#hash'; echo a >'~'; echo a >ünïcode; echo a >日本; echo a >a=b; echo a >'=> '; echo a >'{a => b}'`},
		{"names edited", `echo a >' lead'; echo a >'trail '; echo a >'quote"s'; echo a >'back\slash'; echo a >-dash; echo a >ünïcode; echo a >'b '; mkdir b; echo a >'b/b b'`, `for f in *; do test -d "$f" || echo b >./"$f"; done; chmod +x -- *; echo b >'b/b b'`},
		{"names removed", `echo a >' lead'; echo a >'trail '; echo a >'quote"s'; echo a >ünïcode; echo a >keep`, `rm ' lead' 'trail ' 'quote"s' ünïcode`},
		{"attributes", "printf 'a\\r\\n' >f", "printf '* -diff -text\\n*.x binary\\n' >.gitattributes; printf 'b\\r\\n' >f; echo a >g.x"},
		{"attributes that change line ends", "echo a >f", "printf '* text eol=crlf\\n' >.gitattributes; echo b >f; echo c >g"},
		{"ignored", "echo a >f", "echo '*' >.gitignore; echo b >g"},
	}
	w := newWorkbench(t)
	script := "set -e\n"
	for _, r := range rows {
		dir := filepath.Join(w.repo, r.name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		w.shellIn(dir, r.before)
		script += "(cd '" + r.name + "'; " + r.script + ")\n"
	}
	w.git("add", "-A", "-f")
	w.git("commit", "-q", "-m", "before")
	w.submit("t", PromptCommand)
	task := w.execute("t", w.grant("t", script, writing), nil)
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	patch, m := w.patchOf("t", 1)
	if !m.Complete {
		t.Fatalf("not complete: %v", states(m))
	}
	file := filepath.Join(w.dir, "patch")
	writeFile(t, file, patch)
	clone := w.clone(task.Run.Admission.SourceRevision)
	for _, index := range [][]string{nil, {"--index"}} {
		w.in(clone, "status", "--short") // what was written since git looked last
		w.in(clone, append(append([]string{"apply"}, index...), file)...)
		w.sameTree(task.Worktree.Path, clone)
		wantTree(t, clone, task.Run.Result.Candidate)
		w.in(clone, append(append([]string{"apply", "-R"}, index...), file)...)
		wantTree(t, clone, task.Run.Admission.SourceSnapshot)
	}
}

func (w *workbench) shellIn(dir, script string) {
	w.t.Helper()
	cmd := exec.Command("/bin/sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// sameTree names what differs between two folders, which a digest does not.
func (w *workbench) sameTree(want, got string) {
	w.t.Helper()
	cmd := exec.Command("diff", "-r", "--no-dereference", "--exclude=.git", want, got)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Errorf("%v\n%s", err, out)
	}
}
