//go:build amd64 || arm64

package sandbox

import "unsafe"

// cloneLeaf makes the program's process, which runs leafMain in this process's
// memory, and returns its id, or a negative errno. stack is the end of the new
// process's stack; it and c are its own until it has executed the program.
func cloneLeaf(flags uintptr, stack unsafe.Pointer, c *child) int {
	main := leafMain
	entry := **(**uintptr)(unsafe.Pointer(&main)) // where its code begins: the first word of what a func value points to
	return cloneOnto(flags, stack, c, entry)
}

// cloneOnto is the part in assembly. main is called with c in the first register
// of Go's own convention.
func cloneOnto(flags uintptr, stack unsafe.Pointer, c *child, main uintptr) int
