package owner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
	"holdfast/sandbox"
)

// tightDisk is a disk that runs full: writes beyond room go in half, as far as they fit, and fail.
type tightDisk struct {
	atomicfile.FS
	room int64
}

func (d *tightDisk) Open(dir *saferead.Dir, name string, flag int) (atomicfile.File, error) {
	f, err := d.FS.Open(dir, name, flag)
	if err != nil || strings.HasSuffix(name, ".index") {
		return f, err
	}
	return &tightFile{File: f, disk: d}, nil
}

type tightFile struct {
	atomicfile.File
	disk *tightDisk
}

func (f *tightFile) WriteAt(b []byte, off int64) (int, error) {
	fits := min(int64(len(b)), f.disk.room)
	n, err := f.File.WriteAt(b[:fits], off)
	f.disk.room -= int64(n)
	if err == nil && n < len(b) {
		err = &os.PathError{Op: "write", Path: "tight", Err: syscall.ENOSPC}
	}
	return n, err
}

func (f *tightFile) Truncate(size int64) error {
	info, err := f.File.Stat()
	if err == nil {
		f.disk.room += max(0, info.Size()-size)
		err = f.File.Truncate(size)
	}
	return err
}

// counted is a patience that calls more instead of sleeping.
func counted(more func(waits int)) patience {
	waits := 0
	return patience{sleep: func(ctx context.Context, d time.Duration) error {
		if d != roomStep {
			return errors.New("another step than roomStep")
		}
		waits++
		more(waits)
		return ctx.Err()
	}}
}

// privateDir is a folder as a task's is.
func privateDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "task")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTranscriptWaitsForRoom(t *testing.T) {
	dir := privateDir(t)
	disk := &tightDisk{FS: atomicfile.OS, room: 400}
	waited := 0
	tr, err := newTranscript(context.Background(), dir, 1, session{ID: "t-1"}, disk, time.Now, counted(func(waits int) {
		waited++
		// While it waits, no half-written line stands in the file.
		if b := readFile(t, filepath.Join(dir, TraceName(1))); len(b) > 0 && b[len(b)-1] != '\n' {
			t.Errorf("a torn line while waiting: %q", b)
		}
		disk.room += 100
	}))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := tr.step(context.Background(), traceStep{source: "agent", message: strings.Repeat("x", 200)}); err != nil {
			t.Fatal(err)
		}
	}
	digest, err := tr.seal(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if waited == 0 {
		t.Fatal("the disk never was full")
	}
	path := filepath.Join(dir, TraceName(1))
	if digest != DigestOf(readFile(t, path)) {
		t.Fatal("the digest is of other bytes")
	}
	if n := len(traceLines(t, path)); n != 12 {
		t.Fatalf("%d lines", n)
	}
}

func TestTranscriptGivesUpAfterTenMinutes(t *testing.T) {
	disk := &tightDisk{FS: atomicfile.OS, room: 300}
	waited := 0
	tr, err := newTranscript(context.Background(), privateDir(t), 1, session{ID: "t-1"}, disk, time.Now, counted(func(n int) { waited = n }))
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	err = tr.step(context.Background(), traceStep{source: "agent", message: strings.Repeat("x", 400)})
	if !errors.Is(err, errStillFull) || !errors.Is(err, syscall.ENOSPC) || waited != int(roomWait/roomStep) {
		t.Fatalf("%v after %d waits", err, waited)
	}
}

func TestTranscriptIsExclusive(t *testing.T) {
	dir := privateDir(t)
	for i := range 2 {
		tr, err := newTranscript(context.Background(), dir, 1, session{}, atomicfile.OS, time.Now, patience{sleep: sleepFor})
		if (err == nil) != (i == 0) {
			t.Fatalf("transcript %d: %v", i+1, err)
		}
		if err == nil {
			tr.close()
		}
	}
	info, err := os.Stat(filepath.Join(dir, TraceName(1)))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
}

// Steps reach the disk at least every 250 ms, and not one by one.
func TestTranscriptGroupsSyncs(t *testing.T) {
	disk := &countingDisk{FS: atomicfile.OS}
	now := time.Unix(1000, 0)
	tr, err := newTranscript(context.Background(), privateDir(t), 1, session{}, disk, func() time.Time { return now }, patience{sleep: sleepFor})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	disk.syncs = 0
	for range 100 { // 10 ms apart
		now = now.Add(10 * time.Millisecond)
		if err := tr.step(context.Background(), traceStep{source: "agent", message: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if disk.syncs != 4 {
		t.Fatalf("%d syncs in a second", disk.syncs)
	}
}

type countingDisk struct {
	atomicfile.FS
	syncs int
}

func (d *countingDisk) Open(dir *saferead.Dir, name string, flag int) (atomicfile.File, error) {
	f, err := d.FS.Open(dir, name, flag)
	return countingFile{f, d}, err
}

type countingFile struct {
	atomicfile.File
	disk *countingDisk
}

func (f countingFile) Sync() error {
	f.disk.syncs++
	return f.File.Sync()
}

// A turn on a disk that runs full while it runs waits, goes on when there is room, and is whole.
func TestTurnOnAFullDisk(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	disk := &tightDisk{FS: atomicfile.OS, room: 4 << 10}
	p := testParts(nil)
	p.fs = disk
	waits := 0
	p.wait = counted(func(n int) {
		waits = n
		if n > 2 {
			disk.room += 1 << 20
		}
	})
	task, err := execute(context.Background(), w.s, "t", w.grant("t", "i=0; while [ $i -lt 400 ]; do echo 0123456789; i=$((i+1)); done"), p)
	if err != nil {
		t.Fatal(err)
	}
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	w.wantSealed(task)
	if waits == 0 {
		t.Fatal("the disk never was full")
	}
	if got := len(said(t, w.trace("t", 1), "stdout")); got != 4400 {
		t.Fatalf("%d bytes", got)
	}
}

// A disk that stays full ends the turn: no effect without evidence. The result says that the transcript is not whole.
func TestTurnOnADiskThatStaysFull(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	disk := &tightDisk{FS: atomicfile.OS, room: 4 << 10}
	p := testParts(nil)
	p.fs, p.wait = disk, counted(func(int) {})
	task, err := execute(context.Background(), w.s, "t", w.grant("t", "while :; do echo 0123456789; done"), p)
	if !errors.Is(err, errStillFull) {
		t.Fatalf("execute: %v", err)
	}
	wantEnding(t, task, Finished, ExecFailed, "failed: the transcript could not be written")
	if r := task.Run.Result; !r.OutputIncomplete || !r.GroupClear || r.TraceDigest != w.traceNow("t") {
		t.Fatalf("result %+v", r)
	}
}

// A cancel gets through while the transcript waits for room.
func TestCancelOnAFullDisk(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	disk := &tightDisk{FS: atomicfile.OS, room: 4 << 10}
	p := testParts(nil)
	p.fs = disk
	p.wait = counted(func(n int) {
		if n == 1 {
			w.cancel("t")
			process := w.get("t").Run.Process
			eventually(t, "the program to end", func() bool {
				gone, err := sandbox.Gone(*process)
				return err == nil && gone
			})
			disk.room += 4 << 20
		}
	})
	task, err := execute(context.Background(), w.s, "t", w.grant("t", "while :; do echo 0123456789; done"), p)
	if err != nil {
		t.Fatal(err)
	}
	if task.Status != Finished || task.Execution != ExecStopped {
		t.Fatalf("task %s %s, %+v", task.Status, task.Execution, task.Run.Result)
	}
	w.wantSealed(task)
}

// While the log has no room for what must be durable before the effect, there is no effect.
func TestDispatchWaitsForRoom(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	disk := &tightDisk{FS: atomicfile.OS, room: 1 << 30}
	s, err := open(w.home, Options{}, disk)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	waits, tightened := 0, false
	p := testParts(func(point string) {
		switch point {
		case "admitted":
			disk.room = 10
		case "intent": // is in by now; `spawned` must wait, too
			if !tightened {
				tightened, disk.room = true, 10
			}
		}
	})
	p.wait = counted(func(n int) {
		waits = n
		task := w.get("t")
		if _, err := os.Stat(filepath.Join(task.Worktree.Path, "ran")); err == nil {
			t.Error("an effect before its record")
		}
		if n%3 == 0 {
			disk.room = 4 << 10
		}
	})
	task, err := execute(context.Background(), s, "t", w.grant("t", "echo x >> ran", writing), p)
	if err != nil {
		t.Fatal(err)
	}
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	if waits != 6 { // three for the intent, three for the identity
		t.Fatalf("waited %d times", waits)
	}
	if got := string(readFile(t, filepath.Join(task.Worktree.Path, "ran"))); got != "x\n" {
		t.Fatalf("ran %q", got)
	}
}
