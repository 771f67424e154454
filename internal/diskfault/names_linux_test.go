//go:build amd64 || arm64

package diskfault_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/diskfault"
	"holdfast/internal/diskfault/faulttest"
)

// A folder has the names of its last sync after a nameless power cut, with what
// was in the files then, and a folder that was never synced into its own is gone
// with all that is in it.
func TestNameless(t *testing.T) {
	faulttest.Loop{Least: 8}.Run(t, func(t *testing.T, disk *diskfault.Disk, dir string, plan diskfault.Plan) (string, int) {
		at := func(name string) string { return filepath.Join(dir, name) }
		write := func(name, text string) error {
			f, err := os.OpenFile(at(name), os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte(text), 0)
			return errors.Join(err, f.Sync(), f.Close())
		}
		sync := func() error {
			d, err := os.Open(dir)
			if err != nil {
				return err
			}
			return errors.Join(d.Sync(), d.Close())
		}
		if err := errors.Join(os.Mkdir(dir, 0o700), write("removed", "old")); err != nil {
			t.Fatal(err)
		}
		disk.Begin(dir, plan)
		for _, step := range []func() error{
			func() error { return write("a", "first") }, // calls 1 and 2
			sync, // 3
			func() error { return os.Rename(at("a"), at("b")) },
			func() error { return os.Remove(at("removed")) },
			func() error { return os.Mkdir(at("folder"), 0o700) },
			func() error { return write("folder/inside", "kept?") }, // 4 and 5
			func() error { return write("new", "second") },          // 6 and 7
			func() error { return os.Rename(at("new"), at("b")) },
			sync, // 8
		} {
			if step() != nil {
				break
			}
		}
		if err := disk.Revive(); err != nil {
			t.Fatal(err)
		}
		var got []string
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			text, _ := os.ReadFile(at(e.Name()))
			got = append(got, e.Name()+"="+string(text))
		}
		want := []string{"b=second", "folder="}
		switch {
		case plan.Kind == diskfault.None:
		case plan.Kind != diskfault.Nameless:
			want = got // other ways to fail are others' to judge
		case plan.At <= 3:
			want = []string{"removed=old"}
		default:
			want = []string{"a=first", "removed=old"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v at call %d left %s, not %s", plan.Kind, plan.At, strings.Join(got, " "), strings.Join(want, " "))
		}
		calls, _ := disk.End()
		return "", calls
	})
}
