package host

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/owner"
)

// summaries are the summaries that d was sent, in order.
func (r *rig) summaries(d device, events []*nip.Event) []nip.Summary {
	r.t.Helper()
	var out []nip.Summary
	for _, o := range r.opened(d, events, nip.SchemaSummary) {
		s, err := nip.ParseSummary(o.Inline, o.Artifact)
		if err != nil {
			r.t.Fatal(err)
		}
		out = append(out, s)
	}
	return out
}

func (r *rig) opened(d device, events []*nip.Event, schema string) []nip.Opened {
	r.t.Helper()
	var out []nip.Opened
	for _, ev := range events {
		if tag := ev.Tags.Find("p"); tag == nil || tag[1] != string(d.pub()) {
			continue
		}
		v, err := nip.VerifyEvent(ev)
		if err != nil {
			r.t.Fatal(err)
		}
		o, err := nip.Open(v, d.key)
		if err != nil {
			r.t.Fatal(err)
		}
		if o.Schema == schema {
			out = append(out, o)
		}
	}
	return out
}

// One summary a revision and device with observe, in order, and none for a
// device without it or for an archived task.
func TestSummaries(t *testing.T) {
	r := newRig(t)
	d, blind := r.pair(nip.PairingRights()), r.pair(nip.Rights{nip.Operate})
	r.serve()
	task := nip.TaskID(r.overWire(d, nip.TaskCreate{Title: "a secret title", Prompt: "p", Workspace: "demo"}).Outcome.(nip.Dispatched).Reference)
	last := func() int64 {
		s := r.summaries(d, r.paper.all())
		if len(s) == 0 {
			return 0
		}
		return s[len(s)-1].Sequence
	}
	r.until("revision 1", func() bool { return last() == 1 })
	end := r.begin(task)
	r.until("revision 2", func() bool { return last() == 2 })
	zero := 0
	end(owner.Result{Ending: owner.EndingAskedQuestion, ExitCode: &zero, Ask: "question", Reply: "which?"})
	r.until("revision 3", func() bool { return last() == 3 })
	r.wantCode(r.overWire(d, nip.TaskArchive{Task: task}), "")
	r.until("the archive is seen", func() bool { row, _ := r.h.index.get(owner.TaskID(task)); return row.Archived })
	other := nip.TaskID(r.overWire(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}).Outcome.(nip.Dispatched).Reference)
	r.until("the next task is published", func() bool {
		s := r.summaries(d, r.paper.all())
		return s[len(s)-1].Task == other
	})
	var got []string
	for _, s := range r.summaries(d, r.paper.all()) {
		if s.Task == task {
			got = append(got, string(s.Phase)+" "+s.Headline+" "+s.Attention)
		}
	}
	want := []string{"queued Task queued none", "running Task running none", "waiting Coder asked a question input"}
	if !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
	if n := len(r.summaries(blind, r.paper.all())); n != 0 {
		t.Fatalf("%d summaries without observe", n)
	}
	if r.rows(bucketPublished) != 2 {
		t.Fatalf("%d published rows", r.rows(bucketPublished))
	}
}

// A row leaves the outbox only on a relay's OK; after a restart the same bytes
// go out again.
func TestOutbox(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	var tries atomic.Int64
	r.paper.refusing(func(*nip.Event) error { tries.Add(1); return errors.New("away") })
	r.create(d, "p")
	r.serve()
	r.until("it is tried again and again", func() bool { return tries.Load() > 8 })
	r.until("summary, presence and hints wait", func() bool { return r.rows(bucketOutbox) == 3 })
	r.restart()
	r.serve()
	r.until("it goes out", func() bool { return r.rows(bucketOutbox) == 0 && len(r.summaries(d, r.paper.all())) == 1 })
	first := r.opened(d, r.paper.all(), nip.SchemaSummary)[0].EventID
	r.restart()
	r.serve()
	r.until("it goes out again", func() bool { return len(r.summaries(d, r.paper.all())) == 1 })
	if again := r.opened(d, r.paper.all(), nip.SchemaSummary)[0].EventID; again != first {
		t.Fatal("the same revision went out with other bytes")
	}
	// A device that pairs later hears of the task; the first one not again.
	r.until("all went out", func() bool { return r.rows(bucketOutbox) == 0 })
	later := r.pairRunning()
	r.until("the new device hears", func() bool { return len(r.summaries(later, r.paper.all())) == 1 })
	if n := len(r.summaries(d, r.paper.all())); n != 1 {
		t.Fatalf("the first device heard %d times", n)
	}
}

// pairRunning pairs through the transport.
func (r *rig) pairRunning() device {
	r.t.Helper()
	d := device{key: newKey(r.t)}
	inv := r.invite(nip.PairingRights())
	d.grant = r.granted(d, r.overWire(d, redeem(inv)))
	return d
}

// What is too old for a summary's week is not sealed, and what nobody would
// keep any more leaves the outbox by itself.
func TestOldSummaries(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	old := r.create(d, "p")
	if err := r.h.publish(t.Context(), owner.TaskID(old)); err != nil {
		t.Fatal(err)
	}
	if r.rows(bucketOutbox) != 1 {
		t.Fatal("not published")
	}
	r.clock.add(8 * 86400)
	fresh := r.create(d, "p")
	r.serve()
	r.until("the fresh one goes out", func() bool { return len(r.summaries(d, r.paper.all())) > 0 && r.rows(bucketOutbox) == 0 })
	for _, s := range r.summaries(d, r.paper.all()) {
		if s.Task != fresh {
			t.Fatal("a summary that has run out was sent")
		}
	}
}

// Rows that one relay never takes stand before nobody else's.
func TestRelayAway(t *testing.T) {
	r := newRig(t)
	stuck, fine := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	r.update(func(tx *bbolt.Tx) error {
		for range 3 * outboxBatchRows {
			row := outboxRow{Device: stuck.pub(), Stream: "summary", Subject: newID(t), Relay: "wss://away.example.com/", Until: r.clock.now() + 1000,
				Event: &nip.Event{ID: "x"}}
			row.Device = "0" + row.Device[1:] // first in the order of keys
			if err := putOutbox(tx, row); err != nil {
				return err
			}
		}
		return nil
	})
	task := r.create(fine, "p")
	r.serve()
	r.until("the other relay's device hears", func() bool {
		s := r.summaries(fine, r.paper.all())
		return len(s) == 1 && s[0].Task == task
	})
}

// Presence: a generation a start, never two in the same second.
func TestPresence(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	var last nip.Presence
	for start := range 3 {
		r.serve()
		for range 20 {
			r.h.publisher.announce()
		}
		var got []nip.Presence
		r.until("presence", func() bool {
			got = nil
			for _, o := range r.opened(d, r.paper.all(), nip.SchemaPresence) {
				p, err := nip.ParsePresence(o.Inline)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, p)
			}
			return len(got) > 0
		})
		if len(got) > 2 { // one at once, at most one more in this second's wake
			t.Fatalf("%d presences", len(got))
		}
		if got[0].Generation <= last.Generation || got[0].Host != r.c.Self() || got[0].Owner != r.c.Owner() {
			t.Fatalf("start %d: %+v after %+v", start, got[0], last)
		}
		last = got[0]
		r.restart()
	}
}

// Publication that fails is tried again without another change of the task.
func TestPublicationRetried(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	p := r.h.publisher
	r.update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketPublished).Put([]byte(string(d.pub())+"/"+string(task)), []byte("{"))
	})
	if err := p.one(t.Context(), owner.TaskID(task)); err == nil {
		t.Fatal("a damaged row was passed over")
	}
	r.update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketPublished).Delete([]byte(string(d.pub()) + "/" + string(task)))
	})
	if err := p.one(t.Context(), owner.TaskID(task)); err != nil {
		t.Fatal(err)
	}
	if r.rows(bucketOutbox) != 1 {
		t.Fatal("forgotten after a failure")
	}
}
