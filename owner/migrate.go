package owner

import (
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
// record. Several processes may do it at once, each
// step being the same for all of them, and one that dies is followed by the
// next that writes.
func (s *Store) upgrade() error {
	if s.version.Load() == storeVersion {
		return nil
	}
	s.upgrading.Lock()
	defer s.upgrading.Unlock()
	have, err := s.markerNow()
	if err != nil {
		return fmt.Errorf("upgrade the task store: %w", err)
	}
	if have < storeVersion {
		if err := s.replaceMarker(have); err != nil {
			return fmt.Errorf("upgrade the task store: %w", err)
		}
	}
	s.version.Store(storeVersion)
	return nil
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
