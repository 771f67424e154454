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

// entry is what this process has replayed of one task's log. What st points to
// of a task is never written to again, so it may be kept without the lock.
type entry struct {
	mu      sync.Mutex // guards all below; held over reads of the log and never over a write
	st      *state
	stamp   saferead.Stamp // of the log when st was held against it
	stirred liveMark       // the task's file in live, when this process made sure that it is durable
	named   bool           // the folder was synced since this process first saw the log in it
	kept    kept           // the checkpoint, as far as this process knows of it
}

// taskDir opens the folder of a task whose log exists; *Error not_found else.
func (s *Store) taskDir(id TaskID) (*saferead.Dir, error) {
	if !identifier(string(id), "") {
		return nil, refuse("invalid_command", "a task ID is 1 to 128 ASCII letters, digits, '.', '_', '-'")
	}
	d, err := s.tasks.OpenDir(dirName(id))
	if errors.Is(err, fs.ErrNotExist) {
		if s.had(dirName(id)) {
			return nil, corrupt("%s is missing; put it back from a copy of this home", s.TaskDir(id))
		}
		return nil, refuse("not_found", "there is no task %s", id)
	}
	return d, classify(err)
}

func (s *Store) openLog(d *saferead.Dir, flag int) (atomicfile.File, error) {
	f, err := s.fs.Open(d, logName, flag)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, classify(err)
	}
	// A folder without a log is a submit that never committed; one that has
	// what only a committed task gets, or of which it is known that it had a log, has lost it.
	names, nerr := d.Names()
	if nerr != nil {
		return nil, nerr
	}
	lost := s.had(filepath.Base(d.Path()))
	for _, name := range names {
		lost = lost || name == checkpointName || name == TraceName(1)
	}
	if lost {
		return nil, corrupt("%s is missing; put it back from a copy of this home", filepath.Join(d.Path(), logName))
	}
	return nil, refuse("not_found", "there is no such task")
}

// had reports whether there was a log in the folder of a task: this process saw it, or the task has a row.
func (s *Store) had(dir string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.names[dir]
	return ok
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
// frame is looked at again; Check replays everything. The task's folder d may
// have a checkpoint to start from.
func (e *entry) refresh(d *saferead.Dir, f atomicfile.File, id TaskID) error {
	stamp, err := stampOfFile(f)
	if err != nil {
		return err
	}
	doubt := false
	if e.st != nil {
		switch {
		case stamp == e.stamp && stamp.Size == e.st.end:
			return nil
		case stamp.Ino != e.stamp.Ino || stamp.Dev != e.stamp.Dev:
			return corrupt("the log was replaced")
		case stamp.Size < e.st.end:
			return corrupt("the log lost records")
		case stamp.Size == e.stamp.Size && stamp != e.stamp:
			e.st, doubt = nil, true // rewritten in place, or a torn tail was overwritten: read it all
		}
	}
	st := e.st
	e.st = nil // after an error the next read starts from the header
	if st == nil && !doubt {
		st, e.kept = fromCheckpoint(d, f, stamp.Size, id)
		if st != nil && st.catchUp(f, stamp.Size) != nil {
			st, e.kept = nil, kept{} // the log says whose fault that is
		}
	}
	if st == nil {
		if st, err = start(f, stamp.Size); err != nil {
			return err
		}
		if st.id != id {
			return corrupt("the log is of task %s", st.id)
		}
	}
	if err := st.catchUp(f, stamp.Size); err != nil {
		return err
	}
	e.st, e.stamp = st, stamp
	return nil
}

// catchUp replays what the log has behind st.
func (st *state) catchUp(f atomicfile.File, size int64) error {
	if _, err := st.follow(f, size, nil); err != nil {
		return err
	}
	if st.task == nil {
		return corrupt("the log has no submit")
	}
	return nil
}

// advance replays the frame that the caller has appended to f under the task's
// lock, without reading it back; the caller holds e.mu. Where a reader of this
// process has seen the frame already, or e knows less, refresh finds out.
func (e *entry) advance(d *saferead.Dir, f atomicfile.File, id TaskID, before position, fr frame) error {
	if e.st != nil && e.st.position == before {
		st := e.st
		e.st = nil
		if err := st.apply(fr); err != nil {
			return err
		}
		stamp, err := stampOfFile(f)
		if err != nil {
			return err
		}
		e.st, e.stamp = st, stamp
	}
	return e.refresh(d, f, id)
}

func stampOfFile(f atomicfile.File) (saferead.Stamp, error) {
	t, err := statStamp(f)
	return saferead.Stamp{Dev: t.dev, Ino: t.ino, Size: t.size, Modified: t.mtime, Changed: t.ctime}, err
}

// remembered calls fn with what this process has replayed of the log, where
// the log is still in the very state that it was replayed in: the same private
// file in a private folder, of the same size, times and end. ok is false where
// there is any doubt; then the log is to be opened.
func (s *Store) remembered(dir string, fn func(*state) error) (ok bool, err error) {
	s.mu.Lock()
	e := s.cache[dir]
	s.mu.Unlock()
	if e == nil {
		return false, nil
	}
	stamp, err := s.tasks.Peek(dir, logName)
	if err != nil {
		return false, nil // opening it says what is wrong
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.st == nil || e.stamp != stamp || e.st.end != stamp.Size {
		return false, nil
	}
	return true, fn(e.st)
}

// read refreshes the task's entry and calls fn with it under its lock. A log
// that looks damaged without the lock is read again with it: a writer that
// cuts a torn tail off and appends may have been seen half way.
func (s *Store) read(id TaskID, fn func(*state) error) error {
	if ok, err := s.remembered(dirName(id), fn); ok {
		return err
	}
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
		if err := e.refresh(d, f, id); err != nil {
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
	var t *Task
	err := s.read(id, func(st *state) error {
		t = st.task
		return nil
	})
	if err != nil {
		return Task{}, err
	}
	return t.clone(), nil
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
