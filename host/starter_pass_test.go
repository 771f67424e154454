package host

import (
	"testing"

	"holdfast/nip"
	"holdfast/owner"
)

func (r *rig) glance(ids ...nip.TaskID) {
	r.t.Helper()
	list := make([]owner.TaskID, len(ids))
	for i, id := range ids {
		list[i] = owner.TaskID(id)
	}
	if err := r.h.starter.pass(r.t.Context(), list, false); err != nil {
		r.t.Fatal(err)
	}
}

// A look at what changed starts what a look at everything would: the oldest
// first, whoever changed, and no more than there are places.
func TestPassKeepsOrder(t *testing.T) {
	r := newRig(t)
	t.Cleanup(func() { close(r.h.stopped) })
	r.policy(func(p *Policy) { p.MaxRunning = 1 })
	d := r.pair(nip.PairingRights())
	var started []owner.TaskID
	r.launch = func(_ *owner.Store, id owner.TaskID, _ owner.Digest) (*owner.Launched, error) {
		started = append(started, id)
		return &owner.Launched{PID: 1, Done: make(chan struct{})}, nil
	}
	last := func(n int, want nip.TaskID) {
		t.Helper()
		if len(started) != n || started[n-1] != owner.TaskID(want) {
			t.Fatalf("started %v, want %d, the last %s", started, n, want)
		}
	}
	var tasks []nip.TaskID
	for range 4 {
		tasks = append(tasks, r.create(d, "p"))
		r.clock.add(1)
	}
	a, b, c, e := tasks[0], tasks[1], tasks[2], tasks[3]
	r.glance(a)
	last(1, a)
	r.glance(b, c) // a was handed to its owner and is not admitted yet
	last(1, a)
	end := r.begin(a)
	r.glance(a)
	r.glance(c, b, e)
	last(1, a)
	end(owner.Result{})
	r.glance(e) // that a ended is not known yet
	last(1, a)
	r.glance(a, e)
	last(2, b)
	end = r.begin(b)
	r.wantCode(r.ask(d, nip.TaskCancel{Task: c, Revision: r.task(c).Revision, Reason: "no"}), "")
	r.glance(b)
	end(owner.Result{})
	r.glance(b) // c is read before it is started, and has ended
	last(3, e)
}

// Who may have changed is asked for once; a wake for all is for all.
func TestStarterTakes(t *testing.T) {
	r := newRig(t)
	r.h.starter.take()
	d := r.pair(nip.PairingRights())
	r.h.starter.take()
	task := r.create(d, "p")
	changed, all := r.h.starter.take()
	if all || len(changed) != 1 || changed[0] != owner.TaskID(task) {
		t.Fatalf("%v %v", changed, all)
	}
	r.h.starter.wake()
	r.h.starter.look("x")
	if changed, all := r.h.starter.take(); !all || len(changed) != 1 {
		t.Fatalf("%v %v", changed, all)
	}
	if changed, all := r.h.starter.take(); all || len(changed) != 0 {
		t.Fatalf("%v %v", changed, all)
	}
}

// A turn ends as the host starts, before the store's watch stands. The sweep at
// the start is the first to see it, the watch's "look at all" leaves out what
// ended, and still what waits for the turn's end runs.
func TestSweepTellsOfTheEnd(t *testing.T) {
	r := newRig(t)
	t.Cleanup(func() { close(r.h.stopped) })
	d := r.pair(nip.PairingRights())
	id := r.create(d, "p")
	end := r.begin(id)
	r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(id, nip.Queue, "next")}), "")
	if err := r.h.wakeUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.h.publisher.take() // what is known so far
	end(owner.Result{})
	if err := r.h.starter.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	marked, _, _ := r.h.publisher.take()
	for _, m := range marked {
		if err := r.h.publisher.react(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	if task := r.task(id); task.Status != owner.Queued || task.EffectivePrompt() != "next" {
		t.Fatalf("%s, %q", task.Status, task.EffectivePrompt())
	}
	if err := r.h.starter.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.h.publisher.take() // its own change
	if err := r.h.starter.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if marked, _, _ = r.h.publisher.take(); len(marked) != 0 {
		t.Errorf("a sweep without news marks %v", marked)
	}
}
