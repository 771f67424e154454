package owner

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// skewed are parts whose clock runs ahead by what is stored, and a little further each time it is read.
func skewed(ahead *time.Duration, fault func(string)) parts {
	p := testParts(fault)
	p.now = func() time.Time {
		*ahead += time.Millisecond
		return time.Now().Add(*ahead)
	}
	return p
}

// Whatever an attempt finds, and however long it takes, a report of it is recorded, which says why nothing can be said.
func TestEveryAttemptIsReported(t *testing.T) {
	for _, r := range []struct {
		name   string
		point  string // where something happens
		happen func(w *workbench, ahead *time.Duration)
		reason string
		detail bool // what the report has no room for is said to whoever started the process
	}{
		{"a look at the workspace that takes for ever", "check-released", func(w *workbench, ahead *time.Duration) { *ahead += 91 * time.Second },
			"the checks and the looks at the workspace took a minute longer than was planned, or more", false},
		{"a workspace that is gone", "check-intent", func(w *workbench, _ *time.Duration) {
			if err := os.RemoveAll(w.get("t").Worktree.Path); err != nil {
				w.t.Fatal(err)
			}
		}, "the workspace is gone, or cannot be seen whole any more", false},
		{"a workspace that was changed", "check-intent", func(w *workbench, _ *time.Duration) {
			writeFile(w.t, filepath.Join(w.get("t").Worktree.Path, "file"), []byte("by somebody else\n"))
		}, "the workspace is no longer as the turn left it", false},
		{"a suite that is changed while it runs", "check-released", func(w *workbench, _ *time.Duration) { w.suite("suite", `emit failed "$1"`) },
			"the suite of check check-1 is not the one that was pinned", false},
		{"a suite that no sandbox takes", "nowhere", nil, "check check-1 could not be run", true},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			program := filepath.Join(w.dir, "suite")
			if r.detail {
				program = filepath.Join(w.home, "suite") // which no view may hold
			}
			w.turn(w.requiring(w.suiteAt(program, w.dir+"/suite.json", `emit passed "$1"`)))
			var ahead time.Duration
			task, err := runChecks(context.Background(), w.s, "t", skewed(&ahead, func(point string) {
				if point == r.point {
					r.happen(w, &ahead)
				}
			}))
			if (err != nil) != r.detail {
				t.Fatal(err)
			}
			got := w.get("t")
			if report := got.Run.Report; report == nil || report.Reason != r.reason || report.Evidence != nil || report.Attempt != 1 ||
				got.Checks != ChecksUnavailable || task.Checks != got.Checks {
				t.Fatalf("checks %s, report %+v", got.Checks, report)
			}
			if held := entries(t, w.s); len(held) != 0 {
				t.Fatalf("the workspace is still held: %q", held)
			}
		})
	}
}

// The shortest plan is one second. Its suite is run, whatever came of it in a second, and what is over before a suite
// is not run is said by there being one less.
func TestShortestPlan(t *testing.T) {
	w := newWorkbench(t)
	require := w.requiring(w.suite("suite", `emit passed "$1"`), w.suite("other", `emit passed "$1"`))
	w.turn(func(g *Grant) {
		require(g)
		g.Requirements.Plan.Seconds = 1
		for i := range g.Requirements.Plan.Checks {
			g.Requirements.Plan.Checks[i].Seconds = 1
		}
	})
	var ahead time.Duration
	task, err := runChecks(context.Background(), w.s, "t", skewed(&ahead, func(point string) {
		if point == "check-released" {
			ahead += time.Second
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	if r := task.Run.Report; r.Evidence == nil || len(r.Evidence.Suites) != 1 || r.Verdict == ChecksPassed {
		t.Fatalf("report %+v", r)
	}
}
