// Package queue holds the rules of editing held messages under a lease
// (NIP-HOST, task.queue).
//
// A lease is the exclusive right of one device to edit one task's queue for a
// minute, renewable. A held message is a command that waits for its turn:
// priority ones first, then queued ones in the order the devices gave them. An
// edit is one step of a device: list, lease, release, edit, remove, reorder or
// send_now.
//
// host calls Apply inside Evaluator.Edit, which brings the transaction, the
// task's view and the journal's time, and evaluates the task afterwards. Apply
// has no state, may be called from any goroutine that holds a transaction, and
// changes nothing when it refuses. What it changed is durable with the caller's
// commit.
//
// The lease is a fence: it is looked at in the same transaction that carries
// the edit out, with a time that never runs back, and counts only while that
// time is before its end. An edit that was made in time and arrives late is
// refused.
//
// Texts are shown to the device that wrote them and to nobody else. The request
// as it was first sent is never touched, so its replays still match after an
// edit. What is not here: who may ask at all, the request's retained answer,
// and the timer that evaluates a task when a lease ends.
package queue

import (
	"strings"
	"unicode/utf8"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

const (
	// LeaseSeconds is how long a lease lasts unless renewed.
	LeaseSeconds = commands.LeaseSeconds
	// ListLimit bounds the messages of one answer and of one reorder.
	ListLimit = 64
	// TextLimit bounds an edited text, in bytes.
	TextLimit = 16_384
	// StepLimit bounds the transitions of one message: edits beyond it are
	// refused as bounds, so that no device can grow an entry for ever.
	StepLimit = 1024
)

// Apply carries out one edit of asker in the journal's transaction and returns the queue as asker
// may see it. A non-empty code means nothing was changed. Call it inside Evaluator.Edit.
func Apply(tx *bbolt.Tx, j commands.Journal, asker nip.PubKey, task nip.TaskID, edit nip.QueueEdit, view commands.TaskView, now int64) (nip.QueueState, nip.Code, error) {
	if view.Phase == commands.PhaseMissing {
		return nip.QueueState{}, nip.Forbidden, nil
	}
	q := queue{tx: tx, journal: j, asker: asker, task: task, view: view, now: now}
	if err := q.readLease(); err != nil {
		return nip.QueueState{}, "", err
	}
	code, err := q.apply(edit)
	if err != nil || code != "" {
		return nip.QueueState{}, code, err
	}
	state, err := q.state()
	return state, "", err
}

// queue is one edit's surroundings.
type queue struct {
	tx      *bbolt.Tx
	journal commands.Journal
	asker   nip.PubKey
	task    nip.TaskID
	view    commands.TaskView
	now     int64
	lease   *commands.Lease // nil without a current one
}

func (q *queue) readLease() error {
	l, ok, err := q.journal.Lease(q.tx, q.task)
	if err == nil && ok && q.now < l.ExpiresAt {
		q.lease = &l
	}
	return err
}

func (q *queue) apply(edit nip.QueueEdit) (nip.Code, error) {
	switch edit.Action {
	case "list":
		return "", nil
	case "lease":
		if q.lease != nil && q.lease.Device != q.asker {
			return nip.Conflict, nil
		}
		q.lease = &commands.Lease{Device: q.asker, ExpiresAt: q.now + LeaseSeconds}
		return "", q.journal.SetLease(q.tx, q.task, q.lease)
	case "release":
		if q.lease == nil || q.lease.Device != q.asker {
			return "", nil
		}
		q.lease = nil
		return "", q.journal.SetLease(q.tx, q.task, nil)
	case "edit", "remove", "reorder", "send_now":
		if code := check(edit); code != "" {
			return code, nil
		}
		if q.lease == nil || q.lease.Device != q.asker {
			return nip.Conflict, nil
		}
		if edit.Action == "reorder" {
			return q.reorder(edit.Commands)
		}
		return q.one(edit)
	}
	return nip.Malformed, nil
}

// check looks at the edit alone.
func check(edit nip.QueueEdit) nip.Code {
	switch edit.Action {
	case "edit":
		if strings.TrimSpace(edit.Text) == "" || len(edit.Text) > TextLimit || !utf8.ValidString(edit.Text) {
			return nip.Bounds
		}
	case "reorder":
		if len(edit.Commands) == 0 || len(edit.Commands) > ListLimit {
			return nip.Bounds
		}
		seen := make(map[nip.CommandID]bool, len(edit.Commands))
		for _, id := range edit.Commands {
			if seen[id] {
				return nip.Malformed
			}
			seen[id] = true
		}
	}
	return ""
}

// one edits a single message of the asker. Another device's command, and one of
// another task, are forbidden alike: nothing is told about them.
func (q *queue) one(edit nip.QueueEdit) (nip.Code, error) {
	if edit.Command == "" {
		return nip.Malformed, nil
	}
	e, known, err := q.journal.Get(q.tx, commands.Key{Principal: q.asker, Kind: commands.KindCommand, ID: string(edit.Command)})
	if err != nil {
		return "", err
	}
	if !known || e.Task != q.task {
		return nip.Forbidden, nil
	}
	what := ""
	switch edit.Action {
	case "edit":
		if e.State == commands.StateHeld && e.Text == edit.Text {
			return "", nil
		}
		e.Text, what = edit.Text, "edited"
	case "remove":
		if e.Outcome == commands.OutcomeRemoved {
			return "", nil
		}
		what = "removed"
	case "send_now":
		if e.Priority && e.State != commands.StateDone {
			return "", nil
		}
		what = "sent_now"
	}
	if e.State != commands.StateHeld {
		return nip.Conflict, nil
	}
	if edit.Action == "send_now" {
		if !q.view.Steering.Emulate {
			return nip.Unsupported, nil
		}
		if q.view.Phase == commands.PhaseUnknown {
			return nip.Unavailable, nil
		}
		// The evaluation that follows decides it as an emulated steer.
		e.State, e.Priority = commands.StateReceived, true
	}
	if edit.Action == "remove" { // always possible, also for a message at its step limit
		e.State, e.Outcome = commands.StateDone, commands.OutcomeRemoved
	} else if len(e.History) >= StepLimit {
		return nip.Bounds, nil
	}
	_, err = q.journal.Change(q.tx, e, what, q.now)
	return "", err
}

// reorder gives the queued messages' places to them in the asked order. The
// places themselves stay, so that later messages still come behind.
func (q *queue) reorder(order []nip.CommandID) (nip.Code, error) {
	held, total, err := q.journal.Queued(q.tx, q.task, ListLimit)
	if err != nil {
		return "", err
	}
	if total != len(order) {
		return nip.Conflict, nil
	}
	byID := make(map[nip.CommandID]commands.Entry, len(held))
	for _, e := range held {
		byID[e.Command.ID] = e
	}
	var moved []commands.Entry
	for i, id := range order {
		e, ok := byID[id]
		if !ok || len(byID) != len(held) { // two devices may use one ID: no order can name them
			return nip.Conflict, nil
		}
		if place := held[i].Position; e.Position != place {
			if len(e.History) >= StepLimit {
				return nip.Bounds, nil
			}
			e.Position = place
			moved = append(moved, e)
		}
	}
	for _, e := range moved {
		if _, err := q.journal.Change(q.tx, e, "reordered", q.now); err != nil {
			return "", err
		}
	}
	return "", nil
}

// state is the queue as the asker may see it: the first ListLimit messages in
// run order.
func (q *queue) state() (nip.QueueState, error) {
	out := nip.QueueState{Task: q.task, Revision: q.view.Revision}
	if q.lease != nil {
		out.Lease = &nip.Lease{Device: q.lease.Device, ExpiresAt: q.lease.ExpiresAt}
	}
	held, _, err := q.journal.Held(q.tx, q.task, ListLimit)
	if err != nil {
		return nip.QueueState{}, err
	}
	for _, e := range held {
		item := nip.QueueItem{Command: e.Command.ID, Device: e.Key.Principal, Priority: e.Priority}
		if e.Key.Principal == q.asker {
			text := e.Text
			item.Text = &text
		}
		out.Items = append(out.Items, item)
	}
	return out, nil
}
