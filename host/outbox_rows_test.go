package host

import (
	"encoding/json"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

func TestRelayOfRow(t *testing.T) {
	whole, err := json.Marshal(outboxRow{Device: nip.PubKey(newID(t)), Stream: "summary", Subject: `a "task"`, Relay: "wss://relay.example.com/", Event: &nip.Event{Content: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name, raw string
		want      nip.RelayURL // "" is damaged
	}{
		{"whole", string(whole), "wss://relay.example.com/"},
		{"another order", `{"event":{"relay":"wss://no.example.com/"},"relay":"wss://relay.example.com/"}`, "wss://relay.example.com/"},
		{"without", `{"event":{"relay":"wss://no.example.com/"}}`, ""},
		{"a number", `{"relay":1}`, ""},
		{"a list", `["relay"]`, ""},
		{"cut", string(whole[:20]), ""},
		{"empty", "", ""},
	} {
		got, err := relayOfRow([]byte(row.raw))
		if got != row.want || (err == nil) != (row.want != "") {
			t.Errorf("%s: %q, %v", row.name, got, err)
		}
	}
}

// A row waits while its event has its place, whatever else was noted in it, and
// not once a newer event has taken it.
func TestRowWaits(t *testing.T) {
	r := newRig(t)
	row := outboxRow{Device: r.owner.pub(), Stream: "summary", Relay: paperRelay, Until: r.clock.now() + 60, Event: &nip.Event{ID: newID(t)}}
	raw, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	claimed := row
	claimed.raw = raw
	newer := row
	newer.Event = &nip.Event{ID: newID(t)}
	noted := row
	noted.Reached = true
	for _, step := range []struct {
		name string
		put  *outboxRow // nil deletes
		want bool
	}{{"as claimed", &row, true}, {"noted", &noted, true}, {"newer", &newer, false}, {"gone", nil, false}} {
		if err := r.c.db.Update(t.Context(), func(tx *bbolt.Tx) error {
			if step.put == nil {
				return tx.Bucket(bucketOutbox).Delete([]byte(row.key()))
			}
			return putOutbox(tx, *step.put)
		}); err != nil {
			t.Fatal(err)
		}
		for _, claimed := range []outboxRow{claimed, row} {
			if got, err := r.h.outbox.current(claimed); err != nil || got != step.want {
				t.Errorf("%s: waits %v, %v", step.name, got, err)
			}
		}
	}
}
