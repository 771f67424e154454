package sandbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/skip"
	"holdfast/sandbox"
)

// sharedRun is what a supervisor on a machine without namespaces reports.
type sharedRun struct {
	Error  string
	Spec   bool
	Result sandbox.Result
	Out    string
	Gone   string
}

// shareMain is such a supervisor: it takes namespaces away from itself, then
// starts a turn.
func shareMain(args []string) {
	must := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	must(os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0))
	var s sandbox.Spec
	must(json.Unmarshal([]byte(args[0]), &s))
	var run sharedRun
	p, err := sandbox.Start(s)
	if err != nil {
		run.Error, run.Spec = err.Error(), errors.Is(err, sandbox.ErrSpec)
	} else {
		must(p.Release())
		var out strings.Builder
		for c := range p.Chunks() {
			if c.Stream == sandbox.Stdout {
				out.Write(c.Bytes)
			}
			if len(args) > 1 && strings.Contains(out.String(), "up") {
				os.Stdout.WriteString("up\n") // and be killed
			}
		}
		run.Result, run.Out = p.Wait(), out.String()
		_, err := sandbox.Gone(p.Identity())
		run.Gone = fmt.Sprint(err)
	}
	must(json.NewEncoder(os.Stdout).Encode(run))
}

// shareCommand makes the supervisor's process: user 1000 of a namespace that may
// make no further one.
func shareCommand(t *testing.T, s sandbox.Spec, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, append([]string{shareArg, string(b)}, args...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getegid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_RESOURCE},
	}
	return cmd
}

func share(t *testing.T, s sandbox.Spec) sharedRun {
	t.Helper()
	out, err := shareCommand(t, s).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var run sharedRun
	if err := json.Unmarshal(out, &run); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return run
}

// needLandlock skips where the mode cannot exist.
func needLandlock(t *testing.T) {
	t.Helper()
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || abi < 6 {
		skip.Missing(t, fmt.Sprintf("Landlock here has ABI %d, and 6 is needed: %v", abi, errno))
	}
}

// TestSharedTurn runs a hostile program on a machine without namespaces, by a
// grant that allows it, and looks at the world outside afterwards.
func TestSharedTurn(t *testing.T) {
	needLandlock(t)
	outside := write(t, filepath.Join(temp(t), "sentinel"), "sentinel", 0o600)
	s := hostile(t, "share", outside, fmt.Sprint(os.Getpid()))
	s.Write, s.Degraded, s.MemoryBytes, s.ReplyLimit, s.History = false, true, 512<<20, 1024, []byte("{}\n")
	inside := write(t, filepath.Join(s.Workspace, "file"), "content", 0o644)
	before := snapshot(t, filepath.Dir(outside)) + snapshot(t, s.Workspace)
	run := share(t, s)
	r := run.Result
	if run.Error != "" || r.Ending != sandbox.EndingExit || r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatalf("%+v", run)
	}
	got := map[string]string{}
	if err := json.Unmarshal([]byte(run.Out), &got); err != nil {
		t.Fatalf("%v: %s", err, run.Out)
	}
	for what, want := range map[string]string{
		"read workspace": "", "write scratch": "", "rename in scratch": "", "run a program": "",
		"read outside": "EACCES", "write outside": "EACCES", "write workspace": "EACCES", "remove from workspace": "EACCES",
		"truncate workspace": "EACCES", "list outside": "EACCES", "read proc": "EACCES", "read environ of another": "EACCES",
		"chmod outside": "EPERM", "chmod workspace": "EPERM", "touch outside": "EPERM", "label outside": "EPERM",
		"signal a process outside": "EPERM", "limit a process outside": "EPERM", "trace a process outside": "EPERM",
		"shared segment": "EPERM", "internet socket": "EAFNOSUPPORT", "unix socket": "EAFNOSUPPORT",
		"user namespace": "EPERM", "memory file": "ENOSYS",
	} {
		if what == "memory file" && strings.HasPrefix(r.Report.Memory, "memcg") {
			want = "" // counted, so it may be
		}
		if g, ok := got[what]; !ok || g != want {
			t.Errorf("%s gave %q (tried: %v), want %q", what, g, ok, want)
		}
	}
	if after := snapshot(t, filepath.Dir(outside)) + snapshot(t, s.Workspace); after != before {
		t.Errorf("the world outside changed:\n%s\nwas:\n%s", after, before)
	}
	if string(r.Reply) != `{"reply":"done"}` || r.ReplyErr != "" {
		t.Errorf("reply %q, %q", r.Reply, r.ReplyErr)
	}
	if !r.Cleanup.Confirmed || r.Cleanup.Left < 2 {
		t.Errorf("cleanup %+v", r.Cleanup)
	}
	rep := r.Report
	if rep.Mechanism != "linux-landlock" || rep.Network != "seccomp-sockets" || rep.Landlock < 6 || rep.Seccomp != 2 ||
		!rep.NoNewPrivs || len(rep.Namespaces) != 0 || rep.Descendants != "subreaper" || len(rep.Files) != 3 ||
		!strings.Contains(strings.Join(rep.Gaps, "\n"), "degraded") {
		t.Errorf("report %+v", rep)
	}
	if !strings.Contains(run.Gone, "starts anew") {
		t.Errorf("after its end a dead group counts as %q", run.Gone)
	}
	if left := leftScratch(t); left != "" {
		t.Errorf("%s stays", left)
	}
	_ = inside
}

// leftScratch names a scratch directory that was not removed.
func leftScratch(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(os.TempDir(), "holdfast-turn-*"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(found, " ")
}

// TestSharedRefusals: without a grant for it, and for what it cannot hold,
// nothing runs with less.
func TestSharedRefusals(t *testing.T) {
	needLandlock(t)
	for name, row := range map[string]struct {
		change func(*sandbox.Spec)
		want   string
	}{
		"not granted":     {func(s *sandbox.Spec) { s.Degraded = false }, "namespaces cannot be made"},
		"a turn to write": {func(s *sandbox.Spec) { s.Write = true }, "needs namespaces"},
		"an allow list": {func(s *sandbox.Spec) {
			s.Network, s.Allow = sandbox.NetworkAllow, []string{"example.org:443"}
		}, "needs a network namespace"},
		"git to hide": {func(s *sandbox.Spec) {
			s.GitDir = filepath.Dir(write(t, filepath.Join(s.Workspace, ".git", "HEAD"), "x", 0o644))
		}, "cannot be hidden"},
	} {
		t.Run(name, func(t *testing.T) {
			s := shell(t, "echo ran")
			s.Write, s.Degraded = false, true
			row.change(&s)
			run := share(t, s)
			if !strings.Contains(run.Error, row.want) || !strings.Contains(run.Error, "not enforceable") || run.Out != "" {
				t.Errorf("%+v", run)
			}
		})
	}
}

// TestSharedStop: what ignores TERM in sessions of its own is killed, and known
// to be gone, without a namespace.
func TestSharedStop(t *testing.T) {
	needLandlock(t)
	marker := fmt.Sprintf("shared-stop-%d", os.Getpid())
	s := hostile(t, "stubborn", "2", marker)
	s.Write, s.Degraded, s.Wall, s.Grace = false, true, time.Second, 10*time.Millisecond
	run := share(t, s)
	if run.Error != "" || run.Result.Ending != sandbox.EndingTimeout || !run.Result.Cleanup.Confirmed {
		t.Fatalf("%+v", run)
	}
	if n := countLeavings(t, marker).processes; n != 0 {
		t.Errorf("%d processes are left", n)
	}
}

// TestSharedSupervisorKilled: nothing outlives the supervisor either.
func TestSharedSupervisorKilled(t *testing.T) {
	needLandlock(t)
	marker := fmt.Sprintf("shared-kill-%d", os.Getpid())
	s := hostile(t, "stubborn", "2", marker)
	s.Write, s.Degraded = false, true
	cmd := shareCommand(t, s, "tell")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 3)
	if _, err := out.Read(line); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	eventually(t, "everything is gone", 30*time.Second, func() bool { return countLeavings(t, marker).processes == 0 })
	for _, dir := range strings.Fields(leftScratch(t)) { // nobody was left to remove it
		os.RemoveAll(dir)
	}
}

// shareAttempts is the program of TestSharedTurn.
func shareAttempts(args []string) {
	outside := args[0]
	var pid int
	fmt.Sscan(args[1], &pid)
	got := map[string]string{}
	try := func(what string, err error) {
		var no syscall.Errno
		got[what] = ""
		if errors.As(err, &no) {
			got[what] = unix.ErrnoName(no)
		} else if err != nil {
			got[what] = err.Error()
		}
	}
	read := func(path string) error { _, err := os.ReadFile(path); return err }
	list := func(path string) error { _, err := os.ReadDir(path); return err }
	tmp := os.Getenv("TMPDIR")
	try("read workspace", read("file"))
	try("write scratch", os.WriteFile(tmp+"/a", []byte("x"), 0o600))
	try("rename in scratch", os.Rename(tmp+"/a", tmp+"/b"))
	try("run a program", exec.Command("/bin/sh", "-c", "exit 0").Run())
	try("read outside", read(outside))
	try("write outside", os.WriteFile(outside, []byte("evil"), 0o600))
	try("list outside", list(filepath.Dir(outside)))
	try("write workspace", os.WriteFile("made", nil, 0o600))
	try("remove from workspace", os.Remove("file"))
	try("truncate workspace", os.Truncate("file", 0))
	try("read proc", read("/proc/self/status"))
	try("read environ of another", read(fmt.Sprintf("/proc/%d/environ", pid)))
	try("chmod outside", os.Chmod(outside, 0o777))
	try("chmod workspace", os.Chmod("file", 0o777))
	try("touch outside", os.Chtimes(outside, time.Unix(1, 0), time.Unix(1, 0)))
	try("label outside", unix.Setxattr(outside, "user.x", []byte("x"), 0))
	try("signal a process outside", unix.Kill(pid, 0))
	try("limit a process outside", unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil))
	try("trace a process outside", unix.PtraceAttach(pid))
	_, _, errno := unix.Syscall(unix.SYS_SHMGET, 0, 4096, 0o1600)
	try("shared segment", errno)
	_, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	try("internet socket", err)
	_, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	try("unix socket", err)
	try("user namespace", unix.Unshare(unix.CLONE_NEWUSER))
	_, err = unix.MemfdCreate("x", 0)
	try("memory file", err)
	os.WriteFile(os.Getenv("HOLDFAST_REPLY"), []byte(`{"reply":"done"}`), 0o600)
	for range 2 { // to be found and ended
		exe, _ := os.Executable()
		syscall.ForkExec(exe, []string{"x", hostileArg, "stubborn", "0", "x"},
			&syscall.ProcAttr{Env: []string{}, Files: []uintptr{0, 2, 2}, Sys: &syscall.SysProcAttr{Setsid: true}})
	}
	json.NewEncoder(os.Stdout).Encode(got)
}
