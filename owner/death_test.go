package owner

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/procid"
	"holdfast/sandbox"
)

// hard is a program that is hard to end: it leaves one line a run, then processes that left its session, were forked
// twice, ignore every polite signal and start more of themselves. mark stands in each one's arguments. It ends only
// with its namespace; "up" has a line for each descendant that runs.
func hard(mark string) string {
	return fmt.Sprintf(`echo line >> runs
trap '' TERM HUP INT QUIT
stay='trap "" TERM HUP INT QUIT; echo up >> up; while :; do sleep 0.1; done'
setsid sh -c "$stay" %[1]s &
( ( setsid sh -c "$stay" %[1]s & ) & )
( sh -c "$stay" %[1]s & )
sh -c 'trap "" TERM; while :; do ( sleep 0.02 & ); sleep 0.02; done' %[1]s &
echo started
while :; do sleep 0.1; done # %[1]s
`, mark)
}

// descendants is how many lines "up" has when all of hard runs.
const descendants = 3

// left finds the living processes of a turn: those with its mark in their arguments, and those that have a folder of
// the workbench in their view, as every process of its sandboxes has, also before its gate.
func (w *workbench) left(mark string) (pids []int) {
	w.t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		args, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		view, _ := os.ReadFile("/proc/" + e.Name() + "/mountinfo")
		if !bytes.Contains(args, []byte(mark)) && !bytes.Contains(view, []byte(w.home+"/worktrees/"+dirName(TaskID(mark)))) {
			continue
		}
		if id, err := procid.Of(pid); err != nil {
			continue
		} else if alive, err := procid.Alive(id); err == nil && alive {
			pids = append(pids, pid)
		}
	}
	return pids
}

// lines counts the lines of a file of the task's worktree; none where either is missing.
func (w *workbench) lines(task Task, name string) int {
	if task.Worktree == nil {
		return 0
	}
	b, _ := os.ReadFile(filepath.Join(task.Worktree.Path, name))
	return bytes.Count(b, []byte("\n"))
}

// wantDead judges a task whose owner was killed, and returns it as it is afterwards: nothing of it runs, it ran at
// most once and only if `spawned` is in its log, its end is an explicit one, and nothing runs it again.
func (w *workbench) wantDead(id TaskID, grant []byte) Task {
	w.t.Helper()
	task, changed := w.settle(id)
	if task.Run != nil && task.Run.Process != nil {
		// This moment, not some time later: a settled run has nothing left.
		if pids := w.left(string(id)); len(pids) > 0 {
			w.t.Fatalf("settled while processes %v of it live", pids)
		}
	}
	eventually(w.t, "the gate's own processes to end", func() bool { return len(w.left(string(id))) == 0 })
	runs := w.lines(task, "runs")
	switch {
	case task.Run == nil:
		if task.Status != Queued || runs != 0 {
			w.t.Fatalf("no run, %s, and the program ran %d times", task.Status, runs)
		}
		// Nothing was admitted, so the task is as if no owner had come.
		w.cancel(id)
		if task = w.get(id); task.Status != Cancelled {
			w.t.Fatalf("cancelled, but %s", task.Status)
		}
	case !changed:
		w.t.Fatalf("nothing to settle: %+v", task.Run)
	default:
		wantEnding(w.t, task, Finished, ExecFailed, EndingOwnerEnded)
		if r := task.Run.Result; task.Run.Epoch != 2 || !r.GroupClear || r.ExitCode != nil || !r.OutputIncomplete || r.TraceDigest != w.traceNow(id) {
			w.t.Fatalf("result %+v", r)
		}
		if runs > 1 || runs == 1 && task.Run.Process == nil {
			w.t.Fatalf("the program ran %d times, process %v", runs, task.Run.Process)
		}
	}
	if task.Run != nil && task.Run.Process != nil {
		if gone, err := sandbox.Gone(*task.Run.Process); err != nil || !gone {
			w.t.Fatalf("Gone = %v, %v", gone, err)
		}
	}
	if again, wrote := w.settle(id); wrote || again.Revision != task.Revision {
		w.t.Fatal("settled twice")
	}
	if _, err := execute(context.Background(), w.s, id, grant, testParts(nil)); !isRefusal(err, "invalid_transition") {
		w.t.Fatalf("the same grant again: %v", err)
	}
	if again := w.get(id); again.Revision != task.Revision || w.lines(again, "runs") != runs {
		w.t.Fatal("the program ran again")
	}
	return task
}

// The five owner deaths, each by SIGKILL of a real owner process whose program has descendants.
func TestFiveOwnerDeaths(t *testing.T) {
	for i, r := range []struct {
		name, point         string
		admitted, spawned   bool
		started, programEnd bool // whether the program was let go; whether it ends by itself
	}{
		{name: "before admission", point: "owned"},
		{name: "after the pins", point: "pinned"},
		{name: "after the spawn, before spawned is durable", point: "intent", admitted: true},
		{name: "while running", admitted: true, spawned: true, started: true},
		{name: "after the program's end, before the result", point: "ended", admitted: true, spawned: true, started: true, programEnd: true},
		// Besides the five: on both sides of the gate.
		{name: "after spawned is durable, before the gate opens", point: "spawned", admitted: true, spawned: true},
		{name: "after the gate opened", point: "opened", admitted: true, spawned: true, started: true},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			id := TaskID(fmt.Sprintf("death-%d-%d", os.Getpid(), i))
			w.submit(id, PromptCommand)
			script := hard(string(id))
			if r.programEnd {
				script = "echo line >> runs"
			}
			grant := w.grant(id, script, writing)
			w.dieAt(r.point)
			l := w.launch(id, grant)
			if r.point == "" {
				eventually(t, "all descendants", func() bool { return w.lines(w.get(id), "up") == descendants })
				if n := len(w.left(string(id))); n < descendants+2 {
					t.Fatalf("only %d processes of the program are seen", n)
				}
				kill(t, l.PID)
			}
			waitDone(t, l.Done)
			task := w.wantDead(id, grant)
			if (task.Run != nil) != r.admitted || r.admitted && (task.Run.Process != nil) != r.spawned {
				t.Fatalf("run %+v", task.Run)
			}
			// Right behind the gate's opening the kill may come before the program's first instruction.
			if runs := w.lines(task, "runs"); !r.started && runs != 0 || r.started && r.point != "opened" && runs != 1 {
				t.Fatalf("the program ran %d times", runs)
			}
			// Task and workspace are free for another turn.
			mustApply(t, w.s, continueOf(id, "c", task.Revision))
			next := w.execute(id, w.grant(id, "true", writing), nil)
			wantEnding(t, next, Finished, ExecFinished, "exit 0")
		})
	}
}

func kill(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		t.Fatal(err)
	}
}

// killStep is the distance in milliseconds between the kills of TestOwnerKilledAtEveryMillisecond: 10, or what
// HOLDFAST_KILL_STEP says; with 1 it takes minutes.
func killStep(t testing.TB) int {
	step := 10
	if v := os.Getenv("HOLDFAST_KILL_STEP"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			t.Fatalf("HOLDFAST_KILL_STEP=%q is no number of milliseconds", v)
		}
		step = n
	}
	return step
}

// A SIGKILL at each millisecond of the owner's first 50, of the first 50 after the admission, and of the first 50
// after the gate opened on a program with descendants.
func TestOwnerKilledAtEveryMillisecond(t *testing.T) {
	const first = 50
	for _, from := range []string{"start", "admitted", "released"} {
		t.Run("from "+from, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			admitted, spawned, ran, killed := 0, 0, 0, 0
			for ms := 0; ms <= first; ms += killStep(t) {
				id := TaskID(fmt.Sprintf("kill-%d-%s-%d", os.Getpid(), from, ms))
				w.submit(id, PromptCommand)
				grant := w.grant(id, hard(string(id)), writing)
				delay := time.Duration(ms) * time.Millisecond
				w.dieAt("nowhere")
				if from != "start" {
					w.dieAt(from + "+" + delay.String())
				}
				l := w.launch(id, grant)
				if from == "start" {
					<-time.After(delay)
					kill(t, l.PID)
				}
				waitDone(t, l.Done)
				task := w.wantDead(id, grant)
				killed++
				if task.Run != nil {
					admitted++
					if task.Run.Process != nil {
						spawned++
					}
				}
				ran += w.lines(task, "runs")
			}
			t.Logf("%d owners killed: %d had admitted, %d had recorded spawned, %d programs had run", killed, admitted, spawned, ran)
			if from != "start" && admitted != killed || from == "released" && (spawned != killed || ran == 0) {
				t.Fatal("the kills did not come where they were meant to")
			}
		})
	}
}

// Nothing of a program happens before `spawned` is durable, however long that takes; and the task's lock is held from
// the last look at the task to the opening of the gate, so that no cancel can be acknowledged in between.
func TestGate(t *testing.T) {
	w := newWorkbench(t)
	id := TaskID(fmt.Sprintf("gate-%d", os.Getpid()))
	w.submit(id, PromptCommand)
	var atGate sandbox.Identity
	locked := func(point string) {
		ctx, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer stop()
		if l, err := w.s.Lock(ctx, id); !isRefusal(err, "store_busy") {
			if err == nil {
				l.Unlock()
			}
			t.Errorf("at %s the task's lock is free: %v", point, err)
		}
	}
	task := w.execute(id, w.grant(id, "echo line >> runs", writing), func(point string) {
		switch point {
		case "intent":
			// The log is behind: what stands there is all that a crash would leave.
			if now := w.get(id); now.Run.EffectID == "" || now.Run.Process != nil {
				t.Errorf("run %+v", now.Run)
			}
			if w.lines(w.get(id), "runs") != 0 {
				t.Error("the program ran before spawned was durable")
			}
			if len(w.left(string(id))) < 2 {
				t.Error("no processes are seen at the gate")
			}
			locked(point)
		case "spawned":
			now := w.get(id)
			if now.Run.Process == nil {
				t.Fatal("spawned is not in the log")
			}
			atGate = *now.Run.Process
			if gone, err := sandbox.Gone(atGate); err != nil || gone {
				t.Errorf("what is recorded is not what waits: gone %v, %v", gone, err)
			}
			locked(point)
			if w.lines(now, "runs") != 0 {
				t.Error("the program ran before its gate was opened")
			}
		case "opened":
			locked(point)
		}
	})
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	if *task.Run.Process != atGate || w.lines(task, "runs") != 1 {
		t.Fatalf("run %+v", task.Run)
	}
}

// parseFault splits what dieAt wrote: a point, and how long after it.
func parseFault(text string) (point string, after time.Duration) {
	point, delay, ok := strings.Cut(text, "+")
	if !ok {
		return point, 0
	}
	after, err := time.ParseDuration(delay)
	if err != nil {
		panic(err)
	}
	return point, after
}
