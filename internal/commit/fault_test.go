package commit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/internal/diskfault"
	"holdfast/internal/skip"
)

// faultEnv makes the test binary the child whose disk fails.
const faultEnv = "HOLDFAST_TEST_FAULTS"

// TestEveryFault fails every single write, resize and sync of a store's life,
// from its making on, in every way: what Update confirmed is there after
// reopening, what it did not confirm is there wholly or not at all, and the
// store goes on.
func TestEveryFault(t *testing.T) {
	if os.Getenv(faultEnv) == "" {
		t.Parallel()
		inChild(t)
		return
	}
	disk, err := diskfault.Install()
	if err != nil {
		skip.Missing(t, "no disk faults: "+err.Error())
	}
	dir := t.TempDir()
	calls := faultStory(t, disk, filepath.Join(dir, "none"), diskfault.Plan{})
	if calls < 40 {
		t.Fatalf("the story has only %d calls", calls)
	}
	for _, kind := range diskfault.Kinds {
		for at := 1; at <= calls; at++ {
			plan := diskfault.Plan{Kind: kind, At: at}
			faultStory(t, disk, filepath.Join(dir, fmt.Sprint(kind, at)), plan)
			if t.Failed() {
				t.Fatalf("%v at call %d of %d", kind, at, calls)
			}
		}
	}
	t.Logf("%d calls, each in %d ways", calls, len(diskfault.Kinds))
}

// inChild runs the test in a process of its own: a filter stays for good.
func inChild(t *testing.T) {
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

// faultStory makes a store and commits pairs of keys, the second one behind
// bytes enough to grow the file now and then.
func faultStory(t *testing.T, disk *diskfault.Disk, dir string, plan diskfault.Plan) (calls int) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	disk.Begin(dir, plan)
	path := filepath.Join(dir, "host.db")
	d, err := Open(path, options)
	if err != nil && plan.Kind != diskfault.None {
		disk.Revive()
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
		disk.Revive()
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
	return calls
}
