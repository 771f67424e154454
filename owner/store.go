package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

const maxCached = 1024 // tasks whose replay is kept in memory

// Store is the task store under a home. Many processes may have it open, and
// any goroutine may use it until Close.
type Store struct {
	home string
	now  func() time.Time
	fs   atomicfile.FS

	tasks, idents, blobs *saferead.Dir // HOME/tasks, HOME/identities, HOME/blobs/sha256
	poisoned             atomic.Bool   // a write failed and its outcome is not known
	shards               [256]shard
	version              atomic.Int32 // of the store as this process knows it; see upgrade
	upgrading            sync.Mutex   // held over an upgrade

	mu     sync.Mutex              // guards cache, names and traces
	cache  map[string]*entry       // by folder of the task
	names  map[string]TaskID       // folder -> ID; a log's header never changes
	traces map[traceKey]*traceScan // see scanTrace

	living sync.Mutex // guards live
	live   *saferead.Dir

	rowing sync.Mutex // guards rows; held with the lock of live, see indexing
	rows   rowsPlace

	kept    keptCache
	fullLog int64 // bytes after which a log takes no command: maxLog, but in a test that cannot wait for that many
}

// Options of Open.
type Options struct {
	Now    func() time.Time
	Create bool // make the folders of a new home; without it a missing store is an error
}

// Open opens HOME's tasks, blobs, identities and worktrees folders, and makes
// them where Options.Create says so and there is no store yet. ErrCorrupt
// where parts of a store are missing, ErrNewer, ErrUnsafe; an error that is
// fs.ErrNotExist where there is no store.
func Open(home string, o Options) (*Store, error) {
	return open(home, o, atomicfile.OS)
}

func open(home string, o Options, disk atomicfile.FS) (s *Store, err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	home, err = filepath.Abs(home)
	if err != nil {
		return nil, err
	}
	s = &Store{home: home, now: o.Now, fs: disk, fullLog: maxLog, cache: map[string]*entry{}, names: map[string]TaskID{}, traces: map[traceKey]*traceScan{}}
	for i := range s.shards {
		s.shards[i].know = map[string]identity{}
	}
	root, err := openHome(home, o.Create)
	if err != nil {
		return nil, fmt.Errorf("open task store: %w", classify(err))
	}
	defer root.Close()
	defer func() {
		if err != nil {
			s.Close()
			s, err = nil, fmt.Errorf("open task store: %w", classify(err))
		}
	}()
	have, err := readMarker(root)
	if err != nil {
		return s, err
	}
	if have > 0 {
		s.version.Store(int32(have))
	} else {
		s.version.Store(storeVersion)
		if err := s.initialise(root, o.Create); err != nil {
			return s, err
		}
	}
	return s, s.openParts(root)
}

// openHome opens the home itself, making it and what is missing above it.
func openHome(home string, create bool) (*saferead.Dir, error) {
	d, err := saferead.OpenDir(home)
	if !create || !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	if err := makeAll(home); err != nil {
		return nil, err
	}
	return saferead.OpenDir(home)
}

// makeAll makes path and what is missing above it, 0700, each name synced into
// its folder: a store whose own folder a power cut takes away was never made.
func makeAll(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(path) != path {
		if err := makeAll(filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o700)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.Sync()
}

// initialise makes a new store. The marker is written last and never again: a
// crash before it leaves empty folders, which the next Open with Create
// completes; folders with something in them and no marker are damage.
func (s *Store) initialise(root *saferead.Dir, create bool) error {
	for _, part := range []string{"tasks", "identities", "blobs", "worktrees", liveFolder} {
		used, err := inUse(root, part)
		if err != nil {
			return err
		}
		if used {
			// Another process may have made the store and used it meanwhile.
			if have, err := readMarker(root); have > 0 || err != nil {
				s.version.Store(int32(have))
				return err
			}
			return corrupt("%s holds something, but tasks/%s is missing; put it back from a copy of this home, or choose another --home", part, markerName)
		}
	}
	if !create {
		return fmt.Errorf("there is no task store in %s; run holdfast init: %w", s.home, fs.ErrNotExist)
	}
	for _, part := range []string{"tasks", "identities", "blobs", "worktrees", liveFolder} {
		if err := s.fs.Mkdir(root, part); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	blobs, err := root.OpenDir("blobs")
	if err != nil {
		return err
	}
	defer blobs.Close()
	if err := s.fs.Mkdir(blobs, "sha256"); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for _, d := range []*saferead.Dir{blobs, root} {
		if err := s.fs.SyncDir(d); err != nil {
			return err
		}
	}
	tasks, err := root.OpenDir("tasks")
	if err != nil {
		return err
	}
	defer tasks.Close()
	return atomicfile.WriteIn(s.fs, tasks, markerName, []byte(marker))
}

// inUse reports whether a part of the store holds anything that its
// initialisation alone does not leave.
func inUse(root *saferead.Dir, part string) (bool, error) {
	d, err := root.OpenDir(part)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer d.Close()
	names, err := d.Names()
	if err != nil {
		return false, err
	}
	for _, n := range names {
		switch {
		case part == "tasks" && n[0] == '.': // a marker's temporary file
		case part == "blobs" && n == "sha256":
			sub, err := d.OpenDir(n)
			if err != nil {
				return false, err
			}
			names, err := sub.Names()
			sub.Close()
			if err != nil || len(names) > 0 {
				return true, err
			}
		default:
			return true, nil
		}
	}
	return false, nil
}

// openParts opens the folders of an initialised store; all must be there.
func (s *Store) openParts(root *saferead.Dir) error {
	part := func(d *saferead.Dir, name string) (*saferead.Dir, error) {
		sub, err := d.OpenDir(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, corrupt("%s is missing; put it back from a copy of this home", filepath.Join(d.Path(), name))
		}
		return sub, err
	}
	var err error
	if s.tasks, err = part(root, "tasks"); err != nil {
		return err
	}
	// Of an older store, or lost: then it is made anew. See live.go.
	if s.live, err = root.OpenDir(liveFolder); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if s.idents, err = part(root, "identities"); err != nil {
		return err
	}
	worktrees, err := part(root, "worktrees")
	if err != nil {
		return err
	}
	worktrees.Close()
	blobs, err := part(root, "blobs")
	if err != nil {
		return err
	}
	defer blobs.Close()
	s.blobs, err = part(blobs, "sha256")
	return err
}

// Home is the folder the store was opened in, absolute.
func (s *Store) Home() string { return s.home }

// Close releases the store's descriptors. Locks that are still held stay held.
func (s *Store) Close() error {
	var errs []error
	s.living.Lock()
	defer s.living.Unlock()
	for _, d := range []*saferead.Dir{s.tasks, s.idents, s.blobs, s.live} {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(errs...)
}

// TaskDir is the folder of a task's files, whether or not it exists.
func (s *Store) TaskDir(id TaskID) string { return filepath.Join(s.home, "tasks", dirName(id)) }

// WorktreeRoot is the folder for a task's worktree, whether or not it exists.
func (s *Store) WorktreeRoot(id TaskID) string {
	return filepath.Join(s.home, "worktrees", dirName(id))
}

// classify joins what the file helpers report to this package's sentinels.
func classify(err error) error {
	if errors.Is(err, saferead.ErrUnsafe) && !errors.Is(err, ErrUnsafe) {
		return fmt.Errorf("%w: %w", ErrUnsafe, err)
	}
	return err
}

// unknown poisons the store where err is not nil: the bytes are in the file,
// but whether they would survive a power cut is not known, and asking the
// kernel again may answer yes for pages that it has dropped.
func (s *Store) unknown(err error) error {
	if err == nil {
		return nil
	}
	s.poisoned.Store(true)
	return fmt.Errorf("%w: %w", ErrReopen, err)
}

// appendDurable writes b at off, where the last whole record ends, cutting off
// a torn tail that lies there. The caller holds the file's lock. An error
// without ErrReopen is definite: b is not in the file as a whole.
func (s *Store) appendDurable(f atomicfile.File, off int64, b []byte) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() > off {
		// Never acknowledged, so it may go; if the cut is lost, it is torn again.
		if err := f.Truncate(off); err != nil {
			return err
		}
	}
	if _, err := f.WriteAt(b, off); err != nil {
		// The record's last bytes are missing, so it is torn whatever remains.
		return errors.Join(err, f.Truncate(off))
	}
	return s.unknown(f.Sync())
}

func (s *Store) usable(ctx context.Context) error {
	if s.poisoned.Load() {
		return ErrReopen
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.upgrade(ctx)
}
