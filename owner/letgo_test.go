package owner

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func (w *workbench) letGo(id TaskID, before int64) Worked {
	w.t.Helper()
	got, err := w.s.LetWorktreeGo(context.Background(), id, before, false)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// long ago enough for every task of these tests.
func later() int64 { return fixedClock().Unix() + 1 }

// TestWorktreeGoes: what its turns changed is read as before, a further turn is refused in clear words, and neither
// the repository nor a neighbour notices.
func TestWorktreeGoes(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	w.execute("t", w.grant("t", "echo x >x; mkdir -p d/e; echo y >d/e/f; chmod 500 d/e d", writing), nil)
	w.nextTurn("t", "again")
	task := w.execute("t", w.grant("t", "echo more >>x", writing), nil)
	w.submit("other", PromptCommand)
	other := w.execute("other", w.grant("other", "true"), nil)
	patch, _ := w.patchOf("t", 2)
	path := task.Worktree.Path

	if got := w.letGo("t", task.UpdatedAt-1); got.Kept != "its time is not over" {
		t.Fatalf("%+v", got)
	}
	dry, err := w.s.LetWorktreeGo(context.Background(), "t", later(), true)
	if err != nil || dry.Kept != "" || dry.Bytes == 0 {
		t.Fatalf("%+v, %v", dry, err)
	}
	if _, err := os.Stat(filepath.Join(path, "x")); err != nil || w.get("t").WorktreeGone != 0 {
		t.Fatalf("the dry run did something: %v", err)
	}
	if got := w.letGo("t", later()); got.Kept != "" || got.Path != path || got.Bytes != dry.Bytes {
		t.Fatalf("%+v", got)
	}
	if _, err := os.Lstat(w.s.WorktreeRoot("t")); !os.IsNotExist(err) {
		t.Errorf("the folder: %v", err)
	}
	list := w.git("worktree", "list", "--porcelain")
	if strings.Contains(list, path) || !strings.Contains(list, other.Worktree.Path) {
		t.Errorf("registered are\n%s", list)
	}
	if ids, strangers, err := w.s.Worktrees(); err != nil || len(ids) != 1 || ids[0] != "other" || len(strangers) != 0 {
		t.Errorf("%v, %v, %v", ids, strangers, err)
	}
	after := w.get("t")
	if after.WorktreeGone == 0 || after.Revision != task.Revision || after.UpdatedAt != task.UpdatedAt {
		t.Errorf("%+v", after)
	}
	if again, _ := w.patchOf("t", 2); string(again) != string(patch) {
		t.Error("the patch is another")
	}
	if _, b, err := w.s.Artifact("t", 1, "d/e/f"); err != nil || string(b) != "y\n" {
		t.Errorf("%q, %v", b, err)
	}
	if got, err := w.apply("t", "made"); err != nil || w.git("show", "made:x") != "x\nmore" || got.Integration() != IntegrationDone {
		t.Errorf("apply: %v", err)
	}
	if err := w.s.Check(func(string, bool, string) {}); err != nil {
		t.Error(err)
	}
	w.nextTurn("t", "third")
	task, err = execute(context.Background(), w.s, "t", w.grant("t", "true"), testParts(nil))
	wantCode(t, err, "invalid_transition")
	if !strings.Contains(task.NotStarted, "worktree was removed") {
		t.Errorf("cause %q", task.NotStarted)
	}
}

// TestWorktreeStays: whatever is not proven to be kept elsewhere. Rows follow each other in one home.
func TestWorktreeStays(t *testing.T) {
	w := newWorkbench(t)
	for _, row := range []struct {
		id     TaskID
		script string
		after  func(task *Task)
		kept   string
	}{
		{"fifo", "mkfifo pipe", nil, "not retained whole"},
		{"deep", "d=; for i in $(seq 140); do d=${d}d/; done; mkdir -p $d", nil, "has no candidate"},
		{"edited", "echo x >x", func(task *Task) { writeFile(t, filepath.Join(task.Worktree.Path, "mine"), nil) }, "changed it after its last turn"},
		{"committed", "echo x >x", func(task *Task) {
			w.in(task.Worktree.Path, "-c", "user.name=t", "-c", "user.email=t@x", "commit", "-q", "--allow-empty", "-m", "mine")
		}, "somebody committed in it"},
		{"pointer", "echo x >x", func(task *Task) {
			if err := os.Remove(filepath.Join(task.Worktree.Path, ".git")); err != nil {
				t.Fatal(err)
			}
		}, "no longer the worktree"},
		{"between", "echo x >x", func(task *Task) {
			writeFile(t, filepath.Join(task.Worktree.Path, "mine"), nil)
			w.nextTurn("between", "again-between")
			w.execute("between", w.grant("between", "true", writing), nil)
		}, "between turn 1 and turn 2"},
		{"queued", "echo x >x", func(*Task) { w.nextTurn("queued", "again-queued") }, "the task is queued"},
		{"owned", "echo x >x", func(*Task) {
			own, err := w.s.Own(context.Background(), "owned", 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(own.Release)
		}, "a process owns its turn"},
	} {
		w.submit(row.id, PromptCommand)
		task := w.execute(row.id, w.grant(row.id, row.script, writing), nil)
		if row.after != nil {
			row.after(&task)
		}
		if got := w.letGo(row.id, later()); !strings.Contains(got.Kept, row.kept) {
			t.Errorf("%s: %+v", row.id, got)
		}
		if _, err := os.Stat(filepath.Join(task.Worktree.Path, "file")); err != nil || w.get(row.id).WorktreeGone != 0 {
			t.Errorf("%s: it went: %v", row.id, err)
		}
	}
	// A blob that is damaged: nothing is thrown away.
	w.submit("blob", PromptCommand)
	task := w.execute("blob", w.grant("blob", "echo only here >x", writing), nil)
	hex := strings.TrimPrefix(string(DigestOf([]byte("only here\n"))), "sha256:")
	writeFile(t, filepath.Join(w.home, "blobs", "sha256", hex[:2], hex), []byte("other"))
	if _, err := w.s.LetWorktreeGo(context.Background(), "blob", later(), false); err == nil {
		t.Error("it went although a blob is damaged")
	}
	if _, err := os.Stat(filepath.Join(task.Worktree.Path, "x")); err != nil {
		t.Error(err)
	}
}

// TestWorktreeOfNoProgram: a task that ended before anything ran has nothing to keep.
func TestWorktreeOfNoProgram(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	task, err := execute(context.Background(), w.s, "t", w.grant("t", "true", func(g *Grant) { g.Program = "/nonexistent/program" }), testParts(nil))
	if err == nil || task.Worktree == nil || task.NotStarted == "" {
		t.Fatalf("%+v, %v", task, err)
	}
	if got := w.letGo("t", later()); got.Kept != "" {
		t.Fatalf("%+v", got)
	}
	if _, err := os.Lstat(task.Worktree.Path); !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

func init() { testChildren["let-go-and-die"] = letGoAndDie }

// letGoAndDie is killed between the event and the removal.
func letGoAndDie(args []string) int {
	s, err := Open(args[0], Options{Now: fixedClock})
	if err != nil {
		return 1
	}
	s.letGo(context.Background(), TaskID(args[1]), later(), false, func(string) { syscall.Kill(os.Getpid(), syscall.SIGKILL) })
	return 0
}

// TestLetGoCutOff: what a crash left is removed by the next call, whatever it looks like by then, and no turn used it.
func TestLetGoCutOff(t *testing.T) {
	for _, row := range []struct {
		name  string
		spoil func(path string) error
	}{
		{"whole", func(string) error { return nil }},
		{"half removed", func(p string) error { return firstError(os.Remove(p+"/.git"), os.Remove(p+"/file")) }},
		{"only its entry in the repository", os.RemoveAll},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorkbench(t)
			w.submit("t", PromptCommand)
			path := w.execute("t", w.grant("t", "echo x >x", writing), nil).Worktree.Path
			cmd := exec.Command(os.Args[0], "let-go-and-die", w.home, "t")
			if err := cmd.Run(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("the child ended with %v", err)
			}
			if _, err := os.Stat(path + "/x"); err != nil || w.get("t").WorktreeGone == 0 {
				t.Fatalf("it did not die in between: %v", err)
			}
			if err := row.spoil(path); err != nil {
				t.Fatal(err)
			}
			w.nextTurn("t", "again")
			_, err := execute(context.Background(), w.s, "t", w.grant("t", "true"), testParts(nil))
			wantCode(t, err, "invalid_transition")
			for range 2 {
				if got := w.letGo("t", 0); got.Kept != "" && got.Kept != "it is gone already" {
					t.Fatalf("%+v", got)
				}
			}
			if list := w.git("worktree", "list", "--porcelain"); strings.Contains(list, path) {
				t.Errorf("registered are\n%s", list)
			}
			if _, err := os.Lstat(w.s.WorktreeRoot("t")); !os.IsNotExist(err) {
				t.Errorf("the folder: %v", err)
			}
		})
	}
}
