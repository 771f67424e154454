package host

import (
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// renewals are the grant envelopes in the outbox for d.
func (r *rig) renewals(d device) []nip.Grant {
	r.t.Helper()
	r.h.crew.Wait()
	var events []*nip.Event
	r.update(func(tx *bbolt.Tx) error {
		return eachJSON(tx, bucketOutbox, func(_ string, row outboxRow) error {
			if row.Stream == "grant" {
				events = append(events, row.Event)
			}
			return nil
		})
	})
	var out []nip.Grant
	for _, o := range r.opened(d, events, nip.SchemaGrant) {
		g, err := nip.ParseGrant(o.Inline, nip.Profile{})
		if err != nil {
			r.t.Fatal(err)
		}
		if string(o.Mailbox) != string(g.ID) {
			r.t.Fatal("the envelope is in another mailbox")
		}
		out = append(out, g)
	}
	return out
}

// An admitted request with a quarter of the grant's life left brings another
// grant of the same standing; both are valid, and the book counts one device.
func TestRenewal(t *testing.T) {
	r := newRig(t)
	d := r.pair(adminRights)
	life := d.grant.ExpiresAt - d.grant.IssuedAt
	r.clock.at.Store(d.grant.ExpiresAt - life/4 - 1)
	inv := r.invitedBy(d, nip.Rights{nip.Observe}, d.grant.ExpiresAt)
	if got := r.renewals(d); len(got) != 0 {
		t.Fatal("renewed with more than a quarter left")
	}
	r.clock.add(1)
	strange := d
	strange.grant.Epoch++
	r.wantCode(r.ask(strange, nip.WorkspaceList{}), nip.Stale)
	if got := r.renewals(d); len(got) != 0 {
		t.Fatal("a refused request renewed")
	}
	in := r.sealed(d, r.req(d, nip.WorkspaceList{}))
	r.wantCode(r.one(d, in), "")
	got := r.renewals(d)
	if len(got) != 1 {
		t.Fatalf("%d envelopes", len(got))
	}
	g := got[0]
	if err := nip.CheckRenewal(d.grant, g); err != nil {
		t.Fatal(err)
	}
	if g.IssuedAt != r.clock.now() || g.ExpiresAt != g.IssuedAt+life {
		t.Fatalf("%+v", g)
	}
	r.wantCode(r.ask(d, nip.WorkspaceList{}), "") // the old one still holds, and is not renewed again
	renewed := device{key: d.key, grant: g}
	r.wantCode(r.ask(renewed, nip.WorkspaceList{}), "")
	if again := r.renewals(d); len(again) != 1 || again[0].ID != g.ID {
		t.Fatal("renewed twice")
	}
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		recs, err := r.c.activeGrants(tx, r.clock.now())
		if len(recs) != 1 || recs[0].Grant.ID != g.ID {
			t.Errorf("%d active, the newest is not the one", len(recs))
		}
		list, _ := r.c.deviceEntries(tx, r.clock.now())
		if len(list) != 2 {
			t.Errorf("%d entries in device.list", len(list))
		}
		n, chain := r.c.journal.Check(tx)
		if n == 0 || chain != nil {
			t.Error(chain)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if keys, _, err := r.h.principals(); err != nil || len(keys) != 2 {
		t.Fatal(keys, err)
	}
	r.editInvitation(inv, func(rec *invitationRecord) {
		if rec.IssuerGrant != g.ID {
			t.Error("what the device had delegated did not move")
		}
	})
	r.clock.at.Store(d.grant.ExpiresAt)
	r.wantCode(r.ask(d, nip.WorkspaceList{}), nip.Expired)
	r.wantCode(r.ask(renewed, nip.WorkspaceList{}), "")
}

// Who is renewed, and who is not.
func TestNotRenewed(t *testing.T) {
	r := newRig(t)
	admin := r.pair(nip.PairingRights())
	delegated := device{key: newKey(t)}
	inv := r.invitedBy(admin, nip.StandardRights(), r.clock.now()+10*day)
	delegated.grant = r.granted(delegated, r.ask(delegated, redeem(inv)))
	byOwner := device{key: newKey(t)}
	inv = r.invitedBy(r.owner, nip.StandardRights(), r.clock.now()+10*day)
	byOwner.grant = r.granted(byOwner, r.ask(byOwner, redeem(inv)))
	short := device{key: newKey(t)}
	inv = r.invitedBy(r.owner, nip.StandardRights(), r.clock.now()+400)
	short.grant = r.granted(short, r.ask(short, redeem(inv)))
	r.clock.add(299)
	r.wantCode(r.ask(short, nip.WorkspaceList{}), "")
	if got := r.renewals(short); len(got) != 0 {
		t.Error("renewed with more than a quarter left")
	}
	r.clock.add(1)
	r.wantCode(r.ask(short, nip.WorkspaceList{}), "")
	// Looked at now, which waits for it: what is renewed after the clock jumps has run out.
	if got := r.renewals(short); len(got) != 1 {
		t.Errorf("of a short life: %d renewals", len(got))
	}
	r.clock.at.Store(delegated.grant.ExpiresAt - 100)
	r.wantCode(r.ask(delegated, nip.WorkspaceList{}), "")
	r.wantCode(r.ask(byOwner, nip.WorkspaceList{}), "")
	r.wantCode(r.ask(r.owner, nip.WorkspaceList{}), "")
	for _, row := range []struct {
		name string
		d    device
		want int
	}{{"delegated by a device", delegated, 0}, {"given by the owner", byOwner, 1}} {
		if got := r.renewals(row.d); len(got) != row.want {
			t.Errorf("%s: %d renewals", row.name, len(got))
		}
	}
	// Revocation takes the renewed one too, and what waits for the device.
	g := r.renewals(byOwner)[0]
	rev, err := r.c.Revoke(t.Context(), byOwner.pub(), false)
	if err != nil || len(rev.Grants) != 2 {
		t.Fatal(rev, err)
	}
	r.wantCode(r.ask(device{key: byOwner.key, grant: g}, nip.WorkspaceList{}), nip.Revoked)
	if len(r.renewals(byOwner)) != 0 {
		t.Fatal("an envelope still waits")
	}
	// A full book of live grants.
	full := r.pair(nip.StandardRights())
	r.clock.at.Store(full.grant.ExpiresAt - 100)
	r.update(func(tx *bbolt.Tx) error { return pruneGrants(tx, r.clock.now()) })
	r.fillGrants(0)
	r.wantCode(r.ask(full, nip.WorkspaceList{}), "")
	if n := len(r.renewals(full)); n != 0 {
		t.Fatal("renewed in a full book")
	}
}
