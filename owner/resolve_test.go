package owner

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/procid"
	"holdfast/sandbox"
)

// lostRun makes the log of a run whose owner is gone: admitted, intended and spawned as p.
func (w *workbench) lostRun(id TaskID, p sandbox.Identity) {
	w.t.Helper()
	w.submit(id, BoundedCommand)
	task := w.get(id)
	mustAppend(w.t, w.s, id, 1, Event{Admitted: admission(&task)})
	intent := EffectID(id, 1)
	mustAppend(w.t, w.s, id, 1, Event{EffectIntent: &intent})
	mustAppend(w.t, w.s, id, 1, Event{Spawned: &p})
}

// bystander is a living process that has nothing to do with any task.
func bystander(t *testing.T) (sandbox.Identity, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	id, err := procid.Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return sandbox.Identity{PID: id.PID, StartTime: id.StartTime, BootID: id.BootID}, cmd
}

// A pid that the kernel gave to another process, or that stems from another boot, neither keeps a dead run alive nor
// is anything done to who has it now.
func TestRecycledPID(t *testing.T) {
	for _, r := range []struct {
		name   string
		change func(*sandbox.Identity)
	}{
		{"another process has the pid", func(p *sandbox.Identity) { p.StartTime-- }},
		{"another boot", func(p *sandbox.Identity) { p.BootID = "00000000-0000-0000-0000-000000000000" }},
		{"another boot, in a namespace that is in use", func(p *sandbox.Identity) {
			p.BootID, p.PIDNS = "00000000-0000-0000-0000-000000000000", 4026531836
		}},
	} {
		t.Run(r.name, func(t *testing.T) {
			w := newWorkbench(t)
			p, cmd := bystander(t)
			r.change(&p)
			w.lostRun("t", p)
			task, changed, err := w.s.Settle(context.Background(), "t")
			if err != nil || !changed {
				t.Fatalf("Settle = %v, %v", changed, err)
			}
			wantEnding(t, task, Finished, ExecFailed, EndingOwnerEnded)
			if task.Run.Epoch != 2 {
				t.Fatalf("settled at epoch %d", task.Run.Epoch)
			}
			if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
				t.Fatalf("the bystander: %v", err)
			}
			if alive, err := procid.Alive(procid.ID{PID: p.PID, StartTime: mustStart(t, p.PID), BootID: mustBoot(t)}); err != nil || !alive {
				t.Fatalf("the bystander: alive %v, %v", alive, err)
			}
		})
	}
}

func mustStart(t *testing.T, pid int) uint64 {
	t.Helper()
	id, err := procid.Of(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id.StartTime
}

func mustBoot(t *testing.T) string {
	t.Helper()
	boot, err := procid.BootID()
	if err != nil {
		t.Fatal(err)
	}
	return boot
}

// groupWithoutOwner is a real sandbox whose program goes on, with descendants, while no process owns a task.
func groupWithoutOwner(t *testing.T, w *workbench, mark string) *sandbox.Process {
	t.Helper()
	p, err := sandbox.Start(sandbox.Spec{Program: shell(t), Arguments: []string{"-c", hard(mark)}, Workspace: w.repo, Write: true,
		Wall: time.Minute, StreamBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(); p.Wait() })
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	return p
}

// A dead owner with a live group: the run is unknown, and nobody gets the task or calls it ended, until the group is
// gone; what is refused meanwhile says what is left.
func TestDeadOwnerWithALiveGroup(t *testing.T) {
	ctx := context.Background()
	refusedFor := func(t *testing.T, w *workbench, p sandbox.Identity, before Task) {
		t.Helper()
		if _, changed, err := w.s.Settle(ctx, "t"); err != nil || changed {
			t.Fatalf("Settle = %v, %v", changed, err)
		}
		_, err := w.s.Recover(ctx, "t")
		wantCode(t, err, "invalid_transition")
		for _, word := range []string{strconv.Itoa(p.PID), "still runs", "recover again"} {
			if !strings.Contains(err.Error(), word) {
				t.Fatalf("%q does not say %q", err, word)
			}
		}
		_, err = w.s.Apply(ctx, encoded(t, continueOf("t", "too-early", before.Revision)))
		wantCode(t, err, "invalid_transition")
		if after := w.get("t"); after.Revision != before.Revision {
			t.Fatal("a refusal changed the task")
		}
	}
	t.Run("without a result", func(t *testing.T) {
		w := newWorkbench(t)
		p := groupWithoutOwner(t, w, "live-group-a")
		id := p.Identity()
		w.lostRun("t", id)
		if _, changed, err := w.s.Settle(ctx, "t"); err != nil || changed {
			t.Fatalf("Settle = %v, %v", changed, err)
		}
		task, err := w.s.Recover(ctx, "t")
		if err != nil || task.Status != StatusUnknown || task.Run.Epoch != 2 {
			t.Fatalf("Recover: %v, %s, epoch %d", err, task.Status, task.Run.Epoch)
		}
		refusedFor(t, w, id, task)
		if gone, err := sandbox.Gone(id); err != nil || gone {
			t.Fatalf("something ended the group: %v, %v", gone, err)
		}
		p.Stop()
		p.Wait()
		task, err = w.s.Recover(ctx, "t")
		if err != nil {
			t.Fatal(err)
		}
		wantEnding(t, task, Finished, ExecFailed, EndingOwnerEnded)
		if task.Run.Epoch != 3 || task.Run.Cleared != nil {
			t.Fatalf("run %+v", task.Run)
		}
		mustApply(t, w.s, continueOf("t", "c", task.Revision))
	})
	t.Run("with a result that is not clear", func(t *testing.T) {
		w := newWorkbench(t)
		p := groupWithoutOwner(t, w, "live-group-b")
		id := p.Identity()
		w.lostRun("t", id)
		r := exited(0)
		r.GroupClear = false
		task := mustAppend(t, w.s, "t", 1, Event{Result: r})
		if task.Status != StatusUnknown || task.Ended() {
			t.Fatalf("%s", task.Status)
		}
		refusedFor(t, w, id, task)
		p.Stop()
		p.Wait()
		task, err := w.s.Recover(ctx, "t")
		if err != nil {
			t.Fatal(err)
		}
		// What the owner recorded stands; that nothing is left is a fact of its own.
		wantEnding(t, task, Finished, ExecFinished, "exit 0")
		if c := task.Run.Cleared; c == nil || c.Proof != ProofEmpty || task.Run.Result.GroupClear || !task.Ended() || task.Run.Epoch != 2 {
			t.Fatalf("run %+v, cleared %+v", task.Run, c)
		}
		mustApply(t, w.s, continueOf("t", "c", task.Revision))
		next := w.get("t")
		if next.NextEpoch() != 3 {
			t.Fatalf("the next epoch is %d", next.NextEpoch())
		}
	})
	t.Run("with a result that is not clear, after a boot", func(t *testing.T) {
		w := newWorkbench(t)
		p, _ := bystander(t)
		p.BootID = "00000000-0000-0000-0000-000000000000"
		w.lostRun("t", p)
		w.cancel("t")
		r := exited(0)
		r.GroupClear = false
		mustAppend(t, w.s, "t", 1, Event{Result: r})
		task, changed, err := w.s.Settle(ctx, "t")
		if err != nil || !changed {
			t.Fatalf("Settle = %v, %v", changed, err)
		}
		wantEnding(t, task, Finished, ExecStopped, "exit 0")
		if c := task.Run.Cleared; c == nil || c.Proof != ProofBoot {
			t.Fatalf("cleared %+v", c)
		}
	})
}

func init() {
	// An owner that comes too late: it writes the result of a run at the epoch that it was given.
	testChildren["test-late-owner"] = func(args []string) int {
		s, err := Open(args[0], Options{})
		if err != nil {
			return 1
		}
		_, err = s.Append(context.Background(), TaskID(args[1]), 1, Event{Result: exited(0)})
		if !isRefusal(err, "invalid_transition") {
			return 1
		}
		return 0
	}
}

// Each process that takes a task over writes at an epoch of its own, and what an earlier one writes late is refused:
// beside a running turn, beside one that was settled, and turns later.
func TestEpochs(t *testing.T) {
	w := newWorkbench(t)
	late := func() {
		t.Helper()
		before := w.get("t")
		if out, err := exec.Command("/proc/self/exe", "test-late-owner", w.home, "t").CombinedOutput(); err != nil {
			t.Fatalf("a late write was taken: %v %s", err, out)
		}
		if after := w.get("t"); after.Revision != before.Revision {
			t.Fatal("a late write changed the task")
		}
	}
	w.submit("t", PromptCommand)
	grant := w.grant("t", "sleep 600")
	w.dieAt("released")
	waitDone(t, w.launch("t", grant).Done)
	if task := w.get("t"); task.Run.Epoch != 1 || task.Status != Running {
		t.Fatalf("run %+v", task.Run)
	}
	task, _ := w.settle("t")
	if task.Run.Epoch != 2 {
		t.Fatalf("settled at epoch %d", task.Run.Epoch)
	}
	late()
	mustApply(t, w.s, continueOf("t", "c1", task.Revision))
	late()
	w.dieAt("nowhere")
	l := w.launch("t", w.grant("t", "echo started; sleep 600"))
	eventually(t, "the second turn", func() bool { task := w.get("t"); return task.Run != nil && task.Run.Process != nil })
	if task := w.get("t"); task.Run.Epoch != 3 {
		t.Fatalf("the second turn is at epoch %d", task.Run.Epoch)
	}
	late()
	w.cancel("t")
	waitDone(t, l.Done)
	task = w.get("t")
	wantEnding(t, task, Finished, ExecStopped, EndingStopped)
	late()
	mustApply(t, w.s, continueOf("t", "c2", task.Revision))
	task = w.execute("t", w.grant("t", "true"), nil)
	if task.Run.Epoch != 4 || task.Earlier[0].Epoch != 2 || task.Earlier[1].Epoch != 3 {
		t.Fatalf("epochs %d, %d, %d", task.Earlier[0].Epoch, task.Earlier[1].Epoch, task.Run.Epoch)
	}
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
}

// A log of an earlier version, where each turn began at epoch 1 and who settled wrote at the run's own, still counts.
func TestEpochsOfEarlierVersions(t *testing.T) {
	w := newWorkbench(t)
	w.lostRun("t", sandbox.Identity{PID: 1 << 22, BootID: "x"})
	ended := ownerEnded()
	task := mustAppend(t, w.s, "t", 1, ended)
	if task.Run.Epoch != 1 || task.Status != Finished {
		t.Fatalf("run %+v", task.Run)
	}
	mustApply(t, w.s, continueOf("t", "c", task.Revision))
	task = w.get("t")
	mustAppend(t, w.s, "t", 1, Event{Admitted: admission(&task)})
	reread := openStore(t, w.home, false)
	if again, err := reread.Get("t"); err != nil || again.Run.Epoch != 1 || again.NextEpoch() != 2 {
		t.Fatalf("read again: %v", err)
	}
}
