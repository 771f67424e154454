package owner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/skip"
)

// What another user could have put into the store is refused wherever it is
// met, and never repaired.
func TestUnsafeFiles(t *testing.T) {
	get := func(s *Store) error { _, err := s.Get(deviceTask); return err }
	reopen := func(s *Store) error {
		o, err := Open(s.Home(), Options{Now: fixedClock})
		if err == nil {
			o.Close()
		}
		return err
	}
	command := func(s *Store) error {
		_, err := s.Apply(t.Context(), encoded(t, correctOf(deviceTask, "c2", 1)))
		return err
	}
	blob := func(s *Store) error { _, err := s.GetBlob(DigestOf([]byte("grant")), 100); return err }
	hex := string(DigestOf([]byte("grant")))[len("sha256:"):]
	_, shard := shardOf("c2")
	for _, part := range []struct {
		path string
		use  func(*Store) error
	}{
		{"", reopen}, {"tasks", reopen}, {"identities", reopen}, {"blobs", reopen}, {"blobs/sha256", reopen}, {"worktrees", reopen},
		{"tasks/store.json", reopen},
		{"tasks/" + dirName(deviceTask), get}, {"tasks/" + dirName(deviceTask) + "/log", get},
		{"tasks/" + dirName(deviceTask) + "/lock", command}, {"identities/" + shard, command},
		{"blobs/sha256/" + hex[:2], blob}, {"blobs/sha256/" + hex[:2] + "/" + hex, blob},
	} {
		for _, how := range []struct {
			name string
			do   func(path string, dir bool) error
		}{
			{"readable by the group", func(path string, dir bool) error {
				if dir {
					return os.Chmod(path, 0o750)
				}
				return os.Chmod(path, 0o640)
			}},
			{"a symbolic link", func(path string, dir bool) error {
				return errors.Join(os.Rename(path, path+".moved"), os.Symlink(path+".moved", path))
			}},
			{"linked twice", func(path string, dir bool) error {
				if dir {
					return os.Chmod(path, 0o701)
				}
				return os.Link(path, path+".second")
			}},
			{"of another kind", func(path string, dir bool) error {
				if err := os.Rename(path, path+".moved"); err != nil || dir {
					return errors.Join(err, os.WriteFile(path, nil, 0o600))
				}
				return os.Mkdir(path, 0o700)
			}},
			{"of another user", func(path string, dir bool) error { return os.Chown(path, 12345, -1) }},
		} {
			t.Run(part.path+" "+how.name, func(t *testing.T) {
				if how.name == "of another user" {
					skip.Root(t, "give a file away")
				}
				s := newStore(t)
				mustApply(t, s, submitOf(deviceTask, "c1"))
				mustApply(t, s, submitOf("other", "c2-other"))
				if _, err := s.PutBlob([]byte("grant")); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(s.Home(), part.path)
				st, err := os.Lstat(path)
				if errors.Is(err, fs.ErrNotExist) { // a shard that was never used
					writeFile(t, path, nil)
					st, err = os.Lstat(path)
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := how.do(path, st.IsDir()); err != nil {
					t.Fatal(err)
				}
				before, _ := os.Lstat(path)
				wantErr(t, part.use(s), ErrUnsafe)
				if after, err := os.Lstat(path); err != nil || after.Mode() != before.Mode() {
					t.Fatalf("it was changed: %v", err)
				}
			})
		}
	}
}

func TestMissingParts(t *testing.T) {
	for _, row := range []struct {
		name, remove string
		want         error
	}{
		{"marker", "tasks/store.json", ErrCorrupt},
		{"tasks", "tasks", ErrCorrupt},
		{"identities", "identities", ErrCorrupt},
		{"blobs", "blobs", ErrCorrupt},
		{"blobs/sha256", "blobs/sha256", ErrCorrupt},
		{"worktrees", "worktrees", ErrCorrupt},
	} {
		for _, create := range []bool{false, true} {
			t.Run(row.name, func(t *testing.T) {
				s := newStore(t)
				mustApply(t, s, submitOf(deviceTask, "c1"))
				if err := os.RemoveAll(filepath.Join(s.Home(), row.remove)); err != nil {
					t.Fatal(err)
				}
				_, err := Open(s.Home(), Options{Create: create})
				wantErr(t, err, row.want)
			})
		}
	}
	for _, name := range []string{"log", "lock", "owner.lock"} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			mustApply(t, s, submitOf(deviceTask, "c1"))
			writeFile(t, filepath.Join(s.TaskDir(deviceTask), TraceName(1)), nil)
			if err := os.Remove(filepath.Join(s.TaskDir(deviceTask), name)); err != nil {
				t.Fatal(err)
			}
			if name == "lock" {
				_, err := s.Apply(t.Context(), encoded(t, correctOf(deviceTask, "c2", 1)))
				wantErr(t, err, ErrCorrupt)
			}
			wantErr(t, s.Check(func(string, bool, string) {}), ErrCorrupt)
		})
	}
	t.Run("identity shard", func(t *testing.T) {
		s := newStore(t)
		mustApply(t, s, submitOf(deviceTask, "c1"))
		_, shard := shardOf("c1")
		if err := os.Remove(filepath.Join(s.Home(), "identities", shard)); err != nil {
			t.Fatal(err)
		}
		wantErr(t, openStore(t, s.Home(), false).Check(func(string, bool, string) {}), ErrCorrupt)
	})
}

func TestOpenWithoutAStore(t *testing.T) {
	home := filepath.Join(t.TempDir(), "a", "b", "home")
	_, err := Open(home, Options{})
	wantErr(t, err, fs.ErrNotExist)
	if _, err := os.Stat(home); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("it made something:", err)
	}
	s := openStore(t, home, true)
	openStore(t, home, true) // again is no matter
	wantSound(t, s)
}

func TestMarker(t *testing.T) {
	for _, row := range []struct {
		name, bytes string
		want        error
	}{
		{"ours", marker, nil},
		{"the first version", oldMarker(1), nil},
		{"the version before", oldMarker(2), nil},
		{"newer", `{"v":"holdfast.task-store.v4","more":1}`, ErrNewer},
		{"much newer", `{"v":"holdfast.task-store.v17"}`, ErrNewer},
		{"older than any", `{"v":"holdfast.task-store.v0"}`, ErrCorrupt},
		{"another schema", `{"v":"openagents.coder.task-store.v3"}`, ErrCorrupt},
		{"one member too many", `{"v":"holdfast.task-store.v3","x":1}`, ErrCorrupt},
		{"one member too many of the version before", `{"v":"holdfast.task-store.v2","x":1}`, ErrCorrupt},
		{"empty", ``, ErrCorrupt},
		{"half", marker[:9], ErrCorrupt},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newStore(t)
			writeFile(t, filepath.Join(s.Home(), "tasks", markerName), []byte(row.bytes))
			_, err := Open(s.Home(), Options{Create: true})
			if !errors.Is(err, row.want) || row.want == nil && err != nil {
				t.Fatalf("got %v, want %v", err, row.want)
			}
		})
	}
}
