package sandbox

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// userNamespace returns a user namespace in which one owner of the disk stands
// for one user of the host. A process must exist for it to be made; it ends at
// once, and the descriptor keeps the namespace.
func userNamespace(owner [2]uint32, host int) (*os.File, error) {
	// The process has nothing to do, so it gets no memory of its own: to copy
	// this process's page tables, or to start this binary, costs more than all
	// other mounts of a turn together.
	runtime.LockOSThread() // its parent, on whose end it ends
	defer runtime.UnlockOSThread()
	wait := &unix.Timespec{Sec: 30} // should nobody kill it
	pid, err := hold(wait)
	if err != nil && passing(err) {
		return nil, fmt.Errorf("map owners: %w", err)
	}
	if err != nil {
		return nil, notEnforceable("no user namespace can be made for user "+strconv.Itoa(host), err)
	}
	defer func() {
		unix.Kill(pid, unix.SIGKILL)
		go func() { // nothing waits for its end
			for {
				if _, err := unix.Wait4(pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
					break
				}
			}
			runtime.KeepAlive(wait)
		}()
	}()
	for name, id := range map[string]uint32{"/gid_map": owner[1], "/uid_map": owner[0]} {
		err := writeKernel(procDir(pid)+name, fmt.Sprintf("%d %d 1\n", id, host))
		if err != nil {
			return nil, notEnforceable("owners cannot be mapped to user "+strconv.Itoa(host), err)
		}
	}
	return os.Open(procDir(pid) + "/ns/user")
}

// hold makes a process in a new user namespace that does nothing, for as long
// as wait says or until it is killed. The thread must be locked. No signal may
// reach the process but the last one: its handlers would run on this process's
// memory.
func hold(wait *unix.Timespec) (int, error) {
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return 0, err
	}
	pid := cloneHold(unix.CLONE_VM|unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD), wait)
	err := unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	if pid < 0 {
		return 0, syscall.Errno(-pid)
	}
	return pid, err
}
