package commands

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/internal/commit"
	"holdfast/nip"
)

// Evaluate runs the task's undecided entries until nothing changes; it is hop 7
// of the data path. decide.go comes before; owner/apply.go, behind
// Tasks.Apply, after. Entries found in StateDispatching are applied again with
// their exact bytes first. A task at rest costs no commit. It returns
// ErrUnsettled with the cause when the task could not be brought to rest.
func (v *Evaluator) Evaluate(ctx context.Context, task nip.TaskID) error {
	unlock, err := v.locks.lock(ctx, task)
	if err != nil {
		return err
	}
	var all []Entry
	err = v.evaluate(ctx, task, &all)
	unlock()
	v.announce(all)
	return err
}

func (v *Evaluator) evaluate(ctx context.Context, task nip.TaskID, all *[]Entry) error {
	idle, leased := true, false
	err := v.DB.View(func(tx *bbolt.Tx) error {
		idle = tx.Bucket(bucketTask).Bucket([]byte(task)) == nil
		leased = tx.Bucket(bucketLease).Get([]byte(task)) != nil
		return nil
	})
	if err != nil || idle && !leased {
		return err
	}
	view, err := v.Tasks.View(ctx, task)
	if err != nil {
		return unsettled(err)
	}
	err = v.DB.View(func(tx *bbolt.Tx) error {
		p, err := v.plan(tx, task, view, v.now(tx))
		idle = p.empty()
		return err
	})
	if err != nil || idle {
		return err
	}
	var out pass
	err = v.DB.Update(ctx, func(tx *bbolt.Tx) error {
		out = pass{}
		return v.advance(tx, task, view, v.now(tx), &out)
	})
	if err != nil {
		return err
	}
	*all = append(*all, out.changed...)
	return v.drive(ctx, task, out.effect, all, nil)
}

// Evaluator records commands and carries their decisions out, serially per task and in parallel across tasks.
// Its exported fields are set before the first call and not changed later.
type Evaluator struct {
	DB       commit.Updater
	Journal  Journal
	Tasks    Tasks
	Standing Standing
	Now      func() time.Time
	// Decided runs in the commit that changes an entry's state by evaluation (also held, dispatching, and
	// back): the host notes the turn's origin and the wake-ups there. It must be idempotent. May be nil.
	Decided func(tx *bbolt.Tx, e Entry) error
	// Changed is called after such a commit, outside any lock. May be nil.
	Changed func(task nip.TaskID, e Entry)

	// Elapsed is a clock that nobody sets, since any moment; it ends leases
	// that the time of day would not end. nil: the time of day alone.
	Elapsed func() time.Duration

	locks taskLocks
	ages  leaseAges
}

// maxMismatches bounds how often one evaluation follows a task that others
// keep moving. The command stays undecided and the next evaluation goes on.
const maxMismatches = 8

func (v *Evaluator) now(tx *bbolt.Tx) int64 { return v.Journal.Time(tx, v.Now().Unix()) }

func unsettled(err error) error { return fmt.Errorf("%w: %w", ErrUnsettled, err) }

// drive applies recorded bytes and runs the passes that follow from them, until
// a pass asks for no effect. a, when set, answers in the transaction in which
// its disposition becomes known. The caller holds the task's lock.
func (v *Evaluator) drive(ctx context.Context, task nip.TaskID, effect *Entry, all *[]Entry, a *answerer) error {
	for mismatches := 0; effect != nil; {
		applied, err := v.Tasks.Apply(ctx, task, effect.Dispatch)
		if err != nil {
			return unsettled(err)
		}
		if applied.Refused == "revision_mismatch" {
			mismatches++
		}
		// The task has spoken: its answer is recorded even when nobody waits
		// for it any more. A crash before this commit applies the same bytes
		// again and gets the same answer.
		ctx := context.WithoutCancel(ctx)
		view, viewErr := v.Tasks.View(ctx, task)
		if viewErr == nil && mismatches >= maxMismatches {
			viewErr = errors.New("the task keeps changing")
		}
		var out pass
		err = v.DB.Update(ctx, func(tx *bbolt.Tx) error {
			out = pass{}
			now := v.now(tx)
			if err := v.answered(tx, effect.Key, applied, now, &out); err != nil {
				return err
			}
			if viewErr == nil {
				if err := v.advance(tx, task, view, now, &out); err != nil {
					return err
				}
			}
			return a.try(tx)
		})
		if err != nil {
			return err
		}
		a.commit()
		*all = append(*all, out.changed...)
		if viewErr != nil {
			return unsettled(viewErr)
		}
		effect = out.effect
	}
	return nil
}

// announce tells Changed where each entry ended up, in the order of their last
// changes. No lock is held.
func (v *Evaluator) announce(all []Entry) {
	if v.Changed == nil {
		return
	}
	last := make(map[Key]int, len(all))
	for i, e := range all {
		last[e.Key] = i
	}
	for i, e := range all {
		if last[e.Key] == i {
			v.Changed(e.Task, e)
		}
	}
}

// Edit runs fn under the task's evaluation lock, in one commit, with a fresh
// view, then evaluates. fn may run more than once. Its error, or the view's, is
// returned as it is with nothing changed; ErrUnsettled means that the edit is
// committed and the evaluation after it could not finish.
func (v *Evaluator) Edit(ctx context.Context, task nip.TaskID, fn func(tx *bbolt.Tx, view TaskView, now int64) error) error {
	unlock, err := v.locks.lock(ctx, task)
	if err != nil {
		return err
	}
	var all []Entry
	err = v.edit(ctx, task, fn, &all)
	unlock()
	v.announce(all)
	return err
}

func (v *Evaluator) edit(ctx context.Context, task nip.TaskID, fn func(tx *bbolt.Tx, view TaskView, now int64) error, all *[]Entry) error {
	view, err := v.Tasks.View(ctx, task)
	if err != nil {
		return err
	}
	var out pass
	err = v.DB.Update(ctx, func(tx *bbolt.Tx) error {
		out = pass{}
		now := v.now(tx)
		if err := v.dropWorn(tx, task); err != nil {
			return err
		}
		if err := fn(tx, view, now); err != nil {
			return err
		}
		return v.advance(tx, task, view, now, &out)
	})
	if err != nil {
		return err
	}
	*all = append(*all, out.changed...)
	return v.drive(ctx, task, out.effect, all, nil)
}
