package host

import (
	"context"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// renewAgain is the shortest time, in seconds, between two renewals of one device.
// What paces them is the grant's own life, of which three quarters must be over;
// this only keeps one that lives for seconds from filling the book.
const renewAgain = 60

// renewSoon looks, beside the request, whether its device's grant runs out and
// is to be renewed (NIP-HOST, renewal; over a relay it is this host's own way).
// An admitted request is the occasion: a device that never asks is not renewed.
func (h *Host) renewSoon(k *call, now int64) {
	if k.who.sender.Grant == "" || !nip.RenewalDue(k.who.grant, now) {
		return
	}
	h.background(func() {
		if err := h.renew(context.Background(), k.who.sender.Device); err != nil {
			h.log.Error().Err(err).Str("device", string(k.who.sender.Device)).Msg("grant was not renewed; the device's next request tries again")
		}
	})
}

// renew issues the same grant again from now on: another ID, the same standing,
// the same lifetime. The earlier one stays valid to its end, because the device
// may never see this one. The grant and its place in the outbox are one commit;
// a device that finds the envelope in its mailbox takes it by its own rules.
func (h *Host) renew(ctx context.Context, device nip.PubKey) error {
	var rec grantRecord
	var full bool
	err := h.db.Update(ctx, func(tx *bbolt.Tx) error {
		rec, full = grantRecord{}, false
		now := h.now()
		// The newest grant that is live: none where the device was revoked since.
		old, err := h.newestGrant(tx, device, now)
		if err != nil || old.ID == "" || !renewable(old, h.self, h.owner, now) {
			return err
		}
		g := old
		g.ExpiresAt = now + (old.ExpiresAt - old.IssuedAt)
		next, code, err := h.newGrant(tx, g, now)
		if err != nil || code != "" {
			full = code != ""
			return err
		}
		if err := moveInvitations(tx, next.Grant, now); err != nil {
			return err
		}
		if err := putJSON(tx, bucketGrants, string(next.Grant.ID), next); err != nil {
			return err
		}
		key := commands.Key{Principal: h.self, Kind: "grant.renew", ID: string(next.Grant.ID)}
		what := "renewed grant " + string(old.ID) + " of " + string(device)
		if err := h.journal.Note(tx, key, h.localSender(), "", what, commands.OutcomeApplied, "", 0, now); err != nil {
			return err
		}
		rec = next
		return putOutbox(tx, outboxRow{
			Device: device, Stream: "grant", Relay: next.Grant.Relay, Until: next.Grant.ExpiresAt, Event: next.Envelope,
		})
	})
	switch {
	case err != nil:
		return err
	case full:
		h.log.Warn().Str("device", string(device)).Msg("grant was not renewed: the access book is full of live grants")
	case rec.Envelope != nil:
		h.log.Info().Str("device", string(device)).Str("grant", string(rec.Grant.ID)).Msg("grant renewed")
		h.outbox.wake()
		h.emit(Event{Event: "renewed", Device: device})
	}
	return nil
}

// renewable reports whether a device's newest grant is to be renewed now. What
// another device delegated ends when it ends: that device alone could prolong it.
func renewable(g nip.Grant, host, owner nip.PubKey, now int64) bool {
	return nip.RenewalDue(g, now) && now >= g.IssuedAt+renewAgain && (g.Origin.Issuer == host || g.Origin.Issuer == owner)
}

// newestGrant is the device's live grant, zero without one.
func (c *Core) newestGrant(tx *bbolt.Tx, device nip.PubKey, now int64) (nip.Grant, error) {
	recs, err := c.activeGrants(tx, now)
	for _, r := range recs {
		if r.Grant.Device == device {
			return r.Grant, err
		}
	}
	return nip.Grant{}, err
}
