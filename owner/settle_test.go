package owner

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/sandbox"
)

func init() {
	testChildren[OwnerArg] = func(args []string) int {
		fault, named := faultOf(args)
		p := testParts(fault)
		if named { // the probe of a new process is not what these tests look at, and would fill its first moments
			p.probe = func() sandbox.Capability { return sandbox.Capability{Mechanism: "linux-userns"} }
		}
		return runOwner(args, os.Stderr, p)
	}
}

// faultOf makes an owner process die by SIGKILL at the point that the file `fault` beside its home names, or so long
// after it, because its environment is cleared and its arguments are fixed.
func faultOf(args []string) (fault func(string), named bool) {
	home := args[slices.Index(args, "--home")+1]
	text, err := os.ReadFile(filepath.Join(filepath.Dir(home), "fault"))
	want, after := parseFault(string(text))
	return func(point string) {
		switch {
		case point != want:
		case after > 0:
			time.AfterFunc(after, func() { syscall.Kill(os.Getpid(), syscall.SIGKILL) })
		default:
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way
		}
	}, err == nil
}

// dieAt makes the workbench's next detached owner die there.
func (w *workbench) dieAt(point string) {
	w.t.Helper()
	writeFile(w.t, filepath.Join(w.dir, "fault"), []byte(point))
}

// settle settles until the run is settled or already had its end: the kernel may still be ending the group.
func (w *workbench) settle(id TaskID) (task Task, changed bool) {
	w.t.Helper()
	eventually(w.t, "the run to settle", func() bool {
		t, wrote, err := w.s.Settle(context.Background(), id)
		if err != nil {
			w.t.Fatal(err)
		}
		task, changed = t, changed || wrote
		return !unsettled(&t)
	})
	return task, changed
}

// Wherever an owner dies, its turn ends with exactly one result, is not run again, and leaves no process.
func TestOwnerDeath(t *testing.T) {
	for _, r := range []struct {
		point   string
		settles bool
		ran     bool // whether the program may have run
	}{
		{"admitted", true, false},
		{"intent", true, false},
		{"spawned", true, false},
		{"released", true, true},
		{"result-before", true, true},
		{"result-after", false, true},
	} {
		t.Run(r.point, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			w.submit("t", PromptCommand)
			// Each run of the program leaves one line; after a death it would go on for long.
			script := "echo line >> runs; sleep 600"
			if strings.HasPrefix(r.point, "result") {
				script = "echo line >> runs"
			}
			grant := w.grant("t", script, writing)
			w.dieAt(r.point)
			waitDone(t, w.launch("t", grant).Done)
			before := w.get("t")
			task, changed := w.settle("t")
			if changed != r.settles {
				t.Fatalf("settled: %v", changed)
			}
			if r.settles {
				wantEnding(t, task, Finished, ExecFailed, EndingOwnerEnded)
				if res := task.Run.Result; !res.GroupClear || !res.OutputIncomplete || res.ExitCode != nil || res.CostStatus != "unknown" ||
					res.TraceDigest != w.traceNow("t") {
					t.Fatalf("result %+v", res)
				}
				if task.Revision != before.Revision+1 {
					t.Fatalf("revision %d after %d", task.Revision, before.Revision)
				}
			} else {
				wantEnding(t, task, Finished, ExecFinished, "exit 0")
				w.wantSealed(task)
			}
			if (task.Run.Process != nil) != (r.point != "admitted" && r.point != "intent") {
				t.Fatalf("process %+v", task.Run.Process)
			}
			if task.Run.Process != nil {
				if gone, err := sandbox.Gone(*task.Run.Process); err != nil || !gone {
					t.Fatalf("Gone = %v, %v", gone, err)
				}
			}
			runs, _ := os.ReadFile(filepath.Join(task.Worktree.Path, "runs"))
			if n := strings.Count(string(runs), "line"); n > 1 || n == 1 && !r.ran {
				t.Fatalf("the program ran %d times", n)
			}
			// Nothing runs it again: not settling twice, not recovering, not another owner by the same grant.
			if again, wrote := w.settle("t"); wrote || again.Revision != task.Revision {
				t.Fatal("settled twice")
			}
			if again, err := w.s.Recover(context.Background(), "t"); err != nil || again.Revision != task.Revision {
				t.Fatalf("recovered a settled run: %v", err)
			}
			w.dieAt("nowhere")
			waitDone(t, w.launch("t", grant).Done)
			if again := w.get("t"); again.Revision != task.Revision {
				t.Fatalf("a second owner changed the task: %+v", again)
			}
			after, _ := os.ReadFile(filepath.Join(task.Worktree.Path, "runs"))
			if string(after) != string(runs) {
				t.Fatal("the program ran again")
			}
			// The task is free again.
			mustApply(t, w.s, continueOf("t", "c", task.Revision))
			next := w.execute("t", w.grant("t", "true", writing), nil)
			wantEnding(t, next, Finished, ExecFinished, "exit 0")
		})
	}
}

// traceNow is the digest of the current transcript as it is, of nothing where it is missing.
func (w *workbench) traceNow(id TaskID) Digest {
	task := w.get(id)
	b, _ := os.ReadFile(w.tracePath(id, task.Turn()))
	return DigestOf(b)
}

func TestSettleKeepsOffTheLiving(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	l := w.launch("t", w.grant("t", "echo started; sleep 600"))
	eventually(t, "the program's first words", w.saying("t", "started"))
	before := w.get("t")
	if alive, err := w.s.OwnerAlive("t"); err != nil || !alive {
		t.Fatalf("OwnerAlive = %v, %v", alive, err)
	}
	if task, changed, err := w.s.Settle(context.Background(), "t"); err != nil || changed || task.Revision != before.Revision {
		t.Fatalf("Settle = %v, %v", changed, err)
	}
	_, err := w.s.Recover(context.Background(), "t")
	wantCode(t, err, "store_busy")
	w.cancel("t")
	waitDone(t, l.Done)
	wantEnding(t, w.get("t"), Finished, ExecStopped, EndingStopped)
	if alive, err := w.s.OwnerAlive("t"); err != nil || alive {
		t.Fatalf("OwnerAlive = %v, %v", alive, err)
	}
}

// An owner that is gone while a member of its group is not: nothing is claimed, and recovering fences.
func TestRecoverFencesALostOwner(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	task := w.get("t")
	mustAppend(t, w.s, "t", 1, Event{Admitted: admission(&task)})
	intent := EffectID("t", 1)
	mustAppend(t, w.s, "t", 1, Event{EffectIntent: &intent})
	alive, err := self() // a process that certainly lives
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, w.s, "t", 1, Event{Spawned: &alive})
	if _, changed, err := w.s.Settle(context.Background(), "t"); err != nil || changed {
		t.Fatalf("Settle = %v, %v", changed, err)
	}
	task, err = w.s.Recover(context.Background(), "t")
	if err != nil || task.Status != StatusUnknown || task.Run.Epoch != 2 {
		t.Fatalf("Recover: %v, %s, epoch %d", err, task.Status, task.Run.Epoch)
	}
	_, err = w.s.Append(context.Background(), "t", 1, Event{Result: exited(0)})
	wantCode(t, err, "invalid_transition")
	again, err := w.s.Recover(context.Background(), "t")
	wantCode(t, err, "invalid_transition")
	if again.Revision != task.Revision {
		t.Fatal("recovered twice")
	}
}

func TestSettleWithoutARun(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	if _, changed, err := w.s.Settle(context.Background(), "t"); err != nil || changed {
		t.Fatalf("Settle = %v, %v", changed, err)
	}
	_, _, err := w.s.Settle(context.Background(), "nobody")
	wantCode(t, err, "not_found")
}

// A run that was asked to stop before its owner died ends as stopped.
func TestSettleAfterACancel(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	w.dieAt("admitted")
	waitDone(t, w.launch("t", w.grant("t", "echo ran")).Done)
	w.cancel("t")
	task, _ := w.settle("t")
	wantEnding(t, task, Finished, ExecStopped, EndingOwnerEnded)
	if !task.Run.Result.StopRequested {
		t.Fatalf("result %+v", task.Run.Result)
	}
}

func TestStopOwners(t *testing.T) {
	w := newWorkbench(t)
	var owners []*Launched
	for _, id := range []TaskID{"a", "b"} {
		w.submit(id, PromptCommand) // in worktrees of their own
		owners = append(owners, w.launch(id, w.grant(id, "echo started; sleep 600")))
		eventually(t, "the program's first words", w.saying(id, "started"))
	}
	w.submit("idle", BoundedCommand)
	if err := StopOwners(context.Background(), w.s, "the home goes away"); err != nil {
		t.Fatal(err)
	}
	for i, id := range []TaskID{"a", "b"} {
		task := w.get(id)
		wantEnding(t, task, Finished, ExecStopped, EndingStopped)
		if task.CancelReason != "the home goes away" {
			t.Fatalf("reason %q", task.CancelReason)
		}
		waitDone(t, owners[i].Done)
	}
	if task := w.get("idle"); task.Status != Queued {
		t.Fatalf("a task without an owner became %s", task.Status)
	}
}
