package saferead

import (
	"os"

	"golang.org/x/sys/unix"
)

// TryLock takes the advisory lock of the folder itself, shared or exclusive, and reports whether it has it. It goes
// with d: Unlock or Close gives it up. A Dir holds it once, so each party opens the folder for itself.
func (d *Dir) TryLock(exclusive bool) (bool, error) {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	_, err := retry(func() (int, error) { return 0, unix.Flock(int(d.f.Fd()), how|unix.LOCK_NB) })
	switch err {
	case nil:
		return true, nil
	case unix.EWOULDBLOCK:
		return false, nil
	}
	return false, &os.PathError{Op: "lock", Path: d.path, Err: err}
}

// Unlock gives up what TryLock took.
func (d *Dir) Unlock() error {
	if err := unix.Flock(int(d.f.Fd()), unix.LOCK_UN); err != nil {
		return &os.PathError{Op: "unlock", Path: d.path, Err: err}
	}
	return nil
}
