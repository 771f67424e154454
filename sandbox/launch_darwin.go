package sandbox

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/procid"
)

const (
	sandboxExec = "/usr/bin/sandbox-exec"
	// startLimit bounds everything between the fork and the gate.
	startLimit = 30 * time.Second
)

// turn is the supervisor's side of one gate.
type turn struct {
	spec   Spec
	temp   string // private directory, removed at the end
	proc   *os.Process
	mark   uint64
	id     Identity
	report Report

	control, said, stdout, stderr, watch *os.File
	frames                               chan frame
	exited                               chan *os.ProcessState
}

type frame struct {
	kind    frameKind
	payload []byte
}

func launch(spec Spec) (*Process, error) { return launchPlan(spec, "") }

// launchPlan starts the gate and brings it to where it waits. probe is where
// the probe finds a listener, which it then tries in place of the program.
func launchPlan(spec Spec, probe string) (_ *Process, err error) {
	if spec.Network == NetworkAllow {
		return nil, notEnforceable("an allow list cannot be enforced on macOS; grant no network, or the whole of it", nil)
	}
	t := &turn{spec: spec, frames: make(chan frame, 4), exited: make(chan *os.ProcessState, 1)}
	defer func() {
		if err != nil {
			t.abandon()
		}
	}()
	p, profile, err := t.prepare(probe)
	if err != nil {
		return nil, err
	}
	if err := t.start(profile); err != nil {
		return nil, err
	}
	go t.readFrames()
	if err := writeJSON(t.control, framePlan, p); err != nil {
		return nil, fmt.Errorf("start sandbox: %w", err)
	}
	if err := t.gate(); err != nil {
		return nil, err
	}
	return supervise(t), nil
}

// prepare looks at everything that the Spec names, and makes the private
// directory and the profile.
func (t *turn) prepare(probe string) (gatePlan, string, error) {
	s := t.spec
	var p gatePlan
	for _, path := range append(s.asked(), s.Protected...) {
		if err := spelled(path); err != nil {
			return p, "", err
		}
	}
	workspace, st, err := lookAt(s.Workspace)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return p, "", refuse("workspace %q is not a directory", s.Workspace)
	}
	program, st, err := lookAt(s.Program)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0 {
		return p, "", refuse("program %q is not a regular executable file", s.Program)
	}
	if err := errors.Join(mustBe(s.WorkspaceFile, workspace, s.Workspace), mustBe(s.ProgramFile, program, s.Program)); err != nil {
		return p, "", err
	}
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return p, "", fmt.Errorf("look at own binary: %w", err)
	}
	temp, err := os.MkdirTemp("", "holdfast-turn-")
	if err != nil {
		return p, "", fmt.Errorf("make private directory: %w", err)
	}
	t.temp = temp
	if t.temp, err = filepath.EvalSymlinks(temp); err != nil {
		return p, "", fmt.Errorf("make private directory: %w", err)
	}
	// The sentinel lies beside what the turn may see, so only the profile keeps
	// it from being read.
	inside, sentinel := filepath.Join(t.temp, "in"), filepath.Join(t.temp, "outside")
	err = errors.Join(os.WriteFile(sentinel, []byte("outside"), 0o600), os.Mkdir(inside, 0o700),
		os.Mkdir(filepath.Join(inside, "home"), 0o700), os.Mkdir(filepath.Join(inside, "tmp"), 0o700))
	history := filepath.Join(inside, "history.jsonl")
	if s.History != nil {
		err = errors.Join(err, os.WriteFile(history, s.History, 0o400))
	}
	if err != nil {
		return p, "", fmt.Errorf("make private directory: %w", err)
	}
	var random [8]byte
	rand.Read(random[:])
	t.mark = binary.NativeEndian.Uint64(random[:]) | 1
	env, err := environ(s)
	if err != nil {
		return p, "", err
	}
	for i, v := range env {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "HOME":
			env[i] = "HOME=" + filepath.Join(inside, "home")
		case "TMPDIR":
			env[i] = "TMPDIR=" + filepath.Join(inside, "tmp")
		case "HOLDFAST_REPLY":
			env[i] = "HOLDFAST_REPLY=" + t.replyPath()
		case "HOLDFAST_HISTORY":
			env[i] = "HOLDFAST_HISTORY=" + history
		}
	}
	env = append(env, markName+markOf(Identity{PIDNS: t.mark}))
	p = gatePlan{
		Program: exact(s.Program), ProgramID: program, Argv: exactly(append([]string{s.Program}, s.Arguments...)), Env: exactly(env),
		Dir: exact(s.Workspace), Sentinel: exact(sentinel), Network: s.Network == NetworkHost, Memory: s.MemoryBytes,
		Probe: probe != "", Address: probe,
	}
	home, _ := os.UserHomeDir()
	if home, err = filepath.EvalSymlinks(home); err != nil {
		return p, "", fmt.Errorf("look for the keychains: %w", err)
	}
	b := seatbelt{self: self, program: s.Program, workspace: s.Workspace, write: s.Write, temp: inside, read: s.Read,
		protected: s.Protected, home: home, network: s.Network == NetworkHost}
	if s.History != nil {
		b.sealed = append(b.sealed, history)
	}
	pointer := filepath.Join(s.Workspace, ".git")
	switch {
	case s.Git == GitRead:
		b.read = append(b.read[:len(b.read):len(b.read)], s.GitDir)
		b.sealed = append(b.sealed, s.GitDir)
	case s.GitDir != "":
		b.hidden = append(b.hidden, s.GitDir)
	}
	if _, _, err := lookAt(pointer); err == nil && s.GitDir != pointer {
		b.sealed = append(b.sealed, pointer)
	}
	profile, err := b.profile()
	return p, profile, err
}

func (t *turn) replyPath() string { return filepath.Join(t.temp, "in", "reply.json") }

// start runs sandbox-exec, which becomes the gate, in a session of its own, and
// the watch outside.
func (t *turn) start(profile string) error {
	var child []*os.File
	defer func() {
		for _, f := range child {
			f.Close()
		}
	}()
	pipe := func(mine **os.File, reads bool) error {
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("start sandbox: %w", err)
		}
		if reads {
			*mine, child = r, append(child, w)
		} else {
			*mine, child = w, append(child, r)
		}
		return nil
	}
	input, err := t.input()
	if err != nil {
		return fmt.Errorf("make standard input: %w", err)
	}
	child = append(child, input)
	if err := errors.Join(pipe(&t.stdout, true), pipe(&t.stderr, true), pipe(&t.control, false), pipe(&t.said, true)); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("look at own binary: %w", err)
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return fmt.Errorf("look at own binary: %w", err)
	}
	t.proc, err = os.StartProcess(sandboxExec, []string{sandboxExec, "-p", profile, self, stageGate}, &os.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=2"}, Files: child, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return notEnforceable(sandboxExec+" cannot be started", err)
	}
	go func() {
		state, err := t.proc.Wait()
		if err == nil {
			t.exited <- state
		}
		close(t.exited)
	}()
	id, err := procid.Of(t.proc.Pid)
	if err != nil {
		return fmt.Errorf("start sandbox: %w", err)
	}
	t.id = Identity{PID: id.PID, StartTime: id.StartTime, BootID: id.BootID, PIDNS: t.mark}
	return t.startWatch(self)
}

// startWatch starts who ends the turn where this process can no longer.
func (t *turn) startWatch(self string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start sandbox: %w", err)
	}
	defer r.Close()
	t.watch = w
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("start sandbox: %w", err)
	}
	defer null.Close()
	proc, err := os.StartProcess(self, []string{stageWatch}, &os.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=2"}, Files: []*os.File{r, null, null}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return fmt.Errorf("start sandbox: %w", err)
	}
	go proc.Wait()
	return writeJSON(w, framePlan, t.id)
}

// input is what the program reads, in a file that has no name.
func (t *turn) input() (*os.File, error) {
	if t.spec.Stdin == nil {
		return os.Open(os.DevNull)
	}
	name := filepath.Join(t.temp, "stdin")
	if err := os.WriteFile(name, t.spec.Stdin, 0o400); err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	return f, errors.Join(err, os.Remove(name))
}

// readFrames ends with the report pipe.
func (t *turn) readFrames() {
	defer close(t.frames)
	for {
		kind, payload, err := readFrame(t.said)
		if err != nil {
			return
		}
		t.frames <- frame{kind, payload}
	}
}

// gate waits until the gate has tried its profile.
func (t *turn) gate() error {
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	var f frame
	select {
	case f = <-t.frames:
	case <-limit.C:
		return fmt.Errorf("start sandbox: not ready after %s", startLimit)
	}
	switch f.kind {
	case frameReady:
	case frameRefuse:
		var why failure
		if err := json.Unmarshal(f.payload, &why); err != nil {
			return fmt.Errorf("start sandbox: %w", err)
		}
		return why.err()
	default:
		// sandbox-exec ended, or this binary did not start inside: a profile
		// that does not compile, or another sandbox around this process.
		t.stderr.SetReadDeadline(time.Now().Add(time.Second))
		why, _ := io.ReadAll(io.LimitReader(t.stderr, 1024))
		return notEnforceable("the profile was not taken (a sandbox cannot be started inside another one): "+
			string(bytes.TrimSpace(bytes.ToValidUTF8(why, []byte("?")))), nil)
	}
	var seen gatePosture
	if err := json.Unmarshal(f.payload, &seen); err != nil {
		return fmt.Errorf("start sandbox: %w", err)
	}
	return t.achieved(seen)
}

func (t *turn) achieved(seen gatePosture) error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("read kernel version: %w", err)
	}
	t.report = Report{
		Mechanism: "darwin-seatbelt", Kernel: unix.ByteSliceToString(uts.Release[:]), Namespaces: map[string]uint64{}, Groups: []int{},
		Rlimits: seen.Rlimits, Files: seen.Files, Network: "seatbelt-deny", Descendants: "pgrp-scan",
		Gaps: []string{
			"this backend was never run on a Mac: nothing about it is verified",
			"denial is the profile's: other processes, their names and the shared network stack are there",
			"a process that leaves session, group, parent and mark between two looks outlives the turn unseen",
			"hard links that were in the workspace before the turn lead outside it",
			"the number of processes, the size of the workspace and of the private directory are not bounded",
			"supplementary groups of the caller are kept",
		},
	}
	if t.spec.MemoryBytes > 0 {
		t.report.Memory = "data-limit"
		t.report.Gaps = append(t.report.Gaps, "memory is bounded by RLIMIT_DATA alone, which this kernel takes lightly, and not added up")
	} else {
		t.report.Gaps = append(t.report.Gaps, "private memory is not bounded")
	}
	if t.spec.Network == NetworkHost {
		t.report.Network = "host"
		t.report.Gaps = append(t.report.Gaps, "the host's network is reachable, with its loopback")
	}
	return nil
}

// abandon ends a start that failed. Nothing of the program ever ran.
func (t *turn) abandon() {
	if t.proc != nil {
		t.proc.Kill()
		for range t.exited {
		}
		if t.id.PID != 0 {
			sweep(t.id, time.Second)
		}
	}
	t.close()
}

// close gives everything back; the watch is told that all is in order.
func (t *turn) close() {
	if t.watch != nil {
		t.watch.Write([]byte{'D'})
	}
	for _, f := range []*os.File{t.control, t.said, t.stdout, t.stderr, t.watch} {
		if f != nil {
			f.Close()
		}
	}
	if t.temp != "" {
		os.RemoveAll(t.temp)
	}
}
