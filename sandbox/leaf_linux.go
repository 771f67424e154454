package sandbox

import (
	"encoding/json"
	"fmt"

	"golang.org/x/sys/unix"
)

// Limits of every turn. They bound one process each, except the process
// count, which the kernel keeps for the user namespace.
const (
	limitFiles     = 4096
	limitFileBytes = 4 << 30
	limitProcesses = 512
	limitLocked    = 8 << 20
)

// confine takes every right from the calling thread, for good, in the order in
// which each step still has the right to take the next. What is forked from the
// thread has none either.
func confine(p plan) (confined, error) {
	var done confined
	if on(layerCaps) {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return done, fmt.Errorf("no_new_privs: %w", err)
		}
		drop := dropCapabilities
		if p.shared() {
			drop = clearCapabilities
		}
		if err := drop(); err != nil {
			return done, err
		}
	}
	var err error
	if done.Landlock, err = enterLandlock(p); err != nil {
		return done, err
	}
	done.FilterDigest, err = installFilter(p.Filter)
	return done, err
}

// Securebits: root gains nothing, keep-caps and ambient sets are off, and all
// of it is locked. x/sys has no names for them.
const secureBits = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<5 | 1<<6 | 1<<7

func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, secureBits, 0, 0, 0); err != nil {
		return fmt.Errorf("securebits: %w", err)
	}
	for c := uintptr(0); c < 64; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL {
			break // past the last capability of this kernel
		}
		if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&head, &none[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

func readPlan(r rawFile) (plan, error) {
	var p plan
	kind, b, err := readFrame(r)
	if err != nil {
		return p, fmt.Errorf("read plan: %w", err)
	}
	if kind != framePlan {
		return p, fmt.Errorf("read plan: frame %q", kind)
	}
	return p, json.Unmarshal(b, &p)
}
