package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

// admittedEffect is a task.create, task.steer or task.cancel whose exact
// task-command bytes are durable and whose outcome is not recorded yet, or a
// task.archive, which has no bytes and may be repeated.
type admittedEffect struct {
	Sender    commands.Sender `json:"sender"`
	Kind      string          `json:"kind"`
	Task      nip.TaskID      `json:"task"`
	Bytes     []byte          `json:"bytes"`
	ExpiresAt int64           `json:"expires_at"`
}

// taskEffect runs an operation that becomes exactly one task command, or one
// archiving.
//
// Commit point 1 is the admitted row with the exact bytes: a crash before it
// means that nothing happened and the device's retry starts over; after it the
// start-up applies the same bytes (finishAdmitted). The store takes the bytes
// at most once by their command ID. Commit point 2 is the journal note, the
// turn's origin and the retained reply, which also removes the row.
func (h *Host) taskEffect(ctx context.Context, k *call) error {
	// Held from the check of the standing to the effect: a revocation's commit
	// waits for nobody, but its end waits until effects decided before it are
	// done (afterRevocation).
	h.effects.RLock()
	defer h.effects.RUnlock()
	if known, reply, err := h.recordedEffect(k); err != nil || known {
		if err != nil {
			return err
		}
		return h.answerRetained(ctx, k, reply, nil)
	}
	task, bytes, refusal, err := h.compileEffect(ctx, k)
	if err != nil {
		return h.cannot(ctx, k, err)
	}
	if refusal != "" {
		return h.answerRetained(ctx, k, nip.Reply{}, func(tx *bbolt.Tx, now int64) (nip.Reply, error) {
			r := &nip.Refusal{Code: refusal}
			return nip.Reply{Refusal: r}, h.note(tx, k, task, k.req.Kind, r, 0, now)
		})
	}
	eff := admittedEffect{Sender: k.who.sender, Kind: k.req.Kind, Task: task, Bytes: bytes, ExpiresAt: k.req.ExpiresAt}
	full := false
	err = h.db.Update(ctx, func(tx *bbolt.Tx) error {
		now := h.now()
		code, err := h.standing(tx, k.who.sender, k.req.Op.Right(), now)
		if err == nil && code != "" {
			err = errLostStanding
		}
		if err != nil {
			return err
		}
		if full, err = repliesFull(tx, k.opened.Signer, now); err != nil || full {
			return err
		}
		if err := h.remember(tx, k, nil); err != nil {
			return err
		}
		return putJSON(tx, bucketAdmitted, string(k.req.ID), eff)
	})
	switch {
	case errors.Is(err, errLostStanding):
		return h.refuseStanding(k)
	case err != nil:
		return err
	case full:
		return h.answerOnce(k, nip.Reply{Refusal: &nip.Refusal{Code: nip.Bounds}})
	}
	var ev *nip.Event
	err = h.applyAdmitted(ctx, k.req.ID, eff, func(tx *bbolt.Tx, r nip.Reply) (err error) {
		ev, err = h.retain(tx, k, r)
		return err
	})
	if err != nil {
		// Whether it happened is not known here, so nothing is said: the row
		// stays, the janitor applies the same bytes again, and a retry gets
		// what became of them.
		return err
	}
	h.sendReply(k, ev)
	h.starter.look(owner.TaskID(task))
	return nil
}

// recordedEffect finds the outcome of a request whose effect was recorded while
// its reply was not: a stop came between, and the device's exact retry asks.
func (h *Host) recordedEffect(k *call) (known bool, reply nip.Reply, err error) {
	var e commands.Entry
	err = h.db.View(func(tx *bbolt.Tx) error {
		e, known, err = h.journal.Get(tx, commands.Key{Principal: k.opened.Signer, Kind: k.req.Kind, ID: string(k.req.ID)})
		return err
	})
	if err != nil || !known {
		return known, reply, err
	}
	if e.Outcome != commands.OutcomeApplied {
		return true, nip.Reply{Refusal: &nip.Refusal{Code: e.Reason}}, nil
	}
	return true, nip.Reply{Outcome: nip.Dispatched{Operation: k.req.Kind, Reference: string(e.Task)}}, nil
}

// cannot answers a request that a fault of this machine kept from beginning:
// nothing happened, the device hears unavailable and the operator reads why.
func (h *Host) cannot(ctx context.Context, k *call, err error) error {
	if fatal(err) || ctx.Err() != nil {
		return err
	}
	h.log.Error().Err(err).Str("request", string(k.req.ID)).Str("op", k.req.Kind).Msg("request could not be carried out")
	return h.answerOnce(k, nip.Reply{Refusal: &nip.Refusal{Code: nip.Unavailable}})
}

// applyAdmitted is the second half of taskEffect, shared with the start-up.
func (c *Core) applyAdmitted(ctx context.Context, id nip.RequestID, eff admittedEffect, answer func(tx *bbolt.Tx, r nip.Reply) error) error {
	revision, err := c.carryOut(ctx, eff)
	var refused *owner.Error
	if err != nil && (!errors.As(err, &refused) || refused.Code == "store_busy" && ctx.Err() != nil) {
		return fmt.Errorf("apply %s: %w", eff.Kind, err)
	}
	reply := nip.Reply{Outcome: nip.Dispatched{Operation: eff.Kind, Reference: string(eff.Task)}}
	outcome, reason := commands.OutcomeApplied, nip.Code("")
	if refused != nil {
		outcome, reason = commands.OutcomeRejected, storeCode(refused.Code)
		reply = nip.Reply{Refusal: &nip.Refusal{Code: reason}}
	}
	return c.db.Update(ctx, func(tx *bbolt.Tx) error {
		now := c.now()
		if refused == nil && (eff.Kind == "task.create" || eff.Kind == "task.steer") {
			if err := putOrigin(tx, owner.TaskID(eff.Task), revision, turnOrigin{Sender: eff.Sender}); err != nil {
				return err
			}
		}
		key := commands.Key{Principal: eff.Sender.Device, Kind: eff.Kind, ID: string(id)}
		if err := c.journal.Note(tx, key, eff.Sender, eff.Task, eff.Kind, outcome, reason, revision, now); err != nil {
			return err
		}
		if err := tx.Bucket(bucketAdmitted).Delete([]byte(id)); err != nil {
			return err
		}
		if err := recordResult(tx, id, reply); err != nil {
			return err
		}
		if answer == nil {
			return nil
		}
		return answer(tx, reply)
	})
}

// carryOut does to the task what was admitted and returns its revision.
func (c *Core) carryOut(ctx context.Context, eff admittedEffect) (int64, error) {
	id := owner.TaskID(eff.Task)
	if eff.Kind != "task.archive" {
		rec, err := c.apply(ctx, id, eff.Bytes)
		return rec.Revision, err
	}
	if err := c.archive(ctx, id, "archived by a device", string(eff.Sender.Device)); err != nil {
		return 0, err
	}
	t, err := c.store.Get(id)
	return t.Revision, err
}

// finishAdmitted runs at every start and, while the host serves, now and then:
// the exact bytes of each admitted effect are applied again, which changes
// nothing where they already were. A damaged task keeps its row and holds up
// no other.
func (c *Core) finishAdmitted(ctx context.Context) error {
	c.effects.Lock() // none is under way, so a row is one that was cut off
	defer c.effects.Unlock()
	rows := map[string]admittedEffect{}
	if err := c.db.View(func(tx *bbolt.Tx) error {
		return eachJSON(tx, bucketAdmitted, func(key string, eff admittedEffect) error {
			rows[key] = eff
			return nil
		})
	}); err != nil {
		return err
	}
	for id, eff := range rows {
		if err := c.applyAdmitted(ctx, nip.RequestID(id), eff, nil); err != nil {
			if fatal(err) || ctx.Err() != nil {
				return err
			}
			c.log.Error().Err(err).Str("request", id).Str("op", eff.Kind).Msg("a request that was cut off cannot be finished yet")
			continue
		}
		c.log.Info().Str("request", id).Str("op", eff.Kind).Msg("finished a request that a stop had cut off")
	}
	return nil
}

// storeCode is the wire code of a definite refusal of the task store.
func storeCode(code string) nip.Code {
	switch code {
	case "not_found":
		return nip.Forbidden
	case "revision_mismatch":
		return nip.Stale
	case "invalid_transition", "command_conflict":
		return nip.Conflict
	case "limit_exceeded":
		return nip.Bounds
	}
	return nip.Unavailable
}

// compileEffect makes the exact bytes, or says which code refuses.
func (h *Host) compileEffect(ctx context.Context, k *call) (nip.TaskID, []byte, nip.Code, error) {
	task, bytes, code, err := h.compile(ctx, k)
	var refused *owner.Error
	if errors.As(err, &refused) {
		return task, nil, storeCode(refused.Code), nil
	}
	return task, bytes, code, err
}

func (h *Host) compile(ctx context.Context, k *call) (nip.TaskID, []byte, nip.Code, error) {
	id := storeCommandID(k.opened.Signer, string(k.req.ID), "apply")
	switch op := k.req.Op.(type) {
	case nip.TaskCreate:
		task := nip.TaskID(k.req.ID)
		if len(op.Images) > 0 {
			// What is missing is the device's to bring, so it hears of that
			// first; that no adapter here takes pictures, only then.
			there, err := h.uploaded(k.opened.Signer, op.Images)
			if err != nil || !there {
				return task, nil, nip.Conflict, err
			}
			return task, nil, nip.Unsupported, nil
		}
		if op.Engine != "" {
			return task, nil, nip.Unsupported, nil
		}
		intent, code := h.intentFor(op)
		if code != "" {
			return task, nil, code, nil
		}
		b, err := owner.EncodeCommand(owner.Command{
			CommandID: storeCommandID(k.opened.Signer, string(k.req.ID), "create"),
			TaskID:    owner.TaskID(task), Action: owner.Action{Submit: intent},
		})
		return task, b, "", err
	case nip.TaskSteer:
		return h.compileFor(ctx, op.Task, owner.Command{
			CommandID: id, TaskID: owner.TaskID(op.Task), Expected: &op.Revision,
			Action: owner.Action{Correct: &owner.CorrectAction{Prompt: op.Prompt, Reason: "steered by a device"}},
		})
	case nip.TaskCancel:
		return h.compileFor(ctx, op.Task, owner.Command{
			CommandID: id, TaskID: owner.TaskID(op.Task), Expected: &op.Revision,
			Action: owner.Action{Cancel: &owner.CancelAction{Reason: op.Reason}},
		})
	case nip.TaskArchive:
		_, err := h.settled(ctx, owner.TaskID(op.Task))
		return op.Task, nil, "", err
	}
	return "", nil, "", fmt.Errorf("operation %s is no task command", k.req.Kind)
}

func (h *Host) compileFor(ctx context.Context, task nip.TaskID, cmd owner.Command) (nip.TaskID, []byte, nip.Code, error) {
	if _, err := h.settled(ctx, cmd.TaskID); err != nil {
		return task, nil, "", err
	}
	b, err := owner.EncodeCommand(cmd)
	return task, b, "", err
}

// intentFor turns a label into the root that the operator gave it.
func (h *Host) intentFor(op nip.TaskCreate) (*owner.Intent, nip.Code) {
	ws, err := loadWorkspaces(h.home)
	if err != nil {
		h.log.Error().Err(err).Msg("workspaces cannot be read")
		return nil, nip.Unavailable
	}
	w, ok := ws.find(op.Workspace)
	if !ok {
		return nil, nip.Forbidden
	}
	adapter := owner.PromptCommand
	if p, _, err := loadPolicy(h.home); err == nil {
		if r, ok := p.ruleFor(op.Workspace); ok {
			adapter = r.Adapter
		}
	}
	return &owner.Intent{
		Title: op.Title, Prompt: op.Prompt,
		Workspace:     owner.Workspace{Path: w.Path},
		Configuration: owner.Configuration{Adapter: adapter},
	}, ""
}

// archive is idempotent: the first entry stays.
func (c *Core) archive(ctx context.Context, id owner.TaskID, reason, by string) error {
	ctx, cancel := context.WithTimeout(ctx, effectWait)
	defer cancel()
	l, err := c.store.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer l.Unlock()
	t := l.Task()
	if t.Archived != nil {
		return nil
	}
	_, err = l.Append(epochOfTask(&t), owner.Event{Archived: &owner.Archived{Reason: reason, By: by, At: c.now()}})
	if h := c.serving; h != nil {
		h.taskChanged(id)
	}
	return err
}

// effectWait bounds the wait for a task that some process holds: a revocation
// and a device wait behind it.
const effectWait = 10 * time.Second

// apply hands exact bytes to the store and, in a serving host, looks at the
// task at once, so that who just wrote reads what was written.
func (c *Core) apply(ctx context.Context, id owner.TaskID, request []byte) (owner.Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, effectWait)
	defer cancel()
	rec, err := c.store.Apply(ctx, request)
	if h := c.serving; h != nil && err == nil {
		h.taskChanged(id)
	}
	return rec, err
}

func epochOfTask(t *owner.Task) owner.Epoch {
	if t.Run == nil {
		return 1
	}
	return t.Run.Epoch
}
