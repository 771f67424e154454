package sandbox

import (
	"testing"
	"unsafe"
)

// TestLeafStackIsAligned: a processor may refuse a stack that is not aligned to
// 16 bytes, as arm64 does, and the allocator need not align a child so.
func TestLeafStackIsAligned(t *testing.T) {
	for range 16 {
		c, err := newChild(plan{Program: "/bin/true", Argv: []exact{"true"}, Dir: "/"}, initFreeFD, initFreeFD+1, initFreeFD+2)
		if err != nil {
			t.Fatal(err)
		}
		begin, top := uintptr(unsafe.Pointer(&c.stack)), uintptr(c.top())
		if top%16 != 0 || top > begin+leafStack || top < begin+leafStack-16 {
			t.Fatalf("%#x is the end of a stack at %#x", top, begin)
		}
	}
}
