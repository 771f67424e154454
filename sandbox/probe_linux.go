package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Probe finds out what this machine can enforce, by starting a sandbox and
// trying forbidden acts in it. No setting is trusted: some systems let a
// namespace be made and take the rights inside it away. It takes some ten
// milliseconds; callers keep the answer for the life of the process.
func Probe() Capability {
	checks, gaps, err := probe()
	if err != nil {
		c := Capability{
			Checks: []Check{{Name: "start a sandbox", Detail: err.Error(), Fix: fixOf(err)}},
			Gaps:   []string{"nothing can be enforced, so no turn is started"},
		}
		if errors.Is(err, ErrNotEnforceable) && probeShared(err) {
			c.Degraded = true
			c.Gaps = append([]string{"only turns that read and whose grant allows degraded confinement are started"},
				sharedGaps(Spec{}, Report{})...)
		}
		return c
	}
	c := Capability{Mechanism: "linux-userns", Checks: checks, Gaps: gaps}
	for _, check := range checks {
		if !check.OK {
			c.Mechanism = ""
		}
	}
	return c
}

func fixOf(err error) string {
	if errors.Is(err, ErrNotEnforceable) {
		return failureOf(err).Text
	}
	return "report this as a fault of holdfast: the sandbox itself failed"
}

// question is what the probe is told; it learns nothing else of the host.
type question struct {
	Sentinel string `json:"sentinel"` // a file outside the view
	Address  string `json:"address"`  // a listener of the host's loopback
}

func probe() ([]Check, []string, error) {
	dir, err := os.MkdirTemp("", "holdfast-probe-")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, nil, err
	}
	work := filepath.Join(dir, "work")
	sentinel := filepath.Join(dir, "sentinel")
	if err := errors.Join(os.Mkdir(work, 0o700), os.WriteFile(sentinel, []byte("outside"), 0o644)); err != nil {
		return nil, nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	asked, err := json.Marshal(question{Sentinel: sentinel, Address: listener.Addr().String()})
	if err != nil {
		return nil, nil, err
	}
	spec := Spec{Program: "/probe", Workspace: work, Write: true, Stdin: asked, Wall: 10 * time.Second,
		StreamBytes: 64 << 10, MemoryBytes: 512 << 20, DiskBytes: 1 << 30, DiskFiles: 1000}.withDefaults() // as turns have it, so that the gaps are theirs
	p, err := launchPlan(spec, true, nil)
	if err != nil {
		return nil, nil, err
	}
	if err := p.Release(); err != nil {
		p.Stop()
		p.Wait()
		return nil, nil, err
	}
	var answer []byte
	for c := range p.Chunks() {
		if c.Stream == Stdout {
			answer = append(answer, c.Bytes...)
		}
	}
	r := p.Wait()
	var checks []Check
	if err := json.Unmarshal(answer, &checks); err != nil || len(checks) == 0 {
		return nil, nil, fmt.Errorf("the probe gave no answer: ending %d, fault %q", r.Ending, r.Fault)
	}
	_, err = os.Stat(filepath.Join(work, "written"))
	checks = append(checks,
		outcome("the workspace can be written", err == nil, "the probe's file is not there", "use another temporary directory"),
		outcome("nothing outlives a turn", r.Cleanup.Confirmed && r.Cleanup.Left > 0,
			fmt.Sprintf("left %d, confirmed %v", r.Cleanup.Left, r.Cleanup.Confirmed), "PID namespaces are needed"))
	return checks, r.Report.Gaps, nil
}

// outcome keeps the detail and the advice only where the check failed.
func outcome(name string, ok bool, detail, fix string) Check {
	if ok {
		return Check{Name: name, OK: true}
	}
	return Check{Name: name, Detail: detail, Fix: fix}
}

// denied expects an act to fail, with one of the named errors if any.
func denied(name string, err error, fix string, want ...error) Check {
	ok := err != nil && len(want) == 0
	for _, w := range want {
		ok = ok || errors.Is(err, w)
	}
	return outcome(name, ok, fmt.Sprintf("the attempt gave: %v", err), fix)
}

// probeMain tries, inside, what no program may be able to do.
func probeMain() {
	var q question
	if err := json.NewDecoder(rawFile(0)).Decode(&q); err != nil {
		os.Exit(1)
	}
	const namespaces = "user, mount and PID namespaces must work fully; a security profile may take rights in them away"
	_, usr := os.OpenFile("/usr/.holdfast-probe", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	_, secret := os.ReadFile(q.Sentinel)
	conn, dial := net.DialTimeout("tcp", q.Address, time.Second)
	if conn != nil {
		conn.Close()
	}
	_, first := os.ReadFile("/proc/1/environ")
	const filters = "the kernel must take system call filters (CONFIG_SECCOMP_FILTER)"
	_, local := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	_, _, ring := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, 0, 0)
	_, _, traced := unix.Syscall(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0)
	signalled := unix.Kill(1, unix.SIGTERM)
	checks := []Check{
		denied("system files cannot be written", usr, namespaces, unix.EROFS),
		denied("files outside the view cannot be read", secret, namespaces, os.ErrNotExist),
		denied("the host's network cannot be reached", dial, "network namespaces must work"),
		denied("no user namespace can be made", nested(), "sysctl user.max_user_namespaces must be settable in a namespace"),
		denied("nothing can be mounted", unix.Mount("tmpfs", "/tmp", "tmpfs", 0, ""), namespaces, unix.EPERM),
		denied("the sandbox's first process cannot be read", first, namespaces, unix.EACCES, unix.EPERM),
		denied("no other namespace can be made", unix.Unshare(unix.CLONE_NEWNS), namespaces, unix.EPERM),
		denied("no Unix socket can be made", local, filters, unix.EAFNOSUPPORT),
		denied("no process can be traced", traced, filters, unix.EPERM),
		denied("no ring can go past the filter of system calls", ring, filters, unix.ENOSYS),
		// Refused, or dropped by the kernel: somebody is there to take the answer.
		outcome("the sandbox's first process takes no signals", signalled == nil || signalled == unix.EPERM,
			fmt.Sprintf("the attempt gave: %v", signalled), namespaces),
		onlyOwnProcesses(namespaces),
		noRights(namespaces),
	}
	// A process of a session of its own, which the end must take along.
	syscall.ForkExec("/proc/self/exe", []string{stageProbe}, &syscall.ProcAttr{
		Files: []uintptr{blockedPipe(), 2, 2}, Sys: &syscall.SysProcAttr{Setsid: true}})
	os.WriteFile("written", nil, 0o600)
	b, err := json.Marshal(checks)
	if err != nil {
		os.Exit(1)
	}
	(rawFile(1)).Write(b)
	os.Exit(0)
}

// nested tries to make a user namespace and returns why it could not.
func nested() error {
	pid, err := syscall.ForkExec("/proc/self/exe", []string{stageHold}, &syscall.ProcAttr{
		Files: []uintptr{0, 2, 2}, Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}})
	if err == nil {
		unix.Kill(pid, unix.SIGKILL)
	}
	return err
}

// blockedPipe is an input that never ends while this process lives.
func blockedPipe() uintptr {
	var ends [2]int
	if err := unix.Pipe(ends[:]); err != nil {
		return 0
	}
	return uintptr(ends[0])
}

func onlyOwnProcesses(fix string) Check {
	entries, err := os.ReadDir("/proc")
	n := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			n++
		}
	}
	return outcome("other processes cannot be seen", err == nil && n > 0 && n < 8, fmt.Sprintf("%d are visible: %v", n, err), fix)
}

func noRights(fix string) Check {
	status, err := readStatus("/proc/self/status")
	ok := err == nil && status["NoNewPrivs"] == "1" && strings.Trim(status["CapEff"]+status["CapBnd"], "0") == ""
	return outcome("no capabilities, none to be gained", ok, fmt.Sprintf("CapEff %s, CapBnd %s, NoNewPrivs %s: %v",
		status["CapEff"], status["CapBnd"], status["NoNewPrivs"], err), fix)
}
