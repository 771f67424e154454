package owner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"holdfast/internal/runnable"
)

// Each way in which a turn can end is told from every other, and is the end of a real program, or of none.
func TestEveryEnding(t *testing.T) {
	at := func(point string, do func(w *workbench, program string)) func(*workbench, string) func(string) {
		return func(w *workbench, program string) func(string) {
			return func(p string) {
				if p == point {
					do(w, program)
				}
			}
		}
	}
	for _, r := range []struct {
		name, script string
		change       func(*Grant)
		fault        func(w *workbench, program string) func(string)
		ending       string
		execution    Execution
		ran, asked   bool
	}{
		{name: "exit 0", script: "exit 0", ending: "exit 0", execution: ExecFinished, ran: true},
		{name: "exit", script: "exit 41", ending: "exit 41", execution: ExecFailed, ran: true},
		{name: "signal", script: "kill -SEGV $$; sleep 60", ending: "stopped by a signal", execution: ExecFailed, ran: true},
		{name: "timeout", script: "sleep 60", change: func(g *Grant) { g.WallSeconds = 1 }, ending: EndingTimedOut, execution: ExecFailed, ran: true},
		{name: "output limit", script: "cat /dev/zero", ending: EndingOutputLimit, execution: ExecStopped, ran: true, asked: true},
		{name: "memory limit", script: "dd if=/dev/zero bs=150M count=1 | sleep 60", change: func(g *Grant) { g.MemoryBytes = 64 << 20 },
			ending: EndingMemoryLimit, execution: ExecFailed, ran: true},
		{name: "lost", script: "sleep 60", ending: "failed: how the program ended is not known", execution: ExecFailed, ran: true,
			fault: at("released", func(w *workbench, _ string) { kill(w.t, w.get("t").Run.Process.PID) })},
		{name: "cannot be executed", script: "#!/nonexistent/interpreter\n", ending: "failed: the program could not be run", execution: ExecFailed, ran: true},
		{name: "cancelled while running", script: "sleep 60", ending: EndingStopped, execution: ExecStopped, ran: true, asked: true,
			fault: at("released", func(w *workbench, _ string) { w.cancel("t") })},
		{name: "corrected while running", script: "sleep 60", ending: EndingStopped, execution: ExecStopped, ran: true, asked: true,
			fault: at("released", func(w *workbench, _ string) { mustApply(w.t, w.s, correctOf("t", "c", w.get("t").Revision)) })},
		{name: "cancelled before dispatch", script: "echo ran", ending: EndingCancelledBefore, execution: ExecStopped, asked: true,
			fault: at("admitted", func(w *workbench, _ string) { w.cancel("t") })},
		{name: "refused before dispatch", script: "#!/bin/sh\n", ending: EndingRefusedBefore, execution: ExecFailed,
			fault: at("admitted", func(w *workbench, program string) { os.WriteFile(program, []byte("#!/bin/sh\necho other\n"), 0o755) })},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			w.submit("t", BoundedCommand)
			program := ""
			grant := w.grant("t", r.script, func(g *Grant) {
				if r.change != nil {
					r.change(g)
				}
				if r.script[0] == '#' {
					program = filepath.Join(w.dir, "program")
					if err := runnable.Write(program, []byte(r.script), 0o755); err != nil {
						t.Fatal(err)
					}
					g.Program, g.Arguments = program, nil
				}
			})
			var fault func(string)
			if r.fault != nil {
				fault = r.fault(w, program)
			}
			task := w.execute("t", grant, fault)
			wantEnding(t, task, Finished, r.execution, r.ending)
			res := task.Run.Result
			if !res.GroupClear || res.StopRequested != r.asked || (task.Run.Process != nil) != r.ran || (res.ExitCode != nil) != (r.ending[:4] == "exit") {
				t.Fatalf("result %+v, process %v", res, task.Run.Process)
			}
			w.wantSealed(task)
			mustApply(t, w.s, continueOf("t", "next", task.Revision))
		})
	}
}

// A cancel that races the owner at each point of a turn either comes first, and nothing of the program ever happens,
// or stops it; its task always ends, and says that it was asked.
func TestCancelRacesEachPoint(t *testing.T) {
	for _, point := range []string{"owned", "pinned", "admitted", "intent", "spawned", "opened", "released", "ended", "result-before", "result-after"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			script := "echo line >> runs; sleep 600"
			if point == "ended" || point[:3] == "res" {
				script = "echo line >> runs"
			}
			w.raceCancel("t", script, func(at string, cancel func()) {
				if at == point {
					go cancel()
				}
			}, nil)
		})
	}
}

// cancels is how many turns TestCancelAtRandomMoments cancels: 8, or what HOLDFAST_CANCELS says.
func cancels(t testing.TB) int {
	n := 8
	if v := os.Getenv("HOLDFAST_CANCELS"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil || n < 1 {
			t.Fatalf("HOLDFAST_CANCELS=%q is no number of turns", v)
		}
	}
	return n
}

func TestCancelAtRandomMoments(t *testing.T) {
	w := newWorkbench(t)
	endings := map[string]int{}
	var longest time.Duration // of a turn's way to its program, from which the moments are drawn
	for i := range cancels(t) {
		began := time.Now()
		var reached time.Duration
		task := w.raceCancel(TaskID(fmt.Sprintf("random-%d", i)), "echo line >> runs; sleep 600", func(at string, cancel func()) {
			if at == "released" {
				reached = time.Since(began)
				if i == 0 { // the first one finds out how long the way is
					go cancel()
				}
			}
		}, func(cancel func()) {
			if i > 0 {
				time.AfterFunc(time.Duration(rand.Int64N(int64(longest+longest/4))), cancel)
			}
		})
		longest = max(longest, reached)
		switch {
		case task.Run == nil:
			endings["before admission"]++
		default:
			endings[task.Run.Result.Ending]++
		}
	}
	t.Logf("within %v: %v", longest, endings)
}

// raceCancel runs a turn whose cancel comes when the caller says: at a point, or after before was called. It judges
// how the turn ended, and returns the task.
func (w *workbench) raceCancel(id TaskID, script string, at func(point string, cancel func()), before func(cancel func())) Task {
	w.t.Helper()
	w.submit(id, PromptCommand)
	grant := w.grant(id, script, writing)
	acknowledged := make(chan Task, 1) // the task as of the cancel's acknowledgment, or as it had ended before
	cancel := func() {
		if err := w.s.cancel(context.Background(), id, "enough"); err != nil {
			w.t.Errorf("cancel: %v", err)
		}
		task, err := w.s.Get(id)
		if err != nil {
			w.t.Errorf("after the cancel: %v", err)
		}
		acknowledged <- task
	}
	if before != nil {
		before(cancel)
	}
	_, err := execute(context.Background(), w.s, id, grant, testParts(func(point string) { at(point, cancel) }))
	if refusal := (*Error)(nil); err != nil && !errors.As(err, &refusal) {
		w.t.Fatalf("execute: %v", err)
	}
	var seen Task
	select {
	case seen = <-acknowledged:
	case <-time.After(30 * time.Second):
		w.t.Fatal("the cancel was not acknowledged")
	}
	task := w.get(id)
	runs := w.lines(task, "runs")
	stillNothing := seen.Run == nil || seen.Run.Process == nil
	switch {
	case task.Run == nil:
		if err == nil || task.Status != Cancelled || runs != 0 {
			w.t.Fatalf("no run, %s, %v; the program ran %d times", task.Status, err, runs)
		}
	case task.Run.Result == nil || !task.Run.Clear() || task.Status != Finished:
		w.t.Fatalf("%s, run %+v", task.Status, task.Run)
	case stillNothing && (task.Run.Result.Ending != EndingCancelledBefore || runs != 0 || task.Run.Process != nil):
		w.t.Fatalf("an effect after an acknowledged cancel: %d times, %+v", runs, task.Run)
	case runs > 1:
		w.t.Fatalf("the program ran %d times", runs)
	case task.CancelReason == "enough" && task.Execution != ExecStopped:
		w.t.Fatalf("cancelled, but %s", task.Execution)
	case task.CancelReason == "" && task.Run.Result.Ending != "exit 0":
		w.t.Fatalf("the cancel came too late, but the turn ended as %q", task.Run.Result.Ending)
	}
	if task.Run != nil {
		w.wantSealed(task)
	}
	return task
}
