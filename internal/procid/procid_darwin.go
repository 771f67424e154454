package procid

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// zombie is SZOMB of the kernel's process states.
const zombie = 5

// Self returns the identity of this process.
func Self() (ID, error) { return Of(os.Getpid()) }

// Of returns the identity of a process that exists now, zombies included. The
// error is os.ErrNotExist where there is none. StartTime is in microseconds of
// the wall clock here.
func Of(pid int) (ID, error) {
	boot, err := BootID()
	if err != nil {
		return ID{}, err
	}
	k, err := look(pid)
	if err != nil {
		return ID{}, err
	}
	return ID{PID: pid, StartTime: startOf(k), BootID: boot}, nil
}

// Alive reports whether the named process still runs. A zombie, another boot
// and a pid that was given to a later process answer false. An error means
// that it is not known: callers treat that as alive.
func Alive(id ID) (bool, error) {
	boot, err := BootID()
	if err != nil {
		return false, err
	}
	if id.BootID != boot {
		return false, nil
	}
	k, err := look(id.PID)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return startOf(k) == id.StartTime && k.Proc.P_stat != zombie, nil
}

// BootID returns the kernel's name for this boot.
func BootID() (string, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err == nil && id == "" {
		err = errors.New("it is empty")
	}
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return id, nil
}

func look(pid int) (*unix.KinfoProc, error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err == nil && int(k.Proc.P_pid) == pid {
		return k, nil
	}
	// The answer for a missing process is empty.
	if pid <= 0 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return nil, fmt.Errorf("read process %d: %w", pid, os.ErrNotExist)
	}
	return nil, fmt.Errorf("read process %d: %v", pid, err)
}

func startOf(k *unix.KinfoProc) uint64 {
	return uint64(k.Proc.P_starttime.Sec)*1_000_000 + uint64(k.Proc.P_starttime.Usec)
}
