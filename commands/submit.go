package commands

import (
	"context"
	"errors"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// Hooks of one submission. Each may be nil. They run inside a transaction that
// may run more than once, so they must start from their arguments.
type Hooks struct {
	// Admit runs first in the first commit; its error aborts with nothing recorded.
	Admit func(tx *bbolt.Tx) error
	// Answer runs in the commit in which the entry's disposition for this request is known (held, done,
	// or, when evaluation could not finish, received or dispatching): the host retains its sealed reply
	// there. err is ErrConflict, ErrPruned or ErrFull, with a zero Entry.
	Answer func(tx *bbolt.Tx, e Entry, err error) error
	// Exact marks task.command.at_revision: the task must stand at Command.BasedOn.
	Exact bool
}

// Submit records c once, evaluates its task, and returns the entry as it
// stands. The answer hook runs exactly in one commit that returned nil, unless
// ctx ended or the store failed; then the same command, sent again, is answered
// from its entry. ErrConflict, ErrPruned and ErrFull are returned after their
// answer was committed. With ErrUnsettled the entry is returned too: it is
// recorded, and another evaluation carries it on.
func (v *Evaluator) Submit(ctx context.Context, s Sender, c nip.Command, h Hooks) (Entry, error) {
	unlock, err := v.locks.lock(ctx, c.Task)
	if err != nil {
		return Entry{}, err
	}
	var all []Entry
	e, err := v.submit(ctx, s, c, h, &all)
	unlock()
	v.announce(all)
	return e, err
}

func (v *Evaluator) submit(ctx context.Context, s Sender, c nip.Command, h Hooks, all *[]Entry) (Entry, error) {
	a := &answerer{journal: v.Journal, hook: h.Answer, entry: Entry{
		Key:    Key{Principal: s.Device, Kind: KindCommand, ID: string(c.ID)},
		Sender: s, Command: c, Task: c.Task, Exact: h.Exact,
	}}
	asked := a.entry
	view, viewErr := v.Tasks.View(ctx, c.Task)
	var out pass
	var refused error
	err := v.DB.Update(ctx, func(tx *bbolt.Tx) error {
		out, refused = pass{}, nil
		if h.Admit != nil {
			if err := h.Admit(tx); err != nil {
				return err
			}
		}
		now := v.now(tx)
		e, err := v.Journal.Record(tx, asked, now)
		if errors.Is(err, ErrConflict) || errors.Is(err, ErrPruned) || errors.Is(err, ErrFull) {
			refused = err
			return a.refuse(tx, err)
		}
		if err != nil {
			return err
		}
		// A replay of a settled command gets its disposition and moves
		// nothing. Without a view, recorded is all it can be.
		if settled(e) || viewErr != nil {
			return a.finish(tx)
		}
		if err := v.advance(tx, c.Task, view, now, &out); err != nil {
			return err
		}
		return a.try(tx)
	})
	if err != nil {
		return Entry{}, err
	}
	if a.commit(); refused != nil {
		return Entry{}, refused
	}
	*all = append(*all, out.changed...)
	if viewErr != nil && !settled(a.entry) {
		return a.entry, unsettled(viewErr)
	}
	driveErr := v.drive(ctx, c.Task, out.effect, all, a)
	if !a.done {
		// The evaluation could not finish: the disposition is what is recorded.
		err := v.DB.Update(ctx, a.finish)
		if err != nil {
			return a.entry, errors.Join(driveErr, err)
		}
		a.commit()
	}
	return a.entry, driveErr
}

// settled says that an entry's disposition can be answered: what is received or
// dispatching is about to change.
func settled(e Entry) bool { return e.State == StateHeld || e.State == StateDone }

// answerer runs the answer hook once, in the right commit. try and finish run
// inside transactions that may be rolled back or repeated; commit confirms what
// the last one did. A nil answerer answers nothing.
type answerer struct {
	journal Journal
	hook    func(tx *bbolt.Tx, e Entry, err error) error
	entry   Entry // as of the last confirmed commit
	done    bool  // the hook's commit is on disk

	pendingEntry Entry
	pendingDone  bool
}

// try answers when the disposition is known.
func (a *answerer) try(tx *bbolt.Tx) error {
	if a == nil {
		return nil
	}
	return a.read(tx, false)
}

// finish answers with whatever is recorded.
func (a *answerer) finish(tx *bbolt.Tx) error { return a.read(tx, true) }

func (a *answerer) read(tx *bbolt.Tx, anyway bool) error {
	e, _, err := a.journal.Get(tx, a.entry.Key)
	if err != nil {
		return err
	}
	a.pendingEntry, a.pendingDone = e, a.done || anyway || settled(e)
	if a.done || !a.pendingDone || a.hook == nil {
		return nil
	}
	return a.hook(tx, e, nil)
}

func (a *answerer) refuse(tx *bbolt.Tx, refused error) error {
	a.pendingEntry, a.pendingDone = Entry{}, true
	if a.hook == nil {
		return nil
	}
	return a.hook(tx, Entry{}, refused)
}

func (a *answerer) commit() {
	if a != nil {
		a.entry, a.done = a.pendingEntry, a.pendingDone
	}
}
