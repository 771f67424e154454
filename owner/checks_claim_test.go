package owner

import (
	"context"
	"strings"
	"testing"
)

// TestChecksReserveTheWorkspace: while a turn has the candidate to itself no attempt begins, while an attempt runs no
// such turn does, either is told who has it, and an attempt whose checker died is in nobody's way.
func TestChecksReserveTheWorkspace(t *testing.T) {
	w := newWorkbench(t)
	require := w.requiring(w.suite("suite", `emit passed "$1"`))
	w.submit("t", BoundedCommand)
	w.submit("other", BoundedCommand)
	wantEnding(t, w.execute("t", w.grant("t", "true", func(g *Grant) {
		require(g)
		g.Write = false
	}), nil), Finished, ExecFinished, "exit 0")

	l := w.launch("other", w.grant("other", "echo started; sleep 600"))
	eventually(t, "the program's first words", w.saying("other", "started"))
	before := w.get("t").Revision
	_, err := runChecks(context.Background(), w.s, "t", testParts(nil))
	wantCode(t, err, "workspace_busy")
	if !strings.Contains(err.Error(), "task other") || w.get("t").Revision != before {
		t.Fatalf("%v, revision %d", err, w.get("t").Revision)
	}
	w.cancel("other")
	waitDone(t, l.Done)

	w.submit("third", BoundedCommand)
	grant := w.grant("third", "true")
	task, err := runChecks(context.Background(), w.s, "t", testParts(func(point string) {
		if point != "check-intent" {
			return
		}
		_, err := execute(context.Background(), w.s, "third", grant, testParts(nil))
		wantCode(t, err, "workspace_busy")
		if !strings.Contains(err.Error(), "task t ") {
			t.Errorf("it does not say who: %v", err)
		}
		if who, err := w.s.WorkspaceHolder(w.repo, "reader", false); who != "" || err != nil {
			t.Errorf("one who only reads is kept out by %q, %v", who, err)
		}
		wantSound(t, w.s)
	}))
	if err != nil || task.Checks != ChecksPassed {
		t.Fatalf("%v, checks %s, %+v", err, task.Checks, task.Run.Report)
	}
	if got := entries(t, w.s); len(got) != 0 {
		t.Fatalf("entries of checks that have ended: %q", got)
	}
	wantEnding(t, w.execute("third", grant, nil), Finished, ExecFinished, "exit 0")
}

// TestDeadCheckerFreesTheWorkspace: the turn that meets its entry settles it.
func TestDeadCheckerFreesTheWorkspace(t *testing.T) {
	w := newWorkbench(t)
	require := w.requiring(w.suite("suite", `emit passed "$1"`))
	w.submit("t", BoundedCommand)
	w.execute("t", w.grant("t", "true", func(g *Grant) {
		require(g)
		g.Write = false
	}), nil)
	w.dieAt("check-released")
	l, err := Launch(w.s, "t", "")
	if err != nil {
		t.Fatal(err)
	}
	waitDone(t, l.Done)
	w.dieAt("nowhere")
	if task := w.get("t"); task.Checks != ChecksRunning {
		t.Fatalf("checks %s", task.Checks)
	}
	w.submit("other", BoundedCommand)
	wantEnding(t, w.execute("other", w.grant("other", "true"), nil), Finished, ExecFinished, "exit 0")
	if task := w.get("t"); task.Checks != ChecksUnavailable {
		t.Fatalf("checks %s", task.Checks)
	}
}
