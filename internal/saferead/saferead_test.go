package saferead_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"holdfast/internal/saferead"
	"holdfast/internal/skip"
)

func private(t *testing.T) (string, *saferead.Dir) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := saferead.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return path, d
}

func TestRead(t *testing.T) {
	path, d := private(t)
	if err := os.WriteFile(filepath.Join(path, "f"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := d.Read("f", 5); err != nil || string(b) != "hello" {
		t.Fatal(string(b), err)
	}
	if b, err := saferead.Read(filepath.Join(path, "f"), 5); err != nil || string(b) != "hello" {
		t.Fatal(string(b), err)
	}
	if _, err := d.Read("f", 4); !errors.Is(err, saferead.ErrTooLarge) {
		t.Fatal(err)
	}
	if _, err := d.Read("g", 4); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "../private/f", "f\x00"} {
		if _, err := d.Read(name, 9); !errors.Is(err, saferead.ErrUnsafe) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestUnsafe(t *testing.T) {
	for _, row := range []struct {
		name string
		make func(path string) error
		root bool
	}{
		{"link to a file", func(p string) error {
			return errors.Join(os.WriteFile(p+".x", nil, 0o600), os.Symlink(p+".x", p))
		}, false},
		{"link to nothing", func(p string) error { return os.Symlink("/nonexistent", p) }, false},
		{"second link", func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Link(p, p+".x")) }, false},
		{"group may read", func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chmod(p, 0o640)) }, false},
		{"others may execute", func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chmod(p, 0o601)) }, false},
		{"folder", func(p string) error { return os.Mkdir(p, 0o700) }, false},
		{"fifo", func(p string) error { return syscall.Mkfifo(p, 0o600) }, false},
		{"foreign owner", func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chown(p, 12345, -1)) }, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.root {
				skip.Root(t, "give a file away")
			}
			path, d := private(t)
			if err := row.make(filepath.Join(path, "f")); err != nil {
				t.Fatal(err)
			}
			for _, flag := range []int{os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREATE} {
				f, err := d.Open("f", flag)
				if err == nil {
					f.Close()
				}
				if !errors.Is(err, saferead.ErrUnsafe) {
					t.Errorf("flag %d: %v", flag, err)
				}
			}
			if _, err := d.Peek("", "f"); !errors.Is(err, saferead.ErrUnsafe) {
				t.Errorf("not opened: %v", err)
			}
		})
	}
}

func TestUnsafeFolder(t *testing.T) {
	path, d := private(t)
	sub := filepath.Join(path, "sub")
	for name, make := range map[string]func() error{
		"link": func() error { return os.Symlink(path, sub) },
		"file": func() error { return os.WriteFile(sub, nil, 0o600) },
		"open": func() error { return errors.Join(os.Mkdir(sub, 0o700), os.Chmod(sub, 0o710)) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.OpenDir("sub"); !errors.Is(err, saferead.ErrUnsafe) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := saferead.OpenDir(sub); !errors.Is(err, saferead.ErrUnsafe) {
			t.Errorf("%s by path: %v", name, err)
		}
		if _, err := d.Peek("sub", "f"); !errors.Is(err, saferead.ErrUnsafe) {
			t.Errorf("%s, not opened: %v", name, err)
		}
		os.Remove(sub)
	}
}

// A folder that was opened stays itself when its name goes to another.
func TestOpenFolderIsNotFollowedElsewhere(t *testing.T) {
	path, d := private(t)
	if err := errors.Join(os.Rename(path, path+".old"), os.Mkdir(path, 0o700),
		os.WriteFile(filepath.Join(path, "f"), []byte("planted"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read("f", 99); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

func TestPeek(t *testing.T) {
	path, d := private(t)
	if _, err := d.Peek("", "f"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	f := filepath.Join(path, "sub", "f")
	if err := errors.Join(os.Mkdir(filepath.Join(path, "sub"), 0o700), os.WriteFile(f, []byte("hello"), 0o600)); err != nil {
		t.Fatal(err)
	}
	one, err := d.Peek("sub", "f")
	if err != nil || one.Size != 5 || one.Ino == 0 || one.Modified == 0 || one.Changed == 0 {
		t.Fatal(one, err)
	}
	if again, err := d.Peek("sub", "f"); err != nil || again != one {
		t.Fatal(again, err)
	}
	if err := os.WriteFile(f, []byte("hello you"), 0o600); err != nil {
		t.Fatal(err)
	}
	if two, err := d.Peek("sub", "f"); err != nil || two == one || two.Ino != one.Ino {
		t.Fatal(two, err)
	}
	for _, name := range []string{"", "..", "a/b"} {
		if _, err := d.Peek("sub", name); !errors.Is(err, saferead.ErrUnsafe) {
			t.Errorf("%q: %v", name, err)
		}
		if _, err := d.Peek(name, "f"); name != "" && !errors.Is(err, saferead.ErrUnsafe) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestSame(t *testing.T) {
	path, d := private(t)
	f, err := d.Open("f", os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if st, _ := f.Stat(); st.Mode().Perm() != 0o600 {
		t.Fatalf("made with mode %v", st.Mode())
	}
	if err := d.Same("f", f); err != nil {
		t.Fatal(err)
	}
	os.Rename(filepath.Join(path, "f"), filepath.Join(path, "g"))
	if err := d.Same("f", f); !errors.Is(err, saferead.ErrUnsafe) {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(path, "f"), nil, 0o600)
	if err := d.Same("f", f); !errors.Is(err, saferead.ErrUnsafe) {
		t.Fatal(err)
	}
	if names, err := d.Names(); err != nil || len(names) != 2 || names[0] != "f" {
		t.Fatal(names, err)
	}
	if again, err := d.Names(); err != nil || len(again) != 2 {
		t.Fatal("the second listing differs:", again, err)
	}
}

// TestReplacedMeanwhile: readers of a file that is replaced in order, by renames,
// see one of its contents each time.
func TestReplacedMeanwhile(t *testing.T) {
	dir, d := private(t)
	replace := func(i int) error {
		next := filepath.Join(dir, "next")
		return errors.Join(os.WriteFile(next, fmt.Append(nil, "whole ", i), 0o600), os.Rename(next, filepath.Join(dir, "file")))
	}
	if err := replace(0); err != nil {
		t.Fatal(err)
	}
	var readers sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if b, err := d.Read("file", 64); err != nil || !strings.HasPrefix(string(b), "whole ") {
					t.Errorf("%q: %v", b, err)
					return
				}
			}
		})
	}
	for i := range 500 {
		if err := replace(i); err != nil {
			t.Error(err)
			break
		}
	}
	close(done)
	readers.Wait()
}
