package owner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

func init() { testChildren["store-archive"] = childArchive }

// archiveN archives and restores an ended task, n records in all.
func archiveN(s *Store, id TaskID, n int) error {
	for i := range n {
		ev := Event{Archived: &Archived{Reason: "r", By: "owner", At: 3}}
		if i%2 == 1 {
			ev = Event{Restored: true}
		}
		if _, err := s.Append(context.Background(), id, 0, ev); err != nil {
			return err
		}
	}
	return nil
}

// childArchive adds args[2] records to the task args[1] in the home args[0].
func childArchive(args []string) int {
	s, err := open(args[0], Options{Now: fixedClock}, noWait{atomicfile.OS})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer s.Close()
	n, _ := strconv.Atoi(args[2])
	if err := archiveN(s, TaskID(args[1]), n); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// longTask is a store whose task "a" has a random history with a checkpoint in it, and its folder.
func longTask(t testing.TB, seed uint64) (*Store, *saferead.Dir) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 2))
	s := quickStore(t, quickHome(t), true)
	if _, err := s.PutBlob([]byte("grant")); err != nil {
		t.Fatal(err)
	}
	mustApply(t, s, submitOf("a", "c0"))
	d, err := s.taskDir("a")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	for n := 0; ; n++ {
		randomStep(t, r, s, "a", n)
		task, err := s.Get("a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Peek("", checkpointName); err == nil && task.Revision%7 == 0 {
			return s, d
		}
		if n > 20_000 {
			t.Fatalf("no checkpoint at revision %d", task.Revision)
		}
		if task.Status == StatusUnknown || len(task.Earlier) > 50 || n%300 == 299 && task.Ended() && task.Archived == nil {
			// Nothing more would happen, or too slowly.
			if task.Ended() && task.Archived == nil {
				if err := archiveN(s, "a", 40); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// cold is what a process that knows nothing reads of the task in d, and whether from the checkpoint.
func cold(t testing.TB, d *saferead.Dir) (st *state, checkpointed bool, err error) {
	t.Helper()
	f, err := atomicfile.OS.Open(d, logName, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var e entry
	err = e.refresh(d, f, "a")
	return e.st, e.kept.end > 0, err
}

// sameAs fails unless a cold read, from a checkpoint or not, ends as replaying the whole log did.
func sameAs(t testing.TB, d *saferead.Dir, want *state, wantErr error, what string) (checkpointed bool) {
	t.Helper()
	st, checkpointed, err := cold(t, d)
	if wantErr != nil {
		if fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Fatalf("%s: read %v, the log gives %v", what, err, wantErr)
		}
		return checkpointed
	}
	if err != nil || !reflect.DeepEqual(st, want) {
		t.Fatalf("%s: read %+v, %v\nthe log gives %+v", what, st, err, want)
	}
	return checkpointed
}

// histories is how many random ones are tried; HOLDFAST_HISTORIES=50 takes minutes.
func histories(t *testing.T, usual int) uint64 {
	t.Helper()
	if n, err := strconv.Atoi(os.Getenv("HOLDFAST_HISTORIES")); err == nil {
		usual = n
	}
	t.Logf("%d histories; HOLDFAST_HISTORIES=N tries N", usual)
	return uint64(usual)
}

// A read that starts from a checkpoint is the replay of the whole log: of
// random histories, with a tail torn at every byte, and with any byte of the
// log or of the checkpoint changed.
func TestCheckpointIsWhatTheLogGives(t *testing.T) {
	for seed := range histories(t, 1) {
		s, d := longTask(t, seed)
		wantSound(t, s)
		path, cpath := logPath(s, "a"), filepath.Join(s.TaskDir("a"), checkpointName)
		log, check := readFile(t, path), readFile(t, cpath)
		whole := replayed(t, log)
		if !sameAs(t, d, whole, nil, "as it is") {
			t.Fatal("the checkpoint was not used")
		}
		kept, err := decodeCheckpoint(check)
		if err != nil {
			t.Fatal(err)
		}
		// The last record torn at every byte, then earlier ones.
		bounds := frames(t, log)
		last := bounds[len(bounds)-2]
		before := replayed(t, log[:last])
		for n := last; n < int64(len(log)); n += max(1, (int64(len(log))-last)/300) {
			writeFile(t, path, log[:n])
			if !sameAs(t, d, before, nil, fmt.Sprintf("cut at %d of %d", n, len(log))) {
				t.Fatalf("cut at %d: the checkpoint at %d was not used", n, kept.end)
			}
		}
		for _, n := range []int64{kept.end, kept.end - 1, bounds[len(bounds)/2], bounds[1] + 3, 5} {
			writeFile(t, path, log[:n])
			want, wantErr := replayAll(log[:n])
			if used := sameAs(t, d, want, wantErr, fmt.Sprintf("cut at %d", n)); used != (n >= kept.end) {
				t.Fatalf("cut at %d: the checkpoint at %d was used: %v", n, kept.end, used)
			}
		}
		r := rand.New(rand.NewPCG(seed, 3))
		for i := range 40 {
			at := r.IntN(len(log))
			if i%2 == 0 { // the heads of some frames
				at = int(bounds[r.IntN(len(bounds)-1)]) + r.IntN(frameHead)
			}
			b := bytes.Clone(log)
			b[at] ^= byte(1 + r.IntN(255))
			writeFile(t, path, b)
			want, wantErr := replayAll(b)
			if sameAs(t, d, want, wantErr, fmt.Sprintf("byte %d changed", at)) && int64(at) < kept.end {
				t.Fatalf("byte %d changed: the checkpoint at %d was used", at, kept.end)
			}
		}
		writeFile(t, path, log)
		for i := range checkpointHead + 60 {
			at := i
			if i >= checkpointHead {
				at = r.IntN(len(check))
			}
			b := bytes.Clone(check)
			b[at] ^= byte(1 + r.IntN(255))
			writeFile(t, cpath, b)
			if _, err := decodeCheckpoint(b); err == nil {
				t.Fatalf("a checkpoint with byte %d changed was read", at)
			}
			if _, err := decodeCheckpoint(check[:at]); err == nil {
				t.Fatalf("a checkpoint cut at byte %d was read", at)
			}
			if i%20 == 0 && sameAs(t, d, whole, nil, fmt.Sprintf("byte %d of the checkpoint changed", at)) {
				t.Fatalf("a checkpoint with byte %d changed was used", at)
			}
		}
	}
}

// While another process adds to the task, whoever reads it cold sees a state that it had.
func TestCheckpointBesideAnotherProcess(t *testing.T) {
	s := quickStore(t, quickHome(t), true)
	mustApply(t, s, submitOf("a", "c0"))
	mustApply(t, s, cancelOf("a", "c1", 1))
	const records = 3 * checkpointEvery
	d, err := s.taskDir("a")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	cmd := exec.Command(os.Args[0], "store-archive", s.Home(), "a", fmt.Sprint(records))
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	read := map[int64]*state{}
	for running := true; running; {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("%v: %s", err, &out)
			}
			running = false
		default:
		}
		st, _, err := cold(t, d)
		if errors.Is(err, ErrCorrupt) && running {
			continue // a writer seen half way; Store.read asks again under the lock
		}
		if err != nil {
			t.Fatal(err)
		}
		read[st.sequence] = st
		if task, err := s.Get("a"); err != nil || task.Revision < st.task.Revision {
			t.Fatalf("revision %d after %d: %v", task.Revision, st.task.Revision, err)
		}
	}
	log := readFile(t, logPath(s, "a"))
	now, err := start(bytes.NewReader(log), int64(len(log)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := now.follow(bytes.NewReader(log), int64(len(log)), func(frame) {
		if st := read[now.sequence]; st != nil && !reflect.DeepEqual(st, now) {
			t.Fatalf("read %+v at record %d, which was %+v", st, now.sequence, now)
		}
	}); err != nil || now.sequence != records+2 {
		t.Fatal(now.sequence, err)
	}
	if !sameAs(t, d, now, nil, "at the end") {
		t.Fatal("the checkpoint was not used")
	}
	wantSound(t, s)
	t.Logf("%d states were seen of %d", len(read), now.sequence)
}

// resealed is a checkpoint with its JSON changed and a good checksum.
func resealed(t *testing.T, b []byte, change func(*state)) []byte {
	t.Helper()
	st, err := decodeCheckpoint(b)
	if err != nil {
		t.Fatal(err)
	}
	change(st)
	if b = encodeCheckpoint(st); b == nil {
		t.Fatal("the forgery does not encode")
	}
	return b
}

func TestForgedCheckpoint(t *testing.T) {
	s := quickStore(t, quickHome(t), true)
	mustApply(t, s, submitOf("a", "c0"))
	mustApply(t, s, cancelOf("a", "c1", 1))
	if err := archiveN(s, "a", checkpointEvery+20); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.TaskDir("a"), checkpointName)
	good, log := readFile(t, path), readFile(t, logPath(s, "a"))
	newer := bytes.Clone(good)
	binary.BigEndian.PutUint32(newer[len(checkpointMagic):], checkpointVersion+1)
	sum := sha256.Sum256(newer[:len(newer)-sha256.Size])
	copy(newer[len(newer)-sha256.Size:], sum[:])
	shaped := bytes.Clone(good)
	shaped[len(checkpointMagic)+4] ^= 1
	sum = sha256.Sum256(shaped[:len(shaped)-sha256.Size])
	copy(shaped[len(shaped)-sha256.Size:], sum[:])
	for _, row := range []struct {
		name  string
		place func() error
		check error // what holdfast check says
		read  bool  // whether a reader starts from it
	}{
		{"as it was made", func() error { return nil }, nil, true},
		{"forged state", func() error {
			writeFile(t, path, resealed(t, good, func(st *state) { st.task.Status = Finished }))
			return nil
		}, ErrCorrupt, true},
		{"forged receipt", func() error {
			writeFile(t, path, resealed(t, good, func(st *state) {
				r := st.commands["c1"].receipt
				r.Revision++
				st.commands["c1"] = done{r.RequestDigest, r}
			}))
			return nil
		}, ErrCorrupt, true},
		{"forged sequence", func() error {
			writeFile(t, path, resealed(t, good, func(st *state) { st.sequence++ }))
			return nil
		}, ErrCorrupt, false},
		{"forged place", func() error {
			writeFile(t, path, resealed(t, good, func(st *state) { st.end-- }))
			return nil
		}, ErrCorrupt, false},
		{"forged hash", func() error {
			writeFile(t, path, resealed(t, good, func(st *state) { st.last[3]++ }))
			return nil
		}, ErrCorrupt, false},
		{"of another task", func() error {
			writeFile(t, path, resealed(t, good, func(st *state) { st.id, st.task.ID = "b", "b" }))
			return nil
		}, ErrCorrupt, false},
		{"of a longer log", func() error { writeFile(t, logPath(s, "a"), log[:frames(t, log)[9]]); return nil }, ErrCorrupt, false},
		{"of a later version", func() error { writeFile(t, path, newer); return nil }, nil, false},
		{"of other members", func() error { writeFile(t, path, shaped); return nil }, nil, false},
		{"half", func() error { writeFile(t, path, good[:len(good)/2]); return nil }, nil, false},
		{"empty", func() error { writeFile(t, path, nil); return nil }, nil, false},
		{"none", func() error { return os.Remove(path) }, nil, false},
		{"open to the group", func() error { return os.Chmod(path, 0o640) }, ErrCorrupt, false},
		{"a second link", func() error { return os.Link(path, path+".second") }, ErrCorrupt, false},
		{"a symbolic link", func() error {
			return errors.Join(os.Rename(path, path+".moved"), os.Symlink(path+".moved", path))
		}, ErrCorrupt, false},
		{"a folder", func() error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, ErrCorrupt, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Cleanup(func() {
				for _, p := range []string{path, path + ".second", path + ".moved"} {
					os.RemoveAll(p)
				}
				writeFile(t, path, good)
				writeFile(t, logPath(s, "a"), log)
			})
			if err := row.place(); err != nil {
				t.Fatal(err)
			}
			fresh := quickStore(t, s.Home(), false)
			named := ""
			err := fresh.Check(func(path string, ok bool, detail string) {
				if !ok {
					named += filepath.Base(path) + " " + detail
				}
			})
			if !errors.Is(err, row.check) || row.check == nil && err != nil || err != nil && !strings.HasPrefix(named, checkpointName) {
				t.Fatalf("check: %v, %q", err, named)
			}
			d, err := fresh.taskDir("a")
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			st, used, err := cold(t, d)
			if err != nil || used != row.read {
				t.Fatalf("used %v, %v", used, err)
			}
			if want := replayed(t, readFile(t, logPath(s, "a"))); !row.read && !reflect.DeepEqual(st, want) {
				t.Fatal("read something else than the log")
			}
		})
	}
}

// Whatever fails while a checkpoint is made, the record before it holds, the
// store goes on, and nothing but the checkpoint is missing.
func TestCheckpointCrashAtEveryOperation(t *testing.T) {
	home := quickHome(t)
	s := quickStore(t, home, true)
	mustApply(t, s, submitOf("a", "c0"))
	mustApply(t, s, cancelOf("a", "c1", 1))
	if err := archiveN(s, "a", checkpointEvery-3); err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"error", "short", "kill", "cut", "cut-half", "cut-zeros"} {
		for at := 1; ; at++ {
			to := filepath.Join(filepath.Dir(home), fmt.Sprint(how, at))
			if err := os.CopyFS(to, os.DirFS(home)); err != nil {
				t.Fatal(err)
			}
			private(t, to)
			disk := newFailFS(at, how)
			other, err := open(to, Options{Now: fixedClock}, disk)
			if err != nil {
				t.Fatal(err)
			}
			_, err = other.Append(t.Context(), "a", 0, Event{Restored: true})
			other.Close()
			checkpointing := strings.Contains(disk.failed, checkpointName)
			if (err == nil) != (checkpointing || disk.failed == "") {
				t.Fatalf("%s, failing %q: %v", how, disk.failed, err)
			}
			if strings.HasPrefix(how, "cut") && checkpointing {
				// What a power cut leaves of a file that was never synced, its name included.
				b, _ := os.ReadFile(filepath.Join(to, "tasks", dirName("a"), checkpointTemp))
				if how == "cut-zeros" {
					b = make([]byte, len(b))
				}
				writeFile(t, filepath.Join(to, "tasks", dirName("a"), checkpointName), b)
			}
			after := quickStore(t, to, false)
			wantSound(t, after)
			heldAgainst(t, after, "a")
			if task, err := after.Get("a"); err != nil || checkpointing && task.Revision != checkpointEvery {
				t.Fatalf("%s, failing %q: revision %d, %v", how, disk.failed, task.Revision, err)
			}
			after.Close()
			os.RemoveAll(to)
			if disk.failed == "" {
				break
			}
		}
	}
}

// private gives a copied store the modes that it had.
func private(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return errors.Join(err, os.Chmod(path, 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// tally counts what is read and written.
type tally struct {
	atomicfile.FS
	calls, bytes *int
}

type tallyFile struct {
	atomicfile.File
	c tally
}

func (c tally) SyncDir(*saferead.Dir) error { *c.calls++; return nil }
func (c tally) Open(d *saferead.Dir, name string, flag int) (atomicfile.File, error) {
	*c.calls++
	f, err := c.FS.Open(d, name, flag)
	if err != nil {
		return nil, err
	}
	return tallyFile{f, c}, nil
}
func (f tallyFile) Sync() error { *f.c.calls++; return nil }
func (f tallyFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(b, off)
	*f.c.calls++
	*f.c.bytes += n
	return n, err
}
func (f tallyFile) WriteAt(b []byte, off int64) (int, error) {
	*f.c.calls++
	*f.c.bytes += len(b)
	return f.File.WriteAt(b, off)
}

// The ten thousandth event of a task costs what the tenth did: in files
// opened, calls and bytes, but for a checkpoint now and then; and reading the
// task between costs no file at all.
func TestTenThousandEventsCostTheSameEach(t *testing.T) {
	c := tally{atomicfile.OS, new(int), new(int)}
	s, err := open(quickHome(t), Options{Now: fixedClock, Create: true}, c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mustApply(t, s, submitOf("a", "c0"))
	mustApply(t, s, cancelOf("a", "c1", 1))
	if err := archiveN(s, "a", 10); err != nil {
		t.Fatal(err)
	}
	const events = 10_000
	first, most, all, over := 0, 0, *c.bytes, 0
	firstCalls := 0
	for n := range events / 2 {
		calls, size := *c.calls, *c.bytes
		if err := archiveN(s, "a", 2); err != nil {
			t.Fatal(err)
		}
		calls, size = *c.calls-calls, *c.bytes-size
		if n == 0 {
			first, firstCalls = size, calls
		}
		most = max(most, size)
		if calls != firstCalls || size > first+16 { // a number gets longer
			over++
		}
		was := *c.calls
		if task, err := s.Get("a"); err != nil || task.Revision != int64(14+2*n) || *c.calls != was {
			t.Fatalf("revision %d, %d calls: %v", task.Revision, *c.calls-was, err)
		}
	}
	if want := events / checkpointEvery; over > want+1 || most > 8<<10 || *c.bytes-all > 2*events*first {
		t.Fatalf("two events: %d bytes and %d calls first, %d at most, more %d times, %d in all", first, firstCalls, most, over, *c.bytes-all)
	}
	heldAgainst(t, quickStore(t, s.Home(), false), "a")
}
