package snapshot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bound one Take. Whatever is beyond is a fault, never left out in silence.
type Limits struct {
	Entries int
	Bytes   int64 // of all files, those that the cache knows included
	Depth   int   // folders inside each other
	Path    int   // bytes
	Target  int   // bytes of a link
	Faults  int   // after which the walk gives up
}

// Bounds are the limits of the product.
var Bounds = Limits{Entries: 200_000, Bytes: 16 << 30, Depth: 128, Path: 4096, Target: 64 << 10, Faults: 64}

// maxWorkers bounds how many goroutines do one Take.
const maxWorkers = 8

// Options say how to take a snapshot.
type Options struct {
	// Exclude are paths that are left out with all below them. They are part of the digest, so a tree cannot choose
	// what is not seen of it.
	Exclude []string
	Limits  Limits    // the zero value is Bounds
	Cache   *Cache    // may be nil
	At      time.Time // the clock, read by the caller just before
	Is      *os.File  // where set, the path must lead to this very folder
	// seen is called by tests with each path between its listing and its opening.
	seen func(path string)
}

// Take observes the folder at path, absolute and canonical. The error says that there is no such folder; everything
// below it that cannot be seen whole is a fault of the tree. The end of ctx is a fault, too.
func Take(ctx context.Context, path string, o Options) (*Tree, error) {
	root, err := OpenRoot(path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	if o.Limits == (Limits{}) {
		o.Limits = Bounds
	}
	w := &walker{ctx: ctx, root: root, o: o}
	w.wake = sync.NewCond(&w.mu)
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return nil, fmt.Errorf("open a tree: %w", err)
	}
	if o.Is != nil {
		var is unix.Stat_t
		if err := unix.Fstat(int(o.Is.Fd()), &is); err != nil || is.Dev != st.Dev || is.Ino != st.Ino {
			return nil, errors.New("open a tree: another folder stands in its place")
		}
	}
	top := &node{}
	w.jobs = []job{{folder: top, stamp: stampOf(&st)}}
	defer context.AfterFunc(ctx, w.stop)()
	var all sync.WaitGroup
	for range min(maxWorkers, max(2, runtime.GOMAXPROCS(0))) {
		all.Go(w.work)
	}
	all.Wait()
	if ctx.Err() != nil {
		w.fault("", calledOff, true)
	}
	t := &Tree{Entries: make([]Entry, 0, w.entries), Reread: w.reread, at: o.At.UnixNano()}
	top.emit(&t.Entries)
	t.Faults = w.faults
	slices.SortFunc(t.Faults, func(a, b Fault) int { return strings.Compare(a.Path, b.Path) })
	if t.Complete() {
		t.digest = sum(t.Entries, o.Exclude)
	}
	return t, nil
}

// node is a folder's content in the order of the bytes of full paths: the folder "a" stands before "a.txt", what is
// in it, under the key "a/", after.
type node struct{ items []item }

type item struct {
	key   string
	entry Entry
	child *node
}

func (n *node) emit(to *[]Entry) {
	for i := range n.items {
		if it := &n.items[i]; it.child != nil {
			it.child.emit(to)
		} else {
			*to = append(*to, it.entry)
		}
	}
}

// job is a folder to list, or a file whose bytes nobody remembers.
type job struct {
	folder *node
	file   *Entry
	path   string // of a folder, "" the root
	depth  int
	stamp  stamp
}

type walker struct {
	ctx  context.Context
	root int
	o    Options

	mu      sync.Mutex // guards everything below
	wake    *sync.Cond
	jobs    []job // the last first, so that few folders wait
	busy    int   // workers that may still add jobs
	stopped bool
	faults  []Fault
	entries int
	bytes   int64
	reread  int
}

func (w *walker) work() {
	h, buf := sha256.New(), make([]byte, 128<<10)
	for {
		w.mu.Lock()
		for len(w.jobs) == 0 && w.busy > 0 && !w.stopped {
			w.wake.Wait()
		}
		if len(w.jobs) == 0 || w.stopped {
			w.mu.Unlock()
			w.wake.Broadcast()
			return
		}
		j := w.jobs[len(w.jobs)-1]
		w.jobs = w.jobs[:len(w.jobs)-1]
		w.busy++
		w.mu.Unlock()

		var more []job
		if j.folder != nil {
			more = w.list(j)
		} else {
			w.read(j.file, h, buf)
		}

		w.mu.Lock()
		w.busy--
		w.jobs = append(w.jobs, more...)
		wake := len(more) > 0 || w.busy == 0
		w.mu.Unlock()
		if wake {
			w.wake.Broadcast()
		}
	}
}

// fault records why the tree is not complete. A bound, and one fault too many, ends the walk.
func (w *walker) fault(path, why string, end bool) {
	w.mu.Lock()
	if len(w.faults) < w.o.Limits.Faults {
		w.faults = append(w.faults, Fault{path, why})
	}
	end = end || len(w.faults) == w.o.Limits.Faults
	w.mu.Unlock()
	if end {
		w.stop()
	}
}

// stop has the workers leave what is still to do.
func (w *walker) stop() {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.wake.Broadcast()
}

// whyNot is a fault's word for an error of the disk.
func whyNot(err error) string {
	switch err {
	case unix.ENOENT, unix.ELOOP, unix.ENOTDIR, unix.EXDEV, unix.ENXIO:
		return changed
	case unix.EACCES, unix.EPERM:
		return "it may not be read"
	}
	return "it cannot be read: " + err.Error()
}

// The words of faults that several places have.
const (
	changed   = "it changed while it was read"
	calledOff = "it took too long, or was called off"
)

// list looks at every name of one folder, and returns what is left to do there.
func (w *walker) list(j job) []job {
	fd := w.root
	if j.path != "" {
		var err error
		if fd, err = beneath(w.root, j.path, folderFlags); err != nil {
			w.fault(j.path, whyNot(err), false)
			return nil
		}
		defer unix.Close(fd)
	}
	var before, after unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		w.fault(j.path, whyNot(err), false)
		return nil
	}
	if s := stampOf(&before); s.dev != j.stamp.dev || s.ino != j.stamp.ino {
		w.fault(j.path, changed, false)
		return nil
	}
	names, err := w.names(fd)
	if err != nil {
		w.fault(j.path, "it cannot be listed", false)
		return nil
	}
	prefix := ""
	if j.path != "" {
		prefix = j.path + "/"
	}
	n := j.folder
	n.items = make([]item, 0, len(names))
	var bytes int64
	for _, name := range names {
		path := prefix + name
		if slices.Contains(w.o.Exclude, path) {
			continue
		}
		bytes += w.look(fd, name, path, j.depth, n)
	}
	slices.SortFunc(n.items, func(a, b item) int { return strings.Compare(a.key, b.key) })
	var more []job
	count := 0
	for i := range n.items {
		it := &n.items[i]
		if it.child != nil {
			more = append(more, job{folder: it.child, path: it.entry.Path, depth: j.depth + 1, stamp: it.entry.stamp})
			continue
		}
		count++
		// Size is below zero until the bytes are known.
		if it.entry.Kind == File && it.entry.Size < 0 {
			more = append(more, job{file: &it.entry})
		}
	}
	if err := unix.Fstat(fd, &after); err != nil || stampOf(&before) != stampOf(&after) {
		w.fault(j.path, changed, false)
	}
	w.mu.Lock()
	w.entries += count
	w.bytes += bytes
	many, large := w.entries > w.o.Limits.Entries, w.bytes > w.o.Limits.Bytes
	w.mu.Unlock()
	switch {
	case many:
		w.fault("", fmt.Sprintf("more than %d entries", w.o.Limits.Entries), true)
	case large:
		w.fault("", fmt.Sprintf("more than %d bytes", w.o.Limits.Bytes), true)
	}
	return more
}

// names lists a folder, not more of it than the tree may have.
func (w *walker) names(fd int) ([]string, error) {
	own, err := retry(func() (int, error) { return unix.Openat(fd, ".", folderFlags, 0) })
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(own), ".")
	defer f.Close()
	var names []string
	for len(names) <= w.o.Limits.Entries {
		some, err := f.Readdirnames(8192)
		names = append(names, some...)
		if err == io.EOF {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}

// look adds one name to its folder; it returns the bytes that the name stands for.
func (w *walker) look(fd int, name, path string, depth int, n *node) int64 {
	if len(path) > w.o.Limits.Path {
		w.fault(path[:w.o.Limits.Path], fmt.Sprintf("a path of more than %d bytes", w.o.Limits.Path), false)
		return 0
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		w.fault(path, whyNot(err), false)
		return 0
	}
	e := Entry{Path: path, stamp: stampOf(&st)}
	e.Kind, e.Target = kindOf(&st)
	if w.o.seen != nil {
		w.o.seen(path)
	}
	switch e.Kind {
	case Directory:
		if depth+1 > w.o.Limits.Depth {
			w.fault(path, fmt.Sprintf("more than %d folders inside each other", w.o.Limits.Depth), false)
			return 0
		}
		n.items = append(n.items, item{key: path + "/", entry: e, child: &node{}})
	case File:
		e.Exec, e.Names, e.Size = uint32(st.Mode)&0o100 != 0, uint64(st.Nlink), -1
		if sum, ok := w.o.Cache.find(e.stamp); ok {
			e.Sum, e.Size = sum, st.Size
		}
	case Link:
		target, err := readlink(fd, name, w.o.Limits.Target)
		if err != nil {
			w.fault(path, whyNot(err), false)
			return 0
		}
		if len(target) > w.o.Limits.Target {
			w.fault(path, fmt.Sprintf("a link of more than %d bytes", w.o.Limits.Target), false)
			return 0
		}
		e.Target = target
	}
	n.items = append(n.items, item{key: path, entry: e})
	if e.Kind == File {
		return st.Size
	}
	return 0
}

// readlink returns at most one byte more than max.
func readlink(fd int, name string, max int) (string, error) {
	for size := 256; ; size *= 4 {
		size = min(size, max+1)
		buf := make([]byte, size)
		n, err := unix.Readlinkat(fd, name, buf)
		if err != nil {
			return "", err
		}
		if n < size || size == max+1 {
			return string(buf[:n]), nil
		}
	}
}

// read hashes the bytes of one file, which must be the listed one before the first byte and after the last.
func (w *walker) read(e *Entry, h hash.Hash, buf []byte) {
	size, sum, why := hashFile(w.ctx, w.root, e, h, buf)
	if why != "" {
		w.fault(e.Path, why, false)
		return
	}
	e.Size, e.Sum = size, sum
	w.mu.Lock()
	w.reread++
	w.mu.Unlock()
}

func hashFile(ctx context.Context, root int, e *Entry, h hash.Hash, buf []byte) (size int64, sum [32]byte, why string) {
	fd, err := beneath(root, e.Path, fileFlags)
	if err != nil {
		return 0, sum, whyNot(err)
	}
	defer unix.Close(fd)
	same := func() bool {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			return false
		}
		kind, _ := kindOf(&st)
		return kind == File && stampOf(&st) == e.stamp && uint32(st.Mode)&0o100 != 0 == e.Exec
	}
	if !same() {
		return 0, sum, changed
	}
	h.Reset()
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, sum, whyNot(err)
		}
		if n == 0 {
			break
		}
		if size += int64(n); size > e.stamp.size {
			return 0, sum, changed // it grows, perhaps faster than it is read
		}
		if ctx.Err() != nil {
			return 0, sum, calledOff
		}
		h.Write(buf[:n])
	}
	if size != e.stamp.size || !same() {
		return 0, sum, changed
	}
	h.Sum(sum[:0])
	return size, sum, ""
}
