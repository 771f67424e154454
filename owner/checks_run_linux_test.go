package owner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// napping reports whether a program runs that sleeps for just so many seconds.
func napping(t testing.TB, seconds string) bool {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), "sleep\x00"+seconds) {
			return true
		}
	}
	return false
}

// A check that is stopped says so, and one whose process is killed leaves nothing: neither way is its suite there
// afterwards, its workspace held, or its attempt left open.
func TestCheckIsStopped(t *testing.T) {
	for _, r := range []struct {
		name   string
		signal syscall.Signal
		reason string // of the recovery, or of the report
	}{
		{"politely", syscall.SIGTERM, "the checks were stopped"},
		{"killed", syscall.SIGKILL, "checker_owner_lost"},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			nap := fmt.Sprintf("6%d%d", os.Getpid(), r.signal)
			w.turn(w.requiring(w.suite("suite", `sleep `+nap+`; emit passed "$1"`)))
			l, err := Launch(w.s, "t", "")
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the suite to run", func() bool { return napping(t, nap) })
			if alive, err := w.s.OwnerAlive("t"); err != nil || !alive {
				t.Fatal(alive, err)
			}
			if _, changed, err := w.s.Settle(context.Background(), "t"); err != nil || changed {
				t.Fatalf("a living check was settled: %v", err)
			}
			if err := syscall.Kill(l.PID, r.signal); err != nil {
				t.Fatal(err)
			}
			waitDone(t, l.Done)
			eventually(t, "the suite to be gone", func() bool { return !napping(t, nap) })
			task, err := w.s.Recover(context.Background(), "t")
			if err != nil || task.Checks != ChecksUnavailable || task.Run.Attempts != 1 {
				t.Fatalf("%v, checks %s, attempts %d", err, task.Checks, task.Run.Attempts)
			}
			said := task.Run.RecoveryReason
			if task.Run.Report != nil {
				said = task.Run.Report.Reason
			}
			if said != r.reason {
				t.Errorf("it says %q", said)
			}
			if who, err := w.s.WorkspaceHolder(task.Run.Admission.Workspace, "other", true); who != "" || err != nil {
				t.Errorf("the workspace is held by %q, %v", who, err)
			}
			wantSound(t, w.s)
		})
	}
}

// What changes while a suite runs is seen after it: its word is kept, and counts for nothing.
func TestWorkspaceChangesWhileItIsChecked(t *testing.T) {
	w := newWorkbench(t)
	candidate := w.turn(w.requiring(w.suite("suite", `emit passed "$1"`))).Run.Result.Candidate
	task, err := runChecks(context.Background(), w.s, "t", testParts(func(point string) {
		if point == "check-released" {
			writeFile(t, filepath.Join(w.get("t").Worktree.Path, "file"), []byte("by somebody else\n"))
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	ev := task.Run.Report.Evidence
	if task.Checks != ChecksUnavailable || ev == nil || ev.Before != candidate || ev.After == candidate || !ev.After.valid() ||
		len(ev.Suites) != 1 || ev.Suites[0].Said == nil || ev.Suites[0].Said.Verdict != "passed" {
		t.Fatalf("checks %s, %+v", task.Checks, ev)
	}
}

// Two who ask for checks at once: one runs them, and the other finds them run.
func TestChecksOnce(t *testing.T) {
	w := newWorkbench(t)
	w.turn(w.requiring(w.suite("suite", `emit passed "$1"`)))
	var both sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		s := openStore(t, w.home, false)
		both.Go(func() { _, errs[i] = runChecks(context.Background(), s, "t", testParts(nil)) })
	}
	both.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatal(errs)
	}
	for _, err := range errs {
		if err != nil {
			wantCode(t, err, "invalid_transition")
		}
	}
	if task := w.get("t"); task.Checks != ChecksPassed || task.Run.Attempts != 1 {
		t.Fatalf("checks %s, %d attempts", task.Checks, task.Run.Attempts)
	}
}
