package host

import (
	"fmt"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// A revocation counts in the transaction that makes it and in none that is
// rolled back, however often the grant was decoded before.
func TestGrantCache(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	s := commands.Sender{Device: d.pub(), Grant: d.grant.ID, Epoch: d.grant.Epoch}
	check := func(tx *bbolt.Tx, code nip.Code, devices int) error {
		got, err := r.c.standing(tx, s, nip.Operate, r.clock.now())
		if err != nil || got != code {
			return fmt.Errorf("standing %q, want %q: %w", got, code, err)
		}
		live, err := r.c.liveDevices(tx)
		if err != nil || len(live) != devices {
			return fmt.Errorf("%d live devices, want %d: %w", len(live), devices, err)
		}
		return nil
	}
	view := func(code nip.Code, devices int) {
		t.Helper()
		if err := r.c.db.View(func(tx *bbolt.Tx) error { return check(tx, code, devices) }); err != nil {
			t.Fatal(err)
		}
	}
	view("", 1)
	rolled := fmt.Errorf("rolled back")
	if err := r.c.db.Update(t.Context(), func(tx *bbolt.Tx) error {
		if _, err := r.c.revokeIn(tx, d.pub(), r.clock.now()); err != nil {
			return err
		}
		if err := check(tx, nip.Revoked, 0); err != nil {
			return err
		}
		return rolled
	}); err != rolled {
		t.Fatal(err)
	}
	view("", 1)
	if _, err := r.c.Revoke(t.Context(), d.pub(), false); err != nil {
		t.Fatal(err)
	}
	view(nip.Revoked, 0)
	for i := range 3 * maxGrants { // its memory is bounded
		if _, err := r.c.grants.terms([]byte(fmt.Sprint(i)), []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(r.c.grants.rows); n > 2*maxGrants {
		t.Fatalf("%d grants are kept", n)
	}
	view(nip.Revoked, 0)
	if _, err := r.c.grants.terms([]byte(d.grant.ID), []byte(`{`)); err == nil {
		t.Fatal("a damaged row was decoded")
	}
}
