package host

import (
	"context"
	"errors"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// principal is an admitted requester. rights is all of them for the owner.
type principal struct {
	sender commands.Sender
	rights nip.Rights
	expiry int64     // 0 for the owner
	grant  nip.Grant // zero for the owner
}

// call is one request on its way through the host.
type call struct {
	in     Inbound
	opened nip.Opened
	req    nip.Request
	who    principal
	sealed nip.Verified // the reply that was sealed last; see queueReply
	ahead  *aheadReply  // the likely one, sealed beside the disk's work; nil is none
}

// verdict is what admission says: exactly one of them holds. Silent calls get
// no answer: what does not hold, or is not for this host now, is nobody's
// question.
type verdict struct {
	silent  string       // why, for the log
	refusal *nip.Refusal // to sign
	retain  bool         // the refusal is kept for exact retries
	replay  *nip.Event   // the retained bytes
	redeem  bool         // goes to redemption, which has rules of its own
}

// Admit is hop 4: may this principal ask this now? It comes after
// nip/request.go decoded the request and before commands/journal.go records
// it (NIP-HOST, admission order on the host). It reads; what it decides is
// rechecked inside the commit that records an effect, so that a revocation
// between the two wins.
func (c *Core) admit(tx *bbolt.Tx, k *call, now int64) (verdict, error) {
	req := &k.req
	switch {
	case req.IssuedAt > now+clockSkew:
		return verdict{silent: "issued in the future"}, nil
	case req.ExpiresAt <= now:
		return verdict{silent: "expired"}, nil
	case req.Host != c.self:
		return verdict{silent: "for another host"}, nil
	case req.Relay != k.in.Relay:
		return verdict{silent: "names another relay than it came by"}, nil
	case string(k.opened.Mailbox) != string(req.ID):
		return verdict{silent: "mailbox is not the request"}, nil
	}
	var kept retainedReply
	known, err := getJSON(tx, bucketReplies, string(req.ID), &kept)
	if err != nil {
		return verdict{}, err
	}
	known = known && now < kept.ExpiresAt // what has run out was only not pruned yet
	if known && (kept.RequestEvent != k.opened.EventID || kept.Signer != k.opened.Signer) {
		return refuse(nip.Conflict), nil
	}
	if taken, err := takenRequest(tx, k, now); err != nil || taken {
		return refuse(nip.Conflict), err
	}
	if _, ok := req.Op.(nip.EnrollRedeem); ok {
		return verdict{redeem: true}, nil
	}
	code, err := c.checkPrincipal(tx, k, now)
	if err != nil {
		return verdict{}, err
	}
	switch {
	case code != "" && req.Op == nil:
		return verdict{silent: "an operation that does not hold, of nobody who may ask"}, nil
	case code != "":
		return refuse(code), nil
	case c.beforeRestore(tx, req.IssuedAt):
		return refuse(nip.Expired), nil // before the backup was put back it may have been carried out
	case known:
		// A grant's rights never change, so a retained missing_right stands.
		return verdict{replay: kept.Reply}, nil
	case req.Op != nil:
		if right := req.Op.Right(); right != "" && !k.who.rights.Has(right) {
			return verdict{refusal: &nip.Refusal{Code: nip.MissingRight, Missing: right}, retain: true}, nil
		}
	}
	if req.Op == nil {
		return verdict{refusal: &nip.Refusal{Code: req.OpRefusal}, retain: true}, nil
	}
	if o, ok := req.Op.(nip.Other); ok {
		return verdict{refusal: &nip.Refusal{Code: o.Answer}, retain: true}, nil
	}
	if !sayable(req.Op) {
		return verdict{refusal: &nip.Refusal{Code: nip.Bounds}, retain: true}, nil
	}
	return verdict{}, nil
}

// beforeRestore reports whether a request of that date may be one that this home
// carried out and, restored from a backup, does not remember.
func (c *Core) beforeRestore(tx *bbolt.Tx, issued int64) bool {
	restored := c.journal.Restored(tx)
	return restored != 0 && issued <= restored+clockSkew
}

func refuse(code nip.Code) verdict { return verdict{refusal: &nip.Refusal{Code: code}} }

// checkPrincipal fills k.who or says why not. Its refusals are signed but not
// retained: they can change with the access book.
func (c *Core) checkPrincipal(tx *bbolt.Tx, k *call, now int64) (nip.Code, error) {
	s := commands.Sender{Device: k.opened.Signer, Grant: k.req.Grant, Epoch: k.req.Epoch}
	code, err := c.standing(tx, s, "", now)
	if err != nil || code != "" {
		return code, err
	}
	if s.Grant == "" {
		k.who = principal{sender: s, rights: nip.PairingRights()}
		return "", nil
	}
	rec, _, err := c.grant(tx, s.Grant)
	if err != nil {
		return "", err
	}
	g := rec.Grant
	if k.req.Relay != g.Relay || k.req.ExpiresAt > g.ExpiresAt || k.req.IssuedAt < g.IssuedAt-clockSkew {
		return nip.Forbidden, nil
	}
	k.who = principal{sender: s, rights: g.Rights, expiry: g.ExpiresAt, grant: g}
	return "", nil
}

// receive takes one verified event through hops 2 to 4 and carries it out. It
// returns only faults; refusals and silence are outcomes.
func (h *Host) receive(ctx context.Context, in Inbound) error {
	c := h.Core
	ev := in.Event.Event()
	if nip.PubKey(ev.PubKey) == c.self {
		return nil
	}
	log := c.log.With().Str("hop", "admit").Str("event", ev.ID).Logger()
	opened, err := nip.OpenBy(ctx, in.Event, c.keeper(nip.PubKey(ev.PubKey)))
	if err != nil || opened.Schema != nip.SchemaRequest || opened.Recipient != c.self {
		log.Debug().AnErr("why", err).Msg("not a request for this host")
		return nil
	}
	req, err := nip.ParseRequest(opened.Inline, nip.Profile{Loopback: true})
	if err != nil || req.IssuedAt != opened.IssuedAt || req.ExpiresAt != opened.RetainUntil {
		log.Debug().AnErr("why", err).Msg("request does not hold")
		return nil
	}
	k := &call{in: in, opened: opened, req: req}
	log = log.With().Str("request", string(req.ID)).Str("op", req.Kind).Logger()
	if !h.begin(req.ID) {
		log.Debug().Msg("the same request is being answered")
		return nil
	}
	defer h.end(req.ID)

	var v verdict
	now := c.now()
	if h.answers.lately(opened.EventID, now) {
		log.Debug().Msg("answered less than 5 s ago")
		return nil
	}
	if err := c.db.View(func(tx *bbolt.Tx) (err error) {
		v, err = c.admit(tx, k, now)
		return err
	}); err != nil {
		return err
	}
	switch {
	case v.silent != "":
		log.Debug().Str("why", v.silent).Msg("no answer")
		return nil
	case v.replay != nil:
		log.Info().Msg("exact retry answered from the retained reply")
		h.sendReply(k, v.replay)
		return nil
	case v.redeem:
		return h.redeem(ctx, k)
	case v.refusal != nil && !v.retain:
		log.Info().Str("code", string(v.refusal.Code)).Msg("refused")
		return h.answerOnce(k, nip.Reply{Refusal: v.refusal})
	}
	h.noteSeen(k.who.sender.Device, now)
	h.renewSoon(k, now)
	if v.refusal != nil {
		log.Info().Str("code", string(v.refusal.Code)).Msg("refused")
		return h.answerRetained(ctx, k, nip.Reply{Refusal: v.refusal}, nil)
	}
	if again := h.answers.last(opened.EventID); again != nil {
		h.sendReply(k, again)
		return nil
	}
	log.Info().Str("device", string(k.who.sender.Device)).Msg("admitted")
	err = h.dispatch(ctx, k)
	if errors.Is(err, errSilent) {
		log.Debug().Msg("request ran out before its answer")
		return nil
	}
	return err
}
