package owner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

// failFS fails the operation number at, and keeps what a power cut would
// leave: of each file the content at its last sync, of each folder the names
// at its last sync.
type failFS struct {
	mu     sync.Mutex // guards all below
	at     int
	how    string // error, short, kill, cut, cut-half, cut-zeros
	n      int
	dead   bool
	failed string // the operation that was failed
	files  map[uint64][]byte
	names  map[string]map[string]uint64 // folder -> name -> inode, 0 for a folder
}

var errInjected = fmt.Errorf("injected: %w", syscall.EIO)

func newFailFS(at int, how string) *failFS {
	return &failFS{at: at, how: how, files: map[uint64][]byte{}, names: map[string]map[string]uint64{}}
}

// step counts one changing operation and says whether it fails.
func (f *failFS) step(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return errInjected
	}
	f.n++
	if f.n != f.at {
		return nil
	}
	f.failed = what
	f.dead = f.how != "error" && f.how != "short"
	return errInjected
}

func (f *failFS) Open(d *saferead.Dir, name string, flag int) (atomicfile.File, error) {
	_, missing := os.Lstat(filepath.Join(d.Path(), name))
	if flag&os.O_CREATE != 0 && missing != nil {
		if err := f.step("create " + name); err != nil {
			return nil, err
		}
	}
	file, err := atomicfile.OS.Open(d, name, flag)
	if err != nil {
		return nil, err
	}
	return &failFile{file, f, name}, nil
}

func (f *failFS) Mkdir(d *saferead.Dir, name string) error {
	if _, err := os.Lstat(filepath.Join(d.Path(), name)); err == nil {
		return fs.ErrExist
	}
	if err := f.step("mkdir " + name); err != nil {
		return err
	}
	return atomicfile.OS.Mkdir(d, name)
}

func (f *failFS) Rename(d *saferead.Dir, from, to string) error {
	if err := f.step("rename to " + to); err != nil {
		return err
	}
	return atomicfile.OS.Rename(d, from, to)
}

func (f *failFS) Remove(d *saferead.Dir, name string) error {
	if err := f.step("remove"); err != nil {
		return err
	}
	return atomicfile.OS.Remove(d, name)
}

func (f *failFS) SyncDir(d *saferead.Dir) error {
	if err := f.step("sync folder " + filepath.Base(d.Path())); err != nil {
		return err
	}
	names := map[string]uint64{}
	list, err := os.ReadDir(d.Path())
	if err != nil {
		return err
	}
	for _, e := range list {
		fi, err := e.Info()
		if err != nil {
			return err
		}
		names[e.Name()] = 0
		if !e.IsDir() {
			names[e.Name()] = fi.Sys().(*syscall.Stat_t).Ino
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.names[d.Path()] = names
	return nil
}

type failFile struct {
	atomicfile.File
	fs   *failFS
	name string
}

func (f *failFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.fs.step("write " + f.name); err != nil {
		if f.fs.how == "short" || f.fs.dead {
			n, _ := f.File.WriteAt(b[:len(b)/2], off)
			return n, err
		}
		return 0, err
	}
	return f.File.WriteAt(b, off)
}

func (f *failFile) Truncate(n int64) error {
	if err := f.fs.step("truncate " + f.name); err != nil {
		return err
	}
	return f.File.Truncate(n)
}

func (f *failFile) Sync() error {
	if err := f.fs.step("sync " + f.name); err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	b := make([]byte, fi.Size())
	if _, err := f.ReadAt(b, 0); err != nil && len(b) > 0 {
		return err
	}
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.fs.files[fi.Sys().(*syscall.Stat_t).Ino] = b
	return nil
}

// restart builds at to what the machine finds after a power cut at home.
func (f *failFS) restart(t *testing.T, home, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, ino := range f.names[home] {
		from, to := filepath.Join(home, name), filepath.Join(to, name)
		if ino == 0 {
			f.restart(t, from, to)
			continue
		}
		synced := f.files[ino]
		now, err := os.ReadFile(from)
		if err == nil && bytes.HasPrefix(now, synced) {
			tail := now[len(synced):]
			switch f.how {
			case "cut-half":
				synced = append(bytes.Clone(synced), tail[:len(tail)/2]...)
			case "cut-zeros":
				synced = append(bytes.Clone(synced), make([]byte, len(tail))...)
			}
		}
		writeFile(t, to, synced)
	}
}

// scriptStep is one step of a store's life. do must be safe to repeat: it
// looks first, as callers do.
type scriptStep struct {
	name  string
	do    func(s *Store) (ack string, err error) // what was acknowledged
	there func(s *Store) bool                    // whether the store holds what do did
}

var secondTask = TaskID("second.task")

func crashScript(t *testing.T) []scriptStep {
	command := func(c Command) scriptStep {
		return scriptStep{c.CommandID, func(s *Store) (string, error) {
			r, err := s.Apply(context.Background(), encoded(t, c))
			return string(mustJSON(r)), err
		}, func(s *Store) (there bool) {
			s.read(c.TaskID, func(st *state) error {
				_, there = st.commands[c.CommandID]
				return nil
			})
			return there
		}}
	}
	event := func(name string, done func(Task) bool, ev func(Task) Event) scriptStep {
		there := func(s *Store) bool {
			task, err := s.Get(deviceTask)
			return err == nil && done(task)
		}
		return scriptStep{name, func(s *Store) (string, error) {
			task, err := s.Get(deviceTask)
			if err != nil || done(task) {
				return "there", err
			}
			_, err = s.Append(context.Background(), deviceTask, 1, ev(task))
			return "there", err
		}, there}
	}
	// The index is a hint: what a failure leaves of it must not be wrong, which wantSound sees.
	index := func(name string, do func(s *Store) error) scriptStep {
		return scriptStep{name, func(s *Store) (string, error) { return "", do(s) }, func(*Store) bool { return true }}
	}
	putAway := func(s *Store) error {
		_, err := s.PutAway(context.Background(), []TaskID{deviceTask, secondTask})
		return err
	}
	return []scriptStep{
		command(submitOf(deviceTask, "c1")),
		{"grant", func(s *Store) (string, error) {
			d, err := s.PutBlob([]byte("grant"))
			return string(d), err
		}, func(s *Store) bool {
			_, err := s.GetBlob(DigestOf([]byte("grant")), 100)
			return err == nil
		}},
		event("admitted", func(t Task) bool { return t.Run != nil }, func(t Task) Event { return Event{Admitted: admission(&t)} }),
		event("intent", func(t Task) bool { return t.Run != nil && t.Run.EffectID != "" }, func(t Task) Event { return Event{EffectIntent: ptr(EffectID(t.ID, 1))} }),
		command(submitOf(secondTask, "c2")),
		command(cancelOf(deviceTask, "c3", 3)),
		event("result", func(t Task) bool { return t.Run != nil && t.Run.Result != nil }, func(Task) Event { return Event{Result: exited(0)} }),
		command(cancelOf(secondTask, "c4", 1)),
		command(correctOf(deviceTask, "c5", 5)),
		index("index", func(s *Store) error {
			return s.Reindex(context.Background(), func(_ context.Context, id TaskID) (*Task, error) {
				task, err := s.Get(id)
				return &task, err
			})
		}),
		index("put away", putAway),
		// Nobody asks for this, and a disk may do it at any time: from here on a task is live by what it does next alone.
		index("the removals reach the disk", func(s *Store) error {
			d, err := s.liveDir(true)
			if err != nil {
				return err
			}
			return s.fs.SyncDir(d)
		}),
		command(continueOf(secondTask, "c6", 2)), // live again
		command(cancelOf(secondTask, "c7", 3)),
		index("put away again", putAway),
		command(correctOf(deviceTask, "c8", 6)),
	}
}

// memDir is a folder in memory where there is one: these tests make hundreds
// of stores, and lose what was not synced by themselves.
func memDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Three invariants, whatever operation fails and however: what was
// acknowledged is there with the same receipt; the checker finds nothing; and
// the same steps bring the store to the same end, nothing having been done
// twice. "kill-retry-cut" is a process that dies between a write and its sync,
// another that answers the retry of what it finds, and then a power cut.
func TestCrashAtEveryOperation(t *testing.T) {
	script := crashScript(t)
	want := ""
	for _, how := range []string{"error", "short", "kill", "cut", "cut-half", "cut-zeros", "kill-retry-cut"} {
		t.Run(how, func(t *testing.T) {
			base := memDir(t)
			for at := 1; ; at++ {
				home := filepath.Join(base, fmt.Sprint(at))
				if err := os.Mkdir(home, 0o700); err != nil {
					t.Fatal(err)
				}
				disk := newFailFS(at, how)
				acked := runUntilFailure(t, home, disk, script)
				if how == "kill-retry-cut" && disk.dead {
					disk.dead = false
					acked = runUntilFailure(t, home, disk, script[:len(acked)+1])
				}
				if strings.Contains(how, "cut") {
					after := home + "-restarted"
					disk.restart(t, home, after)
					os.RemoveAll(home)
					home = after
				}
				got := finish(t, home, script, acked, disk.failed)
				if want == "" {
					want = got
				}
				if got != want {
					t.Fatalf("failing %q (operation %d) ends in\n%s\nnot\n%s", disk.failed, at, got, want)
				}
				if t.Failed() {
					t.Fatalf("after failing %q (operation %d)", disk.failed, at)
				}
				os.RemoveAll(home)
				if disk.failed == "" {
					if at < 60 {
						t.Fatalf("only %d operations: the script is not seen", at)
					}
					return
				}
			}
		})
	}
}

// runUntilFailure performs the script; where the process lives on after a
// failure it goes on, as a caller would that retries.
func runUntilFailure(t *testing.T, home string, disk *failFS, script []scriptStep) map[string]string {
	t.Helper()
	acked := map[string]string{}
	s, err := open(home, Options{Now: fixedClock, Create: true}, disk)
	if err != nil {
		return acked
	}
	defer func() { s.Close() }()
	for _, step := range script {
		for try := 0; ; try++ {
			ack, err := step.do(s)
			if err == nil {
				acked[step.name] = ack
				break
			}
			if disk.dead {
				return acked
			}
			if refused(err) || try > 2 {
				t.Fatalf("%s after failing %q: %v", step.name, disk.failed, err)
			}
			if errors.Is(err, ErrReopen) {
				if _, err := step.do(s); !errors.Is(err, ErrReopen) && step.name[0] == 'c' {
					t.Fatalf("%s: a store with an unknown write goes on: %v", step.name, err)
				}
				s.Close()
				if s, err = open(home, Options{Now: fixedClock}, disk); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return acked
}

// finish opens what is left, compares, and performs the whole script again.
func finish(t *testing.T, home string, script []scriptStep, acked map[string]string, failed string) string {
	t.Helper()
	s, err := open(home, Options{Now: fixedClock, Create: true}, newFailFS(0, "error")) // fails nothing, and waits for no disk
	if err != nil {
		t.Fatalf("after failing %q: %v", failed, err)
	}
	defer s.Close()
	wantSound(t, s)
	for _, step := range script {
		before, ok := acked[step.name]
		if ok && !step.there(s) {
			t.Errorf("%s was acknowledged and is lost", step.name)
		}
		ack, err := step.do(s)
		if err != nil {
			t.Fatalf("%s again after failing %q: %v", step.name, failed, err)
		}
		if ok && before != ack {
			t.Errorf("%s was acknowledged as %s and now is %s", step.name, before, ack)
		}
	}
	wantSound(t, s)
	var end strings.Builder
	ids, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		task, err := s.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&end, "%s\n", mustJSON(task))
	}
	return end.String()
}

// A process dies after its submit is visible and before its name is durable;
// another adds to the task, and what it acknowledges holds.
func TestAppendToALogThatANotherProcessMade(t *testing.T) {
	for at := 1; ; at++ {
		home := filepath.Join(memDir(t), "home")
		if err := os.Mkdir(home, 0o700); err != nil {
			t.Fatal(err)
		}
		disk := newFailFS(at, "kill-retry-cut")
		runUntilFailure(t, home, disk, crashScript(t)[:1])
		if disk.failed == "" {
			t.Fatal("the sync of the folder was never failed")
		}
		if disk.failed != "sync folder "+dirName(deviceTask) {
			continue
		}
		disk.dead = false
		s, err := open(home, Options{Now: fixedClock}, disk)
		if err != nil {
			t.Fatal(err)
		}
		mustApply(t, s, cancelOf(deviceTask, "other", 1))
		s.Close()
		disk.restart(t, home, home+"-restarted")
		after := openStore(t, home+"-restarted", false)
		if task, err := after.Get(deviceTask); err != nil || task.Status != Cancelled {
			t.Fatalf("%v, status %s", err, task.Status)
		}
		return
	}
}
