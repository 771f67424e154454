package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/internal/commit"
	"holdfast/internal/diskfault"
	"holdfast/internal/skip"
)

// faultEnv makes the test binary the child whose disk fails.
const faultEnv = "HOLDFAST_TEST_FAULTS"

// committed is a store with its committer, where a test wants transactions.
type committed struct{ *commit.DB }

func (c committed) Update(fn func(tx *bbolt.Tx) error) error {
	return c.DB.Update(context.Background(), fn)
}

// TestEveryFault plays the story over a real store, from its making on, and
// fails every single write, resize and sync once, in every way: the story ends
// as if nothing had been. No command takes effect twice, none that has a
// receipt is lost, their order stays, and the chain verifies after every
// restart.
func TestEveryFault(t *testing.T) {
	if os.Getenv(faultEnv) == "" {
		t.Parallel()
		faultChild(t)
		return
	}
	disk, err := diskfault.Install()
	if err != nil {
		skip.Missing(t, "no disk faults: "+err.Error())
	}
	dir := t.TempDir()
	want, calls := faultStory(t, disk, filepath.Join(dir, "none"), diskfault.Plan{})
	if calls < 100 {
		t.Fatalf("the story has only %d calls", calls)
	}
	step := 1
	if Race {
		step = 7
	}
	for _, kind := range diskfault.Kinds {
		for at := 1; at <= calls; at += step {
			plan := diskfault.Plan{Kind: kind, At: at}
			got, _ := faultStory(t, disk, filepath.Join(dir, fmt.Sprint(kind, at)), plan)
			if got != want {
				t.Errorf("%v\nundisturbed\n%s", got, want)
			}
			if t.Failed() {
				t.Fatalf("%v at call %d of %d", kind, at, calls)
			}
		}
	}
	t.Logf("%d calls, every %d-th in %d ways", calls, step, len(diskfault.Kinds))
}

// faultChild runs the test in a process of its own: the filter stays for good.
func faultChild(t *testing.T) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), faultEnv+"=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if i := bytes.Index(out, []byte("no disk faults: ")); i >= 0 {
		line, _, _ := strings.Cut(string(out[i:]), "\n")
		skip.Missing(t, line)
	}
	t.Logf("%s", out)
}

func faultStory(t *testing.T, disk *diskfault.Disk, dir string, plan diskfault.Plan) (told string, calls int) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	disk.Begin(dir, plan)
	var db *commit.DB
	defer func() { db.Close() }()
	s := &store{}
	s.open = func() {
		if db != nil {
			db.Close()
		}
		disk.Revive()
		var err error
		if db, err = openJournal(dir); err != nil && plan.Kind != diskfault.None {
			disk.Revive()
			db, err = openJournal(dir)
		}
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		s.db = committed{db}
	}
	sc := newScene(newRigOver(t, s))
	sc.play()
	calls, struck := disk.End()
	if struck != (plan.Kind != diskfault.None) {
		t.Errorf("call %d of %d was not there to fail", plan.At, calls)
	}
	effects := sc.r.tasks.tasks[task(0)].effects
	sorted := slices.Sorted(slices.Values(effects))
	if len(slices.Compact(sorted)) != len(effects) {
		t.Errorf("something took effect twice: %q", effects)
	}
	return sc.told(), calls
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
