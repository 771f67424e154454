package host

import (
	"errors"
	"testing"

	"holdfast/nip"
)

// The person at the machine takes a code back: it admits nobody from then on,
// again is done, and what was redeemed or is not there is said.
func TestCancelInvitation(t *testing.T) {
	r := newRig(t)
	states := func() map[nip.InvitationID]string {
		t.Helper()
		out := map[nip.InvitationID]string{}
		if err := r.c.Operate(t.Context(), "invitations.list", nil, func(v any) error {
			for _, row := range v.(map[string]any)["invitations"].([]InvitationRow) {
				out[row.Invitation] = row.State
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	taken, used, old := r.invite(nip.StandardRights()), r.invite(nip.StandardRights()), r.invite(nip.StandardRights())
	d := device{key: newKey(t)}
	r.granted(d, r.ask(d, nip.EnrollRedeem{Invitation: used.ID, Capability: used.Capability}))
	for range 2 {
		if err := r.operate("invitations.cancel", InvitationArgs{taken.ID}); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		id nip.InvitationID
		is error
	}{{used.ID, ErrUsage}, {nip.InvitationID(newID(t)), ErrNotFound}, {"short", ErrUsage}} {
		if err := r.operate("invitations.cancel", InvitationArgs{row.id}); !errors.Is(err, row.is) {
			t.Errorf("%s: %v", row.id, err)
		}
	}
	if got := states(); len(got) != 3 || got[taken.ID] != "cancelled" || got[used.ID] != "redeemed" || got[old.ID] != "open" {
		t.Errorf("states %v", got)
	}
	late := device{key: newKey(t)}
	r.wantCode(r.ask(late, nip.EnrollRedeem{Invitation: taken.ID, Capability: taken.Capability}), nip.Revoked)
	if e := r.find("invite.cancel"); e.Sender.Device != r.c.Self() || e.Note != "cancel invitation "+string(taken.ID) {
		t.Errorf("journalled as %+v", e)
	}
	r.clock.add(invitationSeconds)
	if got := states(); got[old.ID] != "expired" {
		t.Errorf("states %v", got)
	}
}
