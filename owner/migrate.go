package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

// The versions of the task store, as tasks/store.json says them.
//
//	1  logs, shards and blobs as they are today
//	2  the same, and beside them what a reader of version 1 does not know of: events and members that came
//	   later, and checkpoints. A holdfast that knows version 1 alone refuses the store as a whole, and does not
//	   open half of its tasks or go on beside what it cannot see.
//	3  the same, and who adds to a log sees to it first that the task is among the live (live.go). A program that
//	   does not would leave rows behind that are no longer so.
//
// A store of an older version is read as it stands. The first write of this
// program makes it one of the newest, once and forward only. No record is
// rewritten: the whole old store stays where it was, inside the new one, and the
// old marker is kept beside the new one as it was.
const (
	storeVersion = 3
	liveVersion  = 3 // the first with tasks that are live
	markerName   = "store.json"
	markerSchema = "holdfast.task-store.v"
	marker       = `{"v":"holdfast.task-store.v3"}` + "\n"
)

// The marker of an older version, and what it is called once it was replaced.
func oldMarker(version int) string     { return fmt.Sprintf(`{"v":"%s%d"}`+"\n", markerSchema, version) }
func oldMarkerName(version int) string { return fmt.Sprintf("store.v%d.json", version) }

// parseMarker is the version that a marker says, from 1.
func parseMarker(b []byte) (int, error) {
	var m struct {
		V string `json:"v"`
	}
	if err := closed(b, &m); err == nil {
		for version := 1; version <= storeVersion; version++ {
			if m.V == fmt.Sprint(markerSchema, version) {
				return version, nil
			}
		}
	}
	var any struct {
		V      string `json:"v"`
		Schema string `json:"schema"`
	}
	var n uint
	if err := lax(b, &any); err == nil {
		if c, _ := fmt.Sscanf(any.V, markerSchema+"%d", &n); c == 1 && n > storeVersion {
			return 0, fmt.Errorf("tasks/%s says %q: %w", markerName, any.V, ErrNewer)
		}
		if any.Schema != "" {
			return 0, fmt.Errorf("tasks/%s says %q, so this is the store of another program; choose another --home: %w", markerName, any.Schema, ErrCorrupt)
		}
	}
	return 0, corrupt("tasks/%s is not a store's marker; put it back from a copy of this home", markerName)
}

// readMarker is the version of the home's store, 0 where none was initialised.
func readMarker(root *saferead.Dir) (int, error) {
	tasks, err := root.OpenDir("tasks")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer tasks.Close()
	return markerIn(tasks)
}

// markerIn reads the marker, which another process may be replacing just now:
// then what was opened has no name any more.
func markerIn(tasks *saferead.Dir) (int, error) {
	for try := 0; ; try++ {
		b, err := tasks.Read(markerName, 64<<10)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return 0, nil
		case errors.Is(err, saferead.ErrTooLarge):
			return 0, corrupt("tasks/%s is too large", markerName)
		case errors.Is(err, saferead.ErrUnsafe) && try < 200:
		case err != nil:
			return 0, err
		default:
			return parseMarker(b)
		}
	}
}

// upgrade makes a store of an older version one of the newest, before the first
// record. Several processes may come to it at once: they do it one after the
// other, under a lock of the folder tasks, and all but the first find it done.
// One that dies is followed by the next that writes. Without the lock a program
// that read the old marker before a newer program replaced it would write its
// own over that one's.
func (s *Store) upgrade(ctx context.Context) error {
	if s.version.Load() == storeVersion {
		return nil
	}
	s.upgrading.Lock()
	defer s.upgrading.Unlock()
	root, err := saferead.OpenDir(s.home)
	if err != nil {
		return fmt.Errorf("upgrade the task store: %w", classify(err))
	}
	defer root.Close()
	lock, err := lockFolder(ctx, root, "tasks")
	if err != nil {
		return fmt.Errorf("upgrade the task store: %w", err)
	}
	defer lock.Close()
	have, err := s.markerNow()
	if err == nil && have < storeVersion {
		if err = s.dropRows(root); err == nil {
			err = s.replaceMarker(have)
		}
	}
	if err != nil {
		return fmt.Errorf("upgrade the task store: %w", err)
	}
	s.version.Store(storeVersion)
	return nil
}

// dropRows removes the rows of a time when the store was of this version
// already. Since then a program wrote that keeps none, so they say nothing; the
// next start makes them anew. Durable before the marker, which makes them count.
func (s *Store) dropRows(root *saferead.Dir) error {
	d, err := root.OpenDir(liveFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return classify(err)
	}
	defer d.Close()
	if err := s.fs.Remove(d, rowsName); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return classify(err)
	}
	return s.fs.SyncDir(d)
}

// markerNow reads the marker of an open store.
func (s *Store) markerNow() (int, error) {
	have, err := markerIn(s.tasks)
	if err == nil && have == 0 {
		err = corrupt("tasks/%s is missing", markerName)
	}
	return have, classify(err)
}

func (s *Store) replaceMarker(have int) error {
	name, was := oldMarkerName(have), oldMarker(have)
	old, err := s.tasks.Read(name, 64<<10)
	switch {
	case errors.Is(err, saferead.ErrUnsafe):
		return classify(err)
	case err == nil && string(old) != was:
		return corrupt("tasks/%s is there already and says something else; nothing is written over it", name)
	case errors.Is(err, fs.ErrNotExist):
		// A crash before this leaves the old store, and after it the old store with a file more.
		if err := atomicfile.WriteIn(s.fs, s.tasks, name, []byte(was)); err != nil {
			return s.unknownAfter(err)
		}
	case err != nil:
		return err
	}
	// The commit point: before it the store is of the old version, after it of the new one, with the same bytes in it.
	return s.unknownAfter(atomicfile.WriteIn(s.fs, s.tasks, markerName, []byte(marker)))
}

// unknownAfter stops the store where the outcome of a whole-file write is not known.
func (s *Store) unknownAfter(err error) error {
	if errors.Is(err, atomicfile.ErrUnknown) {
		return s.unknown(err)
	}
	return err
}
