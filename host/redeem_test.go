package host

import (
	"context"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

func redeem(inv nip.Invitation) nip.EnrollRedeem {
	return nip.EnrollRedeem{Invitation: inv.ID, Capability: inv.Capability}
}

// The order of redemption, step by step; each row begins with an invitation
// that another device of its own redeemed where used is set.
func TestRedemption(t *testing.T) {
	r := newRig(t)
	a := device{key: newKey(t)}
	for _, row := range []struct {
		name   string
		from   device // zero: a new key
		used   bool
		make   func(inv nip.Invitation, q *nip.Request)
		setup  func(inv nip.Invitation)
		code   nip.Code
		silent bool
	}{
		{name: "unknown invitation", make: func(inv nip.Invitation, q *nip.Request) {
			q.Op = nip.EnrollRedeem{Invitation: nip.InvitationID(newID(t)), Capability: inv.Capability}
		}, silent: true},
		{name: "wrong capability", make: func(inv nip.Invitation, q *nip.Request) {
			q.Op = nip.EnrollRedeem{Invitation: inv.ID, Capability: newID(t)}
		}, silent: true},
		{name: "wrong capability of a cancelled one", setup: r.cancelInvitation, make: func(inv nip.Invitation, q *nip.Request) {
			q.Op = nip.EnrollRedeem{Invitation: inv.ID, Capability: newID(t)}
		}, silent: true},
		{name: "the invitation's relay is another", setup: func(inv nip.Invitation) {
			r.editInvitation(inv, func(rec *invitationRecord) { rec.Relay = "wss://other.example.com/" })
		}, silent: true},
		{name: "the owner", from: r.owner, code: nip.Forbidden},
		{name: "cancelled", setup: r.cancelInvitation, code: nip.Revoked},
		{name: "the owner, cancelled", from: r.owner, setup: r.cancelInvitation, code: nip.Forbidden},
		{name: "past the invitation", setup: func(inv nip.Invitation) {
			r.editInvitation(inv, func(rec *invitationRecord) { rec.ExpiresAt = r.clock.now() })
		}, code: nip.Expired},
		{name: "past its grant", setup: func(inv nip.Invitation) {
			r.editInvitation(inv, func(rec *invitationRecord) { rec.GrantExpiresAt = r.clock.now() })
		}, code: nip.Expired},
		{name: "asked long before the invitation", setup: func(inv nip.Invitation) {
			r.editInvitation(inv, func(rec *invitationRecord) { rec.IssuedAt = r.clock.now() + 61 })
		}, code: nip.Forbidden},
		{name: "asked within the skew before it", setup: func(inv nip.Invitation) {
			r.editInvitation(inv, func(rec *invitationRecord) { rec.IssuedAt = r.clock.now() + 60 })
		}},
		{name: "outlives the invitation", setup: func(inv nip.Invitation) {
			r.editInvitation(inv, func(rec *invitationRecord) { rec.ExpiresAt = r.clock.now() + 59 })
		}, code: nip.Forbidden},
		{name: "a second device", used: true, code: nip.Forbidden},
		{name: "the grant is gone", from: a, used: true, setup: func(inv nip.Invitation) {
			r.editInvitation(inv, func(rec *invitationRecord) { rec.Grant = nip.GrantID(newID(t)) })
		}, code: nip.Unavailable},
		{name: "the same device again", from: a, used: true},
		{name: "the same device after 32 replies", from: a, used: true, setup: func(inv nip.Invitation) {
			r.editInvitation(inv, func(rec *invitationRecord) { rec.Replies = maxRedeemReplies })
		}, code: nip.RateLimited},
		{name: "no room for the reply", from: r.pair(nip.StandardRights()), setup: func(nip.Invitation) {
			was := int64(r.rows(bucketReplies))
			full := func(n int64) {
				if err := r.c.db.Update(context.Background(), func(tx *bbolt.Tx) error { return putCount(tx, bucketMeta, "replies", n) }); err != nil {
					t.Fatal(err)
				}
			}
			full(maxReplies)
			r.t.Cleanup(func() { full(was) })
		}, code: nip.Bounds},
		{name: "a book full of live grants", setup: func(nip.Invitation) {
			r.update(func(tx *bbolt.Tx) error { // dead ones of the rows before
				if err := tx.DeleteBucket(bucketGrants); err != nil {
					return err
				}
				_, err := tx.CreateBucket(bucketGrants)
				return err
			})
			r.fillGrants(0)
		}, code: nip.Bounds},
		{name: "too many epochs", setup: func(nip.Invitation) {
			r.update(func(tx *bbolt.Tx) error {
				for range maxEpochs {
					if err := putCount(tx, bucketEpochs, newID(t), 1); err != nil {
						return err
					}
				}
				return nil
			})
		}, code: nip.Bounds},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			inv := r.invite(nip.StandardRights())
			if row.used {
				r.granted(a, r.ask(a, redeem(inv)))
			}
			from := row.from
			if from.key.Public() == "" {
				from.key = newKey(t)
			}
			if row.setup != nil {
				row.setup(inv)
			}
			q := r.req(device{key: from.key}, redeem(inv))
			if row.make != nil {
				row.make(inv, &q)
			}
			in := r.sealed(from, q)
			before := r.dump()
			out := r.give(in)
			if row.silent {
				if len(out) != 0 || r.dump() != before {
					t.Fatal("not silent")
				}
				return
			}
			if len(out) != 1 {
				t.Fatalf("%d replies", len(out))
			}
			r.wantCode(r.read(from, out[0]), row.code)
			if row.code != "" && r.dump() != before {
				t.Error("a refusal changed host.db")
			}
		})
	}
}

func (r *rig) update(fn func(tx *bbolt.Tx) error) {
	r.t.Helper()
	if err := r.c.db.Update(r.t.Context(), fn); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) editInvitation(inv nip.Invitation, fn func(rec *invitationRecord)) {
	r.t.Helper()
	r.update(func(tx *bbolt.Tx) error {
		var rec invitationRecord
		if _, err := getJSON(tx, bucketInvitations, string(inv.ID), &rec); err != nil {
			return err
		}
		fn(&rec)
		return putJSON(tx, bucketInvitations, string(inv.ID), rec)
	})
}

func (r *rig) cancelInvitation(inv nip.Invitation) {
	r.editInvitation(inv, func(rec *invitationRecord) { rec.Cancelled = true })
}

// fillGrants brings the book to its cap with grants that were revoked then; 0
// is live ones.
func (r *rig) fillGrants(revoked int64) {
	r.t.Helper()
	r.update(func(tx *bbolt.Tx) error {
		for i := r.rowsIn(tx, bucketGrants); i < maxGrants; i++ {
			g := nip.Grant{ID: nip.GrantID(newID(r.t)), Device: nip.PubKey(newID(r.t)), ExpiresAt: r.clock.now() + 1000, Rights: nip.PairingRights()}
			rec := grantRecord{Grant: g}
			if revoked != 0 {
				rec.RevokedAt = revoked + int64(i)
			}
			if err := putJSON(tx, bucketGrants, string(g.ID), rec); err != nil {
				return err
			}
		}
		return nil
	})
}

// The same device always gets the same grant, also after a restart, and the
// 33rd reply is refused.
func TestRedemptionRepeats(t *testing.T) {
	r := newRig(t)
	inv := r.invite(nip.StandardRights())
	d := device{key: newKey(t)}
	in := r.sealed(d, r.req(d, redeem(inv)))
	first := r.give(in)
	grant := r.granted(d, r.read(d, first[0]))
	if grant.Origin.Issuer != r.c.Self() || grant.Epoch != 0 || grant.Relay != paperRelay || grant.ExpiresAt-grant.IssuedAt != 30*86400 {
		t.Fatalf("grant: %+v", grant)
	}
	r.restart()
	if again := r.give(in); len(again) != 1 || again[0].ID != first[0].ID {
		t.Fatal("the exact retry after a restart did not get the same bytes")
	}
	if again := r.give(in); len(again) != 0 {
		t.Fatal("answered twice within 5 s")
	}
	for i := 2; i <= maxRedeemReplies; i++ {
		if g := r.granted(d, r.ask(d, redeem(inv))); g.ID != grant.ID {
			t.Fatalf("reply %d has another grant", i)
		}
	}
	r.wantCode(r.ask(d, redeem(inv)), nip.RateLimited)
	r.clock.add(5)
	if again := r.give(in); len(again) != 1 || again[0].ID != first[0].ID {
		t.Fatal("a retained reply is not counted and must still be given")
	}
	if rows := r.rows(bucketGrants); rows != 1 {
		t.Fatalf("%d grants", rows)
	}
}

// Pairing anew revokes the device's earlier grants and leaves its epoch; a
// revocation moves the epoch, and the next grant carries it.
func TestEpochs(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.StandardRights())
	admin := r.pair(nip.PairingRights())
	old := d
	d = r.pair(nip.StandardRights(), d.key)
	if d.grant.Epoch != 0 {
		t.Fatalf("epoch %d after pairing anew", d.grant.Epoch)
	}
	r.wantCode(r.ask(old, nip.WorkspaceList{}), nip.Revoked)
	r.wantCode(r.ask(d, nip.WorkspaceList{}), "")
	for want := int64(1); want <= 2; want++ { // also when repeated
		p := r.ask(admin, nip.DeviceRevoke{Device: d.pub()})
		o, ok := p.Outcome.(nip.RevokedDevice)
		if !ok || o.Epoch != want || len(o.Grants) != 2 {
			t.Fatalf("revocation: %+v %+v", p.Outcome, p.Refusal)
		}
		r.wantCode(r.ask(d, nip.WorkspaceList{}), nip.Revoked)
	}
	r.restart()
	again := r.pair(nip.StandardRights(), d.key)
	if again.grant.Epoch != 2 {
		t.Fatalf("epoch %d", again.grant.Epoch)
	}
	r.wantCode(r.ask(again, nip.WorkspaceList{}), "")
	stale := again
	stale.grant.Epoch = 1
	r.wantCode(r.ask(stale, nip.WorkspaceList{}), nip.Stale)
	r.wantCode(r.ask(admin, nip.DeviceRevoke{Device: newKey(t).Public()}), nip.Forbidden)
	r.wantCode(r.ask(admin, nip.DeviceRevoke{Device: r.c.Owner()}), nip.Forbidden)
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		recs, err := r.c.activeGrants(tx, r.clock.now())
		if len(recs) != 2 {
			t.Errorf("%d live grants for two devices", len(recs))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// A full book evicts the grant that is dead longest, never one that a retained
// invitation names.
func TestGrantEviction(t *testing.T) {
	r := newRig(t)
	named := r.pair(nip.StandardRights())
	if _, err := r.c.Revoke(t.Context(), named.pub(), false); err != nil {
		t.Fatal(err)
	}
	r.update(func(tx *bbolt.Tx) error { // dead longest of all, and named
		var rec grantRecord
		if _, err := getJSON(tx, bucketGrants, string(named.grant.ID), &rec); err != nil {
			return err
		}
		rec.RevokedAt = 1
		return putJSON(tx, bucketGrants, string(named.grant.ID), rec)
	})
	r.fillGrants(1000)
	r.pair(nip.StandardRights())
	if n := r.rows(bucketGrants); n != maxGrants {
		t.Fatalf("%d grants", n)
	}
	var oldest int64
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		found, err := getJSON(tx, bucketGrants, string(named.grant.ID), &grantRecord{})
		if !found {
			t.Error("a named grant was evicted")
		}
		if err != nil {
			return err
		}
		return eachJSON(tx, bucketGrants, func(_ string, rec grantRecord) error {
			if rec.RevokedAt > 1 && (oldest == 0 || rec.RevokedAt < oldest) {
				oldest = rec.RevokedAt
			}
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
	if oldest != 1002 {
		t.Fatalf("oldest dead grant left: %d", oldest)
	}
}

// Invitations: 64 at most, gone a minute after their time; rights and days are
// checked when they are made.
func TestInvitations(t *testing.T) {
	r := newRig(t)
	for _, row := range []struct {
		name   string
		rights nip.Rights
		days   int
		relay  nip.RelayURL
	}{
		{"no rights", nil, 1, paperRelay},
		{"rights out of order", nip.Rights{nip.Operate, nip.Observe}, 1, paperRelay},
		{"unknown right", nip.Rights{"root"}, 1, paperRelay},
		{"no days", nip.StandardRights(), 0, paperRelay},
		{"31 days", nip.StandardRights(), 31, paperRelay},
		{"a relay with a query", nip.StandardRights(), 1, "wss://relay.example.com/?a"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, _, err := r.c.NewInvitation(t.Context(), row.rights, row.days, row.relay); err == nil {
				t.Fatal("made")
			}
		})
	}
	for range maxInvitations {
		r.invite(nip.StandardRights())
	}
	if _, _, err := r.c.NewInvitation(t.Context(), nip.StandardRights(), 1, paperRelay); err == nil {
		t.Fatal("a 65th invitation")
	}
	r.clock.add(invitationSeconds + afterExpirySeconds)
	r.invite(nip.StandardRights())
	if n := r.rows(bucketInvitations); n != 1 {
		t.Fatalf("%d invitations", n)
	}
}
