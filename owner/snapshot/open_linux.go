package snapshot

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// noOpenat2 is set once the kernel, or a filter over this process, has refused the call.
var noOpenat2 atomic.Bool

// beneath opens path below root, following no link at any component and never leaving root.
func beneath(root int, path string, flags int) (int, error) {
	if noOpenat2.Load() {
		return chain(root, path, flags)
	}
	how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := retry(func() (int, error) { return unix.Openat2(root, path, &how) })
	if err == unix.ENOSYS || err == unix.EPERM {
		// EPERM is also a file's own answer: the chain says which it was.
		if err == unix.ENOSYS {
			noOpenat2.Store(true)
		}
		return chain(root, path, flags)
	}
	return fd, err
}
