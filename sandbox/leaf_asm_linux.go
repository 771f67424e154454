//go:build amd64 || arm64

package sandbox

import "unsafe"

// cloneLeaf makes the program's process, which runs leafMain in this process's
// memory, and returns its id, or a negative errno. stack is the end of the new
// process's stack; it and c are its own until it has executed the program.
func cloneLeaf(flags uintptr, stack unsafe.Pointer, c *child) int

// The assembly alone calls it, which a reader of Go cannot see.
var _ = leafMain
