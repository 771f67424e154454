package host

import (
	"context"
	"crypto/rand"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// redeem answers an invitation (NIP-HOST, redemption). The grant, the
// invitation's bond to the device and the retained reply are one commit: after
// it the same device always gets the same grant, before it nothing happened.
func (h *Host) redeem(ctx context.Context, k *call) error {
	var reply nip.Reply
	var ev *nip.Event
	var silent, issued bool
	err := h.db.Update(ctx, func(tx *bbolt.Tx) error {
		now := h.now()
		reply, ev, silent, issued = nip.Reply{}, nil, false, false
		op := k.req.Op.(nip.EnrollRedeem)
		var inv invitationRecord
		found, err := getJSON(tx, bucketInvitations, string(op.Invitation), &inv)
		if err != nil {
			return err
		}
		if !found || inv.CapabilityDigest != nip.DigestOf([]byte(op.Capability)) || inv.Relay != k.req.Relay {
			silent = true
			return nil
		}
		var kept retainedReply
		if known, err := getJSON(tx, bucketReplies, string(k.req.ID), &kept); err != nil {
			return err
		} else if known && now < kept.ExpiresAt {
			if kept.Signer != k.opened.Signer || kept.RequestEvent != k.opened.EventID {
				reply.Refusal = &nip.Refusal{Code: nip.Conflict}
				return nil
			}
			if code, err := h.redeemRefusal(tx, k, &inv, now); err != nil || code != "" {
				reply.Refusal = &nip.Refusal{Code: code}
				return err
			}
			ev = kept.Reply
			return nil
		}
		code, err := h.redeemRefusal(tx, k, &inv, now)
		if err == nil && code == "" && inv.Replies >= maxRedeemReplies {
			code = nip.RateLimited
		}
		if err == nil && code == "" {
			// Before the grant: a device that is refused keeps the one it has.
			var full bool
			if full, err = repliesFull(tx, k.opened.Signer, now); full {
				code = nip.Bounds
			}
		}
		var rec grantRecord
		if err == nil && code == "" {
			rec, issued, code, err = h.grantFor(tx, k.opened.Signer, &inv, now)
		}
		if err != nil {
			return err
		}
		if code != "" {
			reply.Refusal = &nip.Refusal{Code: code}
			return nil
		}
		inv.Replies++
		if err := putJSON(tx, bucketInvitations, string(inv.ID), inv); err != nil {
			return err
		}
		if issued {
			s := commands.Sender{Device: rec.Grant.Device, Grant: rec.Grant.ID, Epoch: rec.Grant.Epoch}
			key := commands.Key{Principal: rec.Grant.Device, Kind: k.req.Kind, ID: string(k.req.ID)}
			if err := h.journal.Note(tx, key, s, "", "redeemed invitation "+string(inv.ID), commands.OutcomeApplied, "", 0, now); err != nil {
				return err
			}
		}
		ev, err = h.retain(tx, k, nip.Reply{Outcome: nip.Granted{Authorization: rec.Envelope}})
		return err
	})
	switch {
	case err != nil:
		return err
	case silent:
		h.log.Debug().Str("request", string(k.req.ID)).Msg("redemption without the right invitation: no answer")
		return nil
	case reply.Refusal != nil:
		return h.answerOnce(k, reply)
	}
	if issued {
		h.log.Info().Str("device", string(k.opened.Signer)).Msg("device paired")
		h.accessChanged()
		h.emit(Event{Event: "paired", Device: k.opened.Signer})
		h.publisher.welcome(k.opened.Signer)
	}
	h.sendReply(k, ev)
	if issued {
		// What the device had sent under an earlier grant has lost its standing.
		return h.evaluateAll(ctx)
	}
	return nil
}

// redeemRefusal says which signed refusal an otherwise right redemption gets,
// in the order of the wire. Nothing it says is retained.
func (c *Core) redeemRefusal(tx *bbolt.Tx, k *call, inv *invitationRecord, now int64) (nip.Code, error) {
	signer := k.opened.Signer
	switch {
	case signer == c.owner || signer == c.self:
		return nip.Forbidden, nil
	case inv.Cancelled:
		return nip.Revoked, nil
	case now >= inv.ExpiresAt || now >= inv.GrantExpiresAt:
		return nip.Expired, nil
	case k.req.IssuedAt < inv.IssuedAt-clockSkew || k.req.ExpiresAt > inv.ExpiresAt:
		return nip.Forbidden, nil
	}
	if holds, err := c.delegationHolds(tx, inv, now); err != nil || !holds {
		return nip.Revoked, err
	}
	if inv.Grant == "" {
		return "", nil
	}
	var rec grantRecord
	found, err := getJSON(tx, bucketGrants, string(inv.Grant), &rec)
	switch {
	case err != nil:
		return "", err
	case !found:
		return nip.Unavailable, nil
	case rec.Grant.Device != signer:
		return nip.Forbidden, nil
	case rec.RevokedAt != 0 || rec.Grant.Epoch != epochOf(tx, signer):
		return nip.Revoked, nil
	}
	return "", nil
}

// grantFor returns the invitation's grant, issuing it the first time.
func (c *Core) grantFor(tx *bbolt.Tx, device nip.PubKey, inv *invitationRecord, now int64) (grantRecord, bool, nip.Code, error) {
	var rec grantRecord
	if inv.Grant != "" {
		_, err := getJSON(tx, bucketGrants, string(inv.Grant), &rec)
		return rec, false, "", err
	}
	rec, code, err := c.replaceGrant(tx, nip.Grant{
		Origin: nip.Origin{Kind: "invitation", ID: string(inv.ID), Issuer: inv.Issuer},
		Device: device, Relay: inv.Relay, ExpiresAt: inv.GrantExpiresAt, Rights: inv.Rights,
	}, now)
	if err != nil || code != "" {
		return rec, false, code, err
	}
	inv.Grant = rec.Grant.ID
	if inv.Issuer == device && couldIssue(rec.Grant, inv) {
		inv.IssuerGrant = rec.Grant.ID // its own invitation moved with the others
	}
	return rec, true, "", nil
}

// replaceGrant issues g to a device that was just admitted. Its earlier grants
// are revoked without touching its epoch, and what it had delegated and nobody
// redeemed moves to the new one where that could have issued it. It is sent the
// last pages again: summaries are kept sealed and go out anew, pages are not, and
// the new grant may name another relay.
func (c *Core) replaceGrant(tx *bbolt.Tx, g nip.Grant, now int64) (grantRecord, nip.Code, error) {
	rec, code, err := c.newGrant(tx, g, now)
	if err != nil || code != "" {
		return rec, code, err
	}
	if err := moveInvitations(tx, rec.Grant, now); err != nil {
		return rec, "", err
	}
	if _, err := c.revokeGrants(tx, g.Device, now); err != nil {
		return rec, "", err
	}
	if err := dropDevice(tx, bucketPages, g.Device); err != nil {
		return rec, "", err
	}
	return rec, "", putJSON(tx, bucketGrants, string(rec.Grant.ID), rec)
}

// newGrant fills in what every grant of this host has, from now on, and seals
// it. Code bounds says that the book has no room. The caller keeps it.
func (c *Core) newGrant(tx *bbolt.Tx, g nip.Grant, now int64) (grantRecord, nip.Code, error) {
	room, err := c.makeGrantRoom(tx, now)
	if err != nil || !room {
		return grantRecord{}, nip.Bounds, err
	}
	if tx.Bucket(bucketEpochs).Get([]byte(g.Device)) == nil {
		if holds(tx, bucketEpochs, maxEpochs) {
			return grantRecord{}, nip.Bounds, nil
		}
	}
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		return grantRecord{}, "", err
	}
	g.ID, g.Host, g.Owner, g.Epoch, g.IssuedAt = nip.GrantID(id), c.self, c.owner, epochOf(tx, g.Device), now
	a, err := nip.EncodeGrant(g)
	if err != nil {
		return grantRecord{}, "", fmt.Errorf("encode grant: %w", err)
	}
	ev, err := nip.Seal(c.key, g.Device, nip.Mailbox(id), a, nil)
	if err != nil {
		return grantRecord{}, "", fmt.Errorf("seal grant: %w", err)
	}
	return grantRecord{Grant: g, Envelope: ev}, "", nil
}

// makeGrantRoom evicts the grant that is dead longest when the book is full.
func (c *Core) makeGrantRoom(tx *bbolt.Tx, now int64) (bool, error) {
	n, victim, since := 0, "", int64(0)
	named := map[nip.GrantID]bool{}
	if err := eachJSON(tx, bucketInvitations, func(_ string, inv invitationRecord) error {
		named[inv.Grant] = true
		return nil
	}); err != nil {
		return false, err
	}
	if err := eachJSON(tx, bucketEnrollments, func(_ string, e enrollmentRecord) error {
		named[e.Grant] = true
		return nil
	}); err != nil {
		return false, err
	}
	err := eachJSON(tx, bucketGrants, func(key string, rec grantRecord) error {
		n++
		dead := rec.RevokedAt
		if dead == 0 && now >= rec.Grant.ExpiresAt {
			dead = rec.Grant.ExpiresAt
		}
		if dead != 0 && !named[rec.Grant.ID] && (victim == "" || dead < since) {
			victim, since = key, dead
		}
		return nil
	})
	if err != nil || n < maxGrants {
		return err == nil, err
	}
	if victim == "" {
		return false, nil
	}
	return true, tx.Bucket(bucketGrants).Delete([]byte(victim))
}
