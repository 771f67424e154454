package host

import (
	"testing"

	"holdfast/nip"
)

// What was sealed for a device before it lost its standing never goes out.
func TestNothingForTheRevoked(t *testing.T) {
	r := newRig(t)
	d, other := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	rows := []outboxRow{
		{Device: d.pub(), Stream: "presence", Relay: d.grant.Relay, Event: &nip.Event{ID: "a"}},
		{Device: other.pub(), Stream: "presence", Relay: other.grant.Relay, Event: &nip.Event{ID: "b"}},
	}
	if _, err := r.c.Revoke(t.Context(), d.pub(), false); err != nil {
		t.Fatal(err)
	}
	if err := r.h.putLive(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	if n := r.rows(bucketOutbox); n != 1 {
		t.Fatalf("%d rows wait, not the one of the device with standing", n)
	}
}
