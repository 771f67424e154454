package owner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"holdfast/internal/saferead"
)

// oldHome is a home that version 1 made, with a task in each state of interest: testdata/store/v1, which is never
// made again. tasks.jsonl in it is what version 1 read of it.
func oldHome(t testing.TB) string {
	t.Helper()
	home := quickHome(t)
	copyPrivate(t, filepath.Join("testdata", "store", "v1"), home)
	if err := errors.Join(os.Remove(filepath.Join(home, "tasks.jsonl")), os.Mkdir(filepath.Join(home, "worktrees"), 0o700)); err != nil {
		t.Fatal(err)
	}
	return home
}

// copyPrivate copies a folder, with the modes of a store.
func copyPrivate(t testing.TB, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, path)
		if e.IsDir() {
			return os.Mkdir(filepath.Join(to, rel), 0o700)
		}
		b, err := os.ReadFile(path)
		return errors.Join(err, os.WriteFile(filepath.Join(to, rel), b, 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// oldTasks fails unless the store has the tasks that version 1 read, each with every member that it had then.
func oldTasks(t testing.TB, s *Store) {
	t.Helper()
	lines := bytes.Split(bytes.TrimSpace(readFile(t, filepath.Join("testdata", "store", "v1", "tasks.jsonl"))), []byte("\n"))
	for _, line := range lines {
		var want, got map[string]any
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatal(err)
		}
		task, err := s.Get(TaskID(want["task_id"].(string)))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(mustJSON(task), &got); err != nil {
			t.Fatal(err)
		}
		if missing := lacks(want, got); missing != "" {
			t.Errorf("%s is now read with another %s:\n%s", task.ID, missing, mustJSON(task))
		}
	}
	if ids, err := s.List(); err != nil || len(ids) != len(lines) {
		t.Errorf("%d tasks of %d, %v", len(ids), len(lines), err)
	}
}

// lacks names a member of want that got has not, or otherwise: later versions may add some.
func lacks(want, got any) string {
	w, ok := want.(map[string]any)
	if !ok {
		if list, ok := want.([]any); ok {
			have, _ := got.([]any)
			if len(have) != len(list) {
				return "list"
			}
			for i := range list {
				if m := lacks(list[i], have[i]); m != "" {
					return m
				}
			}
			return ""
		}
		if !reflect.DeepEqual(want, got) {
			return fmt.Sprint(want)
		}
		return ""
	}
	g, _ := got.(map[string]any)
	for name, value := range w {
		if m := lacks(value, g[name]); m != "" {
			return name + "." + m
		}
	}
	return ""
}

// v1Opens is what version 1 did when it opened a home, told by the marker's bytes. It is a copy of that program's
// own rule and never changes.
func v1Opens(marker []byte) error {
	var m struct {
		V string `json:"v"`
	}
	if err := closed(marker, &m); err == nil && m.V == "holdfast.task-store.v1" {
		return nil
	}
	var n uint
	if err := lax(marker, &m); err == nil {
		if c, _ := fmt.Sscanf(m.V, "holdfast.task-store.v%d", &n); c == 1 && n > 1 {
			return ErrNewer
		}
	}
	return ErrCorrupt
}

// The old store is read as it stands, and stays as it is until something is
// written; then it is of the new version, which the old program refuses, with
// every old byte where it was and the old marker beside the new one.
func TestStoreMigratesForwardOnce(t *testing.T) {
	home := oldHome(t)
	before := filesOf(t, home)
	s := openStore(t, home, false)
	oldTasks(t, s)
	wantSound(t, s)
	if after := filesOf(t, home); !reflect.DeepEqual(before, after) {
		t.Fatal("reading the old store changed it")
	}
	if err := v1Opens(readFile(t, filepath.Join(home, "tasks", markerName))); err != nil {
		t.Fatal("the fixture is not what version 1 opens:", err)
	}
	mustApply(t, s, submitOf("new", "n1"))
	if b := readFile(t, filepath.Join(home, "tasks", markerName)); string(b) != marker || v1Opens(b) != ErrNewer {
		t.Fatalf("the marker is %s", b)
	}
	after := filesOf(t, home)
	for path, b := range before {
		switch now := after[path]; {
		case path == "tasks/"+markerName:
			if after["tasks/"+oldMarkerName(1)] != b {
				t.Error("the old marker was not kept")
			}
		case !strings.HasPrefix(now, b):
			t.Errorf("%s does not begin with what it was", path)
		}
	}
	// Once: a second write and a second process find nothing to do.
	again := openStore(t, home, true)
	mustApply(t, again, cancelOf("new", "n2", 1))
	if kept, now := readFile(t, filepath.Join(home, "tasks", oldMarkerName(1))), readFile(t, filepath.Join(home, "tasks", markerName)); string(kept) != oldMarker(1) || string(now) != marker {
		t.Fatalf("%s %s", kept, now)
	}
	mustApply(t, again, continueOf("third", "e3", 2))
	wantSound(t, openStore(t, home, false))
}

func filesOf(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		files[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Killed, failed or without power at each step: the store is of the one
// version or of the other, with all that was in it, and never an empty one;
// what was acknowledged holds, and the next write ends the migration.
func TestMigrationKilledAtEachStep(t *testing.T) {
	for _, how := range []string{"error", "short", "kill", "cut", "cut-half", "cut-zeros"} {
		seen := map[string]bool{}
		for at := 1; ; at++ {
			home := oldHome(t)
			disk := newFailFS(at, how)
			settled(t, disk, home)
			s, err := open(home, Options{Now: fixedClock}, disk)
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Apply(t.Context(), encoded(t, cancelOf("second.task", "d3", 99)))
			var refusal *Error
			upgraded := errors.As(err, &refusal) && refusal.Code == "revision_mismatch" // which comes after the upgrade
			if upgraded != (disk.failed == "") {
				t.Fatalf("%s, failing %q: %v", how, disk.failed, err)
			}
			s.Close()
			if strings.HasPrefix(how, "cut") && disk.failed != "" {
				disk.restart(t, home, home+"-restarted")
				home += "-restarted"
			}
			now := readFile(t, filepath.Join(home, "tasks", markerName))
			version, err := parseMarker(now)
			if err != nil {
				t.Fatalf("%s, failing %q: %s", how, disk.failed, now)
			}
			if _, err := os.Stat(filepath.Join(home, "tasks", oldMarkerName(1))); version == 3 && err != nil {
				t.Fatalf("%s, failing %q: the old marker is not kept", how, disk.failed)
			}
			if want := map[int]error{1: nil, 3: ErrNewer}[version]; v1Opens(now) != want {
				t.Fatalf("%s, failing %q: version 1 finds %v", how, disk.failed, v1Opens(now))
			}
			seen[fmt.Sprint(version)] = true
			next := quickStore(t, home, false)
			oldTasks(t, next)
			mustApply(t, next, submitOf("new", "n1"))
			if b := readFile(t, filepath.Join(home, "tasks", markerName)); string(b) != marker {
				t.Fatalf("%s, failing %q: the next write left %s", how, disk.failed, b)
			}
			if string(readFile(t, filepath.Join(home, "tasks", oldMarkerName(1)))) != oldMarker(1) {
				t.Fatal("the old marker was not kept")
			}
			wantSound(t, next)
			if t.Failed() {
				t.Fatalf("%s, failing %q", how, disk.failed)
			}
			if disk.failed == "" {
				if at < 9 || !seen["1"] || !seen["3"] {
					t.Fatalf("%s: only %d steps, versions %v: the migration is not seen", how, at, seen)
				}
				break
			}
		}
	}
}

// settled tells the disk that all of home has been on it for long.
func settled(t *testing.T, disk *failFS, home string) {
	t.Helper()
	d := newFailFS(0, "error")
	err := filepath.WalkDir(home, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			dir, err := saferead.OpenDir(path)
			if err != nil {
				return err
			}
			defer dir.Close()
			return d.SyncDir(dir)
		}
		dir, err := saferead.OpenDir(filepath.Dir(path))
		if err != nil {
			return err
		}
		defer dir.Close()
		f, err := d.Open(dir, e.Name(), os.O_RDWR)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
	disk.files, disk.names = d.files, d.names
}

// Many processes that meet the old store at once, and write: all do the same.
func TestMigrationByManyAtOnce(t *testing.T) {
	home := oldHome(t)
	var wg sync.WaitGroup
	for i := range 6 {
		s := quickStore(t, home, i%2 == 0)
		wg.Go(func() {
			if _, err := s.Apply(t.Context(), encoded(t, submitOf(TaskID(fmt.Sprint("many-", i)), fmt.Sprint("m-", i)))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s := quickStore(t, home, false)
	wantSound(t, s)
	if ids, err := s.List(); err != nil || len(ids) != 3+6 {
		t.Fatal(ids, err)
	}
}

// What is in the way of a migration is not written over, and the old store stays.
func TestMigrationRefused(t *testing.T) {
	for _, row := range []struct {
		name  string
		place func(dir string) error
		want  error
	}{
		{"another old marker", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, oldMarkerName(1)), []byte("mine"), 0o600)
		}, ErrCorrupt},
		{"a link for an old marker", func(dir string) error {
			return os.Symlink("/dev/null", filepath.Join(dir, oldMarkerName(1)))
		}, ErrUnsafe},
		{"a newer marker meanwhile", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, markerName), []byte(`{"v":"holdfast.task-store.v4"}`), 0o600)
		}, ErrNewer},
		{"no marker any more", func(dir string) error { return os.Remove(filepath.Join(dir, markerName)) }, ErrCorrupt},
	} {
		t.Run(row.name, func(t *testing.T) {
			home := oldHome(t)
			s := quickStore(t, home, false)
			if err := row.place(filepath.Join(home, "tasks")); err != nil {
				t.Fatal(err)
			}
			before := filesOf(t, home)
			_, err := s.Apply(t.Context(), encoded(t, submitOf("new", "n1")))
			wantErr(t, err, row.want)
			if !reflect.DeepEqual(before, filesOf(t, home)) {
				t.Fatal("something was written")
			}
		})
	}
}

// A store of version 2 that was of version 3 before, because an older program that met its change put its own marker
// over the newer one: what that program wrote is in no index, so the index of before counts for nothing.
func TestMigrationForgetsAnOldIndex(t *testing.T) {
	home := oldHome(t)
	s := quickStore(t, home, false)
	ids, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	look := func(_ context.Context, id TaskID) (*Task, error) { task, err := s.Get(id); return &task, err }
	if err := s.Reindex(t.Context(), look); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutAway(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	const waits = TaskID("third") // ended; the older program continues it
	if x, whole, err := s.Index(); err != nil || !whole || slices.Contains(x.Live, waits) {
		t.Fatalf("%+v, %v, %v", x, whole, err)
	}
	live := filesOf(t, filepath.Join(home, liveFolder))
	mustApply(t, s, continueOf(waits, "e3", 2))
	if err := os.RemoveAll(filepath.Join(home, liveFolder)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(home, liveFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, b := range live {
		writeFile(t, filepath.Join(home, liveFolder, name), []byte(b))
	}
	writeFile(t, filepath.Join(home, "tasks", markerName), []byte(oldMarker(2)))

	for _, when := range []string{"before", "after"} {
		next := quickStore(t, home, false)
		if awake, err := next.Awake(); err != nil || !slices.Contains(awake, waits) {
			t.Errorf("%s its change: awake %q, %v", when, awake, err)
		}
		rows, err := next.Rows(func(_ TaskID, err error) error { return err })
		if i := slices.IndexFunc(rows, func(r Row) bool { return r.ID == waits }); err != nil || i < 0 || rows[i].Status != Queued {
			t.Errorf("%s its change: rows %+v, %v", when, rows, err)
		}
		mustApply(t, next, submitOf(TaskID("new-"+when), "n-"+when))
		wantSound(t, next)
	}
	if string(readFile(t, filepath.Join(home, "tasks", oldMarkerName(2)))) != oldMarker(2) {
		t.Error("the old marker was not kept")
	}
}

// A program that read the old marker just before a newer program replaced it finds the newer one, and leaves it.
func TestMigrationBesideANewerProgram(t *testing.T) {
	home := oldHome(t)
	s := quickStore(t, home, false)
	root, err := saferead.OpenDir(home)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	newer, err := lockFolder(t.Context(), root, "tasks") // as the newer one does
	if err != nil {
		t.Fatal(err)
	}
	got, request := make(chan error, 1), encoded(t, submitOf("new", "n1"))
	go func() {
		_, err := s.Apply(context.Background(), request)
		got <- err
	}()
	const theirs = `{"v":"holdfast.task-store.v4"}` + "\n"
	writeFile(t, filepath.Join(home, "tasks", markerName), []byte(theirs))
	select {
	case err := <-got:
		t.Fatalf("it did not wait for the lock: %v", err)
	default:
	}
	newer.Close()
	wantErr(t, <-got, ErrNewer)
	if b := readFile(t, filepath.Join(home, "tasks", markerName)); string(b) != theirs {
		t.Fatalf("the marker is %s", b)
	}
}
