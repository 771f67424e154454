package host

import (
	"sync/atomic"
	"testing"
	"time"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

// A clock that was two days ahead for a moment leaves its mark: what is older
// than a day before that expires, status says why, and the device is told by a
// record of now, which it believes.
func TestClockWasAhead(t *testing.T) {
	r, a, b, task, end := served(t)
	defer end(owner.Result{})
	status := func(want int64) {
		t.Helper()
		err := r.c.Operate(t.Context(), "status", nil, func(v any) error {
			if got := v.(Status).Journal.Ahead; got != want {
				t.Errorf("the journal is %d s ahead, want %d", got, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	status(0)
	r.clock.add(2 * 86_400)
	early := r.command(task, nip.Queue, "words")
	r.wantCode(r.overWire(a, nip.TaskCommand{Command: early}), "")
	r.clock.add(-2 * 86_400)
	status(2 * 86_400)
	late := r.command(task, nip.Queue, "words")
	r.wantCode(r.overWire(b, nip.TaskCommand{Command: late}), nip.Expired)
	r.untilTold(b, task, map[nip.CommandID]string{late.ID: "late"}, "late expired")
	for _, s := range r.toldTo(b, r.paper.all()) {
		if s.IssuedAt > r.clock.now()+clockSkew {
			t.Errorf("told by a record of %d s from now", s.IssuedAt-r.clock.now())
		}
	}
	// The operator says that this clock is right: commands of now are taken.
	if err := r.operate("journal.resync", nil); err != nil {
		t.Fatal(err)
	}
	status(0)
	r.wantCode(r.overWire(b, nip.TaskCommand{Command: r.command(task, nip.Queue, "words")}), "")
	r.wantCode(r.overWire(b, nip.TaskCommand{Command: late}), nip.Expired)
	if e := r.find("journal.resync"); e.Sender.Device != r.c.Self() || e.Note == "" {
		t.Errorf("journalled as %+v", e)
	}
	if err := r.operate("journal.check", nil); err != nil {
		t.Error(err)
	}
}

// The host wakes for a lease that has had its minute by the clock that nobody
// sets, where the time of day went back an hour.
func TestLeaseEndsThoughTheClockStepsBack(t *testing.T) {
	r := newRig(t)
	var since atomic.Int64
	elapsed := func() time.Duration { return time.Duration(since.Load()) * time.Second }
	r.c.opts.Elapsed, r.c.eval.Elapsed = elapsed, elapsed
	d, other := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	task := r.create(d, "p")
	end := r.begin(task)
	held := r.command(task, nip.Queue, "next")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: held}), "")
	r.serve()
	r.wantCode(r.overWire(other, nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "lease"}}), "")
	r.clock.add(-3600)
	end(owner.Result{})
	r.until("the end is seen", func() bool { return r.task(task).Status == owner.Finished })
	if err := r.h.deadlines.evaluate(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	if got := r.entry(d.pub(), held.ID); got.State != commands.StateHeld {
		t.Fatalf("under a lease it is %s", got.State)
	}
	since.Store(commands.LeaseSeconds)
	ring(r.h.deadlines.bell) // the timer goes by real seconds
	r.until("the held message runs", func() bool { return r.entry(d.pub(), held.ID).Outcome == commands.OutcomeApplied })
}
