package host

import (
	"context"
	"crypto/rand"
	"errors"
	"os"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/internal/procid"
	"holdfast/nip"
	"holdfast/owner"
)

// act is something that the person at the machine does to a file or a task
// outside host.db. Its row and its journal entry, received, are one commit
// before the effect; its outcome is one after it, which removes the row. So a
// crash leaves no effect that the journal does not know: a row that the next
// opening finds is finished, or its outcome is told by what can be seen, or the
// entry says unknown. What changes host.db alone needs no row: it is journalled
// in its own commit.
type act struct {
	Kind     string       `json:"kind"`
	Task     owner.TaskID `json:"task,omitempty"`
	Revision int64        `json:"revision,omitempty"` // the task's, before
	Bytes    []byte       `json:"bytes,omitempty"`    // the exact task command: the store takes it once
	Name     string       `json:"name,omitempty"`     // a label, a secret's name, or a branch
	Want     string       `json:"want,omitempty"`     // how it looks when done: a path, or a digest
	Caller   procid.ID    `json:"caller,omitzero"`    // the process that says itself how it ended
}

// actEnd is how an act ended. The zero value is "applied".
type actEnd struct {
	outcome  commands.Outcome
	reason   nip.Code
	revision int64
}

func (e actEnd) is() commands.Outcome {
	if e.outcome == commands.OutcomeNone {
		return commands.OutcomeApplied
	}
	return e.outcome
}

// maxActNote keeps a note within what the journal takes of one.
const maxActNote = 2048

// do journals an act around its effect. with, where not nil, is part of the
// commit before it. The effect's error is returned; a definite one is the
// entry's reason, and after any other one the entry says what can be seen.
func (c *Core) do(ctx context.Context, a act, note string, with func(tx *bbolt.Tx) error, effect func() (actEnd, error)) error {
	id, err := c.intend(ctx, a, note, with)
	if err != nil {
		return err
	}
	end, err := effect()
	return c.ended(ctx, id, a, end, err)
}

// ended records how the effect of an act ended, although nobody may wait for it
// any more, and returns its error.
func (c *Core) ended(ctx context.Context, id string, a act, end actEnd, err error) error {
	ctx = context.WithoutCancel(ctx)
	switch {
	case err != nil && fatal(err):
		return err // the next opening says what became of it
	case err != nil && definite(err):
		end = actEnd{outcome: commands.OutcomeRejected, reason: nip.Code(ErrorCode(err))}
	case err != nil:
		return errors.Join(err, c.settleAct(ctx, id, a))
	}
	return errors.Join(err, c.conclude(ctx, id, a.Kind, end))
}

// definite reports whether the error says that nothing happened.
func definite(err error) bool {
	var refused *owner.Error
	return errors.Is(err, ErrUsage) || errors.Is(err, ErrNotFound) || errors.As(err, &refused) && refused.Code != "store_busy"
}

// intend journals what is about to be done. A crash before this commit means
// that nothing happened; after it the entry is there, whatever happened.
func (c *Core) intend(ctx context.Context, a act, note string, with func(tx *bbolt.Tx) error) (id string, err error) {
	if id, err = nip.NewID(rand.Reader); err != nil {
		return "", err
	}
	return id, c.db.Update(ctx, func(tx *bbolt.Tx) error {
		if with != nil {
			if err := with(tx); err != nil {
				return err
			}
		}
		if _, err := c.journal.Record(tx, commands.Entry{
			Key: c.actKey(a.Kind, id), Sender: c.localSender(), Task: wireTask(a.Task), Note: cut(note, maxActNote),
		}, c.now()); err != nil {
			return err
		}
		return putJSON(tx, bucketActs, id, a)
	})
}

// moot journals an act that had nothing to do.
func (c *Core) moot(ctx context.Context, a act, note string, revision int64) error {
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		return err
	}
	return c.db.Update(ctx, func(tx *bbolt.Tx) error {
		return c.journal.Note(tx, c.actKey(a.Kind, id), c.localSender(), wireTask(a.Task), cut(note, maxActNote),
			commands.OutcomeSuperseded, "", revision, c.now())
	})
}

func (c *Core) actKey(kind, id string) commands.Key {
	return commands.Key{Principal: c.self, Kind: kind, ID: id}
}

// wireTask is the task as the journal lists it: a local task without a wire
// identity stands in the note alone.
func wireTask(id owner.TaskID) nip.TaskID {
	if nip.ValidID(string(id)) {
		return nip.TaskID(id)
	}
	return ""
}

// exactly replaces the bytes of an act that was decided anew, before they reach
// the task.
func (c *Core) exactly(ctx context.Context, id string, a act) error {
	return c.db.Update(ctx, func(tx *bbolt.Tx) error { return putJSON(tx, bucketActs, id, a) })
}

// conclude writes the outcome. An act that was concluded already stays as it is.
func (c *Core) conclude(ctx context.Context, id, kind string, end actEnd) error {
	return c.db.Update(ctx, func(tx *bbolt.Tx) error {
		if b := tx.Bucket(bucketActs); b != nil {
			if err := b.Delete([]byte(id)); err != nil {
				return err
			}
		}
		e, known, err := c.journal.Get(tx, c.actKey(kind, id))
		if err != nil || !known || e.State == commands.StateDone {
			return err
		}
		e.State, e.Outcome, e.Reason, e.Revision = commands.StateDone, end.is(), end.reason, end.revision
		_, err = c.journal.Change(tx, e, end.is().String(), c.now())
		return err
	})
}

// settleActs concludes what a stop cut off. It runs when a home is opened, under
// its lock, before anything else is done to it. One that cannot be settled yet
// holds up no other.
func (c *Core) settleActs(ctx context.Context) error {
	return c.settleEach(ctx, func(act) bool { return true })
}

// settleCallers concludes, while a host lives, the acts of callers that ended
// without a word. Only one that named itself whole is known to have ended.
func (c *Core) settleCallers(ctx context.Context) error {
	return c.settleEach(ctx, func(a act) bool {
		return a.Kind == "task.execute" && a.Caller.BootID != "" && !c.concludesItself(a)
	})
}

func (c *Core) settleEach(ctx context.Context, which func(act) bool) error {
	rows := map[string]act{}
	if err := c.db.View(func(tx *bbolt.Tx) error {
		return eachJSON(tx, bucketActs, func(id string, a act) error {
			if which(a) {
				rows[id] = a
			}
			return nil
		})
	}); err != nil {
		return err
	}
	for id, a := range rows {
		if err := c.settleAct(ctx, id, a); err != nil {
			if fatal(err) {
				return err
			}
			c.log.Error().Err(err).Str("act", id).Str("verb", a.Kind).Msg("an act that was cut off cannot be settled yet")
		}
	}
	return nil
}

// concludesItself reports whether the process that does the act is still there.
// Where the system cannot tell, its task's owner lock does. A pid alone says
// little: the host of a container has the same one at every start.
func (c *Core) concludesItself(a act) bool {
	if a.Caller == (procid.ID{PID: os.Getpid()}) {
		return true // where a process cannot name itself further
	}
	alive, err := procid.Alive(a.Caller)
	if errors.Is(err, procid.ErrUnsupported) {
		alive, err = c.store.OwnerAlive(a.Task)
	}
	return alive || err != nil
}

// nothingDone is the end of an act of which nothing can be seen.
var nothingDone = actEnd{outcome: commands.OutcomeRejected, reason: nip.Unavailable}

// settleAct finishes the act where its exact bytes make that harmless, and
// otherwise looks whether it happened. Where neither is possible nothing is
// guessed.
func (c *Core) settleAct(ctx context.Context, id string, a act) error {
	seen := func(done bool) actEnd {
		if done {
			return actEnd{}
		}
		return nothingDone
	}
	end := actEnd{outcome: commands.OutcomeUnknown}
	switch {
	case len(a.Bytes) > 0:
		rec, err := c.apply(ctx, a.Task, a.Bytes)
		var refused *owner.Error
		switch {
		case errors.As(err, &refused) && refused.Code != "store_busy":
			end = actEnd{outcome: commands.OutcomeRejected, reason: nip.Code(refused.Code)}
		case err != nil:
			return err
		default:
			end = actEnd{revision: rec.Revision}
		}
	case a.Kind == "workspace.add", a.Kind == "workspace.remove":
		if ws, err := loadWorkspaces(c.home); err == nil {
			w, found := ws.find(nip.Label(a.Name))
			end = seen(found == (a.Kind == "workspace.add") && w.Path == a.Want)
		}
	case a.Kind == "policy.set", a.Kind == "policy.off":
		if _, digest, err := loadPolicy(c.home); err == nil {
			end = seen(string(digest) == a.Want)
		}
	case a.Kind == "secret.remove":
		if names, err := owner.ReadSecrets(c.home); err == nil {
			_, found := names[a.Name]
			end = seen(!found)
		}
	case a.Kind == "task.archive", a.Kind == "task.restore":
		if t, err := c.store.Get(a.Task); err == nil {
			end = seen((t.Archived != nil) == (a.Kind == "task.archive"))
			end.revision = t.Revision
		}
	case a.Kind == "task.integrate":
		var err error
		if end, err = c.resumeIntegration(ctx, a); err != nil {
			return err
		}
	case a.Kind == "task.recover":
		if t, err := c.store.Get(a.Task); err == nil && t.Revision == a.Revision {
			end = nothingDone
		}
	case a.Kind == "task.execute":
		if c.concludesItself(a) {
			return nil
		}
	}
	c.log.Info().Str("act", id).Str("verb", a.Kind).Stringer("outcome", end.is()).Msg("settled what a stop had cut off")
	return c.conclude(ctx, id, a.Kind, end)
}
