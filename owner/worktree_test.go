package owner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A crash between making a worktree and recording it leaves a folder nobody vouches for: it is made anew.
func TestUnrecordedWorktreeIsRemade(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	path := filepath.Join(w.s.WorktreeRoot("t"), "project")
	died := errors.New("died")
	func() {
		defer func() {
			if r := recover(); r != died {
				t.Fatalf("recovered %v", r)
			}
		}()
		w.execute("t", w.grant("t", "true", writing), func(point string) {
			if point == "worktree" {
				panic(died) // the deferred release is what the end of a process does to its lock
			}
		})
	}()
	if task := w.get("t"); task.Worktree != nil {
		t.Fatalf("recorded %+v", task.Worktree)
	}
	writeFile(t, filepath.Join(path, "file"), []byte("half-made\n"))
	other := filepath.Join(w.dir, "mine")
	w.git("worktree", "add", "-q", "--detach", other) // the user's own stays
	if err := os.RemoveAll(other); err != nil {
		t.Fatal(err)
	}
	task := w.execute("t", w.grant("t", "cat file", writing), nil)
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	if got := said(t, w.trace("t", 1), "stdout"); got != "committed\n" {
		t.Fatalf("stdout %q", got)
	}
	if _, err := os.Stat(filepath.Join(w.repo, ".git", "worktrees", "mine")); err != nil {
		t.Fatalf("the user's worktree entry: %v", err)
	}
}

func TestRecordedWorktreeMustBeTheOneMade(t *testing.T) {
	for _, r := range []struct {
		name, cause string
		spoil       func(t *testing.T, path string)
	}{
		{"gone", "the workspace is gone", func(t *testing.T, path string) {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
		}},
		{"pointer replaced", "the task's worktree is no longer the one that was made", func(t *testing.T, path string) {
			writeFile(t, filepath.Join(path, ".git"), []byte("gitdir: /nonexistent\n"))
		}},
		{"a link", "the workspace is no folder", func(t *testing.T, path string) {
			if err := os.Rename(path, path+"-moved"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path+"-moved", path); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			w.submit("t", PromptCommand)
			task := w.execute("t", w.grant("t", "true"), nil)
			mustApply(t, w.s, continueOf("t", "c", task.Revision))
			r.spoil(t, task.Worktree.Path)
			task, err := execute(context.Background(), w.s, "t", w.grant("t", "true"), testParts(nil))
			wantCode(t, err, "unsafe_path")
			if task.NotStarted != r.cause {
				t.Fatalf("cause %q", task.NotStarted)
			}
		})
	}
}

// A folder without a repository can be looked at, and not more.
func TestFolderWithoutRepository(t *testing.T) {
	w := newWorkbench(t)
	folder := filepath.Join(w.dir, "notes")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(folder, "note"), []byte("a note\n"))
	if err := os.Chmod(filepath.Join(folder, "note"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.submitIn("t", PromptCommand, folder)
	task := w.execute("t", w.grant("t", "cat note; echo x > note || echo refused"), nil)
	if got := said(t, w.trace("t", 1), "stdout"); got != "a note\nrefused\n" {
		t.Fatalf("stdout %q", got)
	}
	if task.Worktree != nil || task.Run.Admission.SourceRevision != "" {
		t.Fatalf("task %+v", task)
	}
	if got := string(readFile(t, filepath.Join(folder, "note"))); got != "a note\n" {
		t.Fatalf("the note: %q", got)
	}
}

// Git is seen as the grant says: the history read-only, or not at all.
func TestGitAccess(t *testing.T) {
	for _, r := range []struct{ git, want string }{{"read", "first\n"}, {"hidden", "no history\n"}} {
		t.Run(r.git, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			w.submit("t", PromptCommand)
			w.execute("t", w.grant("t", "git log --format=%s 2>/dev/null || echo no history; git commit -q --allow-empty -m x 2>/dev/null && echo committed", writing,
				func(g *Grant) { g.Git = r.git }), nil)
			if got := said(t, w.trace("t", 1), "stdout"); got != r.want {
				t.Fatalf("stdout %q", got)
			}
			if got := w.git("log", "--format=%s", "--all"); got != "first" {
				t.Fatalf("the repository's history: %q", got)
			}
		})
	}
}
