package owner

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// notice calls changed with the folder of each task whose log grew or
// appeared, and with "" where it cannot say which, until ctx ends. only limits
// it to one task's folder. It runs in the caller's goroutine and leaves none
// behind.
func (s *Store) notice(ctx context.Context, only string, changed func(dir string)) {
	w, err := newLogWatch(s, only, changed)
	if err != nil {
		poll(ctx, changed)
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	inner, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() {
		<-inner.Done()
		w.f.Close() // ends the read
	})
	w.run()
	stop()
	if ctx.Err() == nil {
		poll(ctx, changed) // the kernel's notices ended, ctx did not
	}
}

// logWatch owns one inotify descriptor; one goroutine uses it.
type logWatch struct {
	s       *Store
	f       *os.File
	changed func(dir string)
	live    int32            // watch of the folder live, -1 without
	dirs    map[int32]string // watch -> folder
	of      map[string]int32 // and back
}

const logNotices = unix.IN_MODIFY | unix.IN_MOVED_TO | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW

func newLogWatch(s *Store, only string, changed func(dir string)) (*logWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &logWatch{s: s, f: os.NewFile(uintptr(fd), "inotify"), changed: changed, live: -1, dirs: map[int32]string{}, of: map[string]int32{}}
	if only != "" {
		if !w.add(only) || w.of[only] == 0 {
			w.f.Close()
			return nil, os.ErrNotExist
		}
		// What came between the first signal and the watch.
		changed("")
		return w, nil
	}
	// No other log grows than those of the live, however many tasks there are. First their folder, then each: one that
	// appears between is seen twice, never missed.
	d, err := s.liveDir(true)
	if err != nil {
		w.f.Close()
		return nil, err
	}
	wd, err := w.watch(filepath.Join(s.home, liveFolder), unix.IN_CREATE|unix.IN_DELETE|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
	if err != nil {
		w.f.Close()
		return nil, err
	}
	w.live = wd
	names, err := liveNames(d)
	if err != nil {
		w.f.Close()
		return nil, err
	}
	for _, dir := range names {
		if !w.add(dir) {
			w.f.Close()
			return nil, os.ErrNotExist
		}
	}
	changed("")
	return w, nil
}

// watch adds a watch. The descriptor is used inside Control so that a close
// meanwhile cannot hand its number to another file.
func (w *logWatch) watch(path string, mask uint32) (wd int32, err error) {
	raw, err := w.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	cerr := raw.Control(func(fd uintptr) { n, err = unix.InotifyAddWatch(int(fd), path, mask) })
	if cerr != nil {
		return 0, cerr
	}
	return int32(n), err
}

func (w *logWatch) add(dir string) bool {
	wd, err := w.watch(filepath.Join(w.s.home, "tasks", dir), logNotices)
	if errors.Is(err, fs.ErrNotExist) {
		return true // it has lost its folder, and nothing there changes
	}
	if err != nil {
		return false
	}
	w.dirs[wd], w.of[dir] = dir, wd
	return true
}

// drop ends the watch of a task that was put away.
func (w *logWatch) drop(dir string) {
	wd, ok := w.of[dir]
	if !ok {
		return
	}
	delete(w.dirs, wd)
	delete(w.of, dir)
	if raw, err := w.f.SyscallConn(); err == nil {
		// Where it fails the kernel has ended it already, and what comes of it is of no task.
		_ = raw.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
	}
}

// run reads notices until the descriptor is closed or fails, or a folder
// cannot be watched, as where the kernel's limit of watches is reached.
func (w *logWatch) run() {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.f.Read(buf)
		if err != nil || n <= 0 {
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			length := int(binary.NativeEndian.Uint32(b[12:]))
			if unix.SizeofInotifyEvent+length > len(b) {
				return
			}
			name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+length], "\x00"))
			b = b[unix.SizeofInotifyEvent+length:]
			if !w.handle(wd, mask, name) {
				return
			}
		}
	}
}

// handle reports false where notices are no longer enough.
func (w *logWatch) handle(wd int32, mask uint32, name string) bool {
	switch {
	case mask&unix.IN_Q_OVERFLOW != 0:
		w.changed("") // some were dropped
	case wd == w.live && mask&unix.IN_DELETE != 0:
		w.drop(name)
	case wd == w.live:
		if mask&unix.IN_CREATE != 0 && lowerHex(name, 64) {
			if !w.add(name) {
				return false
			}
			w.changed(name) // its log may have changed before the watch
		}
	case name == logName:
		if dir, ok := w.dirs[wd]; ok {
			w.changed(dir)
		}
	}
	return true
}
