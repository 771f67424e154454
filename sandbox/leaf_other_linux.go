//go:build !amd64 && !arm64

package sandbox

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cloneLeaf does with a copy of this process's memory what the assembly of the
// usual processors does without.
//
//go:noinline
//go:norace
//go:nocheckptr
func cloneLeaf(flags uintptr, _ unsafe.Pointer, c *child) int {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, flags&^uintptr(unix.CLONE_VM|unix.CLONE_SETTLS), 0, 0, 0, 0, 0)
	if errno != 0 {
		return -int(errno)
	}
	if pid == 0 {
		leafMain(c)
	}
	return int(pid)
}
