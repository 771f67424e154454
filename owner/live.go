package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"holdfast/internal/saferead"
)

// live/DIR, empty, says that the log of a task may have grown since its row (live/rows, see rows.go) was written:
//
//   - whoever adds a record to a log, under the task's lock, first sees to it that the file is there, durably (stir);
//   - the file goes again, under the same lock, when the task has ended and a row that says so is durable (PutAway).
//
// So a task without the file is as its row says, and nobody need read its log to know; a log without it does not grow.
// A crash leaves a file too many, never one too few, and one too many costs one look. The log is the truth all the
// same, and Check holds both against it.
const liveFolder = "live"

// liveMark tells one file of live from a later one of the same name.
type liveMark struct {
	inode   uint64
	changed int64
}

// liveDir is the open folder live, which stays open and is not the caller's to close; where make is set it is made.
// An error that is fs.ErrNotExist without it. Its name need not be durable: were it to go, the rows in it would go, too.
func (s *Store) liveDir(make bool) (*saferead.Dir, error) {
	s.living.Lock()
	defer s.living.Unlock()
	if s.live != nil {
		return s.live, nil
	}
	root, err := saferead.OpenDir(s.home)
	if err != nil {
		return nil, classify(err)
	}
	defer root.Close()
	d, err := root.OpenDir(liveFolder)
	if errors.Is(err, fs.ErrNotExist) && make {
		if err := s.fs.Mkdir(root, liveFolder); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		d, err = root.OpenDir(liveFolder)
	}
	if err != nil {
		return nil, classify(err)
	}
	s.live = d
	return d, nil
}

// stir makes it durable that the task's log may grow. The caller is about to add a record, and holds the task's lock:
// nobody takes the file away meanwhile. A crash right after it leaves a file that says nothing new.
func (l *Locked) stir() error {
	d, err := l.s.liveDir(true)
	if err != nil {
		return fmt.Errorf("enter task %s among the live: %w", l.id, err)
	}
	name := dirName(l.id)
	for {
		stamp, err := d.Peek("", name)
		if errors.Is(err, fs.ErrNotExist) {
			f, err := l.s.fs.Open(d, name, os.O_RDWR|os.O_CREATE)
			if err != nil {
				return fmt.Errorf("enter task %s among the live: %w", l.id, classify(err))
			}
			f.Close()
			continue
		}
		if err != nil {
			return fmt.Errorf("enter task %s among the live: %w", l.id, classify(err))
		}
		mark := liveMark{stamp.Ino, stamp.Changed}
		l.e.mu.Lock()
		known := l.e.stirred == mark
		l.e.mu.Unlock()
		if known {
			return nil
		}
		// Seen is not durable: whoever made the file may have died before this. It is the commit point of "its row no
		// longer holds", and comes before that of the record.
		if err := l.s.fs.SyncDir(d); err != nil {
			return fmt.Errorf("enter task %s among the live: %w", l.id, err)
		}
		l.e.mu.Lock()
		l.e.stirred = mark
		l.e.mu.Unlock()
		return nil
	}
}

// liveNames lists the folders of the tasks that are live, sorted.
func liveNames(d *saferead.Dir) ([]string, error) {
	names, err := d.Names()
	if err != nil {
		return nil, err
	}
	dirs := names[:0]
	for _, name := range names {
		if lowerHex(name, 64) {
			dirs = append(dirs, name)
		}
	}
	return dirs, nil
}

// Live lists the tasks whose logs may have grown since their rows were written, sorted by folder: every task that has
// not ended is among them. A store of an older version, and one whose index was lost, has none yet; see Index.
func (s *Store) Live() ([]TaskID, error) {
	d, err := s.liveDir(false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dirs, err := liveNames(d)
	if err != nil {
		return nil, err
	}
	return s.namesOf(dirs)
}

// Awake lists every task that may not have ended, and some that have: the live ones, or all where the store has no index.
func (s *Store) Awake() ([]TaskID, error) {
	if s.version.Load() < liveVersion {
		return s.List() // whatever lies there, what was written since is not in it
	}
	d, err := s.liveDir(false)
	if err == nil {
		// That there are rows, of whatever build, says that every task was looked at once, and is live or has ended.
		_, err = d.Peek("", rowsName)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return s.List()
	}
	if err != nil {
		return nil, classify(err)
	}
	return s.Live()
}

// namesOf is the tasks in these folders, but for those of a submit that never committed.
func (s *Store) namesOf(dirs []string) ([]TaskID, error) {
	ids := make([]TaskID, 0, len(dirs))
	for _, dir := range dirs {
		id, err := s.nameOf(dir)
		if refused(err) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}
