package host

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"holdfast/commands"
	"holdfast/nip"
)

// gapPaper is a Transport of paper that stores events and has gaps.
type gapPaper struct {
	*paper
	gaps chan nip.RelayURL

	mu      sync.Mutex // guards what follows
	stored  []nip.Verified
	filters []nip.Filter
	failing error
}

func (p *gapPaper) Gaps() <-chan nip.RelayURL { return p.gaps }

func (p *gapPaper) Fetch(_ context.Context, relay nip.RelayURL, f nip.Filter) ([]nip.Verified, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.filters = append(p.filters, f)
	if relay != paperRelay {
		return nil, errors.New("not on " + string(relay))
	}
	return slices.Clone(p.stored), p.failing
}

func (p *gapPaper) store(events ...nip.Verified) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stored = append(p.stored, events...)
}

func (r *rig) gaps() *gapPaper {
	g := &gapPaper{paper: r.paper, gaps: make(chan nip.RelayURL, 1)}
	r.h.transport = g
	return g
}

// nudge is an event of d that says n, in the mailbox that it names.
func (r *rig) nudge(d device, change ...func(n *nip.Nudge, box *nip.Mailbox)) nip.Verified {
	r.t.Helper()
	box, err := nip.DeriveMailbox(d.key, r.c.Self(), nip.StreamNudges)
	if err != nil {
		r.t.Fatal(err)
	}
	n := nip.Nudge{Host: r.c.Self(), Device: d.pub(), IssuedAt: r.clock.now(), ExpiresAt: r.clock.now() + 86_400}
	for _, c := range change {
		c(&n, &box)
	}
	a, err := nip.EncodeNudge(n)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.inbound(d, box, a).Event
}

// What a gap leads to, and what is no nudge.
func TestNudges(t *testing.T) {
	shift := func(by int64) func(n *nip.Nudge, box *nip.Mailbox) {
		return func(n *nip.Nudge, _ *nip.Mailbox) { n.IssuedAt, n.ExpiresAt = n.IssuedAt+by, n.ExpiresAt+by }
	}
	for _, row := range []struct {
		name  string
		event func(r *rig, d device) nip.Verified
		heed  bool
	}{
		{"current", func(r *rig, d device) nip.Verified { return r.nudge(d) }, true},
		{"of hours ago", func(r *rig, d device) nip.Verified { return r.nudge(d, shift(-80_000)) }, true},
		{"a clock ahead", func(r *rig, d device) nip.Verified { return r.nudge(d, shift(300)) }, true},
		{"a clock far ahead", func(r *rig, d device) nip.Verified { return r.nudge(d, shift(301)) }, false},
		{"run out", func(r *rig, d device) nip.Verified { return r.nudge(d, shift(-86_400)) }, false},
		{"for another host", func(r *rig, d device) nip.Verified {
			return r.nudge(d, func(n *nip.Nudge, _ *nip.Mailbox) { n.Host = newKey(r.t).Public() })
		}, false},
		{"of another device", func(r *rig, d device) nip.Verified {
			return r.nudge(d, func(n *nip.Nudge, _ *nip.Mailbox) { n.Device = newKey(r.t).Public() })
		}, false},
		{"in another mailbox", func(r *rig, d device) nip.Verified {
			return r.nudge(d, func(_ *nip.Nudge, box *nip.Mailbox) { *box = nip.Mailbox(newID(r.t)) })
		}, false},
		{"of a stranger", func(r *rig, d device) nip.Verified { return r.nudge(device{key: newKey(r.t)}) }, false},
		{"a request", func(r *rig, d device) nip.Verified { return r.sealed(d, r.req(d, nip.WorkspaceList{})).Event }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			d, other := r.pair(nip.StandardRights()), r.pair(nip.StandardRights())
			g := r.gaps()
			g.store(row.event(r, d))
			if err := r.h.nudges.read(t.Context(), g, paperRelay); err != nil {
				t.Fatal(err)
			}
			heeded := len(r.waiting(d, "presence", nip.SchemaPresence)) == 1 && len(r.hints(d)) == 1
			if heeded != row.heed {
				t.Fatalf("heeded: %v", heeded)
			}
			if len(r.waiting(other, "presence", nip.SchemaPresence)) != 0 {
				t.Fatal("the other device was told")
			}
			f := g.filters[0]
			if len(g.filters) != 1 || len(f.Tags["h"]) != 2 || int64(*f.Since) != r.clock.now()-86_400 || f.Limit != 256 {
				t.Fatalf("%+v", g.filters)
			}
		})
	}
}

// Each nudge once, each device at most every 30 s; only the devices of that
// relay are asked about; what a device held is decided.
func TestNudgeLimits(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	r.begin(task)
	held := r.command(task, nip.Queue, "later")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: held}), "")
	g := r.gaps()
	presence := func() int64 {
		t.Helper()
		if err := r.h.nudges.read(t.Context(), g, paperRelay); err != nil {
			t.Fatal(err)
		}
		p := r.waiting(d, "presence", nip.SchemaPresence)
		if len(p) == 0 {
			return 0
		}
		return p[0].IssuedAt
	}
	if presence() != 0 {
		t.Fatal("told without a nudge")
	}
	g.store(r.nudge(d))
	first := presence()
	if first != r.clock.now() {
		t.Fatal("not heeded")
	}
	r.clock.add(nudgeRest + 5)
	if presence() != first {
		t.Fatal("heeded twice")
	}
	g.store(r.nudge(d))
	second := presence()
	if second != r.clock.now() {
		t.Fatal("a newer nudge is not heeded")
	}
	r.clock.add(nudgeRest - 1)
	g.store(r.nudge(d))
	if presence() != second {
		t.Fatal("answered again within 30 s")
	}
	r.clock.add(1)
	if presence() != r.clock.now() {
		t.Fatal("what came too early is not heeded later")
	}
	r.editGrant(d, func(rec *grantRecord) { rec.Grant.Relay = "wss://other.example.com/" })
	asked := len(g.filters)
	if presence(); len(g.filters) != asked {
		t.Fatal("asked about a device of another relay")
	}
	r.editGrant(d, func(rec *grantRecord) { rec.Grant.Relay = paperRelay })
	r.clock.add(86_400) // the held command outlives its day
	g.store(r.nudge(d))
	presence()
	if e := r.entry(d.pub(), held.ID); e.State != commands.StateDone || e.Outcome != commands.OutcomeExpired {
		t.Fatalf("%s %s", e.State, e.Outcome)
	}
	b := r.h.nudges
	for range nudgeMemory + 10 {
		b.take(nip.PubKey(newID(t)), nip.EventID(newID(t)), r.clock.now())
	}
	if len(b.heeded) != nudgeMemory || len(b.order) != nudgeMemory {
		t.Fatalf("%d remembered", len(b.heeded))
	}
}

// More than 64 devices are asked about in turn; a relay that fails ends nothing.
func TestNudgeBatches(t *testing.T) {
	r := newRig(t)
	for range nudgeBoxes + 1 {
		r.clock.add(10)
		r.pair(nip.StandardRights())
	}
	g := r.gaps()
	g.failing = errors.New("no answer")
	r.serve()
	asked := func(n int) func() bool {
		return func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.filters) == n
		}
	}
	g.gaps <- paperRelay
	r.until("a query that fails", asked(1))
	g.mu.Lock()
	g.failing = nil
	g.mu.Unlock()
	g.gaps <- paperRelay
	r.until("both batches", asked(3))
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.filters[1].Tags["h"]) != nudgeBoxes || len(g.filters[2].Tags["h"]) != 1 {
		t.Fatalf("%d and %d mailboxes", len(g.filters[1].Tags["h"]), len(g.filters[2].Tags["h"]))
	}
}
