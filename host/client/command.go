package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"holdfast/nip"
)

// Command puts a durable command into the outbox, sends it until a signed
// outcome arrives or ctx ends (each try a new request with the same command
// ID), and returns that outcome. An empty ID is minted, a zero IssuedAt is now
// in the host's time. A signed refusal is a *Refused error and final like an
// acceptance; on every other error the command stays in the outbox, except that
// a new one which the holder of a key elsewhere never signed is forgotten.
//
// Earlier commands for the same task that still wait go first, because the host
// runs commands in the order they arrive. An interrupt overtakes them. Nothing
// overtakes the create of its task: before it the host knows no such task.
func (d *Device) Command(ctx context.Context, c nip.Command) (nip.Command, nip.Outcome, error) {
	p, err := d.peer()
	if err != nil {
		return c, nil, err
	}
	minted := c.ID == ""
	if minted {
		id, err := nip.NewID(rand.Reader)
		if err != nil {
			return c, nil, fmt.Errorf("mint command: %w", err)
		}
		c.ID = nip.CommandID(id)
	}
	if c.IssuedAt == 0 {
		c.IssuedAt = d.hostNow()
	}
	if _, err := nip.EncodeOperation(nip.TaskCommand{Command: c}); err != nil {
		return c, nil, fmt.Errorf("command: %w", err)
	}
	// Commit point: a crash before this is a command that nobody gave; after it
	// the command is sent, now or by a later Resend, and the host's journal
	// makes the second sending harmless.
	own, err := d.store.addRow(row{Host: p.host, Op: nip.TaskCommand{Command: c}, Since: d.now(), State: stateWaiting})
	if err != nil {
		return c, nil, err
	}
	queue, err := d.ahead(own, c)
	if err != nil {
		return c, nil, err
	}
	for _, r := range queue {
		if _, ok := r.command(); !ok {
			if err := d.finishCreate(ctx, r); err != nil {
				return c, nil, fmt.Errorf("earlier create %s: %w", r.id(), err)
			}
			continue
		}
		out, err := d.sendUntil(ctx, r)
		if minted && unsigned(err) {
			// Whoever holds the key did not agree: nobody gave this command, and a
			// later Resend must not ask for it again.
			err = errors.Join(err, d.store.removeRow(own))
		}
		if r.seq == own.seq {
			return c, out, err
		}
		var refused *Refused
		if err != nil && !errors.As(err, &refused) {
			return c, nil, fmt.Errorf("earlier command %s: %w", r.id(), err)
		}
	}
	return c, nil, fmt.Errorf("command %s: %w", c.ID, errGone)
}

// ahead returns what waits for the task of c and goes before it, up to and with
// own, the row of c.
func (d *Device) ahead(own row, c nip.Command) ([]row, error) {
	rows, err := d.store.rows()
	if err != nil {
		return nil, err
	}
	var list []row
	for _, r := range rows {
		if r.Host != own.Host || r.seq >= own.seq {
			continue
		}
		earlier, ok := r.command()
		switch {
		case !ok && string(r.Request) == string(c.Task):
			list = append(list, r)
		case ok && earlier.Task == c.Task && c.Action != nip.Interrupt:
			list = append(list, r)
		}
	}
	return append(list, own), nil
}

// sendUntil sends a command's row in new requests while the host is silent. It
// does not ask a signer again that did not do its part.
func (d *Device) sendUntil(ctx context.Context, r row) (nip.Outcome, error) {
	for tries := 0; ; tries++ {
		out, err := d.sendRow(ctx, r)
		if tries > 0 && unsigned(err) {
			err = fmt.Errorf("%w to an earlier try: %w", ErrNoAnswer, err)
		}
		var signer *nip.KeeperError
		if !errors.Is(err, ErrNoAnswer) || errors.As(err, &signer) || ctx.Err() != nil {
			return out, err
		}
	}
}

// sendRow sends a command's row in one request. The row leaves only with the
// host's signature under an outcome: a dispatch, or a refusal, which the host
// has recorded for this command ID just the same.
func (d *Device) sendRow(ctx context.Context, r row) (nip.Outcome, error) {
	x, err := d.Exchange(ctx, r.Op)
	var refused *Refused
	if err != nil && !errors.As(err, &refused) {
		d.note(r, stateWaiting, err)
		return nil, err
	}
	// A crash before this commit sends the command once more and gets the
	// recorded disposition.
	if rerr := d.store.settle(r, x.Reply); rerr != nil {
		d.o.Log.Warn().Str("command", r.id()).Err(rerr).Msg("answered command stays in the outbox")
	}
	return x.Reply.Outcome, err
}
