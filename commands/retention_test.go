package commands

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/internal/commit"
	"holdfast/nip"
)

// TestRetention: no number of decided entries makes one leave before its 48
// hours are over, or a new command be refused; afterwards all of them leave in
// bounded steps, the rest of the chain verifies from the checkpoint, and each
// answers expired for good.
func TestRetention(t *testing.T) {
	t.Parallel()
	const n = 2500
	r := memoryRig(t)
	r.tasks.add(task(0), running)
	f := filling(n, 10, 5)
	if err := r.Journal.Fill(context.Background(), r.store, f); err != nil {
		t.Fatal(err)
	}
	prune := func(limit int) (dropped int) {
		r.update(func(tx *bbolt.Tx) (err error) {
			dropped, err = r.Journal.Prune(tx, r.clock, limit)
			return err
		})
		return dropped
	}
	entries := func() (have int) {
		r.view(func(tx *bbolt.Tx) (err error) { have, _, err = r.Journal.Counts(tx); return err })
		return have
	}
	r.advance(Retention - 1)
	if d := prune(100_000); d != 0 || entries() != n {
		t.Fatalf("a second early %d transitions leave, %d entries stay", d, entries())
	}
	late := command(1, nip.Queue, 5)
	late.IssuedAt = r.clock
	r.submit(Sender{Device: f.Devices[0]}, late) // of a device and beside thousands of decided ones
	r.advance(1)
	const limit = 1000
	for left := 2 * n; left > 0; left -= limit {
		if got, want := prune(limit), min(limit, left); got != want {
			t.Fatalf("%d transitions leave, want %d", got, want)
		}
		r.check()
	}
	if d := prune(limit); d != 0 || entries() != 1 {
		t.Fatalf("%d more leave, %d entries stay", d, entries())
	}
	r.view(func(tx *bbolt.Tx) error {
		if got := tx.Bucket(bucketPruned).Stats().KeyN; got != n {
			t.Errorf("%d digests of %d", got, n)
		}
		cp, err := readCheckpoint(tx)
		if err == nil && (cp.seq != 2*n || cp.count != 2*n) {
			t.Errorf("the checkpoint stands at %d, of %d", cp.seq, cp.count)
		}
		return err
	})
	for _, i := range []int{0, 1, n / 2, n - 1} {
		c := filled(f, i, start)
		if _, err := r.Submit(context.Background(), c.Sender, c.Command, Hooks{}); !errors.Is(err, ErrPruned) {
			t.Errorf("pruned command %d, sent again: %v", i, err)
		}
	}
}

// TestCommitsAreShared: devices that speak to different tasks at the same time
// share transactions, and with them their syncs.
func TestCommitsAreShared(t *testing.T) {
	t.Parallel()
	db, err := commit.Open(filepath.Join(t.TempDir(), "host.db"), commit.Options{Kind: "holdfast-host", Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(context.Background(), Journal{}.Setup); err != nil {
		t.Fatal(err)
	}
	tasks := newTasks(&store{})
	v := &Evaluator{
		DB: db, Tasks: tasks, Now: func() time.Time { return time.Unix(start, 0) },
		Standing: func(*bbolt.Tx, Sender, int64) bool { return true },
	}
	transactions := func() (id int) {
		if err := db.View(func(tx *bbolt.Tx) error { id = tx.ID(); return nil }); err != nil {
			t.Fatal(err)
		}
		return id
	}
	const devices, each = 32, 6
	for d := range devices {
		tasks.add(nip.TaskID(fmt.Sprintf("%064x", d+1)), running)
	}
	before := transactions()
	var all sync.WaitGroup
	for d := range devices {
		all.Go(func() {
			for i := range each {
				c := command(d*each+i, nip.Queue, 5)
				c.Task = nip.TaskID(fmt.Sprintf("%064x", d+1))
				if e, err := v.Submit(context.Background(), sender(d), c, Hooks{}); err != nil || e.State != StateHeld {
					t.Errorf("%v %s", err, short(e))
				}
			}
		})
	}
	all.Wait()
	if used := transactions() - before; used > devices*each/2 {
		t.Errorf("%d commands of %d devices took %d transactions", devices*each, devices, used)
	} else {
		t.Logf("%d commands, %d transactions", devices*each, used)
	}
}
