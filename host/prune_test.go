package host

import (
	"fmt"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/owner"
)

func (r *rig) pruneRows() {
	r.t.Helper()
	ids, err := r.c.store.List()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, id := range ids {
		r.h.taskChanged(id)
	}
	p := pruner{h: r.h, at: map[string][]byte{}}
	for range 3 {
		if err := p.run(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
	}
}

// What is pruned of a turn never lets it start again, and what is left lets the
// turn start that waits: once for each launch that it has.
func TestPrunedTurnsStartNothing(t *testing.T) {
	r := newRig(t)
	t.Cleanup(func() { close(r.h.stopped) })
	r.launch = func(*owner.Store, owner.TaskID, owner.Digest) (*owner.Launched, error) {
		return nil, fmt.Errorf("no process today")
	}
	r.policy()
	d := r.pair(nip.PairingRights())
	over, waits := r.create(d, "over"), r.create(d, "waits")
	next := func(task nip.TaskID) nip.Command {
		c := r.command(task, nip.Queue, "next")
		r.wantCode(r.ask(d, nip.TaskCommand{Command: c}), "")
		return c
	}
	steer := r.command(waits, nip.Steer, "rather this")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: steer}), "")
	for _, id := range []nip.TaskID{over, waits} {
		r.begin(id)(owner.Result{})
	}
	again := next(waits)
	late := r.command(waits, nip.Steer, "or that")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: late}), "")
	r.sweep()
	if n := r.launches.Load(); n != 1 || r.rows(bucketLaunches) != 1 {
		t.Fatalf("%d launches, %d rows", n, r.rows(bucketLaunches))
	}
	if n := r.rows(bucketTurns); n != 5 {
		t.Fatalf("%d origins before", n)
	}
	r.pruneRows()
	if n := r.rows(bucketTurns); n != 2 {
		t.Errorf("%d origins are left, want those of the turn that waits", n)
	}
	if n := r.rows(bucketLaunches); n != 1 {
		t.Errorf("%d launches are left, want the one of the turn that waits", n)
	}
	for _, c := range []nip.Command{steer, again, late} {
		before := r.task(waits).Revision
		r.wantCode(r.ask(d, nip.TaskCommand{Command: c}), "")
		if r.task(waits).Revision != before {
			t.Error("a command was applied again")
		}
	}
	for range 4 {
		r.sweep()
		r.pruneRows()
	}
	if n := r.launches.Load(); n != maxLaunches {
		t.Errorf("%d launches, want %d", n, maxLaunches)
	}
	if got := r.task(waits); got.NotStarted == "" {
		t.Errorf("the turn is %s after its launches", got.Status)
	}
	r.pruneRows()
	if a, b := r.rows(bucketTurns), r.rows(bucketLaunches); a != 0 || b != 0 {
		t.Errorf("%d origins and %d launches of ended turns are left", a, b)
	}
	// A follow-up of a pruned task has its own rows.
	next(over)
	r.pruneRows()
	r.sweep()
	if n := r.launches.Load(); n != maxLaunches+1 {
		t.Errorf("%d launches after a follow-up", n)
	}
}

// A task that cannot be told keeps its rows.
func TestUnknownTasksKeepTheirRows(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	r.create(d, "p")
	p := pruner{h: r.h, at: map[string][]byte{}}
	r.h.index = newTaskIndex()
	if err := p.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := r.rows(bucketTurns); n != 1 {
		t.Errorf("%d origins", n)
	}
}

// One sequence is sealed once: its row stays while a summary of it could still
// be made, and goes when none is.
func TestPrunedSummariesAreNotMadeAgain(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	r.begin(task)(owner.Result{})
	publish := func() {
		t.Helper()
		r.h.taskChanged(owner.TaskID(task))
		if err := r.h.republish(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	count := func() (published, pages int) {
		if err := r.c.db.View(func(tx *bbolt.Tx) error { pages = r.rowsIn(tx, bucketPages); return nil }); err != nil {
			t.Fatal(err)
		}
		return r.rows(bucketPublished), pages
	}
	publish()
	if a, b := count(); a != 1 || b != 1 {
		t.Fatalf("%d published, %d pages", a, b)
	}
	updated := r.task(task).UpdatedAt
	r.clock.at.Store(updated + summaryKeptMost - 1)
	r.pruneRows()
	if a, b := count(); a != 1 || b != 1 {
		t.Errorf("a second before a week %d published, %d pages are left", a, b)
	}
	r.clock.add(1)
	r.pruneRows()
	if a, b := count(); a != 0 || b != 0 {
		t.Errorf("after a week %d published, %d pages are left", a, b)
	}
	r.update(func(tx *bbolt.Tx) error { return emptyBucket(tx, bucketOutbox) })
	publish()
	if a, b := count(); a != 0 || b != 0 || r.rows(bucketOutbox) != 0 {
		t.Errorf("a sequence was sealed again: %d published, %d pages, %d wait", a, b, r.rows(bucketOutbox))
	}
}

// Rounds reach every row, and a row that is written anew meanwhile stays.
func TestPruneRounds(t *testing.T) {
	r := newRig(t)
	const n = pruneLook*2 + 100
	r.update(func(tx *bbolt.Tx) error {
		for i := range n {
			if err := putCount(tx, bucketLaunches, fmt.Sprintf("task-%05d", i), 1); err != nil {
				return err
			}
		}
		return nil
	})
	p := pruner{h: r.h, at: map[string][]byte{}}
	looked := 0
	for _, want := range []int{pruneLook, pruneLook, 100, pruneLook} {
		looked = 0
		if err := p.round(t.Context(), bucketLaunches, func(key, _ []byte) (bool, error) {
			looked++
			if looked == 1 && want == 100 {
				r.update(func(tx *bbolt.Tx) error { return putCount(tx, bucketLaunches, string(key), 2) })
				return true, nil
			}
			return looked%2 == 0 && want == 100, nil
		}); err != nil {
			t.Fatal(err)
		}
		if looked != want {
			t.Errorf("looked at %d rows, want %d", looked, want)
		}
	}
	if left := r.rows(bucketLaunches); left != n-50 {
		t.Errorf("%d rows are left, want %d", left, n-50)
	}
}

// When a device was heard is kept as long as a grant of it is.
func TestPruneLastSeen(t *testing.T) {
	r := newRig(t)
	d, gone := r.pair(nip.PairingRights()), device{key: newKey(t)}
	r.ask(d, nip.DeviceList{})
	r.h.crew.Wait()
	r.update(func(tx *bbolt.Tx) error { return putCount(tx, bucketSeen, string(gone.pub()), r.clock.now()) })
	r.pruneRows()
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		if getCount(tx, bucketSeen, string(d.pub())) == 0 || getCount(tx, bucketSeen, string(gone.pub())) != 0 {
			t.Error("the wrong one was dropped")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
