package owner

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/sandbox"
)

var update = flag.Bool("update", false, "record the expected files of table tests again")

// moment is a task at one point of its life.
type moment struct {
	name string
	task *Task
}

// grow applies inputs in turn; each is a Command maker or an event.
func grow(t *testing.T, inputs ...func(*Task) (Task, error)) *Task {
	t.Helper()
	var task *Task
	for i, in := range inputs {
		n, err := in(task)
		if err != nil {
			t.Fatalf("input %d: %v", i, err)
		}
		task = &n
	}
	return task
}

func doSubmit(t *Task) (Task, error) { return NextCommand(t, submitOf(deviceTask, "c-submit"), 100) }
func doCancel(t *Task) (Task, error) {
	return NextCommand(t, cancelOf(deviceTask, "c-cancel", revisionOf(t)), 200)
}
func doCorrect(t *Task) (Task, error) {
	return NextCommand(t, correctOf(deviceTask, "c-correct", revisionOf(t)), 200)
}
func doContinue(t *Task) (Task, error) {
	return NextCommand(t, continueOf(deviceTask, "c-continue", revisionOf(t)), 200)
}

func revisionOf(t *Task) int64 {
	if t == nil {
		return 1
	}
	return t.Revision
}

func event(epoch Epoch, ev Event) func(*Task) (Task, error) {
	return func(t *Task) (Task, error) { return NextEvent(t, epoch, ev, 200) }
}

func doAdmit(t *Task) (Task, error) {
	if t == nil {
		return NextEvent(nil, 1, Event{Admitted: &Admission{}}, 200)
	}
	return NextEvent(t, 1, Event{Admitted: admission(t)}, 200)
}

func doAdmitAt(epoch Epoch) func(*Task) (Task, error) {
	return func(t *Task) (Task, error) {
		ev := Event{Admitted: &Admission{}}
		if t != nil {
			ev.Admitted = admission(t)
		}
		return NextEvent(t, epoch, ev, 200)
	}
}

func clearedBy(proof string) Event { return Event{Cleared: &Cleared{Proof: proof, At: 3}} }

func doIntent(t *Task) (Task, error) {
	if t == nil {
		return NextEvent(nil, 1, Event{EffectIntent: ptr("x")}, 200)
	}
	return NextEvent(t, 1, Event{EffectIntent: ptr(EffectID(t.ID, t.Turn()))}, 200)
}

func resultWith(change func(*Result)) Event {
	r := exited(0)
	change(r)
	return Event{Result: r}
}

func ownerEnded() Event {
	return resultWith(func(r *Result) { r.Ending, r.ExitCode = EndingOwnerEnded, nil })
}

func asked(kind, ending string) Event {
	return resultWith(func(r *Result) { r.Ending, r.Ask = ending, kind })
}

var (
	spawned  = Event{Spawned: &sandbox.Identity{PID: 9}}
	archived = Event{Archived: &Archived{Reason: "done with it", By: "owner", At: 3}}
	worktree = Event{Worktree: &Worktree{Path: "/home/w", Base: strings.Repeat("a", 40), CommonDir: "/w/.git"}}
	notClear = resultWith(func(r *Result) { r.GroupClear = false })
)

// The whole state machine: every moment of a task's life times every command
// and event. Each row of the data file is what comes of it.
func TestTransitions(t *testing.T) {
	running := []func(*Task) (Task, error){doSubmit, doAdmit, doIntent, event(1, spawned)}
	after := func(more ...func(*Task) (Task, error)) *Task {
		return grow(t, append(append(running[:0:0], running...), more...)...)
	}
	moments := []moment{
		{"no task", nil},
		{"queued", grow(t, doSubmit)},
		{"admitted", grow(t, running[:2]...)},
		{"intended", grow(t, running[:3]...)},
		{"running", after()},
		{"cancel requested before dispatch", grow(t, doSubmit, doAdmit, doCancel)},
		{"cancel requested", after(doCancel)},
		{"corrected while running", after(doCorrect)},
		{"finished", after(event(1, Event{Result: exited(0)}))},
		{"failed", after(event(1, Event{Result: exited(2)}))},
		{"stopped", after(doCancel, event(1, Event{Result: exited(0)}))},
		{"asked", after(event(1, asked("question", EndingAskedQuestion)))},
		{"not clear", after(event(1, notClear))},
		{"cleared", after(event(1, notClear), event(2, clearedBy(ProofEmpty)))},
		{"owner lost", after(event(2, Event{OwnerLost: true}))},
		{"owner ended after a loss", after(event(2, Event{OwnerLost: true}), event(2, ownerEnded()))},
		{"cancelled before admission", grow(t, doSubmit, doCancel)},
		{"not started", grow(t, doSubmit, event(0, Event{NotStarted: ptr("device revoked")}))},
		{"archived", after(event(1, Event{Result: exited(0)}), event(0, archived))},
		{"queued again", after(event(1, Event{Result: exited(0)}), doContinue)},
		{"queued again after a loss", after(event(2, Event{OwnerLost: true}), event(3, ownerEnded()), doContinue)},
		{"queued again, never admitted", grow(t, doSubmit, doCancel, doContinue)},
	}
	inputs := []struct {
		name string
		do   func(*Task) (Task, error)
	}{
		{"submit", doSubmit}, {"cancel", doCancel}, {"correct", doCorrect}, {"continue", doContinue},
		{"cancel at an old revision", func(t *Task) (Task, error) {
			return NextCommand(t, cancelOf(deviceTask, "c-old", revisionOf(t)+7), 200)
		}},
		{"worktree", event(0, worktree)},
		{"admitted", doAdmit},
		{"admitted at epoch 2", doAdmitAt(2)},
		{"admitted at epoch 4", doAdmitAt(4)},
		{"effect intent", doIntent},
		{"effect intent of epoch 2", func(t *Task) (Task, error) { return NextEvent(t, 2, Event{EffectIntent: ptr("x")}, 200) }},
		{"spawned", event(1, spawned)},
		{"result exit 0", event(1, Event{Result: exited(0)})},
		{"result exit 1", event(1, Event{Result: exited(1)})},
		{"result stop requested", event(1, resultWith(func(r *Result) { r.StopRequested, r.Ending, r.ExitCode = true, EndingStopped, nil }))},
		{"result not clear", event(1, notClear)},
		{"result question", event(1, asked("question", EndingAskedQuestion))},
		{"result cancelled before dispatch", event(1, resultWith(func(r *Result) { r.Ending, r.ExitCode = EndingCancelledBefore, nil }))},
		{"result owner ended, epoch 1", event(1, ownerEnded())},
		{"result owner ended, epoch 2", event(2, ownerEnded())},
		{"result owner ended, epoch 3", event(3, ownerEnded())},
		{"cleared, epoch 1", event(1, clearedBy(ProofEmpty))},
		{"cleared, epoch 2", event(2, clearedBy(ProofBoot))},
		{"owner lost, epoch 1", event(1, Event{OwnerLost: true})},
		{"owner lost, epoch 2", event(2, Event{OwnerLost: true})},
		{"not started", event(0, Event{NotStarted: ptr("no room")})},
		{"archived", event(0, archived)},
		{"restored", event(0, Event{Restored: true})},
	}
	var out bytes.Buffer
	for _, m := range moments {
		fmt.Fprintf(&out, "%s: %s\n", m.name, describeTask(m.task))
		for _, in := range inputs {
			var before string
			if m.task != nil {
				before = string(mustJSON(m.task))
			}
			n, err := in.do(m.task)
			if m.task != nil && string(mustJSON(m.task)) != before {
				t.Errorf("%s, %s: the task given was changed", m.name, in.name)
			}
			var refusal *Error
			switch {
			case errors.As(err, &refusal):
				fmt.Fprintf(&out, "  %-34s %s\n", in.name, refusal.Code)
			case err != nil:
				t.Errorf("%s, %s: %v is no refusal", m.name, in.name, err)
			default:
				fmt.Fprintf(&out, "  %-34s -> %s\n", in.name, describeTask(&n))
			}
		}
		out.WriteByte('\n')
	}
	compare(t, "transitions.txt", out.Bytes())
}

func describeTask(t *Task) string {
	if t == nil {
		return "-"
	}
	phase, headline, attention := t.Summary()
	s := fmt.Sprintf("r%d turn %d %s/%s, shows %s/%s %q", t.Revision, t.Turn(), t.Status, t.Execution, phase, attention, headline)
	if t.Run != nil {
		s += fmt.Sprintf(", epoch %d", t.Run.Epoch)
	}
	if t.Run != nil && t.Run.Cleared != nil {
		s += ", cleared: " + t.Run.Cleared.Proof
	}
	if p := t.Pending(); p != "" {
		s += ", pending " + p
	}
	if t.CancelReason != "" {
		s += ", because " + t.CancelReason
	}
	if t.Archived != nil {
		s += ", archived"
	}
	if t.Worktree != nil {
		s += ", worktree"
	}
	return s + fmt.Sprintf(", prompt %q", t.EffectivePrompt())
}

func compare(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "store", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := readFile(t, path)
	if !bytes.Equal(got, want) {
		g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
		for i := range g {
			if i >= len(w) || g[i] != w[i] {
				t.Fatalf("%s line %d is\n%s\nrun with -update and read the difference", path, i+1, g[i])
			}
		}
		t.Fatalf("%s is longer than what came out", path)
	}
}

// A task has 64 turns. A turn that was never admitted keeps its number, so it
// costs none.
func TestTurn65(t *testing.T) {
	task := grow(t, doSubmit)
	for turn := 1; turn <= MaxTurns; turn++ {
		if task.Turn() != turn {
			t.Fatalf("turn %d is numbered %d", turn, task.Turn())
		}
		n, err := doCancel(task) // before admission
		if err == nil {
			n, err = doContinue(&n)
		}
		if err != nil || n.Turn() != turn {
			t.Fatalf("turn %d cancelled and continued is %d: %v", turn, n.Turn(), err)
		}
		for _, do := range []func(*Task) (Task, error){doAdmit, event(1, Event{Result: exited(0)})} {
			if n, err = do(&n); err != nil {
				t.Fatal(err)
			}
		}
		if n.Run.Turn != turn || n.Run.Admission.TraceFile != TraceName(turn) {
			t.Fatalf("run of turn %d: %+v", turn, n.Run)
		}
		task = &n
		if turn < MaxTurns {
			if n, err = doContinue(task); err != nil {
				t.Fatal(err)
			}
			if len(n.Earlier) != turn || n.Run != nil {
				t.Fatalf("%d earlier runs after turn %d", len(n.Earlier), turn)
			}
			task = &n
		}
	}
	_, err := doContinue(task)
	wantCode(t, err, "limit_exceeded")
}

func TestMalformedEvents(t *testing.T) {
	queued := grow(t, doSubmit)
	run := grow(t, doSubmit, doAdmit)
	spawnedRun := grow(t, doSubmit, doAdmit, doIntent, event(1, spawned))
	admit := func(change func(*Admission)) Event {
		a := admission(queued)
		change(a)
		return Event{Admitted: a}
	}
	for _, row := range []struct {
		name string
		task *Task
		ev   Event
		code string
	}{
		{"no member", queued, Event{}, "invalid_command"},
		{"two members", queued, Event{Restored: true, OwnerLost: true}, "invalid_command"},
		{"another adapter", queued, admit(func(a *Admission) { a.Adapter = PromptCommand }), "invalid_command"},
		{"an old revision", queued, admit(func(a *Admission) { a.ReadRevision = 2 }), "revision_mismatch"},
		{"another prompt", queued, admit(func(a *Admission) { a.Prompt = DigestOf(nil) }), "revision_mismatch"},
		{"another trace", queued, admit(func(a *Admission) { a.TraceFile = TraceName(2) }), "invalid_command"},
		{"no grant", queued, admit(func(a *Admission) { a.GrantDigest = "" }), "invalid_command"},
		{"relative program", queued, admit(func(a *Admission) { a.Program = "sh" }), "invalid_command"},
		{"no network", queued, admit(func(a *Admission) { a.Network = nil }), "invalid_command"},
		{"network is no JSON", queued, admit(func(a *Admission) { a.Network = []byte("none") }), "invalid_command"},
		{"no owner", queued, admit(func(a *Admission) { a.Owner = sandbox.Identity{} }), "invalid_command"},
		{"another effect", run, Event{EffectIntent: ptr("x:1:command")}, "invalid_command"},
		{"no trace digest", run, resultWith(func(r *Result) { r.TraceDigest = "" }), "invalid_command"},
		{"exit code of another ending", run, resultWith(func(r *Result) { r.Ending = EndingTimedOut }), "invalid_command"},
		{"question without its ask", run, resultWith(func(r *Result) { r.Ending = EndingAskedQuestion }), "invalid_command"},
		{"question with exit 1", run, Event{Result: &Result{Ending: EndingAskedQuestion, Ask: "question", ExitCode: ptr(1), GroupClear: true, TraceDigest: DigestOf(nil), CostStatus: "unknown"}}, "invalid_command"},
		{"cost invented", run, resultWith(func(r *Result) { r.CostStatus = "" }), "invalid_command"},
		{"reply too long", run, resultWith(func(r *Result) { r.Reply = strings.Repeat("x", maxReply+1) }), "invalid_command"},
		{"reply is no text", run, resultWith(func(r *Result) { r.Reply = "\xff" }), "invalid_command"},
		{"owner ended, not clear", run, resultWith(func(r *Result) { r.Ending, r.ExitCode, r.GroupClear = EndingOwnerEnded, nil, false }), "invalid_command"},
		{"refused before, but spawned", spawnedRun, resultWith(func(r *Result) { r.Ending, r.ExitCode = EndingRefusedBefore, nil }), "invalid_command"},
		{"cleared without a proof", grow(t, doSubmit, doAdmit, doIntent, event(1, spawned), event(1, notClear)), clearedBy("my word"), "invalid_command"},
		{"worktree without base", queued, Event{Worktree: &Worktree{Path: "/a", CommonDir: "/b"}}, "invalid_command"},
		{"cause of two lines", queued, Event{NotStarted: ptr("a\nb")}, "invalid_command"},
		{"archived by nobody", queued, Event{Archived: &Archived{Reason: "x"}}, "invalid_command"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := NextEvent(row.task, 1, row.ev, 200)
			wantCode(t, err, row.code)
		})
	}
}

// The ledger of corrections that no turn has read, in every status.
func TestUnconsumedCorrections(t *testing.T) {
	finish := event(1, Event{Result: exited(0)})
	for _, row := range []struct {
		name string
		do   []func(*Task) (Task, error)
		want int
	}{
		{"none", nil, 0},
		{"queued", []func(*Task) (Task, error){doCorrect}, 1},
		{"queued, twice", []func(*Task) (Task, error){doCorrect, doCorrect}, 2},
		{"read at admission", []func(*Task) (Task, error){doCorrect, doCorrect, doAdmit}, 0},
		{"after admission", []func(*Task) (Task, error){doCorrect, doAdmit, doCorrect}, 1},
		{"while it stops", []func(*Task) (Task, error){doAdmit, doCancel, doCorrect}, 1},
		{"finished", []func(*Task) (Task, error){doAdmit, doCorrect, finish, doCorrect}, 2},
		{"cancelled", []func(*Task) (Task, error){doCancel, doCorrect}, 1},
		{"archived", []func(*Task) (Task, error){doAdmit, finish, event(0, Event{Archived: &Archived{Reason: "x", By: "owner"}}), doCorrect}, 1},
		{"unknown", []func(*Task) (Task, error){doAdmit, event(2, Event{OwnerLost: true}), doCorrect}, 1},
		{"continued, not admitted", []func(*Task) (Task, error){doAdmit, doCorrect, finish, doContinue}, 1},
		{"continued and read", []func(*Task) (Task, error){doAdmit, doCorrect, finish, doContinue, doCorrect, doAdmit}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			task := grow(t, append([]func(*Task) (Task, error){doSubmit}, row.do...)...)
			got := task.Unconsumed()
			if len(got) != row.want {
				t.Fatalf("%d corrections wait, want %d", len(got), row.want)
			}
			if n := len(task.Corrections); row.want > 0 && got[row.want-1] != task.Corrections[n-1] {
				t.Fatal("not the newest ones")
			}
		})
	}
}
