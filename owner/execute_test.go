package owner

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/sandbox"
)

func TestPromptCommandTurn(t *testing.T) {
	w := newWorkbench(t)
	writeFile(t, filepath.Join(w.repo, "file"), []byte("uncommitted\n"))
	w.submit("t", PromptCommand)
	task := w.execute("t", w.grant("t", `cat; echo; cat file; echo oops >&2; echo edited > file; echo new > other; wc -c < "$HOLDFAST_HISTORY"`, writing), nil)
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	w.wantSealed(task)

	records := w.trace("t", 1)
	if got, want := said(t, records, "stdout"), "the prompt of t\ncommitted\n0\n"; got != want {
		t.Fatalf("stdout %q, want %q", got, want)
	}
	if got := said(t, records, "stderr"); got != "oops\n" {
		t.Fatalf("stderr %q", got)
	}
	if r := records[0]; r.ID != "t-1" {
		t.Fatalf("session %+v", r)
	}
	if r := records[1]; r.Source != "user" || r.Message != "the prompt of t" {
		t.Fatalf("first step %+v", r)
	}
	// Devices read transcripts: no path of this machine may be in one.
	raw := string(readFile(t, filepath.Join(w.s.TaskDir("t"), TraceName(1))))
	for _, path := range []string{w.s.Home(), w.repo, task.Run.Admission.Program} {
		if strings.Contains(raw, path) {
			t.Errorf("the transcript names %s", path)
		}
	}
	tree := task.Worktree
	if tree == nil {
		t.Fatal("no worktree")
	}
	for _, m := range []string{"admitted", "dispatched", "result",
		"works in a worktree of its own, made from commit " + tree.Base + "; changes of the workspace that were not committed then are not seen"} {
		step(t, records, m)
	}
	if tree.Base != w.git("rev-parse", "HEAD") || tree.Path != filepath.Join(w.s.WorktreeRoot("t"), "project") {
		t.Fatalf("worktree %+v", tree)
	}
	if got := string(readFile(t, filepath.Join(tree.Path, "file"))); got != "edited\n" {
		t.Fatalf("the edit in the worktree: %q", got)
	}
	if got := string(readFile(t, filepath.Join(w.repo, "file"))); got != "uncommitted\n" {
		t.Fatalf("the user's checkout: %q", got)
	}
	if _, err := os.Stat(filepath.Join(w.repo, "other")); err == nil {
		t.Fatal("a file of the turn appeared in the user's checkout")
	}
	r := task.Run.Result
	var rep sandbox.Report
	var clean sandbox.Cleanup
	if json.Unmarshal(r.Confinement, &rep) != nil || rep.Mechanism == "" || json.Unmarshal(r.Cleanup, &clean) != nil || !clean.Confirmed || !r.GroupClear {
		t.Fatalf("confinement %s, cleanup %s", r.Confinement, r.Cleanup)
	}
	if r.OutputIncomplete || r.CostStatus != "unknown" || r.StopRequested {
		t.Fatalf("result %+v", r)
	}
	if gone, err := sandbox.Gone(*task.Run.Process); err != nil || !gone {
		t.Fatalf("Gone = %v, %v", gone, err)
	}
}

// The owner of a turn leaves an index that holds.
func TestIndex(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	task := w.execute("t", w.grant("t", "echo a; echo b >&2"), nil)
	f, err := w.s.openTrace(&task, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x := w.s.openIndex(f, &task, 1)
	if x == nil {
		t.Fatal("no index that holds")
	}
	defer x.close()
	if !x.ended || x.total < 4 || x.digest != task.Run.Result.TraceDigest {
		t.Fatalf("%+v", x.traceFacts)
	}
}

// A local operator's read-only command looks at the checkout itself, with what is not committed, and changes nothing.
func TestPlainCheckout(t *testing.T) {
	w := newWorkbench(t)
	writeFile(t, filepath.Join(w.repo, "file"), []byte("uncommitted\n"))
	task := w.submit("t", BoundedCommand)
	grant := publicGrant(t, map[string]any{"intent_digest": task.IntentDigest, "program": shell(t),
		"arguments": []string{"-c", `git status --short; cat file; cat; echo x > file; test -e "$HOLDFAST_REPLY$HOLDFAST_HISTORY" || echo none`}})
	task = w.execute("t", grant, nil)
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	if got := said(t, w.trace("t", 1), "stdout"); got != " M file\nuncommitted\nnone\n" {
		t.Fatalf("stdout %q", got)
	}
	if task.Worktree != nil || task.Run.Admission.Workspace != w.repo || task.Run.Admission.SourceRevision != w.git("rev-parse", "HEAD") {
		t.Fatalf("admission %+v, worktree %+v", task.Run.Admission, task.Worktree)
	}
	if got := string(readFile(t, filepath.Join(w.repo, "file"))); got != "uncommitted\n" {
		t.Fatalf("the checkout was written: %q", got)
	}
}

func TestReplyAndAsk(t *testing.T) {
	for _, r := range []struct {
		name, script, ending, reply, ask, note string
		exec                                   Execution
	}{
		{"reply", `printf '{"reply":"done","ask":null}' > $HOLDFAST_REPLY`, "exit 0", "done", "", "read", ExecFinished},
		{"question", `printf '{"reply":"which?","ask":"question"}' > $HOLDFAST_REPLY`, EndingAskedQuestion, "which?", "question", "read", ExecFinished},
		{"approval", `printf '{"reply":"may I?","ask":"approval"}' > $HOLDFAST_REPLY`, EndingAskedApproval, "may I?", "approval", "read", ExecFinished},
		{"question and failure", `printf '{"reply":"which?","ask":"question"}' > $HOLDFAST_REPLY; exit 3`, "exit 3", "which?", "", "read; its ask does not count without exit 0", ExecFailed},
		{"none", `true`, "exit 0", "", "", "absent", ExecFinished},
		{"not JSON", `echo hello > $HOLDFAST_REPLY`, "exit 0", "", "", "refused: not one JSON object of \"reply\" and \"ask\"", ExecFinished},
	} {
		t.Run(r.name, func(t *testing.T) {
			w := newWorkbench(t)
			w.submit("t", PromptCommand)
			task := w.execute("t", w.grant("t", r.script), nil)
			wantEnding(t, task, Finished, r.exec, r.ending)
			if res := task.Run.Result; res.Reply != r.reply || res.Ask != r.ask {
				t.Fatalf("reply %q, ask %q", res.Reply, res.Ask)
			}
			var extra struct {
				Note string `json:"reply_file"`
			}
			step(t, w.trace("t", 1), "result").extra(t, &extra)
			if extra.Note != r.note {
				t.Fatalf("the transcript says %q", extra.Note)
			}
		})
	}
}

// The second turn works in the same worktree, knows what was said before, and reads a correction that came between.
func TestSecondTurn(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	first := w.execute("t", w.grant("t", `echo kept > file; printf '{"reply":"first reply"}' > $HOLDFAST_REPLY`, writing), nil)
	mustApply(t, w.s, continueOf("t", "c1", first.Revision))
	mustApply(t, w.s, correctOf("t", "c2", w.get("t").Revision))
	second := w.execute("t", w.grant("t", `cat; cat file $HOLDFAST_HISTORY`, writing), nil)
	wantEnding(t, second, Finished, ExecFinished, "exit 0")
	if *second.Worktree != *first.Worktree {
		t.Fatalf("another worktree: %+v", second.Worktree)
	}
	records := w.trace("t", 2)
	want := "rather c2kept\n" + `{"turn":1,"prompt":"the prompt of t","reply":"first reply","ending":"exit 0","cut":false}` + "\n"
	if got := said(t, records, "stdout"); got != want {
		t.Fatalf("stdout\n got %q\nwant %q", got, want)
	}
	var consumed struct {
		Revision       int64  `json:"revision"`
		Acknowledgment string `json:"acknowledgment"`
	}
	step(t, records, "steer_consumed").extra(t, &consumed)
	if consumed.Revision != second.Corrections[0].Revision || consumed.Acknowledgment != "next_turn_start" {
		t.Fatalf("consumed %+v", consumed)
	}
	// What was consumed once is not consumed again.
	mustApply(t, w.s, continueOf("t", "c3", second.Revision))
	w.execute("t", w.grant("t", "true"), nil)
	for _, r := range w.trace("t", 3) {
		if r.Message == "steer_consumed" {
			t.Fatal("a correction was consumed twice")
		}
	}
}

func TestCancel(t *testing.T) {
	t.Run("before admission", func(t *testing.T) {
		w := newWorkbench(t)
		w.submit("t", BoundedCommand)
		grant := w.grant("t", "echo ran")
		w.cancel("t")
		_, err := Execute(context.Background(), w.s, "t", grant)
		wantCode(t, err, "invalid_transition")
		if task := w.get("t"); task.Status != Cancelled || task.Run != nil || task.NotStarted != "" {
			t.Fatalf("task %+v", task)
		}
	})
	t.Run("before dispatch", func(t *testing.T) {
		w := newWorkbench(t)
		w.submit("t", BoundedCommand)
		task := w.execute("t", w.grant("t", "echo ran"), func(point string) {
			if point == "admitted" {
				w.cancel("t")
			}
		})
		wantEnding(t, task, Finished, ExecStopped, EndingCancelledBefore)
		w.wantSealed(task)
		if task.Run.EffectID != "" || task.Run.Process != nil || said(t, w.trace("t", 1), "stdout") != "" {
			t.Fatalf("an effect after an acknowledged cancel: %+v", task.Run)
		}
	})
	t.Run("between dispatch and watching", func(t *testing.T) {
		w := newWorkbench(t)
		w.submit("t", BoundedCommand)
		task := w.execute("t", w.grant("t", "sleep 60"), func(point string) {
			if point == "released" {
				w.cancel("t")
			}
		})
		wantEnding(t, task, Finished, ExecStopped, EndingStopped)
	})
	t.Run("while running", func(t *testing.T) {
		w := newWorkbench(t)
		w.submit("t", BoundedCommand)
		grant := w.grant("t", `trap 'echo stopping; exit 7' TERM; echo started; while :; do sleep 0.05; done`)
		ended := make(chan Task)
		go func() {
			defer close(ended) // also where it fails the test
			ended <- w.execute("t", grant, nil)
		}()
		eventually(t, "the program's first words", w.saying("t", "started"))
		w.cancel("t")
		task := <-ended
		wantEnding(t, task, Finished, ExecStopped, EndingStopped)
		if !task.Run.Result.StopRequested || !task.Run.Result.GroupClear || !strings.Contains(said(t, w.trace("t", 1), "stdout"), "stopping") {
			t.Fatalf("result %+v", task.Run.Result)
		}
		_, err := w.s.Apply(context.Background(), encoded(t, cancelOf("t", "late", task.Revision)))
		wantCode(t, err, "invalid_transition")
	})
	t.Run("by the owner's context", func(t *testing.T) {
		w := newWorkbench(t)
		w.submit("t", BoundedCommand)
		grant := w.grant("t", "echo started; sleep 60")
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		ended := make(chan Task)
		go func() {
			task, err := execute(ctx, w.s, "t", grant, testParts(nil))
			if err != nil {
				t.Errorf("execute: %v", err)
			}
			ended <- task
		}()
		eventually(t, "the program's first words", w.saying("t", "started"))
		stop()
		task := <-ended
		wantEnding(t, task, Finished, ExecStopped, EndingStopped)
		w.wantSealed(task)
	})
}

func TestLimits(t *testing.T) {
	t.Run("wall", func(t *testing.T) {
		w := newWorkbench(t)
		w.submit("t", BoundedCommand)
		task := w.execute("t", w.grant("t", "echo started; sleep 60", func(g *Grant) { g.WallSeconds = 1 }), nil)
		wantEnding(t, task, Finished, ExecFailed, EndingTimedOut)
		if task.Run.Result.ExitCode != nil || !task.Run.Result.GroupClear {
			t.Fatalf("result %+v", task.Run.Result)
		}
	})
	t.Run("output", func(t *testing.T) {
		w := newWorkbench(t)
		w.submit("t", BoundedCommand)
		task := w.execute("t", w.grant("t", "while :; do echo 0123456789012345678901234567890123456789; done", func(g *Grant) { g.StreamBytes = 1 << 20 }), nil)
		wantEnding(t, task, Finished, ExecStopped, EndingOutputLimit)
		w.wantSealed(task)
		if n := len(said(t, w.trace("t", 1), "stdout")); n > maxOutput || n < maxOutput/2 || !task.Run.Result.OutputIncomplete {
			t.Fatalf("%d bytes kept, incomplete %v", n, task.Run.Result.OutputIncomplete)
		}
	})
	t.Run("standard error", func(t *testing.T) {
		w := newWorkbench(t)
		w.submit("t", BoundedCommand)
		task := w.execute("t", w.grant("t", "i=0; while [ $i -lt 2000 ]; do echo 0123456789 >&2; i=$((i+1)); done", func(g *Grant) { g.StreamBytes = 1 << 10 }), nil)
		wantEnding(t, task, Finished, ExecFinished, "exit 0")
		total, kept := int64(0), 0
		for _, r := range w.trace("t", 1) {
			if r.Source == "agent" {
				var e outputExtra
				r.extra(t, &e)
				if e.Offset != total {
					t.Fatalf("a step at %d, want %d", e.Offset, total)
				}
				total += int64(e.Bytes)
				kept += e.Bytes
				for _, g := range e.Gaps {
					if g.Offset != total {
						t.Fatalf("a gap at %d, want %d", g.Offset, total)
					}
					total += g.Bytes
				}
			}
		}
		if total != 22000 || kept > 1<<10 || !task.Run.Result.OutputIncomplete {
			t.Fatalf("%d bytes accounted for, %d kept", total, kept)
		}
	})
}

func TestExecuteTwice(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	grant := w.grant("t", "echo ran")
	errs := make(chan error)
	for range 2 {
		go func() {
			_, err := Execute(context.Background(), w.s, "t", grant)
			errs <- err
		}()
	}
	first, second := <-errs, <-errs
	if first == nil {
		first, second = second, first
	}
	wantCode(t, second, "")
	wantCode(t, first, "invalid_transition")
	if got := said(t, w.trace("t", 1), "stdout"); got != "ran\n" {
		t.Fatalf("stdout %q", got)
	}
	_, err := Execute(context.Background(), w.s, "t", grant)
	wantCode(t, err, "invalid_transition")
}
