package sandbox

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"holdfast/sandbox/bpf"
)

// filterBytes is what one instruction of a system call filter takes.
const filterBytes = 8

// compiled keeps the filters of this process: one for each combination of
// grants, made when it is first wanted.
var compiled struct {
	sync.Mutex // guards programs
	programs   map[bpf.Grant][]byte
}

// callFilter is the filter for a turn with these grants, as the kernel takes
// it. Any goroutine may call; nobody changes the bytes.
func callFilter(granted bpf.Grant) ([]byte, error) {
	compiled.Lock()
	defer compiled.Unlock()
	if program, ok := compiled.programs[granted]; ok {
		return program, nil
	}
	program, err := bpf.Compile(bpf.ArchOf(runtime.GOARCH), granted)
	if err != nil {
		return nil, notEnforceable(err.Error(), nil)
	}
	if compiled.programs == nil {
		compiled.programs = map[bpf.Grant][]byte{}
	}
	compiled.programs[granted] = program.Bytes()
	return compiled.programs[granted], nil
}

// grants are what the filter of a plan lets through beyond the common policy.
func (p plan) grants() bpf.Grant {
	var g bpf.Grant
	if p.sockets() {
		g |= bpf.Sockets
	}
	if p.MemoryCgroup {
		g |= bpf.MemoryFiles
	}
	if p.shared() {
		g |= bpf.Shared
	}
	return g
}

// installFilter puts the filter on this thread, for good, and returns its
// digest. It comes last: the filter refuses what the steps before it need. Other
// threads of this process are left as they are; execve ends them.
func installFilter(filter []byte) (string, error) {
	if !on(layerSeccomp) {
		return "", nil
	}
	if len(filter) == 0 || len(filter)%filterBytes != 0 {
		return "", fmt.Errorf("system call filter of %d bytes", len(filter))
	}
	program := make([]unix.SockFilter, len(filter)/filterBytes)
	for i := range program {
		b := filter[i*filterBytes:]
		program[i] = unix.SockFilter{Code: binary.LittleEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.LittleEndian.Uint32(b[4:])}
	}
	arg := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&arg)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return "", notEnforceable("the kernel takes no system call filter (it needs CONFIG_SECCOMP_FILTER)", errno)
	}
	return filterDigest(filter), nil
}

func filterDigest(filter []byte) string {
	sum := sha256.Sum256(filter)
	return hex.EncodeToString(sum[:])
}

// filtered holds what was read back about the system call filter against the
// one that was asked for: the thread is under a filter, under one more than
// init, and it is this one.
func filtered(seen posture, filter []byte) error {
	switch {
	case !on(layerSeccomp):
		return nil
	case seen.Seccomp != unix.SECCOMP_MODE_FILTER || seen.Filters != 1:
		return notEnforceable(fmt.Sprintf("no system call filter is in force: seccomp mode %d, %d filters", seen.Seccomp, seen.Filters), nil)
	case seen.FilterDigest != filterDigest(filter):
		return errors.New("start sandbox: another system call filter was installed than the one asked for")
	}
	return nil
}
