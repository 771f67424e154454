package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"holdfast/nip"
	"holdfast/relay"
)

// maxCandidates bounds the events that one try looks at; a host sends one.
const maxCandidates = 64

// candidates gathers the replies of one exchange: what a relay delivers is a
// candidate until verify says otherwise.
type candidates struct {
	d     *Device
	p     peer
	r     prepared
	seen  int
	reply nip.Reply
	event *nip.Event // of reply; nil while there is none
	clash bool       // two valid answers that differ
	last  error      // why the latest candidate was not believed

	whole  context.Context // of the call: how long a signer may take to decrypt
	signer error           // why it did not; the call ends with it
}

// add takes one delivery.
func (c *candidates) add(del relay.Delivery) {
	c.seen++
	if c.seen > maxCandidates {
		return
	}
	ev := del.Event.Event()
	if c.event != nil && ev.ID == c.event.ID {
		return
	}
	// As it came: a signer that decrypts it later makes it no older.
	now, hostNow := c.d.now(), c.d.hostNow()
	rep, err := c.d.verify(c.whole, del.Event, c.p, c.r, hostNow)
	var signer *nip.KeeperError
	if errors.As(err, &signer) {
		c.signer = err
		return
	}
	if err != nil {
		c.last = err
		c.d.o.Log.Debug().Str("request", string(c.r.req.ID)).Str("event", ev.ID).Err(err).Msg("reply not believed")
		return
	}
	c.d.learn(func(k *clock) { k.answered(c.r.sent, now, rep.IssuedAt, !del.Stored) })
	switch {
	case c.event == nil:
	case sameResult(c.reply, rep):
		return
	case repeatable(c.r.req.Op):
		// The host keeps no reply of a read: each try may have been answered
		// anew, and the newest is the truest.
		if rep.IssuedAt < c.reply.IssuedAt {
			return
		}
	default:
		c.clash = true
		return
	}
	c.reply, c.event = rep, ev
}

// ended reports that nothing more is to be had here: the relay delivers more
// than any exchange needs, or the signer does not decrypt.
func (c *candidates) ended() bool { return c.seen > maxCandidates || c.signer != nil }

// end says what ended it.
func (c *candidates) end() error {
	if c.signer != nil {
		return fmt.Errorf("%w that could be read: %w", ErrNoAnswer, c.signer)
	}
	return fmt.Errorf("%w: relay floods the reply mailbox", ErrNoAnswer)
}

// verify holds one event against the request it must answer (NIP-HOST, reply
// checks): signer, recipient, schema, mailbox, request, exact event, host,
// times at hostNow, and that the outcome is one that the operation can have.
func (d *Device) verify(ctx context.Context, v nip.Verified, p peer, r prepared, hostNow int64) (nip.Reply, error) {
	o, err := nip.OpenBy(ctx, v, d.hold)
	if err != nil {
		return nip.Reply{}, err
	}
	switch {
	case o.Signer != p.host:
		return nip.Reply{}, errors.New("reply of another signer")
	case o.Recipient != d.pub:
		return nip.Reply{}, errors.New("reply to another device")
	case o.Schema != nip.SchemaReply:
		return nip.Reply{}, errors.New("not a reply")
	case string(o.Mailbox) != string(r.req.ID):
		return nip.Reply{}, errors.New("reply in a foreign mailbox")
	}
	rep, err := nip.ParseReply(o.Inline)
	if err != nil {
		return nip.Reply{}, err
	}
	switch {
	case rep.Request != r.req.ID:
		return nip.Reply{}, errors.New("reply to another request")
	case string(rep.RequestEvent) != r.event.ID:
		return nip.Reply{}, errors.New("reply to another event")
	case rep.Host != p.host:
		return nip.Reply{}, errors.New("reply names another host")
	case rep.ExpiresAt != r.req.ExpiresAt || o.RetainUntil != rep.ExpiresAt || o.IssuedAt != rep.IssuedAt:
		return nip.Reply{}, errors.New("reply has other times than its request and envelope")
	case rep.IssuedAt+tolerated < r.req.IssuedAt:
		return nip.Reply{}, errors.New("reply is older than its request")
	case rep.ExpiresAt <= hostNow:
		return nip.Reply{}, errors.New("reply has expired")
	}
	if rep.Refusal != nil {
		return rep, nil
	}
	return rep, checkOutcome(rep.Outcome, p, r)
}

// checkOutcome is the part of verify that looks into an outcome.
func checkOutcome(out nip.Outcome, p peer, r prepared) error {
	if !nip.Answers(r.req.Op, out) {
		return fmt.Errorf("outcome %q does not answer %s", out.OutcomeKind(), r.req.Op.Kind())
	}
	switch out := out.(type) {
	case nip.Dispatched:
		// A task made by a request carries the request's ID.
		if _, create := r.req.Op.(nip.TaskCreate); create && out.Reference != string(r.req.ID) {
			return errors.New("created task has another ID than its request")
		}
	case nip.Invited:
		// Read as of its own end: whether the code is still good is for who redeems it.
		i, err := nip.ParseInvitation(out.Code, nip.Profile{Loopback: true}, out.ExpiresAt-1)
		if err != nil {
			return fmt.Errorf("invitation: %w", err)
		}
		switch {
		case i.Host != p.host:
			return errors.New("invitation of another host")
		case i.ID != out.Invitation || i.ExpiresAt != out.ExpiresAt:
			return errors.New("invitation's code says something else than the reply beside it")
		case i.Relay != r.req.Relay:
			return errors.New("invitation to another relay than the request came by")
		}
	case nip.Granted:
		// An approver cannot read the grant it passes on, but it can see who signed it.
		if _, err := nip.VerifyEvent(out.Authorization); err != nil {
			return fmt.Errorf("granted envelope: %w", err)
		}
		if out.Authorization.PubKey != string(p.host) {
			return errors.New("granted envelope of another signer")
		}
	}
	return nil
}

// sameResult compares what two valid replies say, not when they were sealed.
func sameResult(a, b nip.Reply) bool {
	if a.Refusal != nil || b.Refusal != nil {
		return a.Refusal != nil && b.Refusal != nil && *a.Refusal == *b.Refusal
	}
	x, errX := nip.EncodeOutcome(a.Outcome)
	y, errY := nip.EncodeOutcome(b.Outcome)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

// repeatable reports whether the host may answer the same request twice with
// different content: what it does not retain replies of. A second answer to a
// piece of a picture shows what arrived since.
func repeatable(op nip.Operation) bool {
	switch op := op.(type) {
	case nip.TaskList, nip.TaskRead, nip.TaskOriginal, nip.RequestOperation, nip.ArtifactPut:
		return true
	case nip.TaskQueueAt:
		return op.Edit.Action == "list"
	}
	return false
}
