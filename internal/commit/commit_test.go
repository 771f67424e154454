package commit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"holdfast/internal/diskfault/faulttest"
	"holdfast/internal/leaks"
	"holdfast/internal/skip"
)

// holderEnv makes the test binary a process that holds the store named in it.
const holderEnv = "HOLDFAST_TEST_HOLD"

func TestMain(m *testing.M) {
	if path := os.Getenv(holderEnv); path != "" {
		d, err := Open(path, options)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held")
		io.Copy(io.Discard, os.Stdin) // until the parent is done
		d.Close()
		os.Exit(0)
	}
	// bbolt's own scan of a damaged file may leave its goroutine behind; the
	// tests that damage files meet the damage before it.
	leaks.Main(m, goleak.IgnoreAnyFunction(faulttest.IgnoreLeak))
}

var (
	options = Options{Kind: "holdfast-test", Version: 3}
	bucket  = []byte("b")
	bg      = context.Background()
)

func open(t testing.TB, path string) *DB {
	t.Helper()
	d, err := Open(path, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "host.db") }

func put(key string) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucket)
		if err != nil {
			return err
		}
		return b.Put([]byte(key), []byte("value"))
	}
}

func has(t testing.TB, d *DB, key string) (found bool) {
	t.Helper()
	if err := d.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(bucket); b != nil {
			found = b.Get([]byte(key)) != nil
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestOpen(t *testing.T) {
	path := newPath(t)
	d := open(t, path)
	if err := d.Update(bg, put("a")); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if err := d.Update(bg, put("b")); !errors.Is(err, ErrClosed) {
		t.Errorf("update after close: %v", err)
	}
	if err := d.View(func(*bbolt.Tx) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("view after close: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	again := open(t, path)
	if !has(t, again, "a") || has(t, again, "b") {
		t.Error("reopened to another content")
	}
	again.Close()
	entries, _ := os.ReadDir(filepath.Dir(path))
	if len(entries) != 1 {
		t.Errorf("files left beside the store: %v", entries)
	}
	read := options
	read.ReadOnly = true
	r, err := Open(path, read)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if !has(t, r, "a") {
		t.Error("read-only shows nothing")
	}
	if err := r.Update(bg, put("c")); err == nil {
		t.Error("read-only took an update")
	}
	if _, err := Open(newPath(t), read); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("read-only of nothing: %v", err)
	}
}

// TestFirstPowerCut: whatever a crash left of the first initialisation, the
// next start begins anew.
func TestFirstPowerCut(t *testing.T) {
	for _, left := range []string{"", "half a page", strings.Repeat("\x00", 8192)} {
		path := newPath(t)
		if err := os.WriteFile(path+".new", []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		d := open(t, path)
		if err := d.Update(bg, put("a")); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
			t.Error("the old temporary file is still there")
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	make := func(t *testing.T) string {
		path := newPath(t)
		d := open(t, path)
		if err := d.Update(bg, put("a")); err != nil {
			t.Fatal(err)
		}
		d.Close()
		return path
	}
	header := func(edit func(b *bbolt.Bucket) error) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			b, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			if err := b.Update(func(tx *bbolt.Tx) error { return edit(tx.Bucket(headerBucket)) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	rows := []struct {
		name string
		edit func(t *testing.T, path string)
		is   error
		says string
	}{
		{"a symbolic link", func(t *testing.T, path string) {
			os.Rename(path, path+".real")
			os.Symlink(path+".real", path)
		}, nil, "symbolic link"},
		{"a second hard link", func(t *testing.T, path string) { os.Link(path, path+".2") }, nil, "hard link"},
		{"readable by others", func(t *testing.T, path string) { os.Chmod(path, 0o640) }, nil, "chmod 600"},
		{"a folder", func(t *testing.T, path string) { os.Remove(path); os.Mkdir(path, 0o700) }, nil, "not a plain file"},
		{"an empty file", func(t *testing.T, path string) { os.Truncate(path, 0) }, ErrCorrupt, ""},
		{"text", func(t *testing.T, path string) { os.WriteFile(path, []byte(strings.Repeat("x", 20_000)), 0o600) }, ErrCorrupt, ""},
		{"no header", func(t *testing.T, path string) {
			b, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			b.Update(func(tx *bbolt.Tx) error { return tx.DeleteBucket(headerBucket) })
			b.Close()
		}, ErrCorrupt, "no header"},
		{"a wrong checksum", header(func(b *bbolt.Bucket) error { return b.Put(keyVersion, []byte{0, 0, 0, 2}) }), ErrCorrupt, "checksum"},
		{"another kind", header(func(b *bbolt.Bucket) error {
			b.Put(keyMagic, []byte("other"))
			return b.Put(keyChecksum, headerSum([]byte("other"), []byte{0, 0, 0, 3}))
		}), ErrCorrupt, "not a holdfast-test store"},
		{"a newer format", header(func(b *bbolt.Bucket) error {
			b.Put(keyVersion, []byte{0, 0, 0, 4})
			return b.Put(keyChecksum, headerSum([]byte(options.Kind), []byte{0, 0, 0, 4}))
		}), ErrNewer, "format 4"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			path := make(t)
			row.edit(t, path)
			d, err := Open(path, options)
			if err == nil {
				d.Close()
				t.Fatal("it opens")
			}
			if row.is != nil && !errors.Is(err, row.is) || !strings.Contains(err.Error(), row.says) {
				t.Error(err)
			}
		})
	}
	t.Run("another uid's", func(t *testing.T) {
		skip.Root(t, "give a file away")
		path := make(t)
		if err := os.Chown(path, 12345, 12345); err != nil {
			skip.Missing(t, "this file system keeps its owner: "+err.Error())
		}
		if _, err := Open(path, options); err == nil || !strings.Contains(err.Error(), "uid 12345") {
			t.Error(err)
		}
	})
	t.Run("an older format", func(t *testing.T) {
		path := make(t)
		newer := options
		newer.Version++
		d, err := Open(path, newer)
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
	})
}

// TestDamage cuts a grown file short at every page, and overwrites every page:
// Open answers, or the file still opens because the page was free.
func TestDamage(t *testing.T) {
	path := newPath(t)
	d := open(t, path)
	for i := range 20 {
		if err := d.Update(bg, func(tx *bbolt.Tx) error {
			for k := range 40 {
				if err := put(fmt.Sprintf("%d-%d-%s", i, k, strings.Repeat("k", 100)))(tx); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	d.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	try := func(name string, b []byte) bool {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := Open(path, options)
		if err == nil {
			d.Close()
			return true
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		return false
	}
	opened := 0
	for at := page; at < len(whole); at += page {
		if try(fmt.Sprintf("cut at %d", at), whole[:at]) {
			opened++
		}
	}
	if opened > (len(whole)/page)/2 {
		t.Errorf("%d cuts went unseen", opened)
	}
	opened = 0
	for at := 0; at < len(whole); at += page {
		b := bytes.Clone(whole)
		for i := at; i < at+page; i++ {
			b[i] = 0xee
		}
		if try(fmt.Sprintf("page %d overwritten", at/page), b) {
			opened++
		}
	}
	t.Logf("%d of %d overwritten pages were in no use", opened, len(whole)/page)
}

func TestLockedByAnotherProcess(t *testing.T) {
	path := newPath(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(exe)
	child.Env = append(os.Environ(), holderEnv+"="+path)
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "held\n" {
		t.Fatalf("%q %v", line, err)
	}
	o := options
	o.Timeout = 50 * time.Millisecond
	for _, o.ReadOnly = range []bool{false, true} {
		if _, err := Open(path, o); !errors.Is(err, ErrLocked) {
			t.Errorf("read-only %v: %v", o.ReadOnly, err)
		}
	}
	in.Close()
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	open(t, path)
}

// TestTwoCreators: both get the same store, one after the other.
func TestTwoCreators(t *testing.T) {
	path := newPath(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			o := options
			o.Timeout = time.Minute
			d, err := Open(path, o)
			if err != nil {
				t.Error(err)
				return
			}
			if err := d.Update(bg, put("a")); err != nil {
				t.Error(err)
			}
			d.Close()
		})
	}
	wg.Wait()
}

// TestGroup: what waits while a transaction runs shares the next one; a
// neighbour's error, panic or ended context harms nobody else.
func TestGroup(t *testing.T) {
	d := open(t, newPath(t))
	ids := make(chan int, 100)
	gate, entered := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		var once sync.Once
		if err := d.Update(bg, func(tx *bbolt.Tx) error {
			once.Do(func() { close(entered); <-gate })
			return put("first")(tx)
		}); err != nil {
			t.Error(err)
		}
	})
	<-entered
	wrong := errors.New("wrong")
	ended, cancel := context.WithCancel(bg)
	var ready sync.WaitGroup
	spawn := func(fn func()) {
		ready.Add(1)
		wg.Go(func() { ready.Done(); fn() })
	}
	for i := range 20 {
		spawn(func() {
			if err := d.Update(bg, func(tx *bbolt.Tx) error {
				ids <- tx.ID()
				return put(fmt.Sprint("k", i))(tx)
			}); err != nil {
				t.Error(err)
			}
		})
	}
	spawn(func() {
		if err := d.Update(bg, func(tx *bbolt.Tx) error {
			if err := put("wrong")(tx); err != nil {
				return err
			}
			return wrong
		}); err != wrong {
			t.Errorf("own error: %v", err)
		}
	})
	spawn(func() {
		defer func() {
			if err, ok := recover().(error); !ok || !errors.Is(err, wrong) || !strings.Contains(err.Error(), "TestGroup") {
				t.Errorf("own panic: %v", err)
			}
		}()
		d.Update(bg, func(tx *bbolt.Tx) error {
			put("panicked")(tx)
			panic(wrong)
		})
	})
	spawn(func() {
		if err := d.Update(ended, put("ended")); !errors.Is(err, context.Canceled) {
			t.Errorf("ended context: %v", err)
		}
	})
	ready.Wait()
	cancel()
	close(gate)
	wg.Wait()
	close(ids)
	distinct := make(map[int]bool)
	for id := range ids {
		distinct[id] = true
	}
	if len(distinct) > 10 {
		t.Errorf("20 closures took %d transactions", len(distinct))
	}
	for i := range 20 {
		if !has(t, d, fmt.Sprint("k", i)) {
			t.Errorf("k%d is lost", i)
		}
	}
	for _, key := range []string{"wrong", "panicked", "ended"} {
		if has(t, d, key) {
			t.Errorf("%s was committed", key)
		}
	}
}

// TestEndedAfterStart: once its closure runs, Update waits for the outcome.
func TestEndedAfterStart(t *testing.T) {
	d := open(t, newPath(t))
	ctx, cancel := context.WithCancel(bg)
	if err := d.Update(ctx, func(tx *bbolt.Tx) error { cancel(); return put("a")(tx) }); err != nil {
		t.Error(err)
	}
	if !has(t, d, "a") {
		t.Error("not committed")
	}
	if err := d.Update(ctx, put("b")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestPoison: the store may not grow, so a commit fails.
func TestPoison(t *testing.T) {
	path := newPath(t)
	o := options
	o.maxSize = 1 << 17
	d, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Update(bg, put("a")); err != nil {
		t.Fatal(err)
	}
	if err := d.Update(bg, func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(bucket)
		if err != nil {
			return err
		}
		return b.Put([]byte("big"), make([]byte, 1<<20))
	}); !errors.Is(err, ErrPoisoned) {
		t.Fatal(err)
	}
	select {
	case <-d.Poisoned():
	default:
		t.Error("Poisoned is open")
	}
	if err := d.Update(bg, put("b")); !errors.Is(err, ErrPoisoned) {
		t.Errorf("update: %v", err)
	}
	if err := d.View(func(*bbolt.Tx) error { return nil }); !errors.Is(err, ErrPoisoned) {
		t.Errorf("view: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	again := open(t, path)
	if !has(t, again, "a") || has(t, again, "b") {
		t.Error("reopened to another content")
	}
	select {
	case <-again.Poisoned():
		t.Error("poisoned at once")
	default:
	}
}

// TestViewWaitsForTheDisk: a view that read a commit returns only when that
// commit's Update could have returned.
func TestViewWaitsForTheDisk(t *testing.T) {
	d := open(t, newPath(t))
	var durable atomic.Int64 // what Update has confirmed, or is about to
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		defer close(stop)
		for i := int64(1); i <= 60; i++ {
			if err := d.Update(bg, func(tx *bbolt.Tx) error {
				b, err := tx.CreateBucketIfNotExists(bucket)
				if err != nil {
					return err
				}
				return b.Put([]byte("n"), fmt.Append(nil, tx.ID()))
			}); err != nil {
				t.Error(err)
			}
			durable.Store(i)
		}
	})
	for {
		var read int64
		if err := d.View(func(tx *bbolt.Tx) error { read = int64(tx.ID()); return nil }); err != nil {
			t.Fatal(err)
		}
		if on := d.durable.Load(); read > on {
			t.Fatalf("saw transaction %d, on disk is %d", read, on)
		}
		select {
		case <-stop:
			wg.Wait()
			return
		default:
		}
	}
}

// TestClosePending: requests that wait while the store closes are refused, and
// what runs is finished.
func TestClosePending(t *testing.T) {
	path := newPath(t)
	d := open(t, path)
	var wg sync.WaitGroup
	var done, refused atomic.Int64
	for i := range 50 {
		wg.Go(func() {
			switch err := d.Update(bg, put(fmt.Sprint(i))); {
			case err == nil:
				done.Add(1)
			case errors.Is(err, ErrClosed):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	d.Close()
	wg.Wait()
	if done.Load()+refused.Load() != 50 {
		t.Errorf("%d done, %d refused", done.Load(), refused.Load())
	}
	again := open(t, path)
	n := int64(0)
	for i := range 50 {
		if has(t, again, fmt.Sprint(i)) {
			n++
		}
	}
	if n != done.Load() {
		t.Errorf("%d said done, %d are there", done.Load(), n)
	}
}

func BenchmarkUpdate(b *testing.B) {
	for _, writers := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			d := open(b, newPath(b))
			var n atomic.Int64
			var wg sync.WaitGroup
			for range writers {
				wg.Go(func() {
					for n.Add(1) <= int64(b.N) {
						if err := d.Update(bg, put(fmt.Sprint(n.Load()))); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
