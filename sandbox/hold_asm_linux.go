//go:build amd64 || arm64

package sandbox

import "golang.org/x/sys/unix"

// cloneHold makes the process and returns its id, or a negative errno. wait
// stays in use until the process has ended, and must be on the heap: a stack
// may move.
func cloneHold(flags uintptr, wait *unix.Timespec) int
