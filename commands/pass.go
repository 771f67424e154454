package commands

import (
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// step is one decision of a pass.
type step struct {
	row Entry // partial
	d   Decision
}

// plan is what one pass over a task's undecided commands would do.
type plan struct {
	steps       []step
	dispatching *Entry // partial; bytes that must be applied before anything is decided
	leaseEnded  bool   // an expired lease still lies there
}

func (p plan) empty() bool { return len(p.steps) == 0 && p.dispatching == nil && !p.leaseEnded }

// plan reads and decides, and changes nothing. It stops behind the first
// effect: what comes later must be decided with a fresh view.
func (v *Evaluator) plan(tx *bbolt.Tx, task nip.TaskID, view TaskView, now int64) (plan, error) {
	var p plan
	rows, err := v.Journal.rows(tx, task)
	if err != nil {
		return p, err
	}
	lease, leased, err := v.Journal.Lease(tx, task)
	if err != nil {
		return p, err
	}
	if leased && (now >= lease.ExpiresAt || v.worn(task)) {
		leased, p.leaseEnded = false, true
	}
	for i := range rows {
		if rows[i].State == StateDispatching {
			p.dispatching = &rows[i]
			return p, nil
		}
	}
	facts := Facts{View: view, Leased: leased, Restored: v.Journal.Restored(tx), Now: now}
	standing := make(map[Sender]bool)
	stands := func(s Sender) bool {
		ok, known := standing[s]
		if !known {
			ok = v.Standing(tx, s, now)
			standing[s] = ok
		}
		return ok
	}
	stop := lastStop(rows, facts, stands)
	line := newLine(rows)
	for i, e := range rows {
		facts.Standing = stands(e.Sender)
		facts.Ahead = line.ahead(e)
		facts.Ahead.Interrupt = i < stop
		d := Decide(e, facts)
		if d.Verdict == VerdictWait {
			continue
		}
		p.steps = append(p.steps, step{e, d})
		if d.Verdict == VerdictRun {
			break
		}
		rows[i] = decided(e, d)
		if inLine(e) {
			line = newLine(rows) // it left, or moved to the priority part
		} else {
			line.add(rows[i])
		}
	}
	return p, nil
}

// lastStop is the index of the newest interrupt that would stop the task if it
// stood alone, or -1. One that would itself be refused supersedes nothing.
func lastStop(rows []Entry, facts Facts, stands func(Sender) bool) int {
	for i := len(rows) - 1; i >= 0; i-- {
		if rows[i].Command.Action != nip.Interrupt {
			continue
		}
		facts.Standing = stands(rows[i].Sender)
		if Decide(rows[i], facts).Verdict == VerdictRun {
			return i
		}
	}
	return -1
}

// decided is e as the decision leaves it.
func decided(e Entry, d Decision) Entry {
	switch d.Verdict {
	case VerdictHold:
		e.State, e.Priority = StateHeld, d.Priority
	case VerdictReject:
		e.State, e.Outcome, e.Reason = StateDone, OutcomeRejected, d.Code
	case VerdictExpire:
		e.State, e.Outcome, e.Reason = StateDone, OutcomeExpired, nip.Expired
	case VerdictSupersede:
		e.State, e.Outcome, e.Reason = StateDone, OutcomeSuperseded, nip.Stale
	}
	return e
}

// line knows who stands first in both parts of a queue.
type line struct {
	priority, queued int64 // lowest rank; none: above every rank
}

const nobody = int64(1) << 62

func newLine(rows []Entry) line {
	l := line{priority: nobody, queued: nobody}
	for i := range rows {
		l.add(rows[i])
	}
	return l
}

func (l *line) add(e Entry) {
	switch {
	case !inLine(e):
	case e.Priority:
		l.priority = min(l.priority, rank(e))
	default:
		l.queued = min(l.queued, rank(e))
	}
}

// ahead says what of the line stands before e. Priority messages stand before
// every other one, and among themselves in journal order.
func (l line) ahead(e Entry) Ahead {
	if e.Priority {
		before := l.priority < rank(e)
		return Ahead{Held: before, Priority: before}
	}
	return Ahead{
		Held:     l.priority != nobody || l.queued < rank(e),
		Priority: l.priority < int64(e.Seq),
	}
}

// pass is what one transaction of an evaluation did. A transaction may run
// more than once, so each run begins with a fresh one.
type pass struct {
	changed []Entry
	effect  *Entry // its bytes are recorded; the task has not been asked yet
}

// advance runs one pass in tx. Where it finds recorded bytes it decides
// nothing: they are applied first.
func (v *Evaluator) advance(tx *bbolt.Tx, task nip.TaskID, view TaskView, now int64, out *pass) error {
	for again := true; again; {
		p, err := v.plan(tx, task, view, now)
		if err != nil {
			return err
		}
		if p.leaseEnded {
			if err := v.Journal.SetLease(tx, task, nil); err != nil {
				return err
			}
			v.unlease(task) // should this commit fail, it ages anew: a minute more at most
		}
		if p.dispatching != nil {
			e, err := v.whole(tx, p.dispatching.Key)
			out.effect = &e
			return err
		}
		again = false
		for _, s := range p.steps {
			e, err := v.whole(tx, s.row.Key)
			if err != nil {
				return err
			}
			if s.d.Verdict == VerdictRun {
				bytes, err := v.Tasks.Compile(e, s.d.Effect, view)
				if err == nil {
					return v.dispatch(tx, e, bytes, s.d.ThenHold, now, out)
				}
				// What cannot be said to the task never can: refusing it lets
				// those behind it go on, without a new view.
				s.d, again = reject(nip.Unavailable), true
			}
			e = decided(e, s.d)
			if _, err := v.change(tx, e, word(e), now, out); err != nil {
				return err
			}
		}
	}
	return nil
}

// dispatch records the exact bytes. From its commit on a crash applies them
// again; before it the command is undecided and the task was not asked.
func (v *Evaluator) dispatch(tx *bbolt.Tx, e Entry, bytes []byte, thenHold bool, now int64, out *pass) error {
	e.Then, e.Dispatch = StateNone, bytes
	switch {
	case thenHold:
		e.Then = StateHeld
	case e.State == StateReceived && e.Position != 0:
		e.Then = StateReceived // sent now, and still without its stop if the task refuses these bytes
	}
	e.State = StateDispatching
	e, err := v.change(tx, e, word(e), now, out)
	out.effect = &e
	return err
}

func (v *Evaluator) whole(tx *bbolt.Tx, k Key) (Entry, error) {
	e, known, err := v.Journal.Get(tx, k)
	if err == nil && !known {
		err = fmt.Errorf("%w: the arrival order names an entry that is gone", ErrChain)
	}
	return e, err
}

func (v *Evaluator) change(tx *bbolt.Tx, e Entry, what string, now int64, out *pass) (Entry, error) {
	e, err := v.Journal.Change(tx, e, what, now)
	if err != nil {
		return e, err
	}
	out.changed = append(out.changed, e)
	if v.Decided != nil {
		err = v.Decided(tx, e)
	}
	return e, err
}

// word names e's state or outcome in the history.
func word(e Entry) string {
	if e.State == StateDone {
		return e.Outcome.String()
	}
	return e.State.String()
}

// answered writes the task's answer to the recorded bytes. A refusal for the
// revision is definite, so the command goes back to where it stood and is
// decided anew; its next bytes are new ones.
func (v *Evaluator) answered(tx *bbolt.Tx, k Key, a Applied, now int64, out *pass) error {
	e, err := v.whole(tx, k)
	if err != nil {
		return err
	}
	if e.State != StateDispatching {
		return fmt.Errorf("%w: command %s was settled by another evaluation", ErrChain, k.ID)
	}
	switch {
	case a.Refused == "" && e.Then == StateHeld:
		e.State, e.Priority, e.Revision = StateHeld, true, a.Revision
	case a.Refused == "":
		e.State, e.Outcome, e.Revision = StateDone, OutcomeApplied, a.Revision
	case a.Refused == "revision_mismatch":
		e.State = StateReceived
		if e.Then == StateNone && e.Position != 0 {
			e.State = StateHeld
		}
		e.Dispatch = nil
	default:
		e.State, e.Outcome, e.Reason = StateDone, OutcomeRejected, refusalCode(a.Refused)
	}
	_, err = v.change(tx, e, word(e), now, out)
	return err
}

func refusalCode(refused string) nip.Code {
	switch refused {
	case "invalid_transition", "command_conflict":
		return nip.Conflict
	case "limit_exceeded":
		return nip.Bounds
	case "not_found":
		return nip.Forbidden
	}
	return nip.Unavailable
}
