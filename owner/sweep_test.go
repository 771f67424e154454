package owner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func (w *workbench) blobPath(d Digest) string {
	hex := strings.TrimPrefix(string(d), "sha256:")
	return filepath.Join(w.home, "blobs", "sha256", hex[:2], hex)
}

// age gives a file a time long ago.
func age(t testing.TB, path string) {
	t.Helper()
	old := time.Now().Add(-2 * SweepAge)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
}

func (w *workbench) sweepBlobs(before time.Time, dry bool) (swept []string) {
	w.t.Helper()
	if err := w.s.SweepBlobs(context.Background(), before, dry, func(s Swept) {
		if s.Kind != "blob" || s.Bytes <= 0 {
			w.t.Errorf("%+v", s)
		}
		swept = append(swept, filepath.Base(s.Path))
	}); err != nil {
		w.t.Fatal(err)
	}
	return swept
}

// TestSweepBlobs: what a log leads to stays, however old; of the rest the old ones go.
func TestSweepBlobs(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	w.execute("t", w.grant("t", "echo new >new; echo more >>file", writing), nil)
	w.nextTurn("t", "again")
	w.execute("t", w.grant("t", "rm new; echo other >other", writing), nil)
	var unnamed []Digest
	for i := range 5 {
		d, err := w.s.PutBlob(fmt.Appendf(nil, "unnamed %d", i))
		if err != nil {
			t.Fatal(err)
		}
		unnamed = append(unnamed, d)
	}
	before := time.Now().Add(-SweepAge)
	if got := w.sweepBlobs(before, false); len(got) != 0 {
		t.Fatalf("young ones went: %v", got)
	}
	if err := filepath.WalkDir(filepath.Join(w.home, "blobs", "sha256"), func(p string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			age(t, p)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	// Kept anew, by a writer who finds it there: young again.
	if _, err := w.s.PutBlob([]byte("unnamed 0")); err != nil {
		t.Fatal(err)
	}
	if err := w.s.holdBlob(unnamed[1], 1<<10); err != nil {
		t.Fatal(err)
	}
	if got := w.sweepBlobs(before, true); len(got) != 3 {
		t.Fatalf("dry: %v", got)
	}
	if got := w.sweepBlobs(before, false); len(got) != 3 {
		t.Fatalf("%v", got)
	}
	for i, d := range unnamed {
		_, err := w.s.GetBlob(d, 1<<10)
		if gone := isRefusal(err, "not_found"); gone != (i > 1) {
			t.Errorf("blob %d: %v", i, err)
		}
	}
	if err := w.s.Check(func(path string, ok bool, detail string) {
		if !ok {
			t.Errorf("%s: %s", path, detail)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if patch, _ := w.patchOf("t", 1); len(patch) == 0 {
		t.Error("the first turn's patch is gone")
	}
}

// TestSweepNeedsEveryLog: where one cannot be read nothing is known to be unnamed.
func TestSweepNeedsEveryLog(t *testing.T) {
	for _, row := range []struct {
		name  string
		spoil func(w *workbench, run *Run)
	}{
		{"a log", func(w *workbench, _ *Run) {
			writeFile(w.t, filepath.Join(w.s.TaskDir("t"), "log"), []byte("damaged"))
		}},
		{"a manifest", func(w *workbench, r *Run) { writeFile(w.t, w.blobPath(r.Result.Artifacts), []byte("damaged")) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorkbench(t)
			w.submit("t", PromptCommand)
			task := w.execute("t", w.grant("t", "echo new >new", writing), nil)
			d, err := w.s.PutBlob([]byte("unnamed"))
			if err != nil {
				t.Fatal(err)
			}
			age(t, w.blobPath(d))
			row.spoil(w, task.Run)
			w.s = openStore(t, w.home, false)
			if err := w.s.SweepBlobs(context.Background(), time.Now(), false, func(Swept) {}); err == nil || !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v", err)
			}
			if _, err := os.Stat(w.blobPath(d)); err != nil {
				t.Fatal("a blob went all the same")
			}
		})
	}
}

// TestSweepBesideWriters: writers keep the same few old blobs again and again, and a sweep never takes one from under
// a writer that has just kept it.
func TestSweepBesideWriters(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "home"), true)
	const blobs, rounds = 4, 60
	content := func(i int) []byte { return fmt.Appendf(nil, "blob %d", i) }
	stop := make(chan struct{})
	var sweeper, writers sync.WaitGroup
	sweeper.Go(func() {
		other := openStore(t, s.Home(), false)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := other.SweepBlobs(context.Background(), time.Now().Add(-SweepAge), false, func(Swept) {}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range blobs {
		writers.Go(func() {
			for range rounds {
				d, err := s.PutBlob(content(i))
				if err != nil {
					t.Error(err)
					return
				}
				if err := s.holdBlob(d, 1<<10); err != nil {
					t.Errorf("taken from under its writer: %v", err)
				}
				hex := strings.TrimPrefix(string(d), "sha256:")
				old := time.Now().Add(-2 * SweepAge)
				os.Chtimes(filepath.Join(s.Home(), "blobs", "sha256", hex[:2], hex), old, old)
			}
		})
	}
	writers.Wait()
	close(stop)
	sweeper.Wait()
}

func TestSweepTemporary(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	d, err := w.s.PutBlob([]byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	temp := filepath.Join(w.dir, "temp")
	const hex = "0123456789abcdef"
	goes := []string{
		filepath.Join(w.home, ".policy.json.tmp-"+hex), filepath.Join(w.home, "tasks", ".store.json.tmp-"+hex),
		filepath.Join(w.s.TaskDir("t"), ".log.tmp-"+hex), filepath.Join(filepath.Dir(w.blobPath(d)), "."+filepath.Base(w.blobPath(d))+".tmp-"+hex),
		filepath.Join(temp, "holdfast-patch-123", "f"), filepath.Join(temp, "holdfast-commit-9", "f"), filepath.Join(temp, "holdfast-probe-1", "f"),
	}
	stays := []string{
		filepath.Join(w.home, "policy.json.tmp-"+hex), filepath.Join(w.home, ".policy.json.tmp-"+hex[1:]), filepath.Join(w.home, "tasks", ".young.tmp-"+hex),
		filepath.Join(temp, "holdfast-patch-123x", "f"), filepath.Join(temp, "other", "f"), filepath.Join(temp, "holdfast-patch-77", "f"),
	}
	for _, p := range append(goes, stays...) {
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, p, []byte("half"))
		if strings.Contains(p, "young") || strings.Contains(p, "-77") {
			continue
		}
		age(t, p)
		if strings.HasPrefix(p, temp) {
			age(t, filepath.Dir(p))
		}
	}
	if err := os.Symlink(w.repo, filepath.Join(temp, "holdfast-patch-5")); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		n := 0
		if err := w.s.SweepTemporary(context.Background(), temp, time.Now().Add(-SweepAge), dry, func(s Swept) { n++ }); err != nil || n != len(goes) {
			t.Fatalf("%d, %v", n, err)
		}
		for _, p := range goes {
			if _, err := os.Lstat(p); (err == nil) != dry {
				t.Errorf("dry %v: %s: %v", dry, p, err)
			}
		}
	}
	for _, p := range append(stays, filepath.Join(w.repo, "file"), filepath.Join(temp, "holdfast-patch-5")) {
		if _, err := os.Lstat(p); err != nil {
			t.Error(err)
		}
	}
}

// TestUnrecordedWorktreeGoes: a folder that a crash left before its record, of a task that then ended.
func TestUnrecordedWorktreeGoes(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", PromptCommand)
	died := errors.New("died")
	func() {
		defer func() {
			if r := recover(); r != died {
				t.Fatalf("recovered %v", r)
			}
		}()
		w.execute("t", w.grant("t", "true", writing), func(point string) {
			if point == "worktree" {
				panic(died)
			}
		})
	}()
	if got := w.letGo("t", later()); got.Kept != "the task is queued" {
		t.Fatalf("%+v", got)
	}
	w.cancel("t")
	if got := w.letGo("t", later()); got.Kept != "" || got.Bytes == 0 {
		t.Fatalf("%+v", got)
	}
	if list := w.git("worktree", "list"); strings.Contains(list, w.home) {
		t.Errorf("registered are\n%s", list)
	}
	if _, err := os.Lstat(w.s.WorktreeRoot("t")); !os.IsNotExist(err) {
		t.Error(err)
	}
}
