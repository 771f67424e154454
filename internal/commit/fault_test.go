package commit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/internal/diskfault"
	"holdfast/internal/diskfault/faulttest"
)

// TestEveryFault fails every single write, resize and sync of a store's life,
// from its making on, in every way: what Update confirmed is there after
// reopening, what it did not confirm is there wholly or not at all, and the
// store goes on.
func TestEveryFault(t *testing.T) {
	faulttest.Loop{Least: 40}.Run(t, faultStory)
}

// faultStory makes a store and commits pairs of keys, the second one behind
// bytes enough to grow the file now and then.
func faultStory(t *testing.T, disk *diskfault.Disk, dir string, plan diskfault.Plan) (told string, calls int) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	disk.Begin(dir, plan)
	path := filepath.Join(dir, "host.db")
	d, err := Open(path, options)
	if err != nil && plan.Kind != diskfault.None {
		revive(t, disk)
		d, err = Open(path, options)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { d.Close() }()
	for i := range 8 {
		write := func(tx *bbolt.Tx) error {
			if err := put(fmt.Sprint("a", i))(tx); err != nil {
				return err
			}
			return tx.Bucket(bucket).Put(fmt.Append(nil, "b", i), make([]byte, i%3*20_000))
		}
		err := d.Update(bg, write)
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrPoisoned) || plan.Kind == diskfault.None {
			t.Fatalf("update %d: %v", i, err)
		}
		d.Close()
		revive(t, disk)
		if d, err = Open(path, options); err != nil {
			t.Fatalf("reopen after update %d: %v", i, err)
		}
		for k := range 8 {
			a, b := has(t, d, fmt.Sprint("a", k)), has(t, d, fmt.Sprint("b", k))
			if a != b || k < i && !a || k > i && a {
				t.Errorf("after update %d failed, pair %d is there: %v, %v", i, k, a, b)
			}
		}
		if err := d.Update(bg, write); err != nil {
			t.Fatalf("update %d again: %v", i, err)
		}
	}
	calls, struck := disk.End()
	if struck != (plan.Kind != diskfault.None) {
		t.Errorf("call %d of %d was not there to fail", plan.At, calls)
	}
	for k := range 8 {
		if !has(t, d, fmt.Sprint("a", k)) || !has(t, d, fmt.Sprint("b", k)) {
			t.Errorf("pair %d is lost", k)
		}
	}
	return "", calls
}

func revive(t *testing.T, disk *diskfault.Disk) {
	t.Helper()
	if err := disk.Revive(); err != nil {
		t.Fatal(err)
	}
}
