package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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

// kind is what of a Spec a first process is made for.
type kind struct {
	network Network
	owner   int   // the workload's user outside, or -1
	memory  int64 // 0: no bound; else into a control group, where this machine gives one
	shared  bool  // without namespaces
}

func kindOf(s Spec, shared bool) kind {
	k := kind{network: s.Network, owner: -1, memory: s.MemoryBytes, shared: shared}
	if os.Geteuid() == 0 {
		k.owner = rootBase + s.Slot
	}
	return k
}

// argv is the command line of an init of this kind.
func (k kind) argv() []string {
	if k.shared {
		return []string{stageInit}
	}
	return append([]string{stageInit}, ground{hostNet: k.network == NetworkHost, memory: k.memory}.words()...)
}

// first is an init that has not been told what it is for. It has its namespaces
// and what every view of its kind shows, still sees the host's files too, and
// waits. It ends with this process.
type first struct {
	kind   kind
	group  *cgroup // nil where the machine gives none
	proc   *os.Process
	pipes  *pipes
	frames chan frame
	idle   chan struct{} // closed once it waits for its plan
	exited chan struct{}
}

// newFirst starts init. Whoever gets it must tell it a plan or abandon it.
func newFirst(k kind) (*first, error) {
	f := &first{kind: k, frames: make(chan frame, 4), idle: make(chan struct{}), exited: make(chan struct{})}
	var err error
	if f.pipes, err = newPipes(k.owner); err != nil {
		return nil, fmt.Errorf("start sandbox: %w", err)
	}
	if k.memory > 0 {
		f.group = newCgroup()
	}
	if err := f.fork(); err != nil {
		f.group.end()
		f.pipes.close()
		return nil, err
	}
	go f.readFrames()
	// One that has ended already says why, or is found gone, when it is told its
	// plan: that is nothing that its group could help.
	if err := f.group.add(f.proc.Pid); err != nil && !errors.Is(err, unix.ESRCH) {
		groupsUnusable.Store(true)
		f.abandon()
		f.pipes.close()
		return newFirst(k)
	}
	return f, nil
}

// fork starts init. The goroutine that does so keeps its thread until init has
// been waited for: the parent-death signal follows the thread, not the process.
func (f *first) fork() error {
	exe, err := selfImage()
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	attr := &os.ProcAttr{Dir: "/", Env: stageEnv, Files: append([]*os.File{null, null, null}, f.pipes.child...), Sys: f.kind.sysAttr()}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		proc, err := os.StartProcess(exe, f.kind.argv(), attr)
		f.proc = proc
		started <- err
		if err != nil {
			return
		}
		proc.Wait()
		close(f.exited)
	}()
	err = <-started
	f.pipes.closeChild()
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

func (k kind) sysAttr() *syscall.SysProcAttr {
	if k.shared {
		return sharedAttr()
	}
	sys := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC |
			unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		Pdeathsig:   syscall.SIGKILL,
		Setsid:      true,
		AmbientCaps: capsFor(k.network),
		UidMappings: []syscall.SysProcIDMap{{ContainerID: workUID, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: workUID, HostID: os.Getegid(), Size: 1}},
	}
	if k.network != NetworkHost && on(layerNet) {
		sys.Cloneflags |= unix.CLONE_NEWNET
	}
	if k.owner >= 0 {
		sys.UidMappings[0].HostID, sys.GidMappings[0].HostID = k.owner, k.owner
		// Only root may drop its supplementary groups, and does.
		sys.GidMappingsEnableSetgroups = true
		sys.Credential = &syscall.Credential{Uid: workUID, Gid: workUID}
	}
	return sys
}

// readFrames ends with the report pipe. The report comes from code of ours, but
// is decoded as if it did not.
func (f *first) readFrames() {
	defer close(f.frames)
	idle := false
	for {
		kind, payload, err := readFrame(f.pipes.report)
		if err != nil {
			return
		}
		if kind == frameIdle && !idle {
			idle = true
			close(f.idle)
			continue
		}
		f.frames <- frame{kind, payload}
		if kind == frameDone {
			io.Copy(io.Discard, f.pipes.report)
			return
		}
	}
}

// abandon ends an init that runs no program and never will.
func (f *first) abandon() {
	f.proc.Kill()
	select {
	case <-f.exited:
	case <-time.After(waitLimit):
	}
	go func() { // lets readFrames end
		for range f.frames {
		}
	}()
	f.group.end()
}
