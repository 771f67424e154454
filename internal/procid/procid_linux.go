package procid

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Self returns the identity of this process.
func Self() (ID, error) { return Of(os.Getpid()) }

// Of returns the identity of a process that exists now, zombies included. The
// error is os.ErrNotExist where there is none.
func Of(pid int) (ID, error) {
	boot, err := BootID()
	if err != nil {
		return ID{}, err
	}
	st, err := read(pid)
	if err != nil {
		return ID{}, err
	}
	return ID{PID: pid, StartTime: st.start, BootID: boot}, nil
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
	st, err := read(id.PID)
	if errors.Is(err, os.ErrNotExist) {
		return hidden(id.PID)
	}
	if err != nil {
		return false, err
	}
	return st.start == id.StartTime && !st.over(), nil
}

// hidden tells a missing process from one that a hidepid mount conceals.
func hidden(pid int) (bool, error) {
	if pid <= 0 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false, nil
	}
	if _, err := read(pid); err == nil {
		// Somebody got the pid between the two looks: not the one asked for.
		return false, nil
	}
	return false, fmt.Errorf("process %d exists but /proc hides it", pid)
}

// BootID returns the kernel's name for this boot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func read(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, syscall.ESRCH) { // it ended between open and read
		err = os.ErrNotExist
	}
	if err != nil {
		return stat{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	return parseStat(string(b))
}
