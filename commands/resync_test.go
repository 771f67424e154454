package commands

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// A clock that was ten years ahead for a moment: once a person says that it is
// right again, commands of now are taken, nothing old runs again, the chain
// holds, and what was written meanwhile leaves as if it were of now.
func TestResync(t *testing.T) {
	const years = 10 * 365 * 86_400
	r := newRig(t)
	r.tasks.add(task(0), running)
	key := Key{Principal: sender(0).Device, Kind: "journal.resync", ID: strings.Repeat("a", 64)}
	resync := func() (ahead int64) {
		r.update(func(tx *bbolt.Tx) (err error) {
			ahead, err = r.Journal.Resync(tx, key, sender(0), r.clock)
			return err
		})
		return ahead
	}
	if got := resync(); got != 0 {
		t.Fatalf("%d s ahead at first", got)
	}
	r.clock += years
	early := command(1, nip.Interrupt, 5)
	early.IssuedAt = r.clock
	if got := short(r.submit(sender(0), early)); got != "applied" {
		t.Fatal(got)
	}
	r.update(func(tx *bbolt.Tx) error {
		return r.Journal.SetLease(tx, task(0), &Lease{Device: sender(1).Device, ExpiresAt: r.clock + LeaseSeconds})
	})
	r.clock -= years
	if got := short(r.submit(sender(0), command(2, nip.Queue, 5))); got != "expired expired" {
		t.Fatal(got)
	}
	if got := resync(); got != years {
		t.Fatalf("%d s ahead, want %d", got, years)
	}
	r.check()
	fresh := command(3, nip.Queue, 5)
	if got := short(r.submit(sender(0), fresh)); got != "held" {
		t.Error(got)
	}
	applied := len(r.tasks.tasks[task(0)].effects)
	for _, again := range []nip.Command{early, command(2, nip.Queue, 5)} {
		r.submit(sender(0), again)
	}
	if n := len(r.tasks.tasks[task(0)].effects); n != applied {
		t.Errorf("%d effects, want %d", n, applied)
	}
	if l, leased := leaseOf(r); leased {
		t.Errorf("a lease until %d is left", l.ExpiresAt)
	}
	r.clock += 2 * Retention
	r.evaluate() // the held one expires
	r.update(func(tx *bbolt.Tx) error { _, err := r.Journal.Prune(tx, r.clock, 1000); return err })
	r.check()
	for _, c := range []nip.Command{early, command(2, nip.Queue, 5)} {
		if _, err := r.Submit(t.Context(), sender(0), c, Hooks{}); !errors.Is(err, ErrPruned) {
			t.Errorf("a command of the wrong time is not pruned, or was taken: %v", err)
		}
	}
}

func leaseOf(r *rig) (l Lease, leased bool) {
	r.view(func(tx *bbolt.Tx) (err error) {
		l, leased, err = r.Journal.Lease(tx, task(0))
		return err
	})
	return l, leased
}

// A lease ends a minute after it was taken by the clock that nobody sets, also
// where the time of day went back an hour, and a new process gives one that it
// finds a minute.
func TestLeaseWearsOut(t *testing.T) {
	r := newRig(t)
	ft := r.tasks.add(task(0), running)
	var since time.Duration
	r.Elapsed = func() time.Duration { return since }
	r.submit(sender(0), command(1, nip.Queue, 5))
	take := func() {
		if err := r.Edit(t.Context(), task(0), func(tx *bbolt.Tx, _ TaskView, now int64) error {
			r.Leased(task(0))
			return r.Journal.SetLease(tx, task(0), &Lease{Device: sender(1).Device, ExpiresAt: now + LeaseSeconds})
		}); err != nil {
			t.Fatal(err)
		}
	}
	leased := func(want bool) {
		t.Helper()
		r.evaluate()
		if _, got := leaseOf(r); got != want {
			t.Errorf("leased is %v after %v", got, since)
		}
	}
	r.clock += 3600
	take()
	r.clock -= 3600
	ft.finish(false)
	since = 59 * time.Second
	leased(true)
	take() // renewed
	since = 118 * time.Second
	leased(true)
	since = 119 * time.Second
	leased(false)
	r.expect(sender(0), command(1, nip.Queue, 5), "applied")

	// An edit of another finds none, either.
	r.clock += 3600
	take()
	r.clock -= 3600
	since += LeaseSeconds * time.Second
	if err := r.Edit(t.Context(), task(0), func(tx *bbolt.Tx, _ TaskView, _ int64) error {
		if _, found, err := r.Journal.Lease(tx, task(0)); err != nil || found {
			t.Errorf("an edit finds a lease that is over: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	// After a restart.
	r.clock += 3600
	take()
	r.clock -= 3600
	r.restart()
	since = 0
	r.Elapsed = func() time.Duration { return since }
	leased(true)
	since = LeaseSeconds * time.Second
	leased(false)
}

// A backup that was put back under a clock ten years ahead: what was issued before
// it stays refused once a person says that the clock is right, and what is issued
// later is taken.
func TestResyncOfARestoredStore(t *testing.T) {
	const years = 10 * 365 * 86_400
	r := newRig(t)
	r.tasks.add(task(0), running)
	key := Key{Principal: sender(0).Device, Kind: "journal.resync", ID: strings.Repeat("b", 64)}
	before := command(1, nip.Queue, 5)
	before.IssuedAt = r.clock
	r.clock += 60
	r.update(func(tx *bbolt.Tx) error { return r.Journal.SetRestored(tx, r.clock+years) })
	if got := short(r.submit(sender(0), before)); got != "expired expired" {
		t.Fatal(got)
	}
	r.update(func(tx *bbolt.Tx) error {
		if got := r.Journal.Ahead(tx, r.clock); got != years {
			t.Errorf("%d s ahead", got)
		}
		ahead, err := r.Journal.Resync(tx, key, sender(0), r.clock)
		if ahead != years {
			t.Errorf("put right by %d s", ahead)
		}
		if got := r.Journal.Restored(tx); got != r.clock {
			t.Errorf("restored at %d, %d s from now", got, got-r.clock)
		}
		return err
	})
	r.check()
	issued := func(n int, at int64) string {
		c := command(n, nip.Queue, 5)
		c.IssuedAt = at
		return short(r.submit(sender(0), c))
	}
	resynced := r.clock
	for _, row := range []struct {
		name string
		at   int64
		want string
	}{
		{"before the restore", resynced - 60, "expired expired"},
		{"as late as the host would have taken it then", resynced + CommandFuture, "expired expired"},
		{"later", resynced + CommandFuture + 1, "held"},
	} {
		r.clock = row.at
		if got := issued(int(row.at-resynced)+200, row.at); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
	r.check()
}
