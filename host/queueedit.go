package host

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/queue"
)

// queueAsk is one edit of a queue: of task.queue, or, where at is set, of
// task.queue.at_revision.
type queueAsk struct {
	task nip.TaskID
	edit nip.QueueEdit
	at   *nip.TaskQueueAt
}

func (a *queueAsk) changes() bool { return a.edit.Action != "list" }

// retained reports whether the reply is kept: a listing at a revision is a read.
func (a *queueAsk) retained() bool { return a.at == nil || a.changes() }

// queueEdit carries an edit out. The edit, its journal note, its record at a
// revision with the result, and the retained reply are one commit under the
// task's evaluation lock: before it nothing happened, after it all of it did.
func (h *Host) queueEdit(ctx context.Context, k *call, a queueAsk) error {
	var ev *nip.Event
	var once *nip.Reply // an answer that is not retained
	err := h.eval.Edit(ctx, a.task, func(tx *bbolt.Tx, view commands.TaskView, now int64) error {
		ev, once = nil, nil
		code, err := h.standing(tx, k.who.sender, nip.Operate, now)
		if err == nil && code != "" {
			err = errLostStanding
		}
		if err != nil {
			return err
		}
		if a.retained() {
			if full, err := repliesFull(tx, k.opened.Signer, now); err != nil || full {
				once = &nip.Reply{Refusal: &nip.Refusal{Code: nip.Bounds}}
				return err
			}
		}
		if a.changes() {
			if once, err = h.recordedEdit(tx, k, a); err != nil || once != nil {
				return err
			}
		}
		reply, err := h.applyEdit(tx, k, a, view, now)
		if err != nil {
			return err
		}
		if a.changes() {
			if err := h.note(tx, k, a.task, editNote(a.edit), reply.Refusal, view.Revision, now); err != nil {
				return err
			}
		}
		if !a.retained() {
			once = &reply
			return nil
		}
		ev, err = h.retain(tx, k, reply)
		return err
	})
	switch {
	case errors.Is(err, errLostStanding):
		return h.refuseStanding(k)
	case errors.Is(err, commands.ErrConflict), errors.Is(err, commands.ErrPruned):
		// The journal remembers the ID of another request: nothing was changed.
		return h.answerOnce(k, nip.Reply{Refusal: &nip.Refusal{Code: nip.Conflict}})
	case errors.Is(err, commands.ErrUnsettled) && !fatal(err):
		h.log.Error().Err(err).Str("task", string(a.task)).Msg("evaluation stopped after the edit was recorded; it is tried again soon")
		h.deadlines.failed(a.task)
	case err != nil:
		return h.cannot(ctx, k, err)
	}
	if once != nil {
		return h.answerOnce(k, *once)
	}
	if a.edit.Action == "lease" {
		h.deadlines.afterLease(a.task)
	}
	h.deadlines.poke(a.task)
	h.sendReply(k, ev)
	return nil
}

// recordedEdit finds what an earlier delivery of this request ID did; nil says
// that it is new. An exact retry gets the recorded result, another action
// conflict, and an edit is never carried out for the second time.
//
// A record without a result says that the edit may have happened. Here both are
// one commit, so this host never leaves such a row; one that stands in host.db
// all the same stays unavailable, and the device reads the queue again.
func (h *Host) recordedEdit(tx *bbolt.Tx, k *call, a queueAsk) (*nip.Reply, error) {
	no := func(code nip.Code) *nip.Reply { return &nip.Reply{Refusal: &nip.Refusal{Code: code}} }
	var row recoveryRow
	found := false
	if a.at != nil {
		var err error
		if found, err = getJSON(tx, bucketRecovery, string(k.req.ID), &row); err != nil {
			return nil, err
		}
	}
	if !found {
		known, err := h.journal.Known(tx, commands.Key{Principal: k.opened.Signer, Kind: k.req.Kind, ID: string(k.req.ID)})
		if err != nil || !known {
			return nil, err
		}
		return no(nip.Conflict), nil // its reply and its record left; no retry is fresh any more
	}
	action, err := actionDigest(*a.at)
	switch {
	case err != nil:
		return nil, err
	case !row.answers(k.opened.Signer, k.opened.EventID), row.Action != "" && row.Action != action:
		return no(nip.Conflict), nil
	case row.Result == nil:
		return no(nip.Unavailable), nil
	}
	res, err := h.resultOf(tx, &row)
	if err != nil {
		return nil, err
	}
	return &nip.Reply{Outcome: res.Outcome, Refusal: res.Refusal}, nil
}

// actionDigest names the exact operation.
func actionDigest(op nip.TaskQueueAt) (nip.Digest, error) {
	raw, err := nip.EncodeOperation(op)
	return nip.DigestOf(raw), err
}

// applyEdit changes the queue, or says why not. At a revision the task must
// stand at it and the queue be the one that the device saw; the view was read
// under the task's evaluation lock, which every edit of its queue takes.
func (h *Host) applyEdit(tx *bbolt.Tx, k *call, a queueAsk, view commands.TaskView, now int64) (nip.Reply, error) {
	no := func(code nip.Code) (nip.Reply, error) { return nip.Reply{Refusal: &nip.Refusal{Code: code}}, nil }
	if view.Phase == commands.PhaseMissing {
		return no(nip.Forbidden)
	}
	if a.at != nil {
		if code, err := h.staleEdit(tx, k, a, view, now); err != nil || code != "" {
			return nip.Reply{Refusal: &nip.Refusal{Code: code}}, err
		}
	}
	q, code, err := queue.Apply(tx, h.journal, k.who.sender.Device, a.task, a.edit, view, now)
	switch {
	case err != nil:
		return nip.Reply{}, err
	case code != "":
		return no(code)
	}
	if a.edit.Action == "lease" {
		h.eval.Leased(a.task)
	}
	switch {
	case a.at == nil:
		return nip.Reply{Outcome: fitQueue(q)}, nil
	}
	digest, _, err := queue.Digest(tx, h.journal, a.task, view, now)
	if err != nil {
		return nip.Reply{}, err
	}
	if a.changes() {
		action, err := actionDigest(*a.at)
		if err == nil {
			err = h.remember(tx, k, func(row *recoveryRow) { row.Edit, row.Action = true, action })
		}
		if err != nil {
			return nip.Reply{}, err
		}
	}
	// The digest and the second revision find room beside outcomeRoom.
	return nip.Reply{Outcome: nip.QueueAtRevision{Queue: fitQueue(q), Revision: q.Revision, QueueDigest: digest}}, nil
}

// staleEdit is what an edit at a revision must pass before it is looked at. A
// queue that no answer could show in whole takes no edit by digest.
func (h *Host) staleEdit(tx *bbolt.Tx, k *call, a queueAsk, view commands.TaskView, now int64) (nip.Code, error) {
	if view.Revision != a.at.Revision {
		return nip.Stale, nil
	}
	digest, held, err := queue.Digest(tx, h.journal, a.task, view, now)
	switch {
	case err != nil:
		return "", err
	case held > queue.ListLimit:
		return nip.Bounds, nil
	case a.at.QueueDigest != nil && *a.at.QueueDigest != digest, a.at.QueueDigest == nil && a.changes():
		return nip.Stale, nil
	}
	if !a.changes() {
		return "", nil
	}
	if full, err := queueRecordsFull(tx, k.opened.Signer, now); err != nil || full {
		return nip.Bounds, err
	}
	return "", nil
}

// fitQueue leaves out texts, from the end of the run order, until the listing
// fits into one reply: the edit that it answers has happened, and a refusal for
// size would say otherwise. The device knows its own words.
func fitQueue(q nip.QueueState) nip.QueueState {
	for i := len(q.Items) - 1; i >= 0; i-- {
		if fits(q) {
			break
		}
		q.Items[i].Text = nil
	}
	return q
}

// editNote says which edit was asked for, and of which message; never its text.
func editNote(e nip.QueueEdit) string {
	switch {
	case e.Command != "":
		return e.Action + " " + string(e.Command)
	case e.Action == "reorder":
		return fmt.Sprintf("reorder %d messages", len(e.Commands))
	}
	return e.Action
}
