package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

var running = TaskView{Phase: PhaseRunning, Revision: 5, TurnStart: 5}

func (r *rig) effects() string {
	var out []string
	for _, e := range r.tasks.tasks[task(0)].effects {
		out = append(out, strings.Fields(e)[1])
	}
	return strings.Join(out, " ")
}

func (r *rig) expect(s Sender, c nip.Command, want string) {
	r.t.Helper()
	if got := short(r.entry(s, c)); got != want {
		r.t.Errorf("%s %s is %s, want %s", c.Action, c.Text, got, want)
	}
}

func TestQueueRunsInOrder(t *testing.T) {
	r := newRig(t)
	ft := r.tasks.add(task(0), running)
	var all []nip.Command
	for i := range 3 {
		c := command(i, nip.Queue, 5)
		all = append(all, c)
		if got := short(r.submit(sender(i), c)); got != "held" {
			t.Fatal(got)
		}
	}
	for i := range 3 {
		ft.finish(false)
		r.evaluate()
		for k, c := range all {
			r.expect(sender(k), c, map[bool]string{true: "applied", false: "held"}[k <= i])
		}
		ft.begin()
		r.evaluate() // nothing changes while it runs
	}
	if got := r.effects(); got != "continue continue continue" {
		t.Error(got)
	}
	r.check()
}

func TestEmulatedSteerStopsThenRunsFirst(t *testing.T) {
	r := newRig(t)
	ft := r.tasks.add(task(0), TaskView{Phase: PhaseRunning, Revision: 5, TurnStart: 5, Steering: Steering{Emulate: true}})
	queued, steer := command(1, nip.Queue, 5), command(2, nip.Steer, 5)
	steer.Emulate = true
	r.submit(sender(0), queued)
	if got := short(r.submit(sender(1), steer)); got != "held priority" {
		t.Fatal(got)
	}
	if ft.Phase != PhaseStopping {
		t.Fatal(ft.Phase)
	}
	r.evaluate()
	r.evaluate()
	ft.finish(false)
	r.evaluate()
	r.expect(sender(1), steer, "applied priority")
	r.expect(sender(0), queued, "held")
	if got := r.effects(); got != "cancel continue" {
		t.Error(got)
	}
	r.check()
}

func TestBoundedCommandRefusesEmulation(t *testing.T) {
	r := newRig(t)
	r.tasks.add(task(0), running)
	c := command(1, nip.Steer, 5)
	c.Emulate = true
	if got := short(r.submit(sender(0), c)); got != "rejected unsupported" {
		t.Error(got)
	}
}

// TestRevisionMismatch: the task moves between the decision and the apply.
func TestRevisionMismatch(t *testing.T) {
	t.Run("once", func(t *testing.T) {
		r := newRig(t)
		r.tasks.add(task(0), running)
		moved := false
		r.tasks.before = func(ft *fakeTask, _ string) {
			if !moved {
				moved = true
				ft.finish(false)
			}
		}
		c := command(1, nip.Interrupt, 5)
		if got := short(r.submit(sender(0), c)); got != "superseded stale" { // decided anew: the turn had ended
			t.Error(got)
		}
		r.check()
	})
	t.Run("for ever", func(t *testing.T) {
		r := newRig(t)
		r.tasks.add(task(0), running)
		r.tasks.before = func(ft *fakeTask, _ string) { ft.Revision++ }
		c := command(1, nip.Interrupt, 5)
		answers := 0
		e, err := r.Submit(context.Background(), sender(0), c, Hooks{Answer: func(_ *bbolt.Tx, e Entry, _ error) error {
			answers++
			return nil
		}})
		if !errors.Is(err, ErrUnsettled) || e.State != StateReceived || answers != 1 || r.tasks.applies != maxMismatches {
			t.Errorf("%v, %s, %d answers, %d applies", err, short(e), answers, r.tasks.applies)
		}
		r.tasks.before = nil // it rests: nothing was lost
		r.evaluate()
		r.expect(sender(0), c, "applied")
		r.check()
	})
	t.Run("a held message stays held", func(t *testing.T) {
		r := newRig(t)
		ft := r.tasks.add(task(0), running)
		c := command(1, nip.Queue, 5)
		r.submit(sender(0), c)
		ft.finish(false)
		r.tasks.before = func(ft *fakeTask, _ string) { // somebody else's turn came first
			r.tasks.before = nil
			ft.Phase, ft.Revision = PhaseRunning, ft.Revision+1
		}
		r.evaluate()
		r.expect(sender(0), c, "held")
		ft.finish(false)
		r.evaluate()
		r.expect(sender(0), c, "applied")
	})
}

// TestSentNowMeetsABeginningTurn: a message that was sent now would have
// corrected a turn that had not started; the turn began first, so it stops it,
// as it would have a moment later. Also where a crash lies between.
func TestSentNowMeetsABeginningTurn(t *testing.T) {
	for _, crash := range []bool{false, true} {
		r := newRig(t)
		ft := r.tasks.add(task(0), TaskView{Phase: PhaseNotStarted, Revision: 5, TurnStart: 3, Steering: Steering{Emulate: true}})
		c := command(1, nip.Queue, 5)
		r.submit(sender(0), c)
		r.tasks.before = func(ft *fakeTask, _ string) {
			r.tasks.before = nil
			ft.begin()
		}
		if crash {
			r.store.arm(2, false) // the bytes are recorded, and the task was not asked
		}
		err := r.Edit(context.Background(), task(0), func(tx *bbolt.Tx, _ TaskView, now int64) error {
			e, _, err := r.Journal.Get(tx, commandKey(sender(0), c))
			if err != nil || e.State != StateHeld {
				return err
			}
			e.State, e.Priority = StateReceived, true
			_, err = r.Journal.Change(tx, e, "sent_now", now)
			return err
		})
		if crash != (err != nil) {
			t.Fatal(err)
		}
		if crash {
			r.restart()
			r.evaluate()
		}
		if got := r.effects(); got != "cancel" || ft.Phase != PhaseStopping {
			t.Errorf("crash %v: effects %q, the task is %v", crash, got, ft.Phase)
		}
		r.expect(sender(0), c, "held priority")
		ft.finish(false)
		r.evaluate()
		r.expect(sender(0), c, "applied priority")
		r.check()
	}
}

// TestHeldSteerNeverStopsAnotherTurn: its own stop is behind it, and the turn
// that came between is somebody else's.
func TestHeldSteerNeverStopsAnotherTurn(t *testing.T) {
	r := newRig(t)
	ft := r.tasks.add(task(0), TaskView{Phase: PhaseRunning, Revision: 5, TurnStart: 5, Steering: Steering{Emulate: true}})
	steer := command(1, nip.Steer, 5)
	steer.Emulate = true
	r.submit(sender(0), steer)
	ft.finish(false)
	r.tasks.before = func(ft *fakeTask, _ string) {
		r.tasks.before = nil
		ft.Phase, ft.Revision = PhaseRunning, ft.Revision+1
	}
	r.evaluate()
	r.expect(sender(0), steer, "held priority")
	if got := r.effects(); got != "cancel" {
		t.Errorf("effects %s", got)
	}
	ft.finish(false)
	r.evaluate()
	r.expect(sender(0), steer, "applied priority")
}

func TestRefusalsOfTheTask(t *testing.T) {
	for refused, want := range map[string]string{
		"invalid_transition": "rejected conflict", "limit_exceeded": "rejected bounds", "command_conflict": "rejected conflict",
		"not_found": "rejected forbidden", "other": "rejected unavailable",
	} {
		r := newRig(t)
		r.tasks.add(task(0), running)
		r.tasks.refuse = refused
		if got := short(r.submit(sender(0), command(1, nip.Interrupt, 5))); got != want {
			t.Errorf("%s: %s, want %s", refused, got, want)
		}
	}
}

func TestViewErrorLosesNothing(t *testing.T) {
	r := newRig(t)
	r.tasks.add(task(0), running)
	r.tasks.viewErr = errors.New("no task store")
	c := command(1, nip.Interrupt, 5)
	var answered []string
	hooks := Hooks{Answer: func(_ *bbolt.Tx, e Entry, err error) error {
		answered = append(answered, short(e))
		return err
	}}
	e, err := r.Submit(context.Background(), sender(0), c, hooks)
	if !errors.Is(err, ErrUnsettled) || short(e) != "received" || !slices.Equal(answered, []string{"received"}) {
		t.Fatalf("%v, %s, %v", err, short(e), answered)
	}
	if err := r.Evaluate(context.Background(), task(0)); !errors.Is(err, ErrUnsettled) {
		t.Error(err)
	}
	if err := r.Edit(context.Background(), task(0), func(*bbolt.Tx, TaskView, int64) error { t.Error("ran"); return nil }); err == nil {
		t.Error("an edit without a view")
	}
	r.tasks.viewErr = nil
	// The replay finishes what was left, and answers with that.
	if e, err = r.Submit(context.Background(), sender(0), c, hooks); err != nil || short(e) != "applied" || answered[1] != "applied" {
		t.Errorf("%v, %s, %v", err, short(e), answered)
	}
}

func TestCompileErrorRefusesAndGoesOn(t *testing.T) {
	r := newRig(t)
	ft := r.tasks.add(task(0), running)
	bad, good := command(1, nip.Queue, 5), command(2, nip.Queue, 5)
	r.submit(sender(0), bad)
	r.submit(sender(0), good)
	r.tasks.badText = bad.Text
	ft.finish(false)
	r.evaluate()
	r.expect(sender(0), bad, "rejected unavailable")
	r.expect(sender(0), good, "applied")
	r.check()
}

// TestAnswerHook: it runs in the commit that makes the disposition known, once.
func TestAnswerHook(t *testing.T) {
	rows := []struct {
		name    string
		command nip.Command
		answers string // what the hook saw
		commits int
		err     error
	}{
		{"refused", command(1, nip.Send, 5), "rejected conflict", 1, nil},
		{"held", command(2, nip.Queue, 5), "held", 1, nil},
		{"an effect", command(3, nip.Interrupt, 5), "applied", 2, nil},
		{"replay of an effect", command(3, nip.Interrupt, 5), "applied", 1, nil},
		{"replay of a refusal", command(1, nip.Send, 5), "rejected conflict", 1, nil},
		{"conflict", command(1, nip.Queue, 5), "command id was used for something else", 1, ErrConflict},
	}
	r := newRig(t)
	r.tasks.add(task(0), running)
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			answers, before := []string{}, r.store.updates
			admitted := 0
			e, err := r.Submit(context.Background(), sender(0), row.command, Hooks{
				Admit: func(*bbolt.Tx) error { admitted++; return nil },
				Answer: func(_ *bbolt.Tx, e Entry, err error) error {
					if err != nil {
						answers = append(answers, err.Error())
						return nil
					}
					answers = append(answers, short(e))
					return nil
				},
			})
			if !errors.Is(err, row.err) || err == nil && short(e) != row.answers {
				t.Errorf("%v, %s", err, short(e))
			}
			if got := strings.Join(answers, "; "); got != row.answers {
				t.Errorf("answered %q", got)
			}
			if got := r.store.updates - before; got != row.commits || admitted != 1 {
				t.Errorf("%d commits, admitted %d times", got, admitted)
			}
		})
	}
	refusal := errors.New("not admitted")
	c := command(9, nip.Queue, 5)
	if _, err := r.Submit(context.Background(), sender(0), c, Hooks{Admit: func(*bbolt.Tx) error { return refusal }}); err != refusal {
		t.Error(err)
	}
	r.view(func(tx *bbolt.Tx) error {
		if _, known, _ := r.Journal.Get(tx, commandKey(sender(0), c)); known {
			t.Error("recorded without admission")
		}
		return nil
	})
}

func TestExactRevision(t *testing.T) {
	r := newRig(t)
	ft := r.tasks.add(task(0), running)
	exact := func(s Sender, c nip.Command) string {
		e, err := r.Submit(context.Background(), s, c, Hooks{Exact: true})
		if err != nil {
			return err.Error()
		}
		return short(e)
	}
	if got := exact(sender(0), command(1, nip.Queue, 4)); got != "rejected stale" {
		t.Error(got)
	}
	held := command(2, nip.Queue, 5)
	if got := exact(sender(0), held); got != "held" {
		t.Error(got)
	}
	ft.finish(false) // the first look is over: a later revision does not matter
	r.evaluate()
	r.expect(sender(0), held, "applied")
	if got := exact(sender(0), held); got != "applied" {
		t.Error(got)
	}
}

func TestRevokedAndRestored(t *testing.T) {
	r := newRig(t)
	ft := r.tasks.add(task(0), running)
	a, b := command(1, nip.Queue, 5), command(2, nip.Queue, 5)
	r.submit(sender(0), a)
	r.submit(sender(1), b)
	r.revoked[sender(0)] = true
	ft.finish(false)
	r.evaluate()
	r.expect(sender(0), a, "rejected revoked")
	r.expect(sender(1), b, "applied")
	r.update(func(tx *bbolt.Tx) error { return r.Journal.SetRestored(tx, start-CommandFuture) })
	if got := short(r.submit(sender(1), command(3, nip.Queue, 5))); got != "expired expired" {
		t.Error(got)
	}
	r.update(func(tx *bbolt.Tx) error { return r.Journal.SetRestored(tx, start-CommandFuture-1) })
	if got := short(r.submit(sender(1), command(4, nip.Queue, 5))); got == "expired expired" {
		t.Error(got)
	}
}

// TestInterrupts: only a newer interrupt supersedes, and only if it would itself
// stop the task.
func TestInterrupts(t *testing.T) {
	leave := func(r *rig, s Sender, c nip.Command) { // recorded, not evaluated
		r.tasks.viewErr = errors.New("later")
		r.Submit(context.Background(), s, c, Hooks{})
		r.tasks.viewErr = nil
	}
	t.Run("two", func(t *testing.T) {
		r := newRig(t)
		r.tasks.add(task(0), running)
		older, newer := command(1, nip.Interrupt, 5), command(2, nip.Interrupt, 5)
		leave(r, sender(0), older)
		leave(r, sender(1), newer)
		r.evaluate()
		r.expect(sender(0), older, "superseded stale")
		r.expect(sender(1), newer, "applied")
	})
	t.Run("the newer one is revoked", func(t *testing.T) {
		r := newRig(t)
		r.tasks.add(task(0), running)
		older, newer := command(1, nip.Interrupt, 5), command(2, nip.Interrupt, 5)
		leave(r, sender(0), older)
		leave(r, sender(1), newer)
		r.revoked[sender(1)] = true
		r.evaluate()
		r.expect(sender(0), older, "applied")
		r.expect(sender(1), newer, "rejected revoked")
	})
}

// TestContextEnds: nobody waits any more, and the outcome is recorded still.
func TestContextEnds(t *testing.T) {
	r := newRig(t)
	r.tasks.add(task(0), running)
	ctx, cancel := context.WithCancel(context.Background())
	r.tasks.before = func(*fakeTask, string) { cancel() }
	c := command(1, nip.Interrupt, 5)
	if e, err := r.Submit(ctx, sender(0), c, Hooks{}); err != nil || short(e) != "applied" {
		t.Errorf("%v %s", err, short(e))
	}
	if _, err := r.Submit(ctx, sender(0), command(2, nip.Queue, 5), Hooks{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	unlock, err := r.locks.lock(context.Background(), task(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Evaluate(ctx, task(0)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	unlock()
	if len(r.locks.tasks) != 0 {
		t.Error("a lock remains")
	}
}

func TestHooksOfEvaluation(t *testing.T) {
	r := newRig(t)
	ft := r.tasks.add(task(0), running)
	var decided, changed []string
	r.Decided = func(_ *bbolt.Tx, e Entry) error { decided = append(decided, word(e)); return nil }
	r.Changed = func(on nip.TaskID, e Entry) {
		// Outside every lock: a change may lead to another submission.
		if unlock, err := r.locks.lock(context.Background(), on); err == nil {
			unlock()
		}
		changed = append(changed, word(e))
	}
	r.submit(sender(0), command(1, nip.Queue, 5))
	ft.finish(false)
	r.evaluate()
	r.evaluate()
	if got := fmt.Sprint(decided, changed); got != "[held dispatching applied] [held applied]" {
		t.Error(got)
	}
	updates := r.store.updates
	r.evaluate()
	if r.store.updates != updates {
		t.Error("a task at rest was committed")
	}
}

func TestEditEvaluates(t *testing.T) {
	r := newRig(t)
	ft := r.tasks.add(task(0), running)
	c := command(1, nip.Queue, 5)
	r.submit(sender(0), c)
	lease := func(l *Lease) {
		t.Helper()
		if err := r.Edit(context.Background(), task(0), func(tx *bbolt.Tx, _ TaskView, _ int64) error {
			return r.Journal.SetLease(tx, task(0), l)
		}); err != nil {
			t.Fatal(err)
		}
	}
	lease(&Lease{Device: device(3), ExpiresAt: start + 60})
	ft.finish(false)
	r.evaluate()
	r.expect(sender(0), c, "held")
	lease(nil)
	r.expect(sender(0), c, "applied")
	wrong := errors.New("refused")
	if err := r.Edit(context.Background(), task(0), func(*bbolt.Tx, TaskView, int64) error { return wrong }); err != wrong {
		t.Error(err)
	}
}

// TestLeaseEnds: what waited for a lease runs when it is over.
func TestLeaseEnds(t *testing.T) {
	r := newRig(t)
	ft := r.tasks.add(task(0), running)
	c := command(1, nip.Queue, 5)
	r.submit(sender(0), c)
	r.update(func(tx *bbolt.Tx) error {
		return r.Journal.SetLease(tx, task(0), &Lease{Device: device(3), ExpiresAt: start + 60})
	})
	ft.finish(false)
	r.advance(59)
	r.evaluate()
	r.expect(sender(0), c, "held")
	r.advance(1)
	r.evaluate()
	r.expect(sender(0), c, "applied")
}
