package owner

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/runnable"
	"holdfast/sandbox"
)

// What is missing before admission ends the turn with a cause that names no path, and nothing ran.
func TestCouldNotStart(t *testing.T) {
	type setting struct {
		path   string // the task's workspace
		change func(*Grant)
	}
	program := func(p string) func(*Grant) { return func(g *Grant) { g.Program, g.Arguments = p, nil } }
	for _, r := range []struct {
		name, code, cause string
		prepare           func(t *testing.T, w *workbench) setting
	}{
		{"program missing", "unsafe_path", "the program is missing", func(t *testing.T, w *workbench) setting {
			return setting{w.repo, program(w.dir + "/nothing")}
		}},
		{"program is a link", "unsafe_path", "the program's path leads over a link; name its real path", func(t *testing.T, w *workbench) setting {
			if err := os.Symlink(shell(t), w.dir+"/link"); err != nil {
				t.Fatal(err)
			}
			return setting{w.repo, program(w.dir + "/link")}
		}},
		{"program is not executable", "unsafe_path", "the program is no executable file", func(t *testing.T, w *workbench) setting {
			writeFile(t, w.dir+"/text", []byte("#!/bin/sh\n"))
			return setting{w.repo, program(w.dir + "/text")}
		}},
		{"program is a folder", "unsafe_path", "the program is no executable file", func(t *testing.T, w *workbench) setting {
			return setting{w.repo, program(w.repo)}
		}},
		{"workspace vanished", "unsafe_path", "the workspace is gone", func(t *testing.T, w *workbench) setting {
			return setting{w.dir + "/gone", nil}
		}},
		{"workspace is a link", "unsafe_path", "the workspace's path leads over a link; name its real path", func(t *testing.T, w *workbench) setting {
			if err := os.Symlink(filepath.Dir(w.repo), w.dir+"/way"); err != nil {
				t.Fatal(err)
			}
			return setting{w.dir + "/way/project", nil}
		}},
		{"workspace inside the repository", "not_enforceable", "not the top level of its git repository; name the top level", func(t *testing.T, w *workbench) setting {
			if err := os.Mkdir(w.repo+"/sub", 0o755); err != nil {
				t.Fatal(err)
			}
			return setting{w.repo + "/sub", nil}
		}},
		{"no commit", "not_enforceable", "the repository has no commit; make a first commit", func(t *testing.T, w *workbench) setting {
			if err := os.RemoveAll(w.repo + "/.git"); err != nil {
				t.Fatal(err)
			}
			w.git("init", "-q")
			return setting{w.repo, nil}
		}},
		{"content filter", "not_enforceable", "the tree needs a content filter such as Git LFS, which is not run", func(t *testing.T, w *workbench) setting {
			writeFile(t, w.repo+"/.gitattributes", []byte("* filter=lfs\n"))
			w.git("add", "-A")
			w.git("commit", "-q", "-m", "lfs")
			return setting{w.repo, nil}
		}},
		{"writing without a repository", "not_enforceable", "the workspace is no git repository, so turns there only read", func(t *testing.T, w *workbench) setting {
			if err := os.RemoveAll(w.repo + "/.git"); err != nil {
				t.Fatal(err)
			}
			return setting{w.repo, writing}
		}},
		{"home as the workspace", "unsafe_path", "the workspace and the home of holdfast overlap", func(t *testing.T, w *workbench) setting {
			return setting{w.dir, nil}
		}},
		{"secret not set", "invalid_command", "the secret A_KEY is not set", func(t *testing.T, w *workbench) setting {
			return setting{w.repo, func(g *Grant) { g.Environment = []string{"A_KEY"} }}
		}},
		{"secrets file is open", "unsafe_path", "the secrets file cannot be used; look at the owner's diagnostics", func(t *testing.T, w *workbench) setting {
			writeFile(t, filepath.Join(w.home, secretsFile), []byte("{}"))
			return setting{w.repo, func(g *Grant) { g.Environment = []string{"A_KEY"} }}
		}},
		{"read path missing", "unsafe_path", "a path that the policy lets turns read is missing", func(t *testing.T, w *workbench) setting {
			return setting{w.repo, func(g *Grant) { g.Read = []string{w.dir + "/nothing"} }}
		}},
		{"read path is the home", "unsafe_path", "a path that the policy lets turns read overlaps the home of holdfast", func(t *testing.T, w *workbench) setting {
			return setting{w.repo, func(g *Grant) { g.Read = []string{w.home + "/worktrees"} }}
		}},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			set := r.prepare(t, w)
			w.submitIn("t", PromptCommand, set.path)
			if set.change == nil {
				set.change = func(*Grant) {}
			}
			task, err := execute(context.Background(), w.s, "t", w.grant("t", "echo ran", set.change), testParts(nil))
			wantCode(t, err, r.code)
			if task.Status != Cancelled || task.Run != nil || task.NotStarted != r.cause {
				t.Fatalf("status %s, cause %q", task.Status, task.NotStarted)
			}
			if strings.Contains(task.NotStarted, w.dir) {
				t.Fatal("the cause names a path")
			}
			if _, err := os.Stat(w.tracePath("t", 1)); err == nil {
				t.Fatal("a transcript of a turn that was never admitted")
			}
			if names, err := os.ReadDir(w.s.WorktreeRoot("t")); r.name == "content filter" && (err != nil || len(names) != 0) {
				t.Fatalf("left behind: %v %v", names, err)
			}
		})
	}
}

func TestMachineThatCannotConfine(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	p := testParts(nil)
	p.probe = func() sandbox.Capability { return sandbox.Capability{} }
	task, err := execute(context.Background(), w.s, "t", w.grant("t", "echo ran"), p)
	wantCode(t, err, "not_enforceable")
	if task.NotStarted != "this machine cannot confine turns; run holdfast doctor" || task.Worktree != nil {
		t.Fatalf("task %+v", task)
	}
}

// A grant that is not about the task's present state writes nothing: a fitting one may follow.
func TestWrongGrant(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	w.submit("other", BoundedCommand)
	model := "a/model"
	mustApply(t, w.s, Command{CommandID: "submit-m", TaskID: "m", Action: Action{Submit: &Intent{Title: "x", Prompt: "x",
		Workspace: Workspace{Path: w.repo}, Configuration: Configuration{Adapter: BoundedCommand, Model: &model}}}})
	old := w.grant("t", "echo ran")
	mustApply(t, w.s, correctOf("t", "c1", 1))
	for _, r := range []struct {
		name  string
		id    TaskID
		grant []byte
		code  string
	}{
		{"older revision", "t", old, "revision_mismatch"},
		{"another task's", "t", w.grant("other", "echo ran"), "invalid_command"},
		{"another intent", "t", w.grant("t", "echo ran", func(g *Grant) { g.IntentDigest = aDigest }), "revision_mismatch"},
		{"another adapter", "t", w.grant("t", "echo ran", func(g *Grant) { g.Adapter = PromptCommand }), "invalid_command"},
		{"a model", "m", w.grant("m", "echo ran"), "invalid_command"},
		{"no task", "nobody", publicGrant(t, map[string]any{"task_id": "nobody"}), "not_found"},
		{"not a grant", "t", []byte("{}"), "invalid_command"},
	} {
		t.Run(r.name, func(t *testing.T) {
			_, err := Execute(context.Background(), w.s, r.id, r.grant)
			wantCode(t, err, r.code)
		})
	}
	if task := w.get("t"); task.Status != Queued || task.Revision != 2 {
		t.Fatalf("task %+v", task)
	}
	task := w.execute("t", w.grant("t", "echo ran"), nil)
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
}

// What no longer holds between admission and dispatch is an explicit end, and nothing ran.
func TestRefusedBeforeDispatch(t *testing.T) {
	for _, r := range []struct {
		name, reason string
		drift        func(t *testing.T, w *workbench, program string) // between admission and the sandbox's start
		undo         func(w *workbench, program string) error         // once it has started
	}{
		{"program changed", "changed", func(t *testing.T, w *workbench, program string) {
			if err := os.WriteFile(program, []byte("#!/bin/sh\necho other\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"program removed", "", func(t *testing.T, w *workbench, program string) {
			if err := os.Remove(program); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"program replaced by a link", "", func(t *testing.T, w *workbench, program string) {
			if err := os.Remove(program); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(shell(t), program); err != nil {
				t.Fatal(err)
			}
		}, nil},
		// Both are put back before anything looks at the path once more.
		{"program swapped", "replaced", func(t *testing.T, w *workbench, program string) {
			if err := os.Rename(program, program+"-aside"); err != nil {
				t.Fatal(err)
			}
			if err := runnable.Write(program, []byte("#!/bin/sh\necho other\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}, func(_ *workbench, program string) error { return os.Rename(program+"-aside", program) }},
		{"workspace swapped", "replaced", func(t *testing.T, w *workbench, program string) {
			work := w.get("t").Worktree.Path
			if err := errors.Join(os.Rename(work, work+"-aside"), os.Mkdir(work, 0o700)); err != nil {
				t.Fatal(err)
			}
		}, func(w *workbench, _ string) error {
			work := w.get("t").Worktree.Path
			return errors.Join(os.RemoveAll(work), os.Rename(work+"-aside", work))
		}},
		{"workspace removed", "", func(t *testing.T, w *workbench, program string) {
			if err := os.RemoveAll(w.get("t").Worktree.Path); err != nil {
				t.Fatal(err)
			}
		}, nil},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			program := filepath.Join(w.dir, "program")
			if err := runnable.Write(program, []byte("#!/bin/sh\necho ran\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			w.submit("t", PromptCommand)
			task := w.execute("t", w.grant("t", "", func(g *Grant) { g.Program, g.Arguments = program, nil }), func(point string) {
				if point == "admitted" {
					r.drift(t, w, program)
				}
				if point == "gated" && r.undo != nil {
					if err := r.undo(w, program); err != nil {
						t.Error(err)
					}
				}
			})
			wantEnding(t, task, Finished, ExecFailed, EndingRefusedBefore)
			w.wantSealed(task)
			if task.Run.Process != nil || task.Run.EffectID != "" || !task.Run.Result.GroupClear {
				t.Fatalf("run %+v", task.Run)
			}
			var why struct {
				Reason string `json:"reason"`
			}
			step(t, w.trace("t", 1), EndingRefusedBefore).extra(t, &why)
			if why.Reason == "" || !strings.Contains(why.Reason, r.reason) {
				t.Fatalf("reason %q", why.Reason)
			}
		})
	}
}

// A secret reaches the program and nothing that is written down.
func TestSecretsStaySecret(t *testing.T) {
	const value = "hunter2-and-more"
	w := newWorkbench(t)
	writeFile(t, filepath.Join(w.home, secretsFile), []byte(`{"v":"`+secretsSchema+`","values":{"A_KEY":"`+value+`","OTHER":"unasked-for"}}`))
	w.submit("t", PromptCommand)
	l := w.launch("t", w.grant("t", `test "$A_KEY" = `+value[:7]+`-and-more && test -z "$OTHER" && echo has it`,
		func(g *Grant) { g.Environment = []string{"A_KEY"} }))
	waitDone(t, l.Done)
	task := w.get("t")
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	if got := said(t, w.trace("t", 1), "stdout"); got != "has it\n" {
		t.Fatalf("stdout %q", got)
	}
	// The grant holds the script's own copy; everything else of the home must hold none.
	grant, err := w.s.GetBlob(task.Run.Admission.GrantDigest, maxGrantBytes)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(w.home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == secretsFile {
			return err
		}
		b := readFile(t, path)
		if bytes.Contains(b, []byte("unasked-for")) || bytes.Contains(b, []byte(value)) && !bytes.Equal(b, grant) {
			return errors.New(path + " holds a secret")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	step(t, w.trace("t", 1), "admitted").extra(t, &struct{}{})
}

// Programs that a repository plants for git do not run when a task gets its worktree.
func TestHooksDoNotRun(t *testing.T) {
	w := newWorkbench(t)
	marker := filepath.Join(w.dir, "marker")
	program := filepath.Join(w.dir, "hook")
	if err := runnable.Write(program, []byte("#!/bin/sh\ntouch "+marker+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, hook := range []string{"post-checkout", "reference-transaction", "post-index-change"} {
		if err := os.Symlink(program, filepath.Join(w.repo, ".git", "hooks", hook)); err != nil {
			t.Fatal(err)
		}
	}
	w.submit("t", PromptCommand)
	w.submit("u", PromptCommand)
	if _, err := os.Stat(marker); err == nil {
		t.Fatal("the plant ran while the test set it up")
	}
	w.git("config", "core.fsmonitor", program)
	task := w.execute("t", w.grant("t", "cat file", writing), nil)
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	if _, err := os.Stat(marker); err == nil {
		t.Fatal("a planted program ran")
	}
}
