package host

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

var (
	// errSilent ends a call whose request ran out: the effect may have
	// happened and no reply may be sent any more.
	errSilent = errors.New("request expired before its reply")
	// errLostStanding aborts a commit whose principal lost its standing.
	errLostStanding = errors.New("principal lost its standing")
)

// seal makes the signed reply event. A body that does not fit becomes a signed
// bounds refusal: never silence.
func (c *Core) seal(k *call, r nip.Reply) (*nip.Event, error) {
	now := c.now()
	if now >= k.req.ExpiresAt {
		return nil, errSilent
	}
	v, ready := k.ahead.take(r)
	if !ready {
		var err error
		if v, err = c.sealAt(k, r, now); err != nil {
			return nil, err
		}
	}
	k.sealed = v
	return v.Event(), nil
}

// sealAt seals r as said at now. It changes nothing of k.
func (c *Core) sealAt(k *call, r nip.Reply, now int64) (nip.Verified, error) {
	r.Request, r.RequestEvent, r.Host = k.req.ID, k.opened.EventID, c.self
	r.IssuedAt, r.ExpiresAt = now, k.req.ExpiresAt
	a, err := nip.EncodeReply(r)
	var ne *nip.Error
	if errors.As(err, &ne) && ne.Code == nip.Bounds && r.Refusal == nil {
		r.Outcome, r.Refusal = nil, &nip.Refusal{Code: nip.Bounds}
		a, err = nip.EncodeReply(r)
	}
	if err != nil {
		return nip.Verified{}, fmt.Errorf("encode reply: %w", err)
	}
	v, err := c.keeper(k.opened.Signer).Seal(k.opened.Signer, nip.Mailbox(k.req.ID), a)
	if err != nil {
		return v, fmt.Errorf("seal reply: %w", err)
	}
	return v, nil
}

// retain seals r and keeps it for exact retries, inside the commit that makes
// its content true. The reply may be sent only after that commit returned nil.
// It returns nil when the request ran out meanwhile: the commit goes on, the
// effect is true, and nobody is told by this request any more. What is kept for
// request.operation says so all the same.
func (c *Core) retain(tx *bbolt.Tx, k *call, r nip.Reply) (*nip.Event, error) {
	if err := c.keepResult(tx, k, r); err != nil {
		return nil, err
	}
	ev, err := c.seal(k, r)
	if errors.Is(err, errSilent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ev, keepReply(tx, k.req.ID, retainedReply{
		Signer: k.opened.Signer, RequestEvent: k.opened.EventID, Kind: k.req.Kind,
		Relay: k.in.Relay, ExpiresAt: k.req.ExpiresAt, Reply: ev,
	}, c.now())
}

// answerOnce signs and sends a reply that is not retained.
func (h *Host) answerOnce(k *call, r nip.Reply) error {
	ev, err := h.seal(k, r)
	if errors.Is(err, errSilent) {
		return nil
	}
	if err != nil {
		return err
	}
	h.queueReply(k, ev, ev)
	return nil
}

// answerRetained commits the reply, together with what fn changes, and sends
// it. fn may replace the reply; nil fn changes nothing.
func (h *Host) answerRetained(ctx context.Context, k *call, r nip.Reply, fn func(tx *bbolt.Tx, now int64) (nip.Reply, error)) error {
	var ev *nip.Event
	full := false
	err := h.db.Update(ctx, func(tx *bbolt.Tx) error {
		now := h.now()
		var err error
		ev = nil
		if full, err = repliesFull(tx, k.opened.Signer, now); err != nil || full {
			return err
		}
		reply := r
		if fn != nil {
			code, err := h.standing(tx, k.who.sender, k.req.Op.Right(), now)
			if err != nil {
				return err
			}
			if code != "" {
				return errLostStanding
			}
			if reply, err = fn(tx, now); err != nil {
				return err
			}
		}
		ev, err = h.retain(tx, k, reply)
		return err
	})
	switch {
	case errors.Is(err, errLostStanding):
		return h.refuseStanding(k)
	case errors.Is(err, commands.ErrConflict), errors.Is(err, commands.ErrPruned):
		// Its reply left long ago and the journal remembers the ID: nothing was
		// changed, and another request under it is no retry.
		return h.answerOnce(k, nip.Reply{Refusal: &nip.Refusal{Code: nip.Conflict}})
	case err != nil:
		return err
	case full:
		return h.answerOnce(k, nip.Reply{Refusal: &nip.Refusal{Code: nip.Bounds}})
	}
	h.sendReply(k, ev)
	return nil
}

// refuseStanding signs why the principal may not act any more.
func (h *Host) refuseStanding(k *call) error {
	var code nip.Code
	if err := h.db.View(func(tx *bbolt.Tx) (err error) {
		code, err = h.standing(tx, k.who.sender, k.req.Op.Right(), h.now())
		return err
	}); err != nil {
		return err
	}
	if code == "" {
		return nil
	}
	r := &nip.Refusal{Code: code}
	if code == nip.MissingRight {
		r.Missing = k.req.Op.Right()
	}
	return h.answerOnce(k, nip.Reply{Refusal: r})
}
