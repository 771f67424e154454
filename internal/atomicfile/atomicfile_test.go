package atomicfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "f")
	for _, text := range []string{"first", "second, longer", "3"} {
		if err := atomicfile.Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := saferead.Read(path, 99); err != nil || string(b) != text {
			t.Fatal(string(b), err)
		}
	}
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Fatalf("%d files are left", len(list))
	}
	os.Chmod(dir, 0o755)
	if err := atomicfile.Write(path, nil); !errors.Is(err, saferead.ErrUnsafe) {
		t.Fatal(err)
	}
}

// failing fails the operation number at.
type failing struct {
	atomicfile.FS
	at, n int
}

var errFail = errors.New("injected")

func (f *failing) next() error {
	if f.n++; f.n == f.at {
		return errFail
	}
	return nil
}

func (f *failing) Open(d *saferead.Dir, name string, flag int) (atomicfile.File, error) {
	if err := f.next(); err != nil {
		return nil, err
	}
	file, err := f.FS.Open(d, name, flag)
	return failingFile{file, f}, err
}

func (f *failing) Rename(d *saferead.Dir, from, to string) error {
	return errors.Join(f.next(), f.FS.Rename(d, from, to))
}

func (f *failing) SyncDir(d *saferead.Dir) error { return errors.Join(f.next(), f.FS.SyncDir(d)) }

type failingFile struct {
	atomicfile.File
	f *failing
}

func (f failingFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.f.next(); err != nil {
		n, _ := f.File.WriteAt(b[:len(b)/2], off)
		return n, err
	}
	return f.File.WriteAt(b, off)
}

func (f failingFile) Sync() error { return errors.Join(f.f.next(), f.File.Sync()) }

// Before the rename a failure is definite and leaves the old content and no
// litter; from the rename on it is not known.
func TestWriteFailsAtEveryOperation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := saferead.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for at, want := range []struct {
		name    string
		unknown bool
	}{{"open", false}, {"write", false}, {"sync", false}, {"rename", true}, {"sync of the folder", true}} {
		if err := atomicfile.Write(filepath.Join(dir, "f"), []byte("old")); err != nil {
			t.Fatal(err)
		}
		err := atomicfile.WriteIn(&failing{FS: atomicfile.OS, at: at + 1}, d, "f", []byte("new content"))
		if !errors.Is(err, errFail) || errors.Is(err, atomicfile.ErrUnknown) != want.unknown {
			t.Errorf("%s: %v", want.name, err)
		}
		b, _ := d.Read("f", 99)
		if !want.unknown && string(b) != "old" || string(b) != "old" && string(b) != "new content" {
			t.Errorf("%s: %q", want.name, b)
		}
		if names, _ := d.Names(); len(names) != 1 {
			t.Errorf("%s: %v is left", want.name, names)
		}
	}
}

func TestMakeAll(t *testing.T) {
	top := t.TempDir()
	path := filepath.Join(top, "a", "b", "c")
	for range 2 {
		if err := atomicfile.MakeAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o700 {
			t.Fatal(st, err)
		}
	}
	if err := atomicfile.SyncName(path); err != nil {
		t.Error(err)
	}
	file := filepath.Join(top, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "a")} {
		if err := atomicfile.MakeAll(path, 0o700); err == nil {
			t.Errorf("%s was made", path)
		}
	}
	if err := atomicfile.SyncName(filepath.Join(top, "absent", "a")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
