package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
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

// turn is the supervisor's side of one init that was told its plan.
type turn struct {
	*first
	spec    Spec
	scratch string   // of a turn without namespaces, removed at its end; "" with them
	filter  []byte   // the system call filter that was asked for
	gate    *os.File // a byte lets the program run
	program *os.File // as long as it is open, no other file gets the program's number; nil for the probe
	egress  *egress
	report  Report
}

type frame struct {
	kind    frameKind
	payload []byte
}

func launch(spec Spec, ahead *Prepared) (*Process, error) {
	p, err := launchPlan(spec, false, ahead)
	if spec.Degraded && errors.Is(err, ErrNotEnforceable) {
		return launchShared(spec, err)
	}
	return p, err
}

// launchPlan brings an init to the gate, ahead's where it has one that fits. self
// runs this binary's probe in place of the program.
func launchPlan(spec Spec, self bool, ahead *Prepared) (*Process, error) {
	pins, err := pin(spec, self)
	if err != nil {
		return nil, err
	}
	defer pins.close()
	return launchFrom(spec, pins, self, "", ahead)
}

// launchFrom brings an init to the gate for what was pinned; scratch is the
// private directory of a turn without namespaces, "" with them.
func launchFrom(spec Spec, pins *pinned, self bool, scratch string, ahead *Prepared) (*Process, error) {
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
	t := &turn{spec: spec, scratch: scratch}
	if t.egress, err = newEgress(spec); err != nil {
		return nil, err
	}
	t.first = ahead.take(spec)
	prepared := t.first != nil
	if !prepared {
		if t.first, err = newFirst(kindOf(spec, p.shared())); err != nil {
			t.egress.end()
			return nil, err
		}
	}
	t.group.bound(spec.MemoryBytes)
	p.MemoryCgroup = t.group.bounds()
	id, err := t.begin(p, pins.trees)
	if err != nil {
		t.abandon()
		t.egress.end()
		t.close()
		if prepared && errors.Is(err, errSilent) {
			// Something of the machine's ended it while it waited, as for want of memory.
			return launchFrom(spec, pins, self, scratch, nil)
		}
		return nil, err
	}
	t.program = pins.handProgram()
	return supervise(t, id), nil
}

// begin hands init its plan and waits until the program's process is at its
// gate.
func (t *turn) begin(p plan, trees []*os.File) (Identity, error) {
	files := t.egress.join(&p, append(make([]*os.File, fileFirst), trees...))
	var err error
	if t.filter, err = callFilter(p.grants()); err != nil {
		return Identity{}, err
	}
	p.Filter = t.filter
	told, err := json.Marshal(p)
	if err == nil {
		err = t.handOver(files)
	}
	if errors.Is(err, errSilent) {
		_, err = t.ready() // unless it said why, before there was a plan
	}
	if err != nil {
		return Identity{}, fmt.Errorf("start sandbox: %w", err)
	}
	go t.tell(told)
	// Read while init works. Where it ended meanwhile, what it says goes before
	// what could not be read.
	out, unread := readOutside(t.proc.Pid, t.kind, t.spec.MemoryBytes)
	seen, err := t.ready()
	if err == nil {
		err = unread
	}
	if err != nil {
		return Identity{}, err
	}
	id, err := t.achieve(seen, out)
	if err == nil {
		err = t.egress.open()
	}
	return id, err
}

// handOver sends init what it needs open, in the order of the plan's places, and
// lets go of it: the streams must end with the program's.
func (t *turn) handOver(files []*os.File) (err error) {
	defer t.egress.handed()
	if files[fileStdin], err = openInput(t.spec.Stdin); err != nil {
		return err
	}
	defer files[fileStdin].Close()
	if files[fileGate], t.gate, err = os.Pipe(); err != nil {
		return err
	}
	defer files[fileGate].Close()
	err = t.pipes.handOver(files)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return errSilent
	}
	return err
}

// close lets go of the turn's descriptors.
func (t *turn) close() {
	for _, f := range []*os.File{t.gate, t.program} {
		if f != nil {
			f.Close()
		}
	}
	t.pipes.close()
}

// errSilent: init is gone, and had no part in why.
var errSilent = errors.New("its first process ended without a word")

// tell writes the plan. It ends with it or with init, which holds the other end.
func (t *turn) tell(plan []byte) {
	defer t.pipes.plan.Close()
	if err := writeFrame(t.pipes.plan, framePlan, plan); err != nil {
		return
	}
	if t.spec.History != nil {
		writeFrame(t.pipes.plan, frameHistory, t.spec.History)
	}
}

// ready waits until the leaf is confined, and returns what init read back.
func (t *turn) ready() (seen posture, err error) {
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	var f frame
	select {
	case f = <-t.frames:
	case <-limit.C:
		return seen, fmt.Errorf("start sandbox: not ready after %s", startLimit)
	}
	switch f.kind {
	case frameReady:
	case frameRefuse:
		var why failure
		if err := json.Unmarshal(f.payload, &why); err != nil {
			return seen, fmt.Errorf("start sandbox: %w", err)
		}
		return seen, why.err()
	case 0:
		return seen, fmt.Errorf("start sandbox: %w", errSilent)
	default:
		return seen, fmt.Errorf("start sandbox: unexpected frame %q", f.kind)
	}
	if err := json.Unmarshal(f.payload, &seen); err != nil {
		return seen, fmt.Errorf("start sandbox: %w", err)
	}
	return seen, nil
}

// achieve holds what was achieved against what was asked.
func (t *turn) achieve(seen posture, out surroundings) (Identity, error) {
	if err := filtered(seen, t.filter); err != nil {
		return Identity{}, err
	}
	id, err := procid.Of(t.proc.Pid)
	if err != nil {
		return Identity{}, fmt.Errorf("start sandbox: %w", err)
	}
	if t.report, err = achieved(t.spec, seen, out, t.kind.shared); err != nil {
		return Identity{}, err
	}
	t.limit(out.ipcBounded)
	return Identity{PID: id.PID, StartTime: id.StartTime, BootID: id.BootID, PIDNS: t.report.Namespaces["pid"],
		Shared: t.scratch != ""}, nil
}

// procDir is the /proc directory of a process.
func procDir(pid int) string { return "/proc/" + strconv.Itoa(pid) }
