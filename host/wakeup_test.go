package host

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

// atRest is a task that has ended, and of which nothing will be heard: its held message waited for a lease when the
// host stopped. It is out of the live, so no look at what lives comes across it.
func (r *rig) atRest(d, holder device) (task nip.TaskID, held nip.Command) {
	r.t.Helper()
	task = r.create(d, "p")
	end := r.begin(task)
	held = r.command(task, nip.Queue, "next")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: held}), "")
	r.wantCode(r.ask(holder, nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "lease"}}), "")
	end(owner.Result{})
	// There is no index yet: it reads every task, and makes it.
	if err := errors.Join(r.h.readAll(r.t.Context()), r.h.putAway(r.t.Context())); err != nil {
		r.t.Fatal(err)
	}
	if live, err := r.c.store.Live(); err != nil || len(live) != 0 {
		r.t.Fatalf("live: %q, %v", live, err)
	}
	if e := r.entry(d.pub(), held.ID); e.State != commands.StateHeld {
		r.t.Fatalf("under a lease it is %s", e.State)
	}
	return task, held
}

// A start decides what came due while nobody served, of tasks too that nothing else would ever look at.
func TestStartDecidesWhatCameDue(t *testing.T) {
	for _, row := range []struct {
		name    string
		away    int64 // seconds
		outcome commands.Outcome
	}{
		{"the lease ended", commands.LeaseSeconds, commands.OutcomeApplied},
		{"the message's day ended", commands.CommandLife + 1, commands.OutcomeExpired},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			d, other := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
			_, held := r.atRest(d, other)
			r.clock.add(row.away)
			r.restart()
			r.serve()
			r.until("it is decided", func() bool { return r.entry(d.pub(), held.ID).Outcome == row.outcome })
		})
	}
}

// A start knows the deadlines that lie ahead: the end of a lease by the time of day, and by the clock that nobody
// sets, which began anew with it.
func TestStartKnowsDeadlines(t *testing.T) {
	for _, row := range []struct {
		name       string
		day, since int64 // seconds, by each clock
	}{
		{"by the time of day", commands.LeaseSeconds, 0},
		{"by the clock that nobody sets", -3600, commands.LeaseSeconds},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			d, other := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
			_, held := r.atRest(d, other)
			r.restart()
			var since atomic.Int64
			elapsed := func() time.Duration { return time.Duration(since.Load()) * time.Second }
			r.c.opts.Elapsed, r.c.eval.Elapsed = elapsed, elapsed
			r.serve()
			r.clock.add(row.day)
			since.Store(row.since)
			ring(r.h.deadlines.bell) // the timer goes by real seconds
			r.until("the held message runs", func() bool { return r.entry(d.pub(), held.ID).Outcome == commands.OutcomeApplied })
		})
	}
}
