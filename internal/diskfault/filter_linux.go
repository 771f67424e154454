//go:build amd64 || arm64

package diskfault

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watched are the calls that the filter hands over; renameat and unlinkat are
// those by which Go takes a name from a file. Others that write, such as
// write and pwritev, pass: bbolt does not use them, and this package does.
var watched = []uint32{unix.SYS_PWRITE64, unix.SYS_FTRUNCATE, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_RENAMEAT, unix.SYS_UNLINKAT}

// Install puts the filter on every thread of this process, for the rest of its
// life. Call it once, in a process that exists for it.
func Install() (*Disk, error) {
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return nil, fmt.Errorf("disk faults: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Without this an ordinary user may not install a filter.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("disk faults: %w", os.NewSyscallError("prctl", err))
	}
	filter := program()
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	// A signal must not make a call that is being judged start anew and count
	// twice; kernels before 5.19 lack the flag, and the runtime seldom signals
	// a thread that sits in a call.
	var fd uintptr
	var errno unix.Errno
	for _, more := range []uintptr{unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, 0} {
		fd, _, errno = unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags|more, uintptr(unsafe.Pointer(&prog)))
		if errno != unix.EINVAL {
			break
		}
	}
	runtime.KeepAlive(filter)
	if errno != 0 {
		return nil, fmt.Errorf("disk faults: %w", os.NewSyscallError("seccomp", errno))
	}
	d := &Disk{listener: int(fd), mem: mem}
	go d.serve()
	return d, nil
}

// program is the filter: watched calls of this architecture go to the listener.
func program() []unix.SockFilter {
	arch := uint32(unix.AUDIT_ARCH_X86_64)
	if runtime.GOARCH == "arm64" {
		arch = unix.AUDIT_ARCH_AARCH64
	}
	n := uint8(len(watched))
	p := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 4}, // seccomp_data.arch
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: arch, Jf: n + 1},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // seccomp_data.nr
	}
	for i, nr := range watched {
		p = append(p, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jt: n - uint8(i)})
	}
	return append(p,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
	)
}

// notification and response are the kernel's seccomp_notif and seccomp_notif_resp.
type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

type response struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// serve answers every watched call. It must make none itself: nobody would
// answer it.
func (d *Disk) serve() {
	for {
		var n notification // the kernel wants it zeroed
		switch errno := d.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); errno {
		case 0:
		case unix.EINTR, unix.ENOENT: // the caller went away in the meantime
			continue
		default:
			panic(fmt.Sprintf("diskfault: receive: %v", errno))
		}
		a := d.judge(int(n.nr), n.args)
		r := response{id: n.id, val: a.val, err: -int32(a.err)}
		if a.pass {
			r.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		}
		if errno := d.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)); errno != 0 && errno != unix.ENOENT {
			panic(fmt.Sprintf("diskfault: answer: %v", errno))
		}
	}
}

func (d *Disk) ioctl(request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.listener), request, uintptr(arg))
	return errno
}
