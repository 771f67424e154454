package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The program's process is a clone of a thread of init, in init's memory, until
// it executes the program: a start of this binary costs as much as all the rest
// of a turn, and a copy of init's memory still much, because both sides then pay
// for every page that they write. No Go runtime is behind it, so it runs one
// function on a stack of its own that makes system calls prepared beforehand and
// nothing else: it allocates nothing, grows no stack, takes no lock, and writes
// only to its child.

// step names what the program's process was doing when it failed.
type step uint32

const (
	stepReady step = iota // not a failure: it is confined, and waits
	stepSession
	stepUmask
	stepDirectory
	stepStreams
	stepFiles
	stepLimits
	stepScope    // signals out of the domain must be refused
	stepPlace    // look for the program
	stepReplaced // the program is another file
	stepExecute
)

// record is all that the program's process ever says, whole or not at all.
type record struct {
	step  step
	errno syscall.Errno
}

const recordBytes = 8

func readRecord(r rawFile) (record, error) {
	var b [recordBytes]byte
	n, err := r.Read(b[:])
	if err != nil {
		return record{}, err
	}
	if n != recordBytes {
		return record{}, fmt.Errorf("%d bytes where %d are a record", n, recordBytes)
	}
	return record{step(binary.NativeEndian.Uint32(b[:])), syscall.Errno(binary.NativeEndian.Uint32(b[4:]))}, nil
}

// err puts a record into words.
func (r record) err(p plan) error {
	switch r.step {
	case stepSession:
		return fmt.Errorf("new session: %w", r.errno)
	case stepDirectory:
		return fmt.Errorf("enter workspace: %w", r.errno)
	case stepStreams, stepFiles, stepUmask:
		return fmt.Errorf("prepare the program's process (step %d): %w", r.step, r.errno)
	case stepLimits:
		return fmt.Errorf("set limits: %w", r.errno)
	case stepScope:
		return notEnforceable(fmt.Sprintf("Landlock scopes were taken but do not hold: a forbidden act gave %v", r.errno), nil)
	case stepPlace:
		return fmt.Errorf("program %s is not in the view: %w", p.Program, r.errno)
	case stepReplaced:
		return fmt.Errorf("program %s was replaced", p.Program)
	case stepExecute:
		if errors.Is(r.errno, syscall.ENOENT) {
			return fmt.Errorf("execute %s: its interpreter is not in the view; allow its directory in read", p.Program)
		}
		return fmt.Errorf("execute %s: %w", p.Program, r.errno)
	}
	return fmt.Errorf("the program's process failed at step %d: %w", r.step, r.errno)
}

// call is one prepared system call.
type call struct {
	step step
	trap uintptr
	a    [4]uintptr
	want syscall.Errno // what it must answer
}

// child is everything that the program's process needs. Whatever it points to
// is on the heap, where nothing moves, and init keeps it until it ends.
type child struct {
	stack  [leafStack]byte
	calls  []call
	path   *byte
	argv   []*byte
	env    []*byte
	look   bool // whether path must still be the file want
	want   unix.Statx_t
	seen   unix.Statx_t
	gate   [1]byte
	record [recordBytes / 4]uint32
	limits []unix.Rlimit
	dir    *byte
}

// leafStack is what the program's process has as a stack, in bytes: leafMain and
// what it calls are nosplit, which the linker holds to less than a tenth of it.
const leafStack = 16 << 10

// Descriptors of the program's process besides its streams, until execve.
const (
	leafGateFD   = 3
	leafFaultsFD = 4
	leafLowFD    = 5 // the first that it closes
)

// newChild prepares the calls. stdin, gate and faults are init's descriptors,
// above those that the child lays out.
func newChild(p plan, stdin, gate, faults int) (*child, error) {
	c := &child{look: !p.Self}
	var err error
	path := string(p.Program)
	if p.Self {
		path = "/proc/self/exe"
	}
	if c.path, err = syscall.BytePtrFromString(path); err != nil {
		return nil, err
	}
	if c.dir, err = syscall.BytePtrFromString(string(p.Dir)); err != nil {
		return nil, err
	}
	if c.argv, err = syscall.SlicePtrFromStrings(plainly(p.Argv)); err != nil {
		return nil, err
	}
	if c.env, err = syscall.SlicePtrFromStrings(plainly(p.Env)); err != nil {
		return nil, err
	}
	c.want.Ino = p.ProgramID.Ino
	c.want.Dev_major, c.want.Dev_minor = unix.Major(p.ProgramID.Dev), unix.Minor(p.ProgramID.Dev)

	inherit := uintptr(unix.O_CLOEXEC)
	if !on(layerFiles) {
		inherit = 0
	}
	// Its voice first: what fails after it is told.
	c.add(stepStreams, unix.SYS_DUP3, uintptr(faults), leafFaultsFD, inherit)
	c.add(stepStreams, unix.SYS_DUP3, uintptr(gate), leafGateFD, inherit)
	for to, from := range []int{stdin, initStdoutFD, initStderrFD} {
		c.add(stepStreams, unix.SYS_DUP3, uintptr(from), uintptr(to), 0)
	}
	if on(layerFiles) {
		c.add(stepFiles, unix.SYS_CLOSE_RANGE, leafLowFD, uintptr(^uint32(0)), 0)
	}
	c.add(stepSession, unix.SYS_SETSID)
	c.add(stepUmask, unix.SYS_UMASK, 0o022)
	c.add(stepDirectory, unix.SYS_CHDIR, uintptr(unsafe.Pointer(c.dir)))
	if on(layerRlimits) {
		return c, c.addLimits(p)
	}
	return c, nil
}

func (c *child) add(s step, trap uintptr, args ...uintptr) {
	k := call{step: s, trap: trap}
	copy(k.a[:], args)
	c.calls = append(c.calls, k)
}

// expect adds a call that must be refused with want.
func (c *child) expect(s step, want syscall.Errno, trap uintptr, args ...uintptr) {
	c.add(s, trap, args...)
	c.calls[len(c.calls)-1].want = want
}

// addLimits sets limits of the process itself, hard ones, which its
// descendants keep. None is above what init has.
func (c *child) addLimits(p plan) error {
	limits := []struct {
		which int
		value uint64
	}{
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_NOFILE, limitFiles},
		{unix.RLIMIT_FSIZE, fileLimit(p.Disk)},
		{unix.RLIMIT_NPROC, limitProcesses + uint64(p.Others)},
		{unix.RLIMIT_MEMLOCK, limitLocked},
		{unix.RLIMIT_MSGQUEUE, 0},
	}
	if p.Memory > 0 {
		limits = append(limits, struct {
			which int
			value uint64
		}{unix.RLIMIT_DATA, uint64(dataLimit(p.Memory))})
	}
	c.limits = make([]unix.Rlimit, len(limits))
	for i, l := range limits {
		var own unix.Rlimit
		if err := unix.Prlimit(0, l.which, nil, &own); err != nil {
			return fmt.Errorf("read limit %d: %w", l.which, err)
		}
		value := min(l.value, own.Max)
		c.limits[i] = unix.Rlimit{Cur: value, Max: value}
		c.add(stepLimits, unix.SYS_PRLIMIT64, 0, uintptr(l.which), uintptr(unsafe.Pointer(&c.limits[i])), 0)
	}
	return nil
}

// top is the end of the stack, aligned as the strictest processor wants it
// (arm64 takes no other): where a child lies is only aligned to 8.
func (c *child) top() unsafe.Pointer {
	return unsafe.Pointer((uintptr(unsafe.Pointer(&c.stack)) + leafStack) &^ 15)
}

// spawn confines a thread of init, which cannot be undone, and clones the
// program's process from it: that has the thread's credentials, its filter and
// its domain from the first moment, and nothing where a thread keeps what is its
// own: whatever looks there ends it, every time, rather than now and then when
// the thread is gone. The thread ends with this, after ready, which waits for the
// process's first word.
func spawn(c *child, confine func() error, ready func(pid int) error) (pid int, err error) {
	done := make(chan struct{})
	var once func()
	once = func() {
		runtime.LockOSThread() // never unlocked: the thread is of no further use
		if unix.Gettid() == unix.Getpid() {
			// The first thread stands for the whole process in /proc, and
			// cannot end before it.
			go once()
			return
		}
		defer close(done)
		if err = confine(); err != nil {
			return
		}
		if pid = cloneLeaf(unix.CLONE_VM|unix.CLONE_SETTLS|uintptr(unix.SIGCHLD), c.top(), c); pid < 0 {
			err = fmt.Errorf("start the program's process: %w", syscall.Errno(-pid))
			return
		}
		err = ready(pid)
	}
	go once()
	<-done
	return pid, err
}

// leafMain is the program's process. No handler of a signal is installed in
// init, so none can run here.
//
//go:nosplit
//go:noinline
//go:norace
//go:nocheckptr
func leafMain(c *child) {
	at := stepReady
	var n uintptr
	var errno syscall.Errno
	for i := range c.calls {
		k := &c.calls[i]
		if _, _, errno = syscall.RawSyscall6(k.trap, k.a[0], k.a[1], k.a[2], k.a[3], 0, 0); errno != k.want {
			at = k.step
			goto fail
		}
	}
	n, _, _ = syscall.RawSyscall6(unix.SYS_WRITE, leafFaultsFD, uintptr(unsafe.Pointer(&c.record)), recordBytes, 0, 0, 0)
	if n != recordBytes {
		goto exit
	}
	for {
		n, _, errno = syscall.RawSyscall6(unix.SYS_READ, leafGateFD, uintptr(unsafe.Pointer(&c.gate)), 1, 0, 0, 0)
		if errno != syscall.EINTR {
			break
		}
	}
	if n != 1 || errno != 0 {
		goto exit // init is gone, or the turn was stopped before it began
	}
	if c.look {
		const flags = unix.AT_SYMLINK_NOFOLLOW
		at = stepPlace
		_, _, errno = syscall.RawSyscall6(unix.SYS_STATX, atCwd, uintptr(unsafe.Pointer(c.path)), flags, unix.STATX_INO,
			uintptr(unsafe.Pointer(&c.seen)), 0)
		if errno != 0 {
			goto fail
		}
		if c.seen.Ino != c.want.Ino || c.seen.Dev_major != c.want.Dev_major || c.seen.Dev_minor != c.want.Dev_minor {
			at = stepReplaced
			goto fail
		}
	}
	at = stepExecute
	_, _, errno = syscall.RawSyscall6(unix.SYS_EXECVE, uintptr(unsafe.Pointer(c.path)), uintptr(unsafe.Pointer(&c.argv[0])),
		uintptr(unsafe.Pointer(&c.env[0])), 0, 0, 0)
fail:
	c.record[0], c.record[1] = uint32(at), uint32(errno)
	syscall.RawSyscall6(unix.SYS_WRITE, leafFaultsFD, uintptr(unsafe.Pointer(&c.record)), recordBytes, 0, 0, 0)
exit:
	for {
		syscall.RawSyscall6(unix.SYS_EXIT_GROUP, 125, 0, 0, 0, 0, 0)
	}
}

// atCwd is unix.AT_FDCWD as a register holds it.
const atCwd = ^uintptr(99)
