package host

import (
	"slices"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

const day = int64(86_400)

var adminRights = nip.Rights{nip.Observe, nip.Operate, nip.AccessAdmin}

// invitedBy makes an invitation over the wire.
func (r *rig) invitedBy(d device, rights nip.Rights, until int64) nip.Invitation {
	r.t.Helper()
	p := r.ask(d, nip.InviteCreate{Rights: rights, GrantExpiresAt: until})
	o, ok := p.Outcome.(nip.Invited)
	if !ok {
		r.t.Fatalf("not invited: %+v", p.Refusal)
	}
	inv, err := nip.ParseInvitation(o.Code, nip.Profile{}, r.clock.now())
	if err != nil {
		r.t.Fatal(err)
	}
	if inv.ID != o.Invitation || inv.ExpiresAt != o.ExpiresAt || inv.Host != r.c.Self() || inv.Relay != paperRelay {
		r.t.Fatalf("%+v", inv)
	}
	return inv
}

// The terms of an invitation, each row one thing wrong; they are judged in the
// order of the rows.
func TestInviteCreate(t *testing.T) {
	r := newRig(t)
	admin := r.pair(adminRights)
	plain := r.pair(nip.StandardRights())
	now := r.clock.now()
	for _, row := range []struct {
		name    string
		from    device
		rights  nip.Rights
		until   int64
		code    nip.Code
		missing nip.Right
	}{
		{"without access_admin", plain, nip.StandardRights(), now + day, nip.MissingRight, nip.AccessAdmin},
		{"a right it lacks", admin, nip.StandardRights(), now + 99*day, nip.MissingRight, nip.Terminal},
		{"beyond its own grant", admin, nip.Rights{nip.Observe}, admin.grant.ExpiresAt + 1, nip.Forbidden, ""},
		{"in the past", admin, nip.Rights{nip.Observe}, now, nip.Malformed, ""},
		{"over 30 days, by the owner", r.owner, nip.Rights{nip.Observe}, now + 30*day + 1, nip.Malformed, ""},
		{"not after the invitation", admin, nip.Rights{nip.Observe}, now + invitationSeconds, nip.Expired, ""},
		{"just after the invitation", admin, nip.Rights{nip.Observe}, now + invitationSeconds + 1, "", ""},
		{"all that it holds", admin, adminRights, admin.grant.ExpiresAt, "", ""},
		{"all there is, by the owner", r.owner, nip.PairingRights(), now + 30*day, "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			before := r.rows(bucketInvitations)
			p := r.ask(row.from, nip.InviteCreate{Rights: row.rights, GrantExpiresAt: row.until})
			r.wantCode(p, row.code)
			if row.code != "" && (p.Refusal.Missing != row.missing || r.rows(bucketInvitations) != before) {
				t.Fatalf("missing %q", p.Refusal.Missing)
			}
		})
	}
	r.t = t
	for r.rows(bucketInvitations) < maxInvitations {
		r.invite(nip.StandardRights())
	}
	r.wantCode(r.ask(admin, nip.InviteCreate{Rights: nip.Rights{nip.Observe}, GrantExpiresAt: now + day}), nip.Bounds)
	r.clock.add(invitationSeconds + afterExpirySeconds)
	r.invitedBy(admin, nip.Rights{nip.Observe}, now+day)
}

// A delegated invitation gives what it says, names who delegated, and an exact
// retry makes no second one.
func TestDelegatedRedemption(t *testing.T) {
	r := newRig(t)
	admin := r.pair(adminRights)
	until := r.clock.now() + day
	in := r.sealed(admin, r.req(admin, nip.InviteCreate{Rights: nip.Rights{nip.Observe, nip.Operate}, GrantExpiresAt: until}))
	first := r.give(in)
	r.restart()
	if again := r.give(in); len(again) != 1 || again[0].ID != first[0].ID {
		t.Fatal("the exact retry got other bytes")
	}
	o := r.read(admin, first[0]).Outcome.(nip.Invited)
	inv, err := nip.ParseInvitation(o.Code, nip.Profile{}, r.clock.now())
	if err != nil {
		t.Fatal(err)
	}
	d := device{key: newKey(t)}
	d.grant = r.granted(d, r.ask(d, redeem(inv)))
	g := d.grant
	if g.Origin != (nip.Origin{Kind: "invitation", ID: string(inv.ID), Issuer: admin.pub()}) || g.ExpiresAt != until ||
		!slices.Equal(g.Rights, nip.Rights{nip.Observe, nip.Operate}) {
		t.Fatalf("%+v", g)
	}
	r.wantCode(r.ask(d, nip.WorkspaceList{}), "")
}

// Whoever delegated must still be able to when the invitation is redeemed.
func TestDelegationRechecked(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(r *rig, admin device)
		code   nip.Code
	}{
		{"nothing changed", func(*rig, device) {}, ""},
		{"its issuer was revoked", func(r *rig, admin device) {
			if _, err := r.c.Revoke(r.t.Context(), admin.pub(), false); err != nil {
				r.t.Fatal(err)
			}
		}, nip.Revoked},
		{"revoked and paired again", func(r *rig, admin device) {
			if _, err := r.c.Revoke(r.t.Context(), admin.pub(), false); err != nil {
				r.t.Fatal(err)
			}
			r.pair(nip.PairingRights(), admin.key)
		}, nip.Revoked},
		{"paired again with as much", func(r *rig, admin device) { r.pair(nip.PairingRights(), admin.key) }, ""},
		{"paired again without access_admin", func(r *rig, admin device) {
			r.pair(nip.Rights{nip.Observe, nip.Operate}, admin.key)
		}, nip.Revoked},
		{"paired again without the right", func(r *rig, admin device) {
			r.pair(nip.Rights{nip.Observe, nip.AccessAdmin}, admin.key)
		}, nip.Revoked},
		{"paired again for a shorter time", func(r *rig, admin device) { r.pairFor(1, nip.PairingRights(), admin.key) }, nip.Revoked},
		{"weaker for a while", func(r *rig, admin device) {
			r.pair(nip.Rights{nip.Observe}, admin.key)
			r.pair(nip.PairingRights(), admin.key)
		}, nip.Revoked},
		{"its grant ended", func(r *rig, admin device) {
			r.editGrant(admin, func(rec *grantRecord) { rec.Grant.ExpiresAt = r.clock.now() })
		}, nip.Revoked},
		{"its grant is gone", func(r *rig, admin device) {
			r.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketGrants).Delete([]byte(admin.grant.ID)) })
		}, nip.Revoked},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			admin := r.pair(adminRights)
			inv := r.invitedBy(admin, nip.Rights{nip.Operate}, r.clock.now()+2*day)
			local := r.invite(nip.StandardRights())
			row.change(r, admin)
			r.wantCode(r.ask(device{key: newKey(t)}, redeem(inv)), row.code)
			r.wantCode(r.ask(device{key: newKey(t)}, redeem(local)), "")
		})
	}
}

// pairFor is pair with a grant of so many days.
func (r *rig) pairFor(days int, rights nip.Rights, key nip.SecretKey) device {
	r.t.Helper()
	inv, _, err := r.c.NewInvitation(r.t.Context(), rights, days, paperRelay)
	if err != nil {
		r.t.Fatal(err)
	}
	d := device{key: key}
	d.grant = r.granted(d, r.ask(d, redeem(inv)))
	return d
}

// What was redeemed hangs on the grant that delegated it, for good.
func TestRedeemedDelegationStays(t *testing.T) {
	r := newRig(t)
	admin, d := r.pair(adminRights), device{key: newKey(t)}
	inv := r.invitedBy(admin, nip.Rights{nip.Operate}, r.clock.now()+day)
	d.grant = r.granted(d, r.ask(d, redeem(inv)))
	r.pair(nip.PairingRights(), admin.key)
	r.wantCode(r.ask(device{key: d.key}, redeem(inv)), nip.Revoked)
	r.wantCode(r.ask(d, nip.WorkspaceList{}), "") // the grant itself is the device's own
}

func (r *rig) editGrant(d device, change func(rec *grantRecord)) {
	r.t.Helper()
	r.update(func(tx *bbolt.Tx) error {
		var rec grantRecord
		if _, err := getJSON(tx, bucketGrants, string(d.grant.ID), &rec); err != nil {
			return err
		}
		change(&rec)
		return putJSON(tx, bucketGrants, string(d.grant.ID), rec)
	})
}

// A device that redeems its own invitation can still fetch the answer.
func TestOwnInvitation(t *testing.T) {
	r := newRig(t)
	admin := r.pair(adminRights)
	inv := r.invitedBy(admin, adminRights, r.clock.now()+day)
	again := device{key: admin.key}
	first := r.granted(again, r.ask(again, redeem(inv)))
	if second := r.granted(again, r.ask(again, redeem(inv))); second.ID != first.ID {
		t.Fatal("another grant")
	}
	r.wantCode(r.ask(admin, nip.WorkspaceList{}), nip.Revoked)
}

func TestInviteCancel(t *testing.T) {
	r := newRig(t)
	admin, other := r.pair(adminRights), r.pair(adminRights)
	plain := r.pair(nip.StandardRights())
	open := r.invitedBy(admin, nip.Rights{nip.Observe}, r.clock.now()+day)
	used := r.invitedBy(admin, nip.Rights{nip.Observe}, r.clock.now()+day)
	local := r.invite(nip.StandardRights())
	r.wantCode(r.ask(device{key: newKey(t)}, redeem(used)), "")
	for _, row := range []struct {
		name string
		from device
		id   nip.InvitationID
		code nip.Code
	}{
		{"unknown", other, nip.InvitationID(newID(t)), nip.Forbidden},
		{"redeemed", other, used.ID, nip.Conflict},
		{"without access_admin", plain, open.ID, nip.MissingRight},
		{"of another device", other, open.ID, ""},
		{"again", admin, open.ID, ""},
		{"of the person at the machine, by the owner", r.owner, local.ID, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			r.wantCode(r.ask(row.from, nip.InviteCancel{Invitation: row.id}), row.code)
		})
	}
	r.t = t
	for _, inv := range []nip.Invitation{open, local} {
		r.wantCode(r.ask(device{key: newKey(t)}, redeem(inv)), nip.Revoked)
	}
}

// A request ID whose reply was pruned is no way to a second effect.
func TestRequestIDUsedAgain(t *testing.T) {
	r := newRig(t)
	admin := r.pair(adminRights)
	q := r.req(admin, nip.InviteCreate{Rights: nip.Rights{nip.Observe}, GrantExpiresAt: r.clock.now() + day})
	r.wantCode(r.one(admin, r.sealed(admin, q)), "")
	r.clock.add(61)
	q.IssuedAt, q.ExpiresAt = r.clock.now(), r.clock.now()+60
	r.wantCode(r.one(admin, r.sealed(admin, q)), nip.Conflict)
	if n := r.rows(bucketInvitations); n != 2 { // the pairing's own and the first
		t.Fatalf("%d invitations", n)
	}
}
