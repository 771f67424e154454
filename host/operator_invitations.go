package host

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// InvitationRow is an invitation as the person at the machine sees it; its code
// was shown once and is not kept.
type InvitationRow struct {
	Invitation nip.InvitationID `json:"invitation"`
	State      string           `json:"state"` // open, cancelled, redeemed, expired
	Rights     nip.Rights       `json:"rights"`
	Issuer     nip.PubKey       `json:"issuer"` // the host's own key: the person at the machine
	Relay      nip.RelayURL     `json:"relay"`
	ExpiresAt  int64            `json:"expires_at"`
	Grant      nip.GrantID      `json:"grant,omitempty"` // with redeemed
}

func (r *invitationRecord) state(now int64) string {
	switch {
	case r.Grant != "":
		return "redeemed"
	case r.Cancelled:
		return "cancelled"
	case now >= r.ExpiresAt:
		return "expired"
	}
	return "open"
}

func verbInvitations(_ context.Context, c *Core, _ json.RawMessage, emit func(any) error) error {
	rows := []InvitationRow{}
	now := c.now()
	if err := c.db.View(func(tx *bbolt.Tx) error {
		return eachJSON(tx, bucketInvitations, func(_ string, r invitationRecord) error {
			rows = append(rows, InvitationRow{r.ID, r.state(now), r.Rights, r.Issuer, r.Relay, r.ExpiresAt, r.Grant})
			return nil
		})
	}); err != nil {
		return err
	}
	return emit(map[string]any{"invitations": rows})
}

// InvitationArgs of "invitations.cancel".
type InvitationArgs struct {
	Invitation nip.InvitationID `json:"invitation"`
}

// verbInvitationCancel is invite.cancel of the person at the machine: of any
// invitation, whoever made it. Again is done; one that was redeemed is a device
// by now, which is revoked instead.
func verbInvitationCancel(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a InvitationArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	if !nip.ValidID(string(a.Invitation)) {
		return fmt.Errorf("%w: an invitation is 64 lowercase hex characters; holdfast invitations list shows them", ErrUsage)
	}
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		return err
	}
	if err := c.db.Update(ctx, func(tx *bbolt.Tx) error {
		var rec invitationRecord
		found, err := getJSON(tx, bucketInvitations, string(a.Invitation), &rec)
		switch {
		case err != nil:
			return err
		case !found:
			return fmt.Errorf("%w: no invitation %s; one that ran out is forgotten after a minute", ErrNotFound, a.Invitation)
		case rec.Grant != "":
			return fmt.Errorf("%w: it was redeemed; holdfast devices list shows the device, holdfast devices revoke takes its access", ErrUsage)
		}
		if rec.Cancelled {
			return nil
		}
		rec.Cancelled = true
		if err := putJSON(tx, bucketInvitations, string(rec.ID), rec); err != nil {
			return err
		}
		return c.journal.Note(tx, c.actKey("invite.cancel", id), c.localSender(), "", "cancel invitation "+string(rec.ID), commands.OutcomeApplied, "", 0, c.now())
	}); err != nil {
		return err
	}
	return emit(map[string]any{"cancelled": a.Invitation})
}
