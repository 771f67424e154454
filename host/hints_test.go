package host

import (
	"slices"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// waiting are the artifacts of one stream in the outbox for d.
func (r *rig) waiting(d device, stream, schema string) []nip.Opened {
	r.t.Helper()
	var events []*nip.Event
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		return eachJSON(tx, bucketOutbox, func(_ string, row outboxRow) error {
			if row.Stream == stream {
				events = append(events, row.Event)
			}
			return nil
		})
	}); err != nil {
		r.t.Fatal(err)
	}
	return r.opened(d, events, schema)
}

func (r *rig) hints(d device) []nip.Hints {
	r.t.Helper()
	box, err := nip.DeriveMailbox(d.key, r.c.Self(), nip.StreamHints)
	if err != nil {
		r.t.Fatal(err)
	}
	var out []nip.Hints
	for _, o := range r.waiting(d, "hints", nip.SchemaHints) {
		h, err := nip.ParseHints(o.Inline, nip.Profile{})
		if err != nil || o.Mailbox != box || h.Host != r.c.Self() {
			r.t.Fatal(h, err)
		}
		out = append(out, h)
	}
	return out
}

// Hints go to each active device when the ways or the devices changed, and
// otherwise once an hour.
func TestHints(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.Rights{nip.Operate})
	say := func(devices ...nip.PubKey) int64 {
		t.Helper()
		if err := r.h.hints.publish(t.Context(), devices...); err != nil {
			t.Fatal(err)
		}
		hs := r.hints(d)
		if len(hs) != 1 {
			t.Fatalf("%d hints", len(hs))
		}
		return hs[0].IssuedAt
	}
	first := say()
	h := r.hints(d)[0]
	if len(h.Hints) != 1 || h.Hints[0].Address != string(paperRelay) || h.Hints[0].Class != "relay" || h.ExpiresAt-h.IssuedAt <= hintsEvery {
		t.Fatalf("%+v", h)
	}
	r.clock.add(hintsEvery - 1)
	if say() != first {
		t.Fatal("said again within the hour")
	}
	late := r.pair(nip.StandardRights())
	if say() != first || len(r.hints(late)) != 1 {
		t.Fatal("a new device is told, the others are not told again")
	}
	if at := say(d.pub()); at != r.clock.now() {
		t.Fatal("a device that asks is told")
	}
	r.clock.add(hintsEvery)
	if say() != r.clock.now() {
		t.Fatal("not said after an hour")
	}
	// Who left and comes back is told at once.
	if _, err := r.c.Revoke(t.Context(), late.pub(), false); err != nil {
		t.Fatal(err)
	}
	say()
	if len(r.hints(late)) != 0 {
		t.Fatal("a revoked device is told")
	}
	late = r.pair(nip.StandardRights(), late.key)
	say()
	if len(r.hints(late)) != 1 {
		t.Fatal("not told after it came back")
	}
	r.hints(late)
}

func TestRelayHints(t *testing.T) {
	relays := []RelayHealth{
		{URL: "ws://127.0.0.1:7447/", State: "open"}, {URL: "wss://a.example.com/", State: "open"},
		{URL: "wss://b.example.com/", State: "connecting"}, {URL: "wss://a.example.com/", State: "open"},
	}
	for _, row := range []struct {
		name string
		own  nip.RelayURL
		want []string
	}{
		{"of the wide net", "wss://a.example.com/", []string{"wss://a.example.com/ reachable", "wss://b.example.com/ unreachable"}},
		{"on this machine", "ws://127.0.0.1:7447/", []string{"ws://127.0.0.1:7447/ reachable", "wss://a.example.com/ reachable", "wss://b.example.com/ unreachable"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			hints, _ := relayHints(relays, row.own, 1)
			var got []string
			for _, h := range hints {
				got = append(got, h.Address+" "+h.Status)
			}
			if !slices.Equal(got, row.want) {
				t.Fatal(got)
			}
		})
	}
	var many []RelayHealth
	for range 20 {
		many = append(many, RelayHealth{URL: nip.RelayURL("wss://" + newID(t)[:20] + ".example.com/")})
	}
	if hints, _ := relayHints(many, paperRelay, 1); len(hints) != hintsMost {
		t.Fatalf("%d hints", len(hints))
	}
	// The same relays in another state are the same ways.
	_, a := relayHints(relays, paperRelay, 1)
	relays[1].State = "closed"
	if _, b := relayHints(relays, paperRelay, 2); a != b {
		t.Fatal("a relay that is away for a moment is news")
	}
}

// The loop tells by itself.
func TestHintsGoOut(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.StandardRights())
	r.serve()
	r.until("hints", func() bool { return len(r.opened(d, r.paper.all(), nip.SchemaHints)) == 1 })
}
