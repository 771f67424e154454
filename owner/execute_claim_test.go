package owner

import (
	"context"
	"os"
	"strings"
	"testing"
)

// Two turns by grants of the person at the machine on one checkout: the second
// is refused with the first one's name, nothing of it is written, and it runs
// when the first has ended.
func TestWorkspaceBusy(t *testing.T) {
	w := newWorkbench(t)
	w.submit("first", BoundedCommand)
	w.submit("second", BoundedCommand)
	l := w.launch("first", w.grant("first", "echo started; sleep 600"))
	eventually(t, "the program's first words", w.saying("first", "started"))
	grant := w.grant("second", "echo ran")
	_, err := execute(context.Background(), w.s, "second", grant, testParts(nil))
	wantCode(t, err, "workspace_busy")
	if !strings.Contains(err.Error(), "task first") {
		t.Fatalf("it does not say who: %v", err)
	}
	if t2 := w.get("second"); t2.Status != Queued || t2.Revision != 1 || t2.Run != nil {
		t.Fatalf("%+v", t2)
	}
	second := w.launch("second", grant)
	waitDone(t, second.Done)
	if !second.Busy() {
		t.Fatal("its owner does not say that it found the place taken")
	}
	// A turn in a worktree of its own is in nobody's way.
	w.submit("third", PromptCommand)
	wantEnding(t, w.execute("third", w.grant("third", "true", writing), nil), Finished, ExecFinished, "exit 0")
	w.cancel("first")
	waitDone(t, l.Done)
	if l.Busy() {
		t.Fatal("an owner that ran its turn says that the place was taken")
	}
	wantEnding(t, w.execute("second", grant, nil), Finished, ExecFinished, "exit 0")
	if got := entries(t, w.s); len(got) != 0 {
		t.Fatalf("entries of turns that have ended: %q", got)
	}
}

// Turns of the policy that only read share a folder; one that has it alone waits for them.
func TestReadersShare(t *testing.T) {
	w := newWorkbench(t)
	if err := os.RemoveAll(w.repo + "/.git"); err != nil {
		t.Fatal(err)
	}
	policy := func(g *Grant) { g.PolicyDigest = DigestOf([]byte("policy")) }
	for _, id := range []TaskID{"one", "two", "alone"} {
		w.submit(id, PromptCommand)
	}
	l := w.launch("one", w.grant("one", "echo started; sleep 600", policy))
	eventually(t, "the program's first words", w.saying("one", "started"))
	wantEnding(t, w.execute("two", w.grant("two", "true", policy), nil), Finished, ExecFinished, "exit 0")
	_, err := execute(context.Background(), w.s, "alone", w.grant("alone", "true"), testParts(nil))
	wantCode(t, err, "workspace_busy")
	w.cancel("one")
	waitDone(t, l.Done)
	wantEnding(t, w.execute("alone", w.grant("alone", "true"), nil), Finished, ExecFinished, "exit 0")
}

// Wherever an owner dies, the workspace is free again for the next one as soon
// as nothing of the dead turn is left, without anybody settling it by hand.
func TestOwnerDeathFreesTheWorkspace(t *testing.T) {
	for _, point := range []string{"claimed", "admitted", "intent", "spawned", "released", "result-before", "result-after"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			w.submit("dies", BoundedCommand)
			w.submit("next", BoundedCommand)
			script := "sleep 600"
			if strings.HasPrefix(point, "result") {
				script = "true"
			}
			w.dieAt(point)
			waitDone(t, w.launch("dies", w.grant("dies", script)).Done)
			if got := entries(t, w.s); len(got) != 1 {
				t.Fatalf("entries %q", got)
			}
			grant := w.grant("next", "echo ran")
			var task Task
			eventually(t, "the workspace", func() bool {
				var err error
				task, err = execute(context.Background(), w.s, "next", grant, testParts(nil))
				if err != nil && !isRefusal(err, "workspace_busy") {
					t.Fatal(err)
				}
				return err == nil
			})
			wantEnding(t, task, Finished, ExecFinished, "exit 0")
			dead := w.get("dies")
			switch point {
			case "claimed":
				if dead.Status != Queued || dead.Run != nil {
					t.Fatalf("%+v", dead)
				}
			case "result-after":
				wantEnding(t, dead, Finished, ExecFinished, "exit 0")
			default:
				wantEnding(t, dead, Finished, ExecFailed, EndingOwnerEnded)
			}
			if got := entries(t, w.s); len(got) != 0 {
				t.Fatalf("entries %q", got)
			}
			wantSound(t, w.s)
		})
	}
}
