package host

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/owner"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

const secondRelay nip.RelayURL = "wss://second.example.com/"

// twins is a Transport over two relays in memory, of which the second can be
// away: then a publish waits as long as its context does, as a link's does.
type twins struct {
	*paper
	a, b *relaytest.Memory
	link map[nip.RelayURL]relay.Link
	away atomic.Bool
	gone atomic.Bool // served no more
}

func (r *rig) twins() *twins {
	w := &twins{paper: r.paper, a: relaytest.NewMemory(paperRelay), b: relaytest.NewMemory(secondRelay)}
	w.link = map[nip.RelayURL]relay.Link{paperRelay: w.a.Link(r.c.Self()), secondRelay: w.b.Link(r.c.Self())}
	for _, l := range w.link {
		r.t.Cleanup(func() { l.Close() })
	}
	r.h.transport = w
	return w
}

func (w *twins) Relays() []RelayHealth {
	out := []RelayHealth{{URL: paperRelay, Also: []nip.RelayURL{"wss://also.example.com/"}, State: "open"}}
	if !w.gone.Load() {
		out = append(out, RelayHealth{URL: secondRelay, State: "open"})
	}
	return out
}

func (w *twins) Publish(ctx context.Context, name nip.RelayURL, ev *nip.Event) error {
	if name == secondRelay && w.away.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	l := w.link[name]
	if l == nil {
		return errors.New("not on " + string(name))
	}
	return l.Publish(ctx, ev)
}

func (r *rig) waits() (waiting int, of map[nip.RelayURL]int) {
	r.t.Helper()
	if err := r.c.db.View(func(tx *bbolt.Tx) (err error) {
		waiting, of, err = outboxWaits(tx)
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	return waiting, of
}

// pass moves both clocks.
func (r *rig) pass(d time.Duration) {
	r.clock.add(int64(d / time.Second))
	time.Sleep(d)
	synctest.Wait()
}

// One relay of two is away for an hour: the device of the other hears everything
// at once, what waits stays bounded, and the newest goes out when it is back.
func TestFanoutWithOneRelayAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.h.outbox.retry = outboxRetry
		w := r.twins()
		d := r.pair(nip.StandardRights())
		w.away.Store(true)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.h.outbox.run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		last := func(m *relaytest.Memory, schema string) nip.Opened {
			t.Helper()
			var newest nip.Opened
			for _, o := range r.opened(d, m.Events(), schema) {
				if newest.Event == nil || o.IssuedAt > newest.IssuedAt {
					newest = o
				}
			}
			return newest
		}
		const tasks = 60 // one a minute
		for minute := range tasks {
			id := r.create(d, "p")
			for _, err := range []error{r.h.presence(ctx), r.h.hints.publish(ctx), r.h.publish(ctx, owner.TaskID(id))} {
				if err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()                                                     // no time passes
			if n := len(w.a.Events()) - 2; n != 2*minute+1 && n != 2*minute+2 { // the hints went out again once
				t.Fatalf("minute %d: %d events are out", minute, n)
			}
			if minute%20 == 0 && last(w.a, nip.SchemaPresence).IssuedAt != r.clock.now() {
				t.Fatalf("minute %d: presence is not out at once", minute)
			}
			if waiting, of := r.waits(); waiting != 0 || of[paperRelay] != 0 || of[secondRelay] > copiesMost+2 {
				t.Fatalf("minute %d: %d publications wait, for relays %v", minute, waiting, of)
			}
			r.pass(time.Minute)
		}
		if _, of := r.waits(); of[secondRelay] != copiesMost+2 {
			t.Errorf("after an hour: %v", of)
		}
		if n := len(w.b.Events()); n != 0 {
			t.Fatalf("the relay that is away has %d events", n)
		}
		w.away.Store(false)
		r.pass(time.Minute)
		if waiting, of := r.waits(); waiting != 0 || len(of) != 0 {
			t.Errorf("a minute after the return: %d, %v", waiting, of)
		}
		if n := len(w.b.Events()); n != copiesMost+2 {
			t.Errorf("%d copies came out", n)
		}
		for _, schema := range []string{nip.SchemaPresence, nip.SchemaHints} {
			if a, b := last(w.a, schema), last(w.b, schema); b.Event == nil || a.EventID != b.EventID {
				t.Errorf("%s: the copy is another event", schema)
			}
		}
		// The newest tasks are those that were kept.
		newest := map[nip.EventID]bool{}
		sums := r.opened(d, w.a.Events(), nip.SchemaSummary)
		slices.SortFunc(sums, func(x, y nip.Opened) int { return int(y.IssuedAt - x.IssuedAt) })
		for _, o := range sums[:copiesMost] {
			newest[o.EventID] = true
		}
		for _, o := range r.opened(d, w.b.Events(), nip.SchemaSummary) {
			if !newest[o.EventID] {
				t.Error("an older summary took the place of a newer one")
			}
		}
	})
}

// Whichever relay takes a publication first, it counts; the rest goes on. What
// is one device's alone goes to its relay alone.
func TestFanoutCounts(t *testing.T) {
	r := newRig(t)
	w := r.twins()
	d := r.pair(nip.StandardRights())
	w.away.Store(true)
	if err := r.h.presence(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.h.putLive(t.Context(), []outboxRow{{Device: d.pub(), Stream: "commands", Relay: paperRelay, Until: r.clock.now() + 60, Event: &nip.Event{ID: "x"}}}); err != nil {
		t.Fatal(err)
	}
	waiting, of := r.waits()
	if waiting != 2 || of[paperRelay] != 2 || of[secondRelay] != 1 || len(of) != 2 {
		t.Fatalf("%d publications, %v", waiting, of)
	}
	// The copy is out first.
	r.update(func(tx *bbolt.Tx) error {
		var copied outboxRow
		if found, err := getJSON(tx, bucketOutbox, outboxRow{Device: d.pub(), Stream: "presence", Relay: secondRelay, Copy: true}.key(), &copied); err != nil || !found {
			t.Fatal(found, err)
		}
		return removeSent(tx, copied)
	})
	if waiting, of = r.waits(); waiting != 1 || of[paperRelay] != 2 || of[secondRelay] != 0 {
		t.Errorf("after the first OK: %d publications, %v", waiting, of)
	}
	// A newer one replaces what is left, and its copies.
	r.clock.add(60)
	for range 2 {
		if err := r.h.presence(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if waiting, of = r.waits(); waiting != 2 || of[paperRelay] != 2 || of[secondRelay] != 1 {
		t.Errorf("after newer ones: %d publications, %v", waiting, of)
	}
	// A start that no longer serves the relay forgets its copies.
	w.gone.Store(true)
	if err := r.h.republish(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if waiting, of = r.waits(); waiting != 2 || of[secondRelay] != 0 {
		t.Errorf("without that relay: %d publications, %v", waiting, of)
	}
	// A revocation takes every copy.
	w.gone.Store(false)
	if err := r.h.presence(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.c.Revoke(t.Context(), d.pub(), false); err != nil {
		t.Fatal(err)
	}
	if n := r.rows(bucketOutbox); n != 0 {
		t.Errorf("%d rows wait for a revoked device", n)
	}
}
