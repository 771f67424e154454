package commands

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/internal/commit"
	"holdfast/internal/diskfault"
	"holdfast/internal/diskfault/faulttest"
)

// committed is a store with its committer, where a test wants transactions.
type committed struct{ *commit.DB }

func (c committed) Update(fn func(tx *bbolt.Tx) error) error {
	return c.DB.Update(context.Background(), fn)
}

// TestEveryFault plays the story over a real store, from its making on, and
// fails every single write, resize and sync once, in every way: the story ends
// as if nothing had been. No command takes effect twice, none that has a
// receipt is lost, their order stays, the chain verifies after every restart, and
// what was pruned is answered as expired.
func TestEveryFault(t *testing.T) {
	loop := faulttest.Loop{Least: 100, Sample: 240}
	if Race {
		loop.Sample = 60
	}
	loop.Run(t, faultStory)
}

func faultStory(t *testing.T, disk *diskfault.Disk, dir string, plan diskfault.Plan) (told string, calls int) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	disk.Begin(dir, plan)
	var db *commit.DB
	defer func() { db.Close() }()
	s := &store{}
	s.open = func() {
		if db != nil {
			db.Close()
		}
		err := disk.Revive()
		if err != nil {
			t.Fatal(err)
		}
		if db, err = openJournal(dir); err != nil && plan.Kind != diskfault.None {
			if err := disk.Revive(); err != nil {
				t.Fatal(err)
			}
			db, err = openJournal(dir)
		}
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		s.db = committed{db}
	}
	sc := newScene(newRigOver(t, s))
	sc.play()
	told = sc.told()
	sc.forget()
	calls, struck := disk.End()
	if struck != (plan.Kind != diskfault.None) {
		t.Errorf("call %d of %d was not there to fail", plan.At, calls)
	}
	effects := sc.r.tasks.tasks[task(0)].effects
	sorted := slices.Sorted(slices.Values(effects))
	if len(slices.Compact(sorted)) != len(effects) {
		t.Errorf("something took effect twice: %q", effects)
	}
	return told, calls
}

// openJournal opens the store as the host does: its buckets are made in the
// opening transaction.
func openJournal(dir string) (*commit.DB, error) {
	db, err := commit.Open(filepath.Join(dir, "host.db"), commit.Options{Kind: "holdfast-host", Version: 1})
	if err != nil {
		return nil, err
	}
	if err := db.Update(context.Background(), Journal{}.Setup); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}
