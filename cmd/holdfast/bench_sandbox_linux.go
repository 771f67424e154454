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

// sandboxStart runs /bin/true in the sandbox, from nothing and from what was
// prepared, and in the floor's by turns: in
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
	var cold, prepared, theirs samples
	for i := range 2 + b.size(100, 5) {
		var took [3]time.Duration
		for which, turn := range []func() error{
			func() error { return sandboxTurn(nil, program, work) },
			nil,
			func() error {
				if err := floor(program, work); err != nil {
					return fmt.Errorf("%w: the floor (%s): %w", errNotHere, what, err)
				}
				return nil
			},
		} {
			if turn == nil {
				ahead := sandbox.Prepare(sandbox.NetworkNone, 0, sandboxBenchMemory)
				ahead.Ready()
				turn = func() error { return sandboxTurn(ahead, program, work) }
			}
			began := time.Now()
			if err := turn(); err != nil {
				return nil, err
			}
			took[which] = time.Since(began)
		}
		if i >= 2 { // the first find cold caches
			cold, prepared, theirs = append(cold, took[0]), append(prepared, took[1]), append(theirs, took[2])
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	detail := fmt.Sprintf("median of %d turns of %s, from the start to the proof that nothing is left; floor, by turns: %s", len(cold), program, what)
	return []benchRow{
		{Name: "sandbox-start", Value: cold.ms(0.5), Unit: "ms", Floor: theirs.ms(0.5), Detail: detail},
		{Name: "sandbox-start-prepared", Value: prepared.ms(0.5), Unit: "ms", Floor: theirs.ms(0.5),
			Detail: detail + "; the first process, its namespaces and what every view shows were made before, as an owner makes them while it looks at the workspace"},
	}, nil
}

// sandboxBenchMemory is the bound of memory of the measured turns, in bytes.
const sandboxBenchMemory = 512 << 20

func sandboxTurn(ahead *sandbox.Prepared, program, work string) error {
	p, err := ahead.Start(sandbox.Spec{
		Program: program, Workspace: work, Write: true, Wall: time.Minute, StreamBytes: 4096, MemoryBytes: sandboxBenchMemory,
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

// bubblewrap shows the same directories and files of the host at the same
// places, as much private memory, and the same kinds of devices.
func bubblewrap(bwrap, program, work string) error {
	args := []string{"--unshare-all", "--die-with-parent", "--new-session", "--hostname", "holdfast", "--uid", "1000", "--gid", "1000",
		"--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm", "--perms", "1777", "--tmpfs", "/tmp",
		"--tmpfs", "/run/home"}
	for _, path := range benchView {
		if link, err := os.Readlink(path); err == nil {
			args = append(args, "--symlink", link, path)
		} else {
			args = append(args, "--ro-bind-try", path, path)
		}
	}
	args = append(args, "--bind", work, work, "--chdir", work, "--remount-ro", "/", "--cap-drop", "ALL", "--clearenv",
		"--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin", "--setenv", "HOME", "/run/home", "--setenv", "TMPDIR", "/tmp",
		"--setenv", "LANG", "C.UTF-8", program)
	return exec.Command(bwrap, args...).Run()
}

// benchView is what a turn sees of the host besides its workspace.
var benchView = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
	"/etc/passwd", "/etc/group", "/etc/hosts", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives",
	"/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/localtime",
	"/etc/nsswitch.conf", "/etc/protocols", "/etc/services", "/etc/mime.types", "/etc/gai.conf", "/etc/os-release",
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
