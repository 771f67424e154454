package commit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// Options of Open. Kind is the magic word of the file ("holdfast-host"), Version its format.
type Options struct {
	Kind     string
	Version  uint32
	Timeout  time.Duration // wait for the file's lock; 0 is 1 s
	ReadOnly bool          // never creates the file; Update fails

	noSync  bool // tests that count steps and not syncs
	maxSize int  // tests that make a commit fail
}

// DB is one open store. All methods may be called from any goroutine.
type DB struct {
	bolt *bbolt.DB
	path string

	requests chan *request // unbuffered: a request that was taken will be answered
	closing  chan struct{}
	closed   sync.Once
	done     chan struct{} // the committer has returned
	poisoned chan struct{}
	cause    atomic.Pointer[error] // why it is poisoned; set before poisoned is closed

	// inflight is held while a transaction runs and syncs; durable is the
	// newest transaction known to be on disk. See View.
	inflight sync.RWMutex
	durable  atomic.Int64
}

// Open opens or creates the store at path, whose folder must exist. It returns
// ErrLocked, ErrNewer or ErrCorrupt where they apply, and refuses a symbolic
// link, a second hard link, another uid's file, and a file that others may
// read. Every page is read once, so the cost grows with the store.
func Open(path string, o Options) (*DB, error) {
	if o.Timeout == 0 {
		o.Timeout = time.Second
	}
	if o.Kind == "" {
		panic("commit: Options.Kind is empty")
	}
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) && !o.ReadOnly {
		err = create(path, o)
	}
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	bolt, err := openChecked(path, o)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	return start(bolt, path)
}

// start makes a DB of an open file and starts its committer.
func start(bolt *bbolt.DB, path string) (*DB, error) {
	d := &DB{
		bolt: bolt, path: path,
		requests: make(chan *request), closing: make(chan struct{}),
		done: make(chan struct{}), poisoned: make(chan struct{}),
	}
	err := bolt.View(func(tx *bbolt.Tx) error { d.durable.Store(int64(tx.ID())); return nil })
	if err != nil {
		bolt.Close()
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	go d.run()
	return d, nil
}

// create makes the file under a temporary name and renames it when its header
// is synced. A crash before the rename leaves a temporary file that the next
// create removes; a crash after it leaves a complete store. The folder's lock
// keeps two creators apart.
func create(path string, o Options) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := lockDir(dir, o.Timeout); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return nil // another process made it while this one waited
	}
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeNew(tmp, o); err != nil {
		os.Remove(tmp)
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return dir.Sync()
}

func writeNew(tmp string, o Options) error {
	bolt, err := bbolt.Open(tmp, 0o600, boltOptions(o, os.O_CREATE|os.O_EXCL))
	if err != nil {
		return err
	}
	err = bolt.Update(func(tx *bbolt.Tx) error { return writeHeader(tx, o) })
	if err == nil && !o.noSync {
		err = bolt.Sync()
	}
	return errors.Join(err, bolt.Close())
}

func lockDir(dir *os.File, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
			return err // the lock goes with dir's descriptor
		}
		if time.Now().After(deadline) {
			return ErrLocked
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// openChecked opens path for good after a read-only look at it. Opened
// read-only, bbolt locks the file and reads its meta pages only, so its pages
// can be checked before the second open walks them for its free list.
func openChecked(path string, o Options) (*bbolt.DB, error) {
	read := o
	read.ReadOnly = true
	bolt, file, err := openBolt(path, read)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		err = checkPages(file, info.Size())
	}
	if err == nil {
		err = viewHeader(bolt, o)
	}
	if err == nil && o.ReadOnly {
		return bolt, nil
	}
	if err := errors.Join(err, bolt.Close()); err != nil {
		return nil, err
	}
	if bolt, _, err = openBolt(path, o); err != nil {
		return nil, err
	}
	// Between the two opens the file was unlocked: look again.
	if err := viewHeader(bolt, o); err != nil {
		bolt.Close()
		return nil, err
	}
	return bolt, nil
}

func viewHeader(bolt *bbolt.DB, o Options) error {
	return guard(func() error {
		return bolt.View(func(tx *bbolt.Tx) error { return checkHeader(tx, o) })
	})
}

// openBolt also returns bbolt's own descriptor, which lives as long as the DB.
func openBolt(path string, o Options) (*bbolt.DB, *os.File, error) {
	return openGuarded(path, boltOptions(o, 0))
}

func openGuarded(path string, bo *bbolt.Options) (bolt *bbolt.DB, file *os.File, err error) {
	inner := bo.OpenFile
	bo.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
		var err error
		file, err = inner(name, flag, mode)
		return file, err
	}
	err = guard(func() error {
		var err error
		bolt, err = bbolt.Open(path, 0o600, bo)
		return err
	})
	if errors.Is(err, ErrCorrupt) && file != nil {
		file.Close() // bbolt panicked and left it open, and locked
	}
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, nil, ErrLocked
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch),
		errors.Is(err, berrors.ErrChecksum):
		return nil, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	case err != nil:
		return nil, nil, err
	}
	return bolt, file, nil
}

func boltOptions(o Options, extra int) *bbolt.Options {
	return &bbolt.Options{
		Timeout:        o.Timeout,
		ReadOnly:       o.ReadOnly,
		NoFreelistSync: true,
		FreelistType:   bbolt.FreelistMapType,
		NoStatistics:   true,
		NoSync:         o.noSync,
		MaxSize:        o.maxSize,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, flag&^os.O_CREATE|extra|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
			if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) {
				return nil, errors.New("is a symbolic link; a store must be a plain file")
			}
			if err != nil {
				return nil, err
			}
			if err := checkFile(f, extra == 0); err != nil {
				f.Close()
				return nil, err
			}
			return f, nil
		},
	}
}

// checkFile looks at the opened file itself, so that nothing can change between
// the look and the use.
func checkFile(f *os.File, existing bool) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return errors.New("is not a plain file")
	}
	if st.Nlink != 1 {
		return errors.New("has a second hard link; a store must have one name")
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("belongs to uid %d; run as that user", st.Uid)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("has mode %04o; run chmod 600 on it", info.Mode().Perm())
	}
	if existing {
		_, err = readMeta(f, info.Size())
		return err
	}
	return nil
}

// Poisoned is closed at the first failed commit.
func (d *DB) Poisoned() <-chan struct{} { return d.poisoned }

// Path is the file's name as it was opened.
func (d *DB) Path() string { return d.path }

// Close lets the running group finish, refuses later requests with ErrClosed
// and releases the file. It must not be called from a closure.
func (d *DB) Close() error {
	var err error
	d.closed.Do(func() {
		close(d.closing)
		<-d.done
		err = guard(d.bolt.Close)
	})
	return err
}
