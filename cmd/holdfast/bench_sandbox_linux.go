package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"holdfast/sandbox"
)

// sandboxStart runs /bin/true in the sandbox and in the floor's by turns: in
// bubblewrap with an equal view where it is installed, else in a process with
// the same new namespaces and the machine's own view.
func (b *bench) sandboxStart(ctx context.Context) ([]benchRow, error) {
	program, err := filepath.EvalSymlinks("/bin/true")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotHere, err)
	}
	work := filepath.Join(b.dir, "turn")
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, err
	}
	floor, what := bareTurn, "new namespaces and exec, without any view (bubblewrap is not installed)"
	if path, err := exec.LookPath("bwrap"); err == nil && bubblewrap(path, program, work) == nil {
		floor = func(program, work string) error { return bubblewrap(path, program, work) }
		what = "bubblewrap with an equal view"
	}
	var ours, theirs samples
	for i := range 2 + b.size(60, 5) {
		began := time.Now()
		if err := sandboxTurn(program, work); err != nil {
			return nil, err
		}
		took := time.Since(began)
		began = time.Now()
		if err := floor(program, work); err != nil {
			return nil, fmt.Errorf("%w: the floor (%s): %w", errNotHere, what, err)
		}
		if i >= 2 {
			ours, theirs = append(ours, took), append(theirs, time.Since(began))
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return []benchRow{{
		Name: "sandbox-start", Value: ours.ms(0.5), Unit: "ms", Floor: theirs.ms(0.5),
		Detail: fmt.Sprintf("median of %d turns of %s, from the start to the proof that nothing is left; floor: %s", len(ours), program, what),
	}}, nil
}

func sandboxTurn(program, work string) error {
	p, err := sandbox.Start(sandbox.Spec{
		Program: program, Workspace: work, Write: true, Wall: time.Minute, StreamBytes: 4096, MemoryBytes: 512 << 20,
	})
	if err != nil {
		return err
	}
	if err := p.Release(); err != nil {
		return err
	}
	for range p.Chunks() {
	}
	r := p.Wait()
	if r.Ending != sandbox.EndingExit || r.ExitCode == nil || *r.ExitCode != 0 || !r.Cleanup.Confirmed {
		return fmt.Errorf("the turn ended otherwise: %s", r.Fault)
	}
	return nil
}

func bubblewrap(bwrap, program, work string) error {
	args := []string{"--unshare-all", "--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"}
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ssl", "/etc/alternatives"} {
		args = append(args, "--ro-bind-try", dir, dir)
	}
	args = append(args, "--bind", work, work, "--chdir", work, "--clearenv", program)
	return exec.Command(bwrap, args...).Run()
}

// bareTurn makes the same namespaces and nothing in them.
func bareTurn(program, work string) error {
	c := exec.Command(program)
	c.Dir, c.Env = work, []string{}
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWCGROUP | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getegid(), Size: 1}},
	}
	return c.Run()
}
