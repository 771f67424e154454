package client

import (
	"context"
	"errors"
	"fmt"

	"holdfast/nip"
)

// Create makes a task. The task's ID is the request's, so a create without an
// answer is never resent under a new ID before the host has signed that there
// is no such task. With ErrNoAnswer the returned ID is the one the task has if
// it was made; its row stays in the outbox as "unknown" and Resend settles it.
func (d *Device) Create(ctx context.Context, op nip.TaskCreate) (nip.TaskID, error) {
	p, err := d.peer()
	if err != nil {
		return "", err
	}
	r, err := d.createRow(ctx, p, op)
	if err != nil {
		return "", err
	}
	// Commit point: a crash before this made nothing; after it the request is
	// known, and whether its task exists can be asked.
	if r, err = d.store.addRow(r); err != nil {
		return "", err
	}
	return d.settleCreate(ctx, r, false)
}

func (d *Device) createRow(ctx context.Context, p peer, op nip.TaskCreate) (row, error) {
	q, err := d.prepare(ctx, p, op)
	if err != nil {
		return row{}, err
	}
	return row{Host: p.host, Op: op, Since: q.sent, State: stateWaiting,
		Request: q.req.ID, Event: q.event, Expires: q.req.ExpiresAt}, nil
}

// settleCreate brings a create to a signed end: the same signed request while
// it is valid, then a read of the task it would have made. Only with mint, and
// only when the host signs at least 60 s after the request's end that the task
// is not there, a new request takes its place.
func (d *Device) settleCreate(ctx context.Context, r row, mint bool) (nip.TaskID, error) {
	p, err := d.peer()
	if err != nil {
		return "", err
	}
	if r.Host != p.host {
		return "", fmt.Errorf("create %s was made for another host", r.Request)
	}
	id := nip.TaskID(r.Request)
	var silence error
	if d.hostNow() < r.Expires {
		silence, err = d.sendCreate(ctx, p, r)
		if silence == nil {
			return id, err
		}
		if ctx.Err() != nil {
			return id, silence
		}
	}
	ended := d.hostNow() >= r.Expires+tolerated // asked before the read: its answer is younger
	switch there, err := d.taskExists(ctx, r); {
	case err != nil:
		if unsigned(err) {
			err = fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
		d.note(r, stateUnknown, err)
		return id, fmt.Errorf("whether task %s was made is unknown: %w", id, err)
	case there:
		return id, d.store.removeRow(r)
	case ended && !mint:
		err := fmt.Errorf("%w: %w", ErrNoAnswer, errNotMade)
		d.note(r, stateUnknown, err)
		return id, err
	case !mint, !ended:
		if silence == nil {
			silence = fmt.Errorf("%w: task %s is not there yet", ErrNoAnswer, id)
			d.note(r, stateUnknown, silence)
		}
		return id, silence
	}
	return d.replaceCreate(ctx, p, r)
}

// errNotMade is found in the error of a create that the host has signed away,
// while nobody asked for another in its place.
var errNotMade = errors.New("the host signed that this create made nothing; sending the outbox makes it anew, under another ID")

// finishCreate brings a create to a signed end before a command of its task: made
// or refused. A refused one does not hold the command up, to which the host then
// signs what it has to say.
func (d *Device) finishCreate(ctx context.Context, r row) error {
	for {
		_, err := d.settleCreate(ctx, r, false)
		var refused *Refused
		switch {
		case err == nil, errors.As(err, &refused):
			return nil
		case !errors.Is(err, ErrNoAnswer), errors.Is(err, errNotMade), ctx.Err() != nil:
			return err
		}
		pause(ctx, d.pace.again)
	}
}

// sendCreate sends the row's own signed request. A silence (first result) keeps
// the row; otherwise the host has signed the end, and err is its refusal. A
// refusal of the device's standing after an unanswered try does not say whether
// that try made the task; the row leaves all the same, for nothing must be made
// in its place.
func (d *Device) sendCreate(ctx context.Context, p peer, r row) (silence, err error) {
	req := nip.Request{ID: r.Request, Host: p.host, Grant: p.grant, Epoch: p.epoch, Relay: p.relay,
		ExpiresAt: r.Expires, IssuedAt: int64(r.Event.CreatedAt), Kind: r.Op.Kind(), Op: r.Op}
	_, err = d.exchange(ctx, p, prepared{req: req, event: r.Event, sent: r.Since})
	var refused *Refused
	switch {
	case err != nil && !errors.As(err, &refused):
		d.note(r, stateUnknown, err)
		return err, nil
	case refused != nil && refused.Code == nip.Unavailable:
		// The one refusal that may stand for an effect of unknown outcome.
		if there, rerr := d.taskExists(ctx, r); rerr == nil && there {
			err = nil
		}
	}
	return nil, errors.Join(err, d.store.removeRow(r))
}

// taskExists asks the host for the task that r would have made. Only its signed
// page or its signed "forbidden", which is how a task that is not there
// answers, is an answer.
func (d *Device) taskExists(ctx context.Context, r row) (bool, error) {
	op := r.Op.(nip.TaskCreate) // check() let no other operation carry a request
	_, err := d.Call(ctx, nip.TaskRead{Query: nip.ReadQuery{Workspace: op.Workspace, Task: string(r.Request), Limit: 1}})
	var refused *Refused
	if errors.As(err, &refused) && refused.Code == nip.Forbidden {
		return false, nil
	}
	return err == nil, err
}

// replaceCreate mints a new request in the place of one that made nothing. The
// exchange of the rows is one transaction that only the process wins which
// still finds the old one, so two of them never make two tasks.
func (d *Device) replaceCreate(ctx context.Context, p peer, r row) (nip.TaskID, error) {
	op := r.Op.(nip.TaskCreate)
	fresh, err := d.createRow(ctx, p, op)
	if err != nil {
		return "", err
	}
	fresh.seq, fresh.Replaces = r.seq, r.Request
	// Commit point: before it the old request is the row, which a read settles
	// again; after it the new one is.
	if err := d.store.changeRow(r, func(r *row) { *r = fresh }); err != nil {
		return "", err
	}
	d.o.Log.Info().Str("request", string(r.Request)).Str("new", string(fresh.Request)).
		Msg("the host signed that this create made nothing; sent again under a new ID")
	silence, err := d.sendCreate(ctx, p, fresh)
	return nip.TaskID(fresh.Request), errors.Join(silence, err)
}
