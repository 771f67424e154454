package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Descriptors of the leaf besides standard input, output and error.
const (
	leafPlanFD   = 3 // plan, then one byte that releases
	leafReportFD = 4 // confined, or failure
)

// Limits of every turn. They bound one process each, except the process
// count, which the kernel keeps for the user namespace.
const (
	limitFiles     = 4096
	limitFileBytes = 4 << 30 // or what the workspace may grow by, where that is less
	minFileBytes   = 1 << 20
	limitProcesses = 512
	limitLocked    = 8 << 20
)

// leafMain confines itself, says so, waits for the release and becomes the
// program. Everything here holds for the locked thread, and that thread's
// credentials are what execve keeps.
func leafMain() {
	runtime.LockOSThread()
	p, err := readPlan(rawFile(leafPlanFD))
	var done confined
	if err == nil {
		done, err = confine(p)
	}
	if err != nil {
		writeJSON(rawFile(leafReportFD), frameRefuse, failureOf(err))
		os.Exit(125)
	}
	if err := writeJSON(rawFile(leafReportFD), frameReady, done); err != nil {
		os.Exit(125)
	}
	var gate [1]byte
	if n, err := (rawFile(leafPlanFD)).Read(gate[:]); n != 1 || err != nil {
		os.Exit(125) // init is gone, or the turn was stopped before it began
	}
	err = execute(p)
	writeFrame(rawFile(leafReportFD), frameFault, []byte(err.Error()))
	os.Exit(125)
}

// execute returns only where the program could not be executed.
func execute(p plan) error {
	path := string(p.Program)
	if p.Self {
		path = "/proc/self/exe"
	} else if err := samePlace(path, p.ProgramID); err != nil {
		return err
	}
	err := syscall.Exec(path, plainly(p.Argv), plainly(p.Env))
	if errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("execute %s: its interpreter is not in the view; allow its directory in read", p.Program)
	}
	return fmt.Errorf("execute %s: %w", p.Program, err)
}

// samePlace checks that a path still leads to the pinned file.
func samePlace(path string, want fileID) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("program %s is not in the view: %w", path, err)
	}
	if (fileID{Dev: uint64(st.Dev), Ino: st.Ino}) != want {
		return fmt.Errorf("program %s was replaced", path)
	}
	return nil
}

// confine gives up every right, in the order in which each step still has the
// right to take the next.
func confine(p plan) (confined, error) {
	done := confined{TID: unix.Gettid()}
	if _, err := unix.Setsid(); err != nil {
		return done, fmt.Errorf("new session: %w", err)
	}
	unix.Umask(0o022)
	if err := unix.Chdir(string(p.Dir)); err != nil {
		return done, fmt.Errorf("enter workspace: %w", err)
	}
	if dir, err := unix.Getwd(); err != nil || dir != string(p.Dir) {
		return done, fmt.Errorf("working directory is %q, not the workspace", dir)
	}
	if on(layerRlimits) {
		if err := setLimits(p.Memory, p.Disk.Bytes); err != nil {
			return done, err
		}
	}
	if on(layerCaps) {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return done, fmt.Errorf("no_new_privs: %w", err)
		}
		if err := dropCapabilities(); err != nil {
			return done, err
		}
	}
	var err error
	if done.Landlock, err = enterLandlock(p); err != nil {
		return done, err
	}
	// Marked rather than closed: the gate and the report must work until
	// execve, which closes them with all the rest.
	if on(layerFiles) {
		if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
			return done, fmt.Errorf("close descriptors: %w", err)
		}
	}
	done.FilterDigest, err = installFilter(p.Filter)
	return done, err
}

// setLimits uses package syscall because the runtime restores its own idea of
// the descriptor limit at exec unless the limit was set there.
func setLimits(memory, disk int64) error {
	file := int64(limitFileBytes)
	if disk > 0 {
		file = min(file, max(disk, minFileBytes))
	}
	limits := []struct {
		name  string
		which int
		value uint64
	}{
		{"core", unix.RLIMIT_CORE, 0},
		{"nofile", unix.RLIMIT_NOFILE, limitFiles},
		{"fsize", unix.RLIMIT_FSIZE, uint64(file)},
		{"nproc", unix.RLIMIT_NPROC, limitProcesses},
		{"memlock", unix.RLIMIT_MEMLOCK, limitLocked},
		{"msgqueue", unix.RLIMIT_MSGQUEUE, 0},
	}
	if memory > 0 {
		limits = append(limits, struct {
			name  string
			which int
			value uint64
		}{"data", unix.RLIMIT_DATA, uint64(dataLimit(memory))})
	}
	for _, l := range limits {
		var old syscall.Rlimit
		if err := syscall.Getrlimit(l.which, &old); err != nil {
			return fmt.Errorf("read limit %s: %w", l.name, err)
		}
		value := min(l.value, old.Max)
		if err := syscall.Setrlimit(l.which, &syscall.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("limit %s: %w", l.name, err)
		}
	}
	return nil
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

// failureOf keeps the class of an error across a pipe.
func failureOf(err error) failure {
	text := strings.TrimPrefix(err.Error(), ErrNotEnforceable.Error()+": ")
	text = strings.TrimPrefix(text, ErrSpec.Error()+": ")
	if len(text) > 4096 {
		text = text[:4096]
	}
	return failure{Spec: errors.Is(err, ErrSpec), Enforce: errors.Is(err, ErrNotEnforceable), Text: text}
}
