package owner

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// nextTurn asks for another turn of an ended task.
func (w *workbench) nextTurn(id TaskID, command string) {
	w.t.Helper()
	t := w.get(id)
	mustApply(w.t, w.s, Command{CommandID: command, TaskID: id, Expected: &t.Revision, Action: Action{Continue: &ContinueAction{Prompt: "go on"}}})
}

func TestSnapshotsAreRecorded(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	first := w.execute("t", w.grant("t", "echo new >made; cat file", writing), nil)
	wantEnding(t, first, Finished, ExecFinished, "exit 0")
	source, candidate := first.Run.Admission.SourceSnapshot, first.Run.Result.Candidate
	if !source.valid() || !candidate.valid() || source == candidate {
		t.Fatalf("source %q, candidate %q", source, candidate)
	}
	w.nextTurn("t", "second")
	// A damaged cache costs time only.
	writeFile(t, filepath.Join(w.s.TaskDir("t"), snapshotCache), []byte("HFSNAPCHgarbage"))
	second := w.execute("t", w.grant("t", "true"), nil)
	if a := second.Run.Admission.SourceSnapshot; a != candidate || second.Run.Result.Candidate != candidate {
		t.Fatalf("the second turn starts from %s and ends at %s, the first left %s", a, second.Run.Result.Candidate, candidate)
	}
	var said struct {
		Candidate Digest `json:"candidate_snapshot"`
		Word      string `json:"candidate"`
	}
	step(t, w.trace("t", 2), "result").extra(t, &said)
	if said.Candidate != candidate || said.Word != "unchanged" {
		t.Fatalf("the transcript says %+v", said)
	}
	reopened := openStore(t, w.home, false)
	again, err := reopened.Get("t")
	if err != nil || again.Run.Result.Candidate != candidate {
		t.Fatalf("replayed: %+v, %v", again.Run, err)
	}
}

func TestExpectedSnapshotIsEnforced(t *testing.T) {
	w := newWorkbench(t)
	w.submit("look", BoundedCommand)
	seen := w.execute("look", w.grant("look", "true"), nil).Run.Admission.SourceSnapshot
	w.submit("right", BoundedCommand)
	right := w.execute("right", w.grant("right", "true", func(g *Grant) { g.ExpectedSnapshot = seen }), nil)
	wantEnding(t, right, Finished, ExecFinished, "exit 0")
	w.submit("wrong", BoundedCommand)
	grant := w.grant("wrong", "true", func(g *Grant) { g.ExpectedSnapshot = seen })
	writeFile(t, filepath.Join(w.repo, "file"), []byte("edited since"))
	got, err := execute(context.Background(), w.s, "wrong", grant, testParts(nil))
	if !isRefusal(err, "invalid_command") && !strings.Contains(errText(err), "invalid_command") {
		t.Fatalf("error %v", err)
	}
	if got.Status != Cancelled || got.Run != nil || !strings.Contains(got.NotStarted, "expects") {
		t.Fatalf("the turn is %s, %q", got.Status, got.NotStarted)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestWorkspaceDriftBeforeDispatch(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	got := w.execute("t", w.grant("t", "echo ran >ran", writing), func(point string) {
		if point == "admitted" {
			writeFile(t, filepath.Join(w.get("t").Worktree.Path, "file"), []byte("drifted\n"))
		}
	})
	wantEnding(t, got, Finished, ExecFailed, EndingRefusedBefore)
	if got.Run.EffectID != "" || got.Run.Result.Candidate != "" {
		t.Fatalf("something was dispatched: %+v", got.Run)
	}
	if _, err := os.Lstat(filepath.Join(got.Worktree.Path, "ran")); err == nil {
		t.Fatal("the program ran")
	}
	w.wantSealed(got)
}

// TestWhatIsNotSeenWholeIsNotAdmitted: no part of a tree is ever a pin.
func TestWhatIsNotSeenWholeIsNotAdmitted(t *testing.T) {
	w := newWorkbench(t)
	plain := filepath.Join(w.dir, "plain")
	if err := os.MkdirAll(filepath.Join(plain, strings.Repeat("d/", 130)), 0o755); err != nil {
		t.Fatal(err)
	}
	w.submitIn("t", PromptCommand, plain)
	got, err := execute(context.Background(), w.s, "t", w.grant("t", "true"), testParts(nil))
	if err == nil || got.Run != nil || !strings.Contains(got.NotStarted, "seen whole") || strings.Contains(got.NotStarted, "d/d") {
		t.Fatalf("the turn is %s, %q, %v", got.Status, got.NotStarted, err)
	}
}

// TestCandidateNotSeenWhole: a turn that leaves what cannot be seen still ends, without a candidate.
func TestCandidateNotSeenWhole(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	got := w.execute("t", w.grant("t", "i=0; while [ $i -lt 130 ]; do mkdir d; cd d; i=$((i+1)); done", writing), nil)
	wantEnding(t, got, Finished, ExecFinished, "exit 0")
	if got.Run.Result.Candidate != "" {
		t.Fatal("a candidate that was not seen whole has a digest")
	}
}
