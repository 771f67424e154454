package owner

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/saferead"
)

const (
	exclusive = unix.LOCK_EX
	shared    = unix.LOCK_SH
	lockPoll  = 2 * time.Millisecond
)

// flock takes the lock on the file name in d, polling until ctx ends, which is
// *Error store_busy: nothing was done. The lock goes with the descriptor, which
// no child inherits. Lock files are never removed or replaced; one that was
// between opening and locking is ErrUnsafe.
func (s *Store) flock(ctx context.Context, d *saferead.Dir, name string, how int) (*os.File, error) {
	f, err := d.Open(name, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, corrupt("%s is missing", filepath.Join(d.Path(), name))
	}
	if err != nil {
		return nil, classify(err)
	}
	var tick *time.Ticker
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			break
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			f.Close()
			return nil, &os.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		if tick == nil {
			tick = time.NewTicker(lockPoll)
			defer tick.Stop()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, refuse("store_busy", "%s is locked by another process", f.Name())
		case <-tick.C:
		}
	}
	if err := d.Same(name, f); err != nil {
		f.Close()
		return nil, classify(err)
	}
	return f, nil
}

// Ownership is the task's owner.lock: who holds it is the owner of its turn,
// whatever any recorded pid says.
type Ownership struct{ f *os.File }

// Own takes owner.lock, waiting at most wait (0 tries once): *Error store_busy
// while another process owns the task, not_found without the task.
func (s *Store) Own(ctx context.Context, id TaskID, wait time.Duration) (*Ownership, error) {
	return s.own(ctx, id, wait, exclusive)
}

func (s *Store) own(ctx context.Context, id TaskID, wait time.Duration, how int) (*Ownership, error) {
	d, err := s.taskDir(id)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	f, err := s.flock(ctx, d, ownerLockName, how)
	if err != nil {
		return nil, err
	}
	return &Ownership{f}, nil
}

// Release gives the lock up. It may be called twice.
func (o *Ownership) Release() { o.f.Close() }
