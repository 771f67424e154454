package host

import (
	"context"
	"crypto/rand"
	"errors"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// mintInvitation makes a current invitation to the relay, its string, and the
// record without its terms. The capability stands in the string and in inv; of
// the record only its digest is kept.
func (c *Core) mintInvitation(relay nip.RelayURL, now int64) (inv nip.Invitation, code string, rec invitationRecord, err error) {
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		return inv, "", rec, err
	}
	capability, err := nip.NewID(rand.Reader)
	if err != nil {
		return inv, "", rec, err
	}
	inv = nip.Invitation{
		Host: c.self, ID: nip.InvitationID(id), Capability: capability,
		IssuedAt: now, ExpiresAt: now + invitationSeconds, Relay: relay,
	}
	if code, err = nip.EncodeInvitation(inv, nip.Profile{Loopback: true}); err != nil {
		return inv, "", rec, err
	}
	rec = invitationRecord{
		ID: inv.ID, CapabilityDigest: nip.DigestOf([]byte(capability)), Relay: relay,
		IssuedAt: now, ExpiresAt: inv.ExpiresAt,
	}
	return inv, code, rec, nil
}

// inviteFromWire is invite.create: an administrator delegates what it holds
// itself, for no longer than it holds it, to whoever shows the capability
// (NIP-HOST, delegation). The record names the grant that delegated, and
// redemption asks again whether that grant still could.
func (h *Host) inviteFromWire(ctx context.Context, k *call, op nip.InviteCreate) error {
	return h.answerRetained(ctx, k, nip.Reply{}, func(tx *bbolt.Tx, now int64) (nip.Reply, error) {
		inv, code, rec, err := h.mintInvitation(k.req.Relay, now)
		var fault *nip.Error
		if errors.As(err, &fault) { // a relay whose name no invitation can carry
			return h.refuseAccess(tx, k, "invitation", &nip.Refusal{Code: fault.Code}, now)
		}
		if err != nil {
			return nip.Reply{}, err
		}
		if err := pruneInvitations(tx, now); err != nil {
			return nip.Reply{}, err
		}
		refusal := k.who.delegationRefusal(op.Rights, op.GrantExpiresAt, now)
		switch {
		case refusal != nil:
		case op.GrantExpiresAt <= inv.ExpiresAt:
			refusal = &nip.Refusal{Code: nip.Expired}
		case holds(tx, bucketInvitations, maxInvitations):
			refusal = &nip.Refusal{Code: nip.Bounds}
		}
		if refusal != nil {
			return h.refuseAccess(tx, k, "invitation", refusal, now)
		}
		rec.Rights, rec.GrantExpiresAt = op.Rights, op.GrantExpiresAt
		rec.Issuer, rec.IssuerGrant = k.who.sender.Device, k.who.sender.Grant
		if err := putJSON(tx, bucketInvitations, string(inv.ID), rec); err != nil {
			return nip.Reply{}, err
		}
		if err := h.note(tx, k, "", "invitation "+string(inv.ID)+": "+rightsNote(op.Rights), nil, 0, now); err != nil {
			return nip.Reply{}, err
		}
		return nip.Reply{Outcome: nip.Invited{Invitation: inv.ID, Code: code, ExpiresAt: inv.ExpiresAt}}, nil
	})
}

// delegationRefusal says why the principal may not give these rights until then,
// nil when it may: nobody gives what it does not hold, nor for longer.
func (p principal) delegationRefusal(rights nip.Rights, expires, now int64) *nip.Refusal {
	for _, r := range rights {
		if !p.rights.Has(r) {
			return &nip.Refusal{Code: nip.MissingRight, Missing: r}
		}
	}
	switch {
	case p.expiry != 0 && expires > p.expiry:
		return &nip.Refusal{Code: nip.Forbidden}
	case expires <= now || expires > now+maxGrantSeconds:
		return &nip.Refusal{Code: nip.Malformed}
	}
	return nil
}

// refuseAccess journals a refused change of the access book and answers it.
func (h *Host) refuseAccess(tx *bbolt.Tx, k *call, what string, r *nip.Refusal, now int64) (nip.Reply, error) {
	return nip.Reply{Refusal: r}, h.note(tx, k, "", what, r, 0, now)
}

// cancelInvitation is invite.cancel. Any administrator may cancel any
// invitation that nobody redeemed; a repeat is fine.
func (h *Host) cancelInvitation(ctx context.Context, k *call, op nip.InviteCancel) error {
	what := "cancel invitation " + string(op.Invitation)
	return h.answerRetained(ctx, k, nip.Reply{}, func(tx *bbolt.Tx, now int64) (nip.Reply, error) {
		var rec invitationRecord
		found, err := getJSON(tx, bucketInvitations, string(op.Invitation), &rec)
		switch {
		case err != nil:
			return nip.Reply{}, err
		case !found:
			return h.refuseAccess(tx, k, what, &nip.Refusal{Code: nip.Forbidden}, now)
		case rec.Grant != "":
			return h.refuseAccess(tx, k, what, &nip.Refusal{Code: nip.Conflict}, now)
		}
		rec.Cancelled = true
		if err := putJSON(tx, bucketInvitations, string(rec.ID), rec); err != nil {
			return nip.Reply{}, err
		}
		if err := h.note(tx, k, "", what, nil, 0, now); err != nil {
			return nip.Reply{}, err
		}
		return nip.Reply{Outcome: nip.CancelledInvitation{Invitation: rec.ID}}, nil
	})
}

// delegationHolds reports whether who issued the invitation still could. The
// person at the machine and the owner always can; a device only under the very
// grant that the record names.
func (c *Core) delegationHolds(tx *bbolt.Tx, inv *invitationRecord, now int64) (bool, error) {
	if inv.IssuerGrant == "" {
		return true, nil
	}
	var rec grantRecord
	found, err := getJSON(tx, bucketGrants, string(inv.IssuerGrant), &rec)
	return found && rec.Grant.Device == inv.Issuer && rec.live(tx, now) && couldIssue(rec.Grant, inv), err
}

// couldIssue reports whether a grant allows what the invitation promises.
func couldIssue(g nip.Grant, inv *invitationRecord) bool {
	return g.Rights.Has(nip.AccessAdmin) && inv.Rights.Within(g.Rights) && inv.GrantExpiresAt <= g.ExpiresAt
}

// moveInvitations puts the device's unredeemed invitations under its new grant,
// where that could have issued them. It runs before the device's earlier grants
// are revoked: what hangs on one that was already dead stays dead.
func moveInvitations(tx *bbolt.Tx, to nip.Grant, now int64) error {
	var moved []invitationRecord
	err := eachJSON(tx, bucketInvitations, func(_ string, inv invitationRecord) error {
		if inv.Issuer != to.Device || inv.IssuerGrant == "" || inv.Grant != "" || !couldIssue(to, &inv) {
			return nil
		}
		var old grantRecord
		if found, err := getJSON(tx, bucketGrants, string(inv.IssuerGrant), &old); err != nil || !found || !old.live(tx, now) {
			return err
		}
		inv.IssuerGrant = to.ID
		moved = append(moved, inv)
		return nil
	})
	for _, inv := range moved {
		if err == nil {
			err = putJSON(tx, bucketInvitations, string(inv.ID), inv)
		}
	}
	return err
}
