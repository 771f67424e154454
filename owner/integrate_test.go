package owner

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/runnable"
	"holdfast/sandbox"
)

// planted puts a program that leaves a mark wherever the repository or a checkout of it can name one.
func (w *workbench) planted() (mark string) {
	w.t.Helper()
	mark, evil := filepath.Join(w.dir, "mark"), filepath.Join(w.dir, "evil")
	script := []byte("#!/bin/sh\necho \"$0 $@\" >>" + mark + "\ncat\n")
	if err := runnable.Write(evil, script, 0o755); err != nil {
		w.t.Fatal(err)
	}
	hooks := filepath.Join(w.repo, ".git", "hooks")
	if err := os.MkdirAll(hooks, 0o755); err != nil {
		w.t.Fatal(err)
	}
	for _, h := range []string{"pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-checkout", "reference-transaction", "post-index-change", "pre-auto-gc"} {
		if err := runnable.Write(filepath.Join(hooks, h), script, 0o755); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, kv := range [][2]string{{"core.fsmonitor", evil}, {"filter.evil.clean", evil}, {"filter.evil.smudge", evil}, {"filter.evil.required", "true"},
		{"diff.evil.textconv", evil}, {"diff.evil.command", evil}, {"core.pager", evil}, {"core.editor", evil}, {"gpg.program", evil}, {"commit.gpgSign", "true"},
		{"core.attributesFile", filepath.Join(w.dir, "attributes")}} {
		w.git("config", kv[0], kv[1])
	}
	writeFile(w.t, filepath.Join(w.dir, "attributes"), []byte("* filter=evil diff=evil\n"))
	os.Remove(mark) // what plain git ran while it was planted
	return mark
}

func (w *workbench) apply(id TaskID, branch string) (Task, error) {
	w.t.Helper()
	return w.s.ApplyCandidate(context.Background(), id, branch)
}

// exported is a commit as files, by its exact bytes: a checkout would change line ends as the attributes ask.
func (w *workbench) exported(commit string) string {
	w.t.Helper()
	dir := filepath.Join(w.dir, "exported")
	for _, line := range strings.Split(strings.TrimSuffix(w.git("ls-tree", "-r", "-z", commit), "\x00"), "\x00") {
		what, path, _ := strings.Cut(line, "\t")
		f := strings.Fields(what) // mode, type, ID
		cmd := exec.Command("git", "-C", w.repo, "cat-file", "blob", f[2])
		b, err := cmd.Output()
		path = filepath.Join(dir, path)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o755)
		}
		switch {
		case err != nil:
		case f[0] == "120000":
			err = os.Symlink(string(b), path)
		default:
			mode, _ := strconv.ParseUint(f[0][3:], 8, 32)
			err = os.WriteFile(path, b, os.FileMode(mode))
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return dir
}

// TestApplyMakesTheCandidate: two turns, every kind of change, a nested repository's rest and hostile attributes among
// them; the branch is exactly the candidate, and nothing of the user's is touched or run.
func TestApplyMakesTheCandidate(t *testing.T) {
	w := newWorkbench(t)
	if err := os.Mkdir(filepath.Join(w.repo, "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"old/bin": "\x00\x01binary\xff", "gone": "no newline at the end", "moved from": "moves\n", "script": "#!/bin/sh\n", "was exec": "x\n"} {
		writeFile(t, filepath.Join(w.repo, name), []byte(text))
	}
	w.git("add", "-A")
	w.git("update-index", "--chmod=+x", "was exec")
	w.git("commit", "-q", "-m", "more")
	w.git("reset", "-q", "--hard")
	mark := w.planted()
	w.submit("t", PromptCommand)
	wantEnding(t, w.execute("t", w.grant("t", `echo more >>file; rm gone; mv "moved from" "moved \"to\" \\here"; chmod +x script; chmod -x "was exec"
printf '\000\002\377' >old/bin; printf '\377\000new' >made.bin; mkdir -p new/deep empty; : >new/deep/nothing; ln -s ../file new/link
printf 'a\r\nb' >new/crlf; echo x >undone; printf '* filter=evil diff=evil text eol=crlf\n' >.gitattributes; echo x >-dash; echo y >'*:(glob)'`, writing), nil), Finished, ExecFinished, "exit 0")
	w.nextTurn("t", "second")
	task := w.execute("t", w.grant("t", `echo once more >>file; rm -r new/deep undone; rm new/link; ln -s file new/link; rm made.bin; echo x >made.bin
rm -r old; echo now a file >old; rm script; mkdir script; echo in >script/in`, writing), nil)
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	head, index := w.git("rev-parse", "HEAD"), readFile(t, filepath.Join(w.repo, ".git", "index"))
	os.Remove(mark)

	if task.Integration() != NotAttempted {
		t.Fatalf("before: %s", task.Integration())
	}
	// The workspace may be gone: all comes out of what was retained.
	if err := os.Rename(task.Worktree.Path, task.Worktree.Path+"-away"); err != nil {
		t.Fatal(err)
	}
	got, err := w.apply("t", "holdfast/result")
	if err != nil {
		t.Fatal(err)
	}
	a := got.Applied
	if a == nil || a.Branch != "holdfast/result" || a.Turn != 2 || a.Candidate != task.Run.Result.Candidate || a.Base != head || got.Integration() != IntegrationDone || got.Revision != task.Revision+1 {
		t.Fatalf("%+v", a)
	}
	if again, err := w.apply("t", "holdfast/result"); err != nil || again.Revision != got.Revision {
		t.Fatalf("the same word again: %d, %v", again.Revision, err)
	}
	if b, err := os.ReadFile(mark); err == nil {
		t.Fatalf("a planted program ran: %s", b)
	}
	if string(readFile(t, filepath.Join(w.repo, ".git", "index"))) != string(index) || w.git("rev-parse", "HEAD") != head {
		t.Error("the user's index or HEAD changed")
	}
	if got := w.git("rev-list", "--parents", "-n1", "holdfast/result"); got != a.Commit+" "+head {
		t.Errorf("the commit and its parent: %s", got)
	}
	if got := w.git("log", "-n1", "--format=%an %s %(trailers:key=Holdfast-Task,valueonly)", a.Commit); !strings.HasPrefix(got, "Holdfast a task t") {
		t.Errorf("the commit says %q", got)
	}
	clone := w.exported(a.Commit)
	if err := os.Mkdir(filepath.Join(clone, "empty"), 0o755); err != nil { // git knows no folders
		t.Fatal(err)
	}
	wantTree(t, clone, a.Candidate)
	if err := w.s.Check(func(path string, ok bool, detail string) {
		if !ok {
			t.Errorf("check: %s: %s", path, detail)
		}
	}); err != nil {
		t.Fatal(err)
	}

	w.nextTurn("t", "third")
	if got := w.get("t"); got.Integration() != IntegrationDone {
		t.Errorf("before the next turn ran: %s", got.Integration())
	}
	if _, err := w.apply("t", "waits"); !isRefusal(err, "invalid_transition") {
		t.Errorf("a turn waits: %v", err)
	}
	if err := os.Rename(task.Worktree.Path+"-away", task.Worktree.Path); err != nil {
		t.Fatal(err)
	}
	if got := w.execute("t", w.grant("t", "true", writing), nil); got.Integration() != IntegrationOld {
		t.Errorf("after it: %s", got.Integration())
	}
	if got, err := w.apply("t", "third"); err != nil || got.Applied.Turn != 3 || got.Integration() != IntegrationDone {
		t.Errorf("%+v, %v", got.Applied, err)
	}
}

// TestApplyRefuses: nothing is made where the candidate, the branch or the base is not as it must be. The rows follow
// each other in one repository.
func TestApplyRefuses(t *testing.T) {
	w := newWorkbench(t)
	for id, script := range map[TaskID]string{"x": "echo x >x", "pipe": "mkfifo pipe; echo x >x", "nothing": "true", "folder": "mkdir d", "hand": "echo x >x"} {
		w.submit(id, PromptCommand)
		w.execute(id, w.grant(id, script, writing), nil)
	}
	writeFile(t, filepath.Join(w.get("hand").Worktree.Path, "by hand"), []byte("x"))
	w.nextTurn("hand", "again")
	w.execute("hand", w.grant("hand", "true", writing), nil)
	w.submit("queued", PromptCommand)
	w.submit("cancelled", PromptCommand)
	w.cancel("cancelled")
	w.git("branch", "mine")
	w.git("branch", "below/it")
	refs := w.git("for-each-ref")

	move := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	dot, away := filepath.Join(w.repo, ".git"), filepath.Join(w.dir, "away.git")
	hex := strings.TrimPrefix(string(DigestOf([]byte("x\n"))), "sha256:")
	blob := filepath.Join(w.home, "blobs", "sha256", hex[:2], hex)
	nothing := func() {}
	var release func()
	for _, row := range []struct {
		name, branch string
		id           TaskID
		code, says   string
		before       func()
		after        func()
	}{
		{"no task", "made", "never", "not_found", "no task", nothing, nothing},
		{"a queued turn", "made", "queued", "invalid_transition", "queued", nothing, nothing},
		{"a task without a worktree", "made", "cancelled", "invalid_transition", "no worktree", nothing, nothing},
		{"incomplete", "made", "pipe", "invalid_transition", `"pipe" is special`, nothing, nothing},
		{"nothing changed", "made", "nothing", "invalid_transition", "nothing to apply", nothing, nothing},
		{"an empty folder", "made", "folder", "invalid_transition", "nothing to apply", nothing, nothing},
		{"changed between turns", "made", "hand", "invalid_transition", "between turn 1 and turn 2", nothing, nothing},
		{"an invalid name", "-f", "x", "invalid_command", "no name", nothing, nothing},
		{"the name exists", "mine", "x", "command_conflict", "branch of that name", nothing, nothing},
		{"the name is a folder", "below", "x", "command_conflict", "branch of that name", nothing, nothing},
		{"below a name", "mine/x", "x", "command_conflict", "branch of that name", nothing, nothing},
		{"another owner", "made", "x", "store_busy", "owns the task's turn", func() {
			own, err := w.s.Own(context.Background(), "x", 0)
			if err != nil {
				t.Fatal(err)
			}
			release = own.Release
		}, func() { release() }},
		{"a blob is gone", "made", "x", "not_found", "no blob", func() { move(blob, blob+"-away") }, func() { move(blob+"-away", blob) }},
		{"no repository", "made", "x", "unsafe_path", "not a git repository", func() { move(dot, away) }, func() { move(away, dot) }},
		{"the root is gone", "made", "x", "unsafe_path", "the workspace is gone", func() { move(w.repo, w.repo+"-away") }, func() { move(w.repo+"-away", w.repo) }},
		{"the base moved", "made", "x", "revision_mismatch", "base moved", func() { w.git("commit", "-q", "--allow-empty", "-m", "later") }, func() { w.git("reset", "-q", "--hard", "HEAD^") }},
	} {
		row.before()
		var revision int64
		if row.id != "never" {
			revision = w.get(row.id).Revision
		}
		_, err := w.apply(row.id, row.branch)
		if !isRefusal(err, row.code) || !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v", row.name, err)
		}
		row.after()
		if row.id == "never" {
			continue
		}
		if got := w.get(row.id); got.Revision != revision || got.Applied != nil {
			t.Errorf("%s: the refusal is in the log", row.name)
		}
		if got := w.git("for-each-ref"); got != refs {
			t.Errorf("%s: the refs are\n%s", row.name, got)
		}
	}
	if got, err := w.apply("x", "made"); err != nil || got.Applied == nil {
		t.Fatalf("and then nothing is in the way: %v", err)
	}
}

func init() { testChildren["apply-and-die"] = applyAndDie }

// applyAndDie is an ApplyCandidate whose process is killed between the branch and the event.
func applyAndDie(args []string) int {
	s, err := Open(args[0], Options{})
	if err != nil {
		return 1
	}
	s.applyCandidate(context.Background(), TaskID(args[1]), args[2], false, func(point string) {
		if point == "branch" {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	})
	return 0
}

// TestApplyCutOff: the branch is there and the log does not know. The same word again recognises its own commit,
// whatever happened to the base meanwhile, and only records.
func TestApplyCutOff(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	w.execute("t", w.grant("t", "echo x >x", writing), nil)
	if _, err := w.s.ResumeApply(context.Background(), "t", "made"); !isRefusal(err, "not_found") {
		t.Fatalf("nothing to resume: %v", err)
	}
	cmd := exec.Command(os.Args[0], "apply-and-die", w.home, "t", "made")
	if err := cmd.Run(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v", err)
	}
	made := w.git("rev-parse", "made")
	if got := w.get("t"); got.Applied != nil {
		t.Fatal("it was recorded; this test proves nothing")
	}
	w.git("commit", "-q", "--allow-empty", "-m", "later")
	got, err := w.s.ResumeApply(context.Background(), "t", "made")
	if err != nil || got.Applied.Commit != made {
		t.Fatalf("%+v, %v", got.Applied, err)
	}
	if _, err := w.apply("t", "other"); !isRefusal(err, "revision_mismatch") {
		t.Fatalf("another name after the base moved: %v", err)
	}
	w.in(w.repo, "-c", "user.name=t", "-c", "user.email=t@example.org", "checkout", "-q", "made")
	w.git("commit", "-q", "--allow-empty", "-m", "on it")
	if _, err := w.apply("t", "made"); !isRefusal(err, "command_conflict") {
		t.Fatalf("a branch that went on is taken for the one that was made: %v", err)
	}
}

// TestAppliedEvent holds the rules of the event itself.
func TestAppliedEvent(t *testing.T) {
	commit, snap := strings.Repeat("a", 40), DigestOf([]byte("x"))
	ended := func() Task {
		return Task{ID: "t", Revision: 5, Status: Finished, Execution: ExecFinished, Worktree: &Worktree{Path: "/w", Base: commit, CommonDir: "/r/.git"},
			Run: &Run{Turn: 1, Epoch: 1, Process: &sandbox.Identity{PID: 9}, Result: &Result{GroupClear: true, Candidate: snap}}}
	}
	good := Applied{Turn: 1, Candidate: snap, Base: commit, Branch: "b", Commit: strings.Repeat("c", 40)}
	for _, row := range []struct {
		name   string
		change func(t *Task, a *Applied)
		ok     bool
	}{
		{"as it is", func(*Task, *Applied) {}, true},
		{"running", func(t *Task, _ *Applied) { t.Status = Running }, false},
		{"queued", func(t *Task, _ *Applied) { t.Status = Queued }, false},
		{"unknown", func(t *Task, _ *Applied) { t.Status = StatusUnknown }, false},
		{"group not clear", func(t *Task, _ *Applied) { t.Run.Result.GroupClear = false }, false},
		{"no worktree", func(t *Task, _ *Applied) { t.Worktree = nil }, false},
		{"another base", func(_ *Task, a *Applied) { a.Base = a.Commit }, false},
		{"another turn", func(_ *Task, a *Applied) { a.Turn = 2 }, false},
		{"no turn", func(_ *Task, a *Applied) { a.Turn = 0 }, false},
		{"another candidate", func(_ *Task, a *Applied) { a.Candidate = DigestOf(nil) }, false},
		{"no branch", func(_ *Task, a *Applied) { a.Branch = "" }, false},
		{"two lines", func(_ *Task, a *Applied) { a.Branch = "a\nb" }, false},
		{"no commit", func(_ *Task, a *Applied) { a.Commit = "abc" }, false},
	} {
		task, a := ended(), good
		row.change(&task, &a)
		n, err := NextEvent(&task, 7, Event{Applied: &a}, 9)
		if (err == nil) != row.ok {
			t.Errorf("%s: %v", row.name, err)
		}
		if err == nil && (n.Revision != 6 || n.UpdatedAt != 9 || *n.Applied != a || task.Applied != nil) {
			t.Errorf("%s: %+v", row.name, n.Applied)
		}
	}
}
