package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Descriptors that init inherits. What is handed over with the plan comes after
// them.
const (
	initPlanFD    = 3
	initControlFD = 4
	initReportFD  = 5
	initStdoutFD  = 6
	initStderrFD  = 7
	initFreeFD    = 8
)

// Messages on the control pipe. Its end means that the supervisor is gone.
const (
	controlRelease = 'R'
	controlStop    = 'S'
)

// Reply files are refused for these reasons; the text goes into the evidence.
var errReplyKind = errors.New("not a regular file with one link")

// initMain is PID 1 of the sandbox: it builds the view, starts the leaf,
// reaps, stops, and says how it went. It ends the namespace by ending.
func initMain() {
	// The workload has this process's uid and may send it any signal. With the
	// default action the kernel drops whatever is sent to the init of a PID
	// namespace from inside; with a handler, as Go installs, it would not.
	if on(layerSignals) {
		defaultSignals()
	}
	var in initStage
	in.lookable(0)
	unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	in.report = rawFile(initReportFD)
	defer func() {
		if r := recover(); r != nil {
			in.fail(fmt.Errorf("init: %v", r))
		}
	}()
	if err := in.prepare(); err != nil {
		in.fail(err)
	}
	in.serve()
}

type initStage struct {
	plan   plan
	view   *view // nil for a turn without namespaces
	report rawFile
	stdin  int
	gate   int    // what the program's process waits at
	faults int    // read end of what it says
	leaf   int    // its pid
	child  *child // what it runs on, until it executes the program
	turn   processes
	disk   *diskMeter // measured before the gate can open
	done   confined
}

// lookable opens and closes this process's memory, and its directory in /proc, to
// whoever has the same user.
func (in *initStage) lookable(open uintptr) {
	if on(layerDumpable) {
		unix.Prctl(unix.PR_SET_DUMPABLE, open, 0, 0, 0)
	}
}

// fail reports why nothing runs, and ends the namespace.
func (in *initStage) fail(err error) {
	writeJSON(in.report, frameRefuse, failureOf(err))
	os.Exit(125)
}

// prepare does everything up to the gate.
func (in *initStage) prepare() error {
	in.turn.loose = len(os.Args) == 1
	// Before anything is mounted: elsewhere the mounts would be somebody's own.
	if os.Getpid() != 1 && !in.turn.loose {
		return errors.New("this stage runs only as the first process of a sandbox")
	}
	if err := in.settle(); err != nil {
		return err
	}
	in.warm()
	if err := writeFrame(in.report, frameIdle, nil); err != nil {
		return err
	}
	files, err := receiveFiles(initPlanFD, maxHanded, 0)
	if err != nil {
		return fmt.Errorf("take the files of the plan: %w", err)
	}
	if in.plan, err = readPlan(rawFile(initPlanFD)); err != nil {
		return err
	}
	if err := in.plan.place(files); err != nil {
		return err
	}
	in.stdin, in.gate = files[fileStdin], files[fileGate]
	if in.plan.shared() != in.turn.loose {
		return errors.New("the plan is for another kind of turn")
	}
	var history []byte
	if in.plan.History {
		kind, b, err := readFrame(rawFile(initPlanFD))
		if err != nil || kind != frameHistory {
			return fmt.Errorf("read history: frame %q: %v", kind, err)
		}
		history = b
	}
	unix.Close(initPlanFD)
	if !in.turn.loose {
		if err := passListener(in.plan); err != nil {
			return err
		}
		if err := in.view.finish(in.plan, history); err != nil {
			return err
		}
	}
	if in.disk, err = planDisk(in.plan); err != nil {
		return err
	}
	// The program's process is in this one's memory, which is closed to being
	// looked into; but it has to be read back. Nothing runs yet that could look.
	in.lookable(1)
	if err := in.startLeaf(); err != nil {
		return err
	}
	if dir, err := os.Readlink(procDir(in.leaf) + "/cwd"); err != nil || dir != string(in.plan.Dir) {
		return fmt.Errorf("working directory is %q, not the workspace: %v", dir, err)
	}
	seen, err := observe(procDir(in.leaf), in.leaf)
	if err != nil {
		return notEnforceable("the confinement could not be read back", err)
	}
	seen.confined = in.done
	if !in.plan.HostNet && !in.turn.loose {
		if seen.UpLinks, err = upLinks(); err != nil {
			return notEnforceable("the confinement could not be read back", err)
		}
	}
	in.lookable(0)
	return writeJSON(in.report, frameReady, seen)
}

// warm goes, while no plan is there, once through code that a turn takes: the
// pages of a program come into memory when they are first used. Nothing of it is
// kept, and nothing depends on it.
func (in *initStage) warm() {
	waiting := []unix.PollFd{{Fd: initPlanFD, Events: unix.POLLIN}}
	if n, err := unix.Poll(waiting, 0); n != 0 || err != nil || in.turn.loose {
		return
	}
	var p plan
	json.Unmarshal([]byte(`{"program":"","argv":[""],"env":[""],"program_id":{},"sources":[{"id":{}}],"filter":"","disk":{}}`), &p)
	newChild(p, 0, 0, 0)
	h := handled(landlockKernel(), p)
	if set, err := h.rules(nil); err == nil {
		unix.Close(set)
	}
	seen, _ := observe("/proc/self", 0)
	seen.UpLinks, _ = upLinks()
	json.Marshal(seen)
}

// settle makes what surrounds any program: what every view shows, or without
// namespaces only the hold on what descends from this process.
func (in *initStage) settle() error {
	if in.turn.loose {
		return reap()
	}
	g, err := groundOf(os.Args[1:])
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(hostName)); err != nil {
		return notEnforceable("no rights inside the new user namespace; a security profile may take them away "+
			"(on Ubuntu: allow userns for this binary in an AppArmor profile)", err)
	}
	unix.Umask(0)
	in.view, err = newView(g)
	return err
}

func (in *initStage) startLeaf() error {
	var faults [2]int
	if err := unix.Pipe2(faults[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	// Above the descriptors that the program's process lays out.
	high, err := unix.FcntlInt(uintptr(faults[1]), unix.F_DUPFD_CLOEXEC, initFreeFD)
	if err != nil {
		return err
	}
	unix.Close(faults[1])
	c, err := newChild(in.plan, in.stdin, in.gate, high)
	if err != nil {
		return err
	}
	in.child = c
	in.leaf, err = spawn(c, func() error {
		var err error
		if in.done, err = confine(in.plan); err == nil && in.done.Landlock.Scope&unix.LANDLOCK_SCOPE_SIGNAL != 0 {
			c.expect(stepScope, unix.EPERM, unix.SYS_KILL, uintptr(os.Getpid()), 0)
		}
		return err
	}, func(pid int) error {
		// The streams must end when the last process of the turn ends, so init
		// keeps no copy of them.
		for _, fd := range []int{in.stdin, initStdoutFD, initStderrFD, in.gate, high} {
			unix.Close(fd)
		}
		in.faults = faults[0]
		said, err := readRecord(rawFile(in.faults))
		if err != nil {
			var status unix.WaitStatus
			unix.Wait4(pid, &status, unix.WNOHANG, nil)
			return fmt.Errorf("the program's process ended before it was confined (status %#x): %w", status, err)
		}
		if said.step != stepReady {
			return said.err(in.plan)
		}
		return nil
	})
	return err
}

// reaped is one process that ended.
type reaped struct {
	pid    int
	status unix.WaitStatus
}

// serve runs from the gate to the end of the namespace.
func (in *initStage) serve() {
	control, dead, faults := in.listen()
	var e ended
	var left time.Time // when the main process ended
	var fault []byte
	grace := time.NewTimer(time.Hour)
	alive, ran := true, false
	var over, full <-chan struct{} // nil until the program runs
	var again <-chan time.Time     // goes on killing, where one time is not enough
	kill := func() {
		in.turn.signal(unix.SIGKILL)
		if in.turn.loose {
			again = time.After(sweepEvery)
		}
	}
	for dead != nil {
		select {
		case c, ok := <-control:
			switch {
			case !ok:
				// Nobody is left to report to. The namespace ends with this
				// process; without one, everything is ended first.
				if !in.turn.loose {
					os.Exit(125)
				}
				control = nil
				kill()
			case c == controlRelease && !ran && !e.Stopped:
				// The supervisor opens the gate itself, right after it said so: here
				// it may have been open for a moment.
				ran = true
				// What watches goes on for as long as the turn, so it needs the
				// collector that the short stages go without.
				debug.SetGCPercent(100)
				full = in.disk.watch()
				if in.plan.Memory > 0 && on(layerMemory) && !in.turn.loose {
					over = watchMemory(newMeter(in.plan))
				}
			case c == controlStop && !e.Stopped:
				e.Stopped = alive
				if !ran {
					kill()
					break
				}
				in.turn.signal(unix.SIGTERM)
				in.turn.signal(unix.SIGCONT) // a stopped process must see it too
				grace.Reset(time.Duration(in.plan.GraceNS))
			}
		case <-again:
			kill()
		case <-grace.C:
			kill()
		case <-over:
			over = nil
			e.Memory = alive && !e.Disk
			kill()
		case <-full:
			full = nil
			e.Disk = alive && !e.Memory
			kill()
		case fault = <-faults:
			faults = nil
		case r, ok := <-dead:
			if !ok {
				dead = nil
				break
			}
			e.Reaped++
			if r.pid == in.leaf {
				alive, left = false, time.Now()
				e.Exit, e.Signal = exitOf(r.status)
				e.Left = in.turn.alive()
				if on(layerPID) {
					kill()
				}
			}
		}
	}
	if faults != nil {
		fault = <-faults
	}
	if len(fault) > 0 {
		writeFrame(in.report, frameFault, fault)
	}
	// No process is left that could change the file while it is read.
	if reply, err := collectReply(in.plan.replyFile(), in.plan.Reply); err != nil {
		e.ReplyErr = err.Error()
	} else if reply != nil {
		writeFrame(in.report, frameReply, reply)
	}
	e.TookNS = int64(time.Since(left))
	writeJSON(in.report, frameDone, e)
	os.Exit(0)
}

// listen starts the three goroutines that wait for the outside, for children,
// and for word of a failed execve. They end with the process.
func (in *initStage) listen() (<-chan byte, <-chan reaped, <-chan []byte) {
	control, dead, faults := make(chan byte), make(chan reaped), make(chan []byte, 1)
	go func() {
		var b [1]byte
		for {
			if n, err := (rawFile(initControlFD)).Read(b[:]); n != 1 || err != nil {
				close(control)
				return
			}
			control <- b[0]
		}
	}()
	go func() {
		for {
			var r reaped
			var err error
			r.pid, err = unix.Wait4(-1, &r.status, unix.WALL, nil)
			switch {
			case err == unix.EINTR:
			case err != nil: // ECHILD: this process is alone
				close(dead)
				return
			default:
				dead <- r
			}
		}
	}()
	go func() {
		said, err := readRecord(rawFile(in.faults))
		if err != nil {
			faults <- nil // the pipe was closed by execve, or by the end of the process
			return
		}
		faults <- []byte(said.err(in.plan).Error())
	}()
	return control, dead, faults
}

func exitOf(s unix.WaitStatus) (exit, signal int) {
	if s.Signaled() {
		return 0, int(s.Signal())
	}
	return s.ExitStatus(), 0
}

// countAlive counts what the main process left behind, zombies apart.
func countAlive() int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 1 {
			continue
		}
		b, err := readKernel("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		rest := b[strings.LastIndexByte(string(b), ')')+1:]
		if len(rest) > 1 && rest[1] != 'Z' && rest[1] != 'X' {
			n++
		}
	}
	return n
}

// collectReply reads the reply file, which the workload made as it liked. It
// returns nil where there is none.
func collectReply(path string, limit int) ([]byte, error) {
	if limit == 0 {
		return nil, nil
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reply file cannot be opened: %w", err)
	}
	defer unix.Close(fd)
	_, st, err := identify(fd)
	if err != nil {
		return nil, fmt.Errorf("reply file: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		return nil, fmt.Errorf("reply file: %w", errReplyKind)
	}
	if st.Size > int64(limit) {
		return nil, fmt.Errorf("reply file has %d bytes, at most %d", st.Size, limit)
	}
	b := make([]byte, st.Size)
	if _, err := io.ReadFull(rawFile(fd), b); err != nil {
		return nil, fmt.Errorf("reply file: %w", err)
	}
	return b, nil
}

// defaultSignals gives every signal its default action, behind the back of the
// Go runtime. Faults of this process then end it, and with it the namespace.
func defaultSignals() {
	var action [4]uintptr // handler SIG_DFL, flags, restorer, mask
	for sig := uintptr(1); sig <= 64; sig++ {
		unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	}
}
