package owner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
	"holdfast/sandbox"
)

// noWait is the real disk, and waits for none of it: for histories of thousands of records.
type noWait struct{ atomicfile.FS }

type noWaitFile struct{ atomicfile.File }

func (noWait) SyncDir(*saferead.Dir) error { return nil }
func (noWaitFile) Sync() error             { return nil }

func (n noWait) Open(d *saferead.Dir, name string, flag int) (atomicfile.File, error) {
	f, err := n.FS.Open(d, name, flag)
	if err != nil {
		return nil, err
	}
	return noWaitFile{f}, nil
}

// quickStore is a store in memory where there is such a folder, which waits for no disk.
func quickStore(t testing.TB, home string, create bool) *Store {
	t.Helper()
	s, err := open(home, Options{Now: fixedClock, Create: create}, noWait{atomicfile.OS})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func quickHome(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-test-")
	if err != nil {
		return filepath.Join(t.TempDir(), "home")
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "home")
}

// randomStep does one thing to a task that its state allows, or tries one that it may not.
func randomStep(t testing.TB, r *rand.Rand, s *Store, id TaskID, n int) {
	t.Helper()
	ctx := context.Background()
	task, err := s.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	command := func(c Command) {
		if r.IntN(9) == 0 {
			*c.Expected += int64(r.IntN(3)) - 1
		}
		if *c.Expected < 1 {
			return
		}
		if a := c.Action.Correct; a != nil && r.IntN(4) == 0 {
			a.Prompt = strings.Repeat("é\n", 1+r.IntN(300))
		}
		_, err = s.Apply(ctx, encoded(t, c))
	}
	event := func(ev Event) {
		epoch := Epoch(1)
		if task.Run != nil {
			epoch = task.Run.Epoch
		}
		if ev.OwnerLost {
			epoch++
		}
		if r.IntN(20) == 0 {
			epoch++
		}
		_, err = s.Append(ctx, id, epoch, ev)
	}
	name := fmt.Sprintf("%s-%d", id, n)
	switch r.IntN(13) {
	case 0:
		command(cancelOf(id, name, task.Revision))
	case 1, 2:
		command(correctOf(id, name, task.Revision))
	case 3, 4:
		command(continueOf(id, name, task.Revision))
	case 5, 6:
		event(Event{Admitted: admission(&task)})
	case 7:
		event(Event{EffectIntent: ptr(EffectID(id, task.Turn()))})
	case 8:
		event(Event{Spawned: &sandbox.Identity{PID: 1 + r.IntN(9), BootID: "b"}})
	case 9:
		res := exited(r.IntN(3))
		res.Reply = strings.Repeat("<\u0001", r.IntN(50))
		res.Cleanup = []byte(`{"left":[ ],"x":"\u00e9"}`)
		res.StopRequested = r.IntN(4) == 0
		event(Event{Result: res})
	case 10:
		res := exited(0)
		res.Ending, res.ExitCode = EndingOwnerEnded, nil
		event([]Event{{OwnerLost: true}, {Result: res}}[r.IntN(2)])
	case 11:
		event([]Event{{NotStarted: ptr("no room")}, {Worktree: &Worktree{Path: "/w/t", Base: strings.Repeat("a", 40), CommonDir: "/w/.git"}}}[r.IntN(2)])
	case 12:
		event([]Event{{Archived: &Archived{Reason: "r", By: "owner", At: 3}}, {Restored: true}}[r.IntN(2)])
	}
	if err != nil && !refused(err) {
		t.Fatal(err)
	}
}

// replayed is the state that the whole log gives, read by nothing but the rules.
func replayed(t testing.TB, log []byte) *state {
	t.Helper()
	st, err := replayAll(log)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func replayAll(log []byte) (*state, error) {
	r := strings.NewReader(string(log))
	st, err := start(r, int64(len(log)))
	if err != nil {
		return nil, err
	}
	_, err = st.follow(r, int64(len(log)), nil)
	if err == nil && st.task == nil {
		err = corrupt("the log has no submit")
	}
	return st, err
}

// heldAgainst fails unless what s reads of the task is what its whole log gives: the task and every receipt.
func heldAgainst(t testing.TB, s *Store, id TaskID) {
	t.Helper()
	want := replayed(t, readFile(t, logPath(s, id)))
	err := s.read(id, func(st *state) error {
		if !reflect.DeepEqual(st, want) {
			t.Fatalf("read\n%s\nwhere the log gives\n%s", mustJSON(st.task), mustJSON(want.task))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Whatever happens to a task, by this store, another one of this process or
// another goroutine of it, what is remembered is what the whole log gives.
func TestRememberedIsWhatTheLogGives(t *testing.T) {
	for seed := range histories(t, 5) {
		r := rand.New(rand.NewPCG(seed, 1))
		home := quickHome(t)
		stores := []*Store{quickStore(t, home, true), quickStore(t, home, false)}
		mustApply(t, stores[0], submitOf("a", "c0"))
		for n := range 150 {
			randomStep(t, r, stores[r.IntN(2)], "a", n)
			if n%10 == 0 {
				heldAgainst(t, stores[r.IntN(2)], "a")
			}
		}
		for _, s := range append(stores, quickStore(t, home, false)) {
			heldAgainst(t, s, "a")
		}
	}
}

// A transition never changes the task that it starts from, which others hold.
func TestTransitionsAreSharedSafely(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	s := quickStore(t, quickHome(t), true)
	mustApply(t, s, submitOf("a", "c0"))
	var held []*Task
	var said [][]byte
	for n := range 300 {
		randomStep(t, r, s, "a", n)
		s.read("a", func(st *state) error {
			held, said = append(held, st.task), append(said, mustJSON(st.task))
			return nil
		})
	}
	for i := range held {
		if string(mustJSON(held[i])) != string(said[i]) {
			t.Fatalf("the task as of step %d was written to later", i)
		}
	}
	// Two futures of one task do not meet.
	for _, task := range held {
		next := func(c Command) *Task {
			n, err := NextCommand(task, c, fixedClock().Unix())
			if err != nil {
				t.Fatal(err)
			}
			return &n
		}
		one := next(correctOf("a", "one", task.Revision))
		before := string(mustJSON(one))
		next(correctOf("a", "two", task.Revision))
		if string(mustJSON(one)) != before {
			t.Fatal("a correction was written into another's list")
		}
	}
}

// What was read is believed only while nothing at all was done to the file.
func TestRememberedIsForgottenOnDoubt(t *testing.T) {
	flip := func(path string) error { // one byte of the prompt, nothing else
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		b, err := io.ReadAll(f)
		if err != nil {
			return err
		}
		at := strings.Index(string(b), "do <it>")
		_, err = f.WriteAt([]byte("D"), int64(at))
		return err
	}
	for _, row := range []struct {
		name string
		do   func(path string) error
		want error
	}{
		{"untouched", func(string) error { return nil }, nil},
		{"read by others", func(path string) error { _, err := os.ReadFile(path); return err }, nil},
		{"a byte changed", flip, ErrCorrupt},
		{"a byte changed and the time put back", func(path string) error {
			fi, err := os.Stat(path)
			if err != nil {
				return err
			}
			return errors.Join(flip(path), os.Chtimes(path, fi.ModTime(), fi.ModTime()))
		}, ErrCorrupt},
		{"replaced by a copy", func(path string) error {
			b, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path+".new", b, 0o600), os.Rename(path+".new", path))
		}, ErrCorrupt},
		{"cut", func(path string) error { return os.Truncate(path, 200) }, ErrCorrupt},
		{"open to the group", func(path string) error { return os.Chmod(path, 0o640) }, ErrUnsafe},
		{"a second link", func(path string) error { return os.Link(path, path+".second") }, ErrUnsafe},
		{"a symbolic link", func(path string) error {
			return errors.Join(os.Rename(path, path+".moved"), os.Symlink(path+".moved", path))
		}, ErrUnsafe},
		{"folder open to the group", func(path string) error { return os.Chmod(filepath.Dir(path), 0o750) }, ErrUnsafe},
		{"folder a symbolic link", func(path string) error {
			dir := filepath.Dir(path)
			return errors.Join(os.Rename(dir, dir+".moved"), os.Symlink(dir+".moved", dir))
		}, ErrUnsafe},
		{"opened up and closed again", func(path string) error {
			return errors.Join(os.Chmod(path, 0o640), os.Chmod(path, 0o600))
		}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := newStore(t)
			mustApply(t, s, submitOf(deviceTask, "c1"))
			before, err := s.Get(deviceTask)
			if err != nil {
				t.Fatal(err)
			}
			path := logPath(s, deviceTask)
			passTick(t, path)
			if err := row.do(path); err != nil {
				t.Fatal(err)
			}
			after, err := s.Get(deviceTask)
			if !errors.Is(err, row.want) || row.want == nil && (err != nil || !reflect.DeepEqual(before, after)) {
				t.Fatalf("got %v, want %v", err, row.want)
			}
		})
	}
}

// passTick returns when a change made now gets another time than the one that path has: the kernel's clock of files
// may go in ticks.
func passTick(t *testing.T, path string) {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	probe := filepath.Join(t.TempDir(), "probe")
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		writeFile(t, probe, []byte("x"))
		if now, err := os.Stat(probe); err == nil && now.ModTime().Sub(fi.ModTime()) > 10*time.Millisecond {
			return
		}
	}
	t.Fatal("the clock of files stands still")
}

// Readers of the process that writes never see anything but the history, in
// order, and see each record at the latest when its writer was told of it.
func TestReadersBesideTheWriter(t *testing.T) {
	s := newStore(t)
	mustApply(t, s, submitOf("a", "c0"))
	mustApply(t, s, cancelOf("a", "c1", 1))
	const records = 60
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for last := int64(0); ; {
				task, err := s.Get("a")
				if err != nil || task.Revision < last || (task.Archived != nil) != (task.Revision%2 == 1) {
					t.Errorf("revision %d after %d, archived %v: %v", task.Revision, last, task.Archived, err)
					return
				}
				last = task.Revision
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range records {
		ev := Event{Archived: &Archived{Reason: "r", By: "owner", At: 3}}
		if i%2 == 1 {
			ev = Event{Restored: true}
		}
		told := mustAppend(t, s, "a", 0, ev)
		if task, err := s.Get("a"); err != nil || task.Revision != told.Revision {
			t.Fatalf("told of revision %d, read %d: %v", told.Revision, task.Revision, err)
		}
	}
	close(done)
	wg.Wait()
}
