//go:build amd64 || arm64

package diskfault_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"holdfast/internal/diskfault"
	"holdfast/internal/diskfault/faulttest"
)

// What is written by calls that are not watched is noticed, synced or not, and what was seen is not taken for it.
func TestUnseen(t *testing.T) {
	faulttest.Loop{Least: 1, Sample: 1}.Run(t, func(t *testing.T, disk *diskfault.Disk, dir string, plan diskfault.Plan) (string, int) {
		at := func(name string) string { return filepath.Join(dir, name) }
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		to := func(name string, flag int, do func(f *os.File) error) {
			t.Helper()
			f, err := os.OpenFile(at(name), os.O_RDWR|os.O_CREATE|flag, 0o600)
			must(err)
			must(errors.Join(do(f), f.Close()))
		}
		must(os.Mkdir(dir, 0o700))
		for _, name := range []string{"before", "emptied"} {
			must(os.WriteFile(at(name), []byte("old words"), 0o600))
		}
		disk.Begin(dir, diskfault.Plan{})
		to("seen", 0, func(f *os.File) error {
			_, err := f.WriteAt([]byte("words"), 3)
			return errors.Join(err, f.Truncate(6), f.Truncate(9), f.Sync())
		})
		to("synced", 0, func(f *os.File) error {
			_, err := f.Write([]byte("words"))
			return errors.Join(err, f.Sync(), os.Remove(at("synced"))) // gone by the end
		})
		to("appended", os.O_APPEND, func(f *os.File) error { _, err := f.WriteString("words"); return err })
		to("emptied", os.O_TRUNC, func(f *os.File) error { return nil })
		disk.End()
		if got := disk.Unseen(); !slices.Equal(got, []string{"appended", "emptied", "synced"}) {
			t.Errorf("unseen %q", got)
		}
		// What the loop itself looks at.
		disk.Begin(dir, plan)
		to("seen", 0, func(f *os.File) error { f.WriteAt([]byte("more"), 0); return nil })
		must(disk.Revive())
		calls, _ := disk.End()
		return "", calls
	})
}
