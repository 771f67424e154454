package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The stages of this binary. The gate runs inside the profile, started by
// sandbox-exec, so its name is the first argument; the watch runs outside.
const (
	stageGate  = "holdfast-sandbox-gate"
	stageWatch = "holdfast-sandbox-watch"
)

// Descriptors of the gate besides its streams.
const (
	gatePlanFD   = 3 // plan, then one byte that releases
	gateReportFD = 4
)

// Limits of every process of a turn. The kernel counts processes for the whole
// user, so their number is not limited.
const (
	limitFiles     = 4096
	limitFileBytes = 4 << 30
	limitLocked    = 8 << 20
	memorySlack    = 256 << 20
)

// gatePlan is what the gate is told.
type gatePlan struct {
	Program   exact   `json:"program"`
	ProgramID fileID  `json:"program_id"`
	Argv      []exact `json:"argv"`
	Env       []exact `json:"env"`
	Dir       exact   `json:"dir"`
	Sentinel  exact   `json:"sentinel"` // a file outside, which must not be readable
	Network   bool    `json:"network"`
	Memory    int64   `json:"memory"`
	Probe     bool    `json:"probe"`   // try forbidden acts in place of the program
	Address   string  `json:"address"` // Probe: a listener of this machine
}

// gatePosture is what the gate found when it tried its own profile.
type gatePosture struct {
	Rlimits map[string]uint64 `json:"rlimits"`
	Files   []string          `json:"files"`
}

// Reexec runs a stage of a sandbox where this process was started as one, and
// then never returns. It must be the first statement of main, and of TestMain
// in every package whose tests start sandboxes.
func Reexec() {
	switch {
	case len(os.Args) > 0 && os.Args[0] == stageWatch:
		watchMain()
	case len(os.Args) == 2 && os.Args[1] == stageGate:
		gateMain()
	default:
		return
	}
	os.Exit(125)
}

// watchMain ends a turn whose supervisor died. The identity comes on standard
// input, then one byte when the turn has ended in order; the end of the input
// without it is the supervisor's.
func watchMain() {
	kind, b, err := readFrame(rawFile(0))
	var id Identity
	if err != nil || kind != framePlan || json.Unmarshal(b, &id) != nil {
		os.Exit(125)
	}
	var done [1]byte
	if n, _ := (rawFile(0)).Read(done[:]); n == 1 {
		os.Exit(0)
	}
	sweep(id, time.Minute)
	os.Exit(0)
}

// gateMain holds the profile against itself, waits, and becomes the program.
func gateMain() {
	p, seen, err := enterGate()
	if err != nil {
		writeJSON(rawFile(gateReportFD), frameRefuse, failureOf(err))
		os.Exit(125)
	}
	if err := writeJSON(rawFile(gateReportFD), frameReady, seen); err != nil {
		os.Exit(125)
	}
	var gate [1]byte
	if n, err := (rawFile(gatePlanFD)).Read(gate[:]); n != 1 || err != nil {
		os.Exit(125) // the supervisor is gone, or the turn was stopped before it began
	}
	if p.Probe {
		probeMain(p)
	}
	path := string(p.Program)
	id, _, err := lookAt(path)
	switch {
	case err != nil:
		err = fmt.Errorf("program %s cannot be reached: %w", path, err)
	case id != p.ProgramID:
		err = fmt.Errorf("program %s was replaced", path)
	default:
		err = fmt.Errorf("execute %s: %w", path, syscall.Exec(path, plainly(p.Argv), plainly(p.Env)))
	}
	writeFrame(rawFile(gateReportFD), frameFault, []byte(err.Error()))
	os.Exit(125)
}

func enterGate() (gatePlan, gatePosture, error) {
	var p gatePlan
	seen := gatePosture{Rlimits: map[string]uint64{}, Files: []string{"0", "1", "2"}}
	kind, b, err := readFrame(rawFile(gatePlanFD))
	if err == nil && kind != framePlan {
		err = fmt.Errorf("frame %q", kind)
	}
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		return p, seen, fmt.Errorf("read plan: %w", err)
	}
	// Whatever the supervisor's process left open on its way here.
	for fd := 3; fd < limitFiles; fd++ {
		unix.CloseOnExec(fd)
	}
	unix.Umask(0o022)
	if err := unix.Chdir(string(p.Dir)); err != nil {
		return p, seen, fmt.Errorf("enter workspace: %w", err)
	}
	if err := gateLimits(p.Memory, seen.Rlimits); err != nil {
		return p, seen, err
	}
	// A profile that was taken but does not hold must not be run under.
	if _, err := os.ReadFile(string(p.Sentinel)); !errors.Is(err, unix.EPERM) {
		return p, seen, notEnforceable(fmt.Sprintf("the profile does not hold: reading a file outside gave %v", err), nil)
	}
	if !p.Network {
		conn, err := net.DialTimeout("tcp", "127.0.0.1:9", time.Second)
		if conn != nil {
			conn.Close()
		}
		if !errors.Is(err, unix.EPERM) {
			return p, seen, notEnforceable(fmt.Sprintf("the profile does not hold: a connection gave %v", err), nil)
		}
	}
	return p, seen, nil
}

func gateLimits(memory int64, seen map[string]uint64) error {
	limits := []struct {
		name  string
		which int
		value uint64
	}{
		{"core", unix.RLIMIT_CORE, 0},
		{"nofile", unix.RLIMIT_NOFILE, limitFiles},
		{"fsize", unix.RLIMIT_FSIZE, limitFileBytes},
		{"memlock", unix.RLIMIT_MEMLOCK, limitLocked},
	}
	if memory > 0 {
		limits = append(limits, struct {
			name  string
			which int
			value uint64
		}{"data", unix.RLIMIT_DATA, uint64(memory + max(memory, memorySlack))})
	}
	for _, l := range limits {
		var old, now syscall.Rlimit
		if err := syscall.Getrlimit(l.which, &old); err != nil {
			return fmt.Errorf("read limit %s: %w", l.name, err)
		}
		value := min(l.value, old.Max)
		if err := syscall.Setrlimit(l.which, &syscall.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("limit %s: %w", l.name, err)
		}
		if err := syscall.Getrlimit(l.which, &now); err != nil {
			return fmt.Errorf("read limit %s: %w", l.name, err)
		}
		seen[l.name] = now.Cur
	}
	return nil
}

// lookAt names what a path leads to, without following a link at its end.
func lookAt(path string) (fileID, unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	return fileID{Dev: uint64(st.Dev), Ino: st.Ino}, st, err
}

// spelled checks that a path has no links in it and is spelled as the disk has
// it: profiles match what a path resolves to, and most disks here take any case.
func spelled(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("%w: %s is missing or moved: %w", ErrSpec, path, err)
	}
	if real != path {
		return refuse("%q leads to %q", path, real)
	}
	for dir := path; dir != "/"; dir = filepath.Dir(dir) {
		f, err := os.Open(filepath.Dir(dir))
		if err != nil {
			return refuse("%q cannot be checked: %v", path, err)
		}
		names, err := f.Readdirnames(-1)
		f.Close()
		if err != nil || !slices.Contains(names, filepath.Base(dir)) {
			return refuse("%q is not how the disk spells it", path)
		}
	}
	return nil
}
