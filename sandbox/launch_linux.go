package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/procid"
)

const (
	// startLimit bounds everything between the fork and the gate.
	startLimit = 30 * time.Second
	// waitLimit is how long a killed init may take to be reaped. Beyond it a
	// process hangs in the kernel, and the cleanup is not confirmed.
	waitLimit = 10 * time.Second
)

// initCaps are what init needs: mounts, dropping the leaf's bounding set, and
// writing the namespace's own limits.
var initCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP, unix.CAP_SYS_RESOURCE}

// capsFor adds the right to bring loopback up where that is needed.
func capsFor(network Network) []uintptr {
	if network == NetworkAllow {
		return append(initCaps[:len(initCaps):len(initCaps)], unix.CAP_NET_ADMIN)
	}
	return initCaps
}

// turn is the supervisor's side of one init.
type turn struct {
	spec    Spec
	scratch string // of a turn without namespaces, removed at its end; "" with them
	filter  []byte // the system call filter that was asked for
	proc    *os.Process
	pipes   *pipes
	egress  *egress
	frames  chan frame
	exited  chan struct{}
	report  Report
}

type frame struct {
	kind    frameKind
	payload []byte
}

func launch(spec Spec) (*Process, error) {
	p, err := launchPlan(spec, false)
	if spec.Degraded && errors.Is(err, ErrNotEnforceable) {
		return launchShared(spec, err)
	}
	return p, err
}

// launchPlan starts init and brings it to the gate. self runs this binary's
// probe in place of the program.
func launchPlan(spec Spec, self bool) (*Process, error) {
	pins, err := pin(spec, self)
	if err != nil {
		return nil, err
	}
	defer pins.close()
	return launchFrom(spec, pins, self, "")
}

// launchFrom starts init for what was pinned; scratch is the private directory
// of a turn without namespaces, "" with them.
func launchFrom(spec Spec, pins *pinned, self bool, scratch string) (*Process, error) {
	env, err := environ(spec)
	if err != nil {
		return nil, err
	}
	p := plan{
		Scratch: exact(scratch),
		Program: exact(spec.Program), Argv: exactly(append([]string{spec.Program}, spec.Arguments...)),
		Dir:  exact(spec.Workspace),
		Self: self, ProgramID: pins.program, Sources: pins.sources, Cover: pins.cover,
		HostNet: spec.Network == NetworkHost, History: spec.History != nil, Reply: spec.ReplyLimit,
		Memory: spec.MemoryBytes, GraceNS: int64(spec.Grace),
	}
	if spec.Write {
		p.Disk, p.DiskBase = amount{Names: spec.DiskFiles, Bytes: spec.DiskBytes}, pins.base
	}
	if self {
		p.Argv[0] = stageProbe
	}
	if p.shared() {
		p.Others = othersRunning()
	}
	p.Env = exactly(p.moved(env))
	t := &turn{spec: spec, scratch: scratch, frames: make(chan frame, 4), exited: make(chan struct{})}
	owner := -1
	if os.Geteuid() == 0 {
		owner = rootBase + spec.Slot
	}
	if t.egress, err = newEgress(spec); err != nil {
		return nil, err
	}
	if t.pipes, err = newPipes(spec.Stdin, owner); err != nil {
		t.egress.end()
		return nil, fmt.Errorf("start sandbox: %w", err)
	}
	inherited := t.egress.inherit(&p, pins.trees)
	if t.filter, err = callFilter(p.grants()); err == nil {
		p.Filter = t.filter
		err = t.fork(inherited, owner)
	}
	t.egress.forked()
	if err != nil {
		t.egress.end()
		t.pipes.close()
		return nil, err
	}
	go t.readFrames()
	go t.writePlan(p)
	id, err := t.gate()
	if err == nil {
		err = t.egress.open()
	}
	if err != nil {
		t.abandon()
		return nil, err
	}
	return supervise(t, id), nil
}

// fork starts init. The goroutine that does so keeps its thread until init has
// been waited for: the parent-death signal follows the thread, not the process.
func (t *turn) fork(trees []*os.File, owner int) error {
	exe, err := selfImage()
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	files := append([]*os.File{null, null, null}, t.pipes.child...)
	attr := &os.ProcAttr{Dir: "/", Env: stageEnv, Files: append(files, trees...), Sys: sysAttr(t.spec.Network, owner)}
	if t.scratch != "" {
		attr.Sys = sharedAttr()
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		proc, err := os.StartProcess(exe, []string{stageInit}, attr)
		t.proc = proc
		started <- err
		if err != nil {
			return
		}
		proc.Wait()
		close(t.exited)
	}()
	err = <-started
	t.pipes.closeChild()
	if err != nil && passing(err) {
		return fmt.Errorf("start sandbox: %w", err)
	}
	if err != nil {
		return notEnforceable("namespaces cannot be made; allow unprivileged user namespaces (sysctl "+
			"user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 where it exists), "+
			"or an AppArmor userns profile for this binary", err)
	}
	return nil
}

// passing tells a shortage of the moment from a machine that cannot.
func passing(err error) bool {
	for _, shortage := range []error{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EINTR} {
		if errors.Is(err, shortage) {
			return true
		}
	}
	return false
}

func sysAttr(network Network, owner int) *syscall.SysProcAttr {
	sys := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC |
			unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		Pdeathsig:   syscall.SIGKILL,
		Setsid:      true,
		AmbientCaps: capsFor(network),
		UidMappings: []syscall.SysProcIDMap{{ContainerID: workUID, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: workUID, HostID: os.Getegid(), Size: 1}},
	}
	if network != NetworkHost && on(layerNet) {
		sys.Cloneflags |= unix.CLONE_NEWNET
	}
	if owner >= 0 {
		sys.UidMappings[0].HostID, sys.GidMappings[0].HostID = owner, owner
		// Only root may drop its supplementary groups, and does.
		sys.GidMappingsEnableSetgroups = true
		sys.Credential = &syscall.Credential{Uid: workUID, Gid: workUID}
	}
	return sys
}

// writePlan ends with the plan or with init, which holds the other end.
func (t *turn) writePlan(p plan) {
	defer t.pipes.plan.Close()
	if err := writeJSON(t.pipes.plan, framePlan, p); err != nil {
		return
	}
	if p.History {
		writeFrame(t.pipes.plan, frameHistory, t.spec.History)
	}
}

// readFrames ends with the report pipe. The report comes from code of ours, but
// is decoded as if it did not.
func (t *turn) readFrames() {
	defer close(t.frames)
	for {
		kind, payload, err := readFrame(t.pipes.report)
		if err != nil {
			return
		}
		t.frames <- frame{kind, payload}
		if kind == frameDone {
			io.Copy(io.Discard, t.pipes.report)
			return
		}
	}
}

// gate waits until the leaf is confined, and holds what was achieved against
// what was asked.
func (t *turn) gate() (Identity, error) {
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	var f frame
	select {
	case f = <-t.frames:
	case <-limit.C:
		return Identity{}, fmt.Errorf("start sandbox: not ready after %s", startLimit)
	}
	switch f.kind {
	case frameReady:
	case frameRefuse:
		var why failure
		if err := json.Unmarshal(f.payload, &why); err != nil {
			return Identity{}, fmt.Errorf("start sandbox: %w", err)
		}
		return Identity{}, why.err()
	case 0:
		return Identity{}, errors.New("start sandbox: its first process ended without a word")
	default:
		return Identity{}, fmt.Errorf("start sandbox: unexpected frame %q", f.kind)
	}
	var seen posture
	if err := json.Unmarshal(f.payload, &seen); err != nil {
		return Identity{}, fmt.Errorf("start sandbox: %w", err)
	}
	if err := filtered(seen, t.filter); err != nil {
		return Identity{}, err
	}
	id, err := procid.Of(t.proc.Pid)
	if err != nil {
		return Identity{}, fmt.Errorf("start sandbox: %w", err)
	}
	if t.report, err = achieved(t.spec, seen, t.proc.Pid, t.scratch != ""); err != nil {
		return Identity{}, err
	}
	t.limit()
	return Identity{PID: id.PID, StartTime: id.StartTime, BootID: id.BootID, PIDNS: t.report.Namespaces["pid"],
		Shared: t.scratch != ""}, nil
}

// abandon ends a start that failed. Nothing of the program ever ran.
func (t *turn) abandon() {
	t.proc.Kill()
	select {
	case <-t.exited:
	case <-time.After(waitLimit):
	}
	t.egress.end()
	go func() { // lets readFrames end
		for range t.frames {
		}
	}()
	t.pipes.close()
}

// procDir is the /proc directory of a process.
func procDir(pid int) string { return "/proc/" + strconv.Itoa(pid) }
