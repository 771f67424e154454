// Package bpf makes the system call filter of a turn, and can run it without a
// kernel.
//
// Its nouns: a Row of the policy says which call is refused with which error,
// when and why; a Program is the policy compiled for one architecture, in the
// instructions that seccomp takes; a Call is one system call as the kernel shows
// it to a filter. Rows returns the policy to people and tests, Compile the
// program to the process that installs it, and Program.Run its verdict to
// tests, by an interpreter that refuses what the kernel's verifier would refuse.
//
// The policy is a list of what is refused. What makes that sound is its frame:
// another architecture ends the process, and a number that is not known to be a
// system call of this architecture, or is newer than the newest that was looked
// at, gets ENOSYS, so a kernel that learns a new way to mount or to open cannot
// be asked for it. Arguments are compared by their low 32 bits, as the kernel
// itself takes every argument that the policy looks at; the high half of a
// register must not decide anything.
//
// Everything here is a pure function of its arguments, on any system, and any
// goroutine may call. Nothing is durable; the Digest of a program goes into a
// turn's evidence.
//
// # Limitations
//
// Little-endian 64-bit only: amd64 and arm64. A filter sees registers, never
// memory: paths, addresses and structures behind pointers are the business of
// other layers, and calls that hide flags in memory (clone3, io_uring) are refused
// whole.
package bpf
