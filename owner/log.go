package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

// The files of a task's folder that this half of the package keeps.
const (
	logName       = "log"
	lockName      = "lock"
	ownerLockName = "owner.lock"
)

// readWait bounds how long a reader that saw something odd waits for a writer.
const readWait = 5 * time.Second

// entry is what this process has replayed of one task's log.
type entry struct {
	mu    sync.Mutex // guards all below; held over the read or write that changes it
	st    *state
	ino   uint64
	size  int64
	mtime time.Time
	named bool // the folder was synced since this process first saw the log in it
}

// taskDir opens the folder of a task whose log exists; *Error not_found else.
func (s *Store) taskDir(id TaskID) (*saferead.Dir, error) {
	if !identifier(string(id), "") {
		return nil, refuse("invalid_command", "a task ID is 1 to 128 ASCII letters, digits, '.', '_', '-'")
	}
	d, err := s.tasks.OpenDir(dirName(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse("not_found", "there is no task %s", id)
	}
	return d, classify(err)
}

func (s *Store) openLog(d *saferead.Dir, flag int) (atomicfile.File, error) {
	f, err := s.fs.Open(d, logName, flag)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, classify(err)
	}
	// A folder without a log is a submit that never committed; one with a
	// transcript in it has lost its log.
	names, nerr := d.Names()
	if nerr != nil {
		return nil, nerr
	}
	if slices.Contains(names, TraceName(1)) {
		return nil, corrupt("%s is missing", filepath.Join(d.Path(), logName))
	}
	return nil, refuse("not_found", "there is no such task")
}

func (s *Store) entryOf(dir string) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.cache[dir]
	if e == nil {
		for old := range s.cache {
			if len(s.cache) < maxCached {
				break
			}
			delete(s.cache, old) // any: a replay brings it back
		}
		e = &entry{}
		s.cache[dir] = e
	}
	return e
}

// refresh replays what the log has gained since e was last current. The
// caller holds e.mu. Of what was replayed before only the hash of the last
// frame is looked at again; Check replays everything.
func (e *entry) refresh(f atomicfile.File, id TaskID) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	ino := fi.Sys().(*syscall.Stat_t).Ino
	if e.st != nil {
		switch {
		case ino != uint64(e.ino):
			return corrupt("the log was replaced")
		case fi.Size() < e.st.end:
			return corrupt("the log lost records")
		case fi.Size() == e.size && !fi.ModTime().Equal(e.mtime):
			e.st = nil // rewritten in place, or a torn tail was overwritten: read it all
		}
	}
	st := e.st
	if st == nil {
		if st, err = start(f, fi.Size()); err != nil {
			return err
		}
		if st.id != id {
			return corrupt("the log is of task %s", st.id)
		}
	}
	e.st = nil // after an error the next read starts from the header
	if _, err := st.follow(f, fi.Size(), nil); err != nil {
		return err
	}
	if st.task == nil {
		return corrupt("the log has no submit")
	}
	e.st, e.ino, e.size, e.mtime = st, uint64(ino), fi.Size(), fi.ModTime()
	return nil
}

// read refreshes the task's entry and calls fn with it under its lock. A log
// that looks damaged without the lock is read again with it: a writer that
// cuts a torn tail off and appends may have been seen half way.
func (s *Store) read(id TaskID, fn func(*state) error) error {
	d, err := s.taskDir(id)
	if err != nil {
		return err
	}
	defer d.Close()
	f, err := s.openLog(d, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	e := s.entryOf(dirName(id))
	once := func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if err := e.refresh(f, id); err != nil {
			return err
		}
		return fn(e.st)
	}
	err = once()
	if errors.Is(err, ErrCorrupt) {
		ctx, cancel := context.WithTimeout(context.Background(), readWait)
		defer cancel()
		lock, lerr := s.flock(ctx, d, lockName, shared)
		if lerr != nil {
			return lerr
		}
		defer lock.Close()
		err = once()
	}
	if err != nil {
		return describe(d, err)
	}
	return nil
}

// describe names the log in a fault; a refusal stays as it is.
func describe(d *saferead.Dir, err error) error {
	if refused(err) {
		return err
	}
	return fmt.Errorf("%s: %w", filepath.Join(d.Path(), logName), err)
}

// Get returns the task as it is on disk now; the copy is the caller's. *Error not_found.
func (s *Store) Get(id TaskID) (Task, error) {
	var t Task
	err := s.read(id, func(st *state) error {
		t = st.task.clone()
		return nil
	})
	return t, err
}

// List returns every task ID, sorted. It reads the header of each log that
// this Store has not seen before, and no task.
func (s *Store) List() ([]TaskID, error) {
	names, err := s.tasks.Names()
	if err != nil {
		return nil, err
	}
	ids := make([]TaskID, 0, len(names))
	for _, dir := range names {
		if !lowerHex(dir, 64) {
			continue // the marker and what an interrupted write left
		}
		id, err := s.nameOf(dir)
		if refused(err) {
			continue // a submit that never committed
		}
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

// nameOf is the ID of the task in a folder, as its log's header says; *Error
// not_found where there is no log.
func (s *Store) nameOf(dir string) (TaskID, error) {
	s.mu.Lock()
	id, ok := s.names[dir]
	s.mu.Unlock()
	if ok {
		return id, nil
	}
	d, err := s.tasks.OpenDir(dir)
	if err != nil {
		return "", classify(err)
	}
	defer d.Close()
	f, err := s.openLog(d, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := start(f, 1<<16)
	if err != nil {
		return "", describe(d, err)
	}
	if dirName(st.id) != dir {
		return "", describe(d, corrupt("the log is of task %s", st.id))
	}
	s.mu.Lock()
	s.names[dir] = st.id
	s.mu.Unlock()
	return st.id, nil
}
