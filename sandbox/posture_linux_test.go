package sandbox_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/skip"
	"holdfast/sandbox"
)

// TestPosture holds the Report against what the program sees of itself while
// it runs.
func TestPosture(t *testing.T) {
	s := hostile(t, "posture")
	s.MemoryBytes = 1 << 30
	r, o := run(t, s)
	exited(t, r, o, 0)
	seen := map[string]string{}
	for _, line := range lines(o.stdout.String()) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			seen[key] = strings.TrimSpace(value)
		} else if strings.HasPrefix(line, "Max ") {
			seen[strings.TrimSpace(line[:26])] = strings.Fields(line[26:])[0]
		}
	}
	none := "0000000000000000"
	for key, want := range map[string]string{
		"CapInh": none, "CapPrm": none, "CapEff": r.Report.CapEff, "CapBnd": r.Report.CapBnd, "CapAmb": none,
		"NoNewPrivs": "1", "Seccomp": "2", "Seccomp_filters": strconv.Itoa(filters(t) + 1), "Uid": "1000\t1000\t1000\t1000",
		"Gid": "1000\t1000\t1000\t1000", "NSpid": seen["Pid"], "cwd": s.Workspace + " <nil>",
		"Max core file size": "0", "Max open files": fmt.Sprint(r.Report.Rlimits["nofile"]),
		"Max processes": fmt.Sprint(r.Report.Rlimits["nproc"]), "Max data size": fmt.Sprint(2 << 30),
		"Max file size": fmt.Sprint(r.Report.Rlimits["fsize"]), "SigIgn": none, "SigBlk": none,
	} {
		if seen[key] != want {
			t.Errorf("%s is %q, want %q", key, seen[key], want)
		}
	}
	if r.Report.CapEff != none || r.Report.CapBnd != none || !r.Report.NoNewPrivs {
		t.Errorf("report %+v", r.Report)
	}
	for _, name := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		want := fmt.Sprintf("%s:[%d] <nil>", name, r.Report.Namespaces[name])
		if seen["ns-"+name] != want {
			t.Errorf("namespace %s is %q, report says %q", name, seen["ns-"+name], want)
		}
		own, err := os.Readlink("/proc/self/ns/" + name)
		if err != nil || own+" <nil>" == want {
			t.Errorf("namespace %s is the host's: %v", name, err)
		}
	}
	if len(r.Report.Mounts) != 64 || r.Report.Kernel == "" || r.Report.UIDMap == "" || len(r.Report.Gaps) == 0 {
		t.Errorf("report %+v", r.Report)
	}
	if r.Report.Seccomp != 2 || len(r.Report.SeccompDigest) != 64 || r.Report.LandlockAsked < r.Report.Landlock {
		t.Errorf("report %+v", r.Report)
	}
	// Landlock cannot be read from a process; that it holds is seen by what it
	// alone refuses.
	if got := calls(t, "devices")["make socket"]; (got == "EACCES") != (r.Report.Landlock > 0) {
		t.Errorf("Landlock %d is claimed, and an act against it gave %q", r.Report.Landlock, got)
	}
}

// filters counts the system call filters that this process was born under.
func filters(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\nSeccomp_filters:")
	n, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestProbe(t *testing.T) {
	c := sandbox.Probe()
	if c.Mechanism != "linux-userns" || len(c.Checks) < 10 || len(c.Gaps) == 0 {
		t.Errorf("capability %+v", c)
	}
	for _, check := range c.Checks {
		if !check.OK {
			t.Errorf("%s: %s (%s)", check.Name, check.Detail, check.Fix)
		}
	}
}

// TestNotEnforceable puts a supervisor where the sandbox cannot be had. It must
// refuse with a reason, and Probe must say the same.
func TestNotEnforceable(t *testing.T) {
	const refused = "sandbox not enforceable"
	for name, row := range map[string]struct {
		root    bool // only a supervisor that is root meets this
		refused string
		want    string
	}{
		"masked proc":        {false, refused, "/proc"},
		"no namespaces":      {false, refused, "namespaces cannot be made"},
		"no idmap":           {true, refused, "cannot map owners"},
		"alias of protected": {false, "sandbox spec refused", "another name"},
		"inside of an alias": {false, "sandbox spec refused", "another name"},
	} {
		t.Run(name, func(t *testing.T) {
			if row.root {
				skip.Root(t, "map the owners of binds")
			}
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(exe, crippledArg, name, temp(t))
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Unshareflags: 0}
			if !row.root {
				cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
				cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Geteuid(), Size: 1}}
				cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getegid(), Size: 1}}
				cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE}
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, word := range []string{row.refused, row.want} {
				if !strings.Contains(string(out), word) {
					t.Errorf("no %q in: %s", word, out)
				}
			}
		})
	}
}

// TestOddBinary starts sandboxes from a binary that the workload's user may not
// execute, and from one that no longer exists, as under go run.
func TestOddBinary(t *testing.T) {
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"private binary": 0o700, "deleted binary": 0o755} {
		t.Run(name, func(t *testing.T) {
			dir := temp(t)
			own := write(t, filepath.Join(dir, "own"), string(exe), mode)
			out, err := exec.Command(own, crippledArg, name, dir).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "start: <nil>") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// crippled is a supervisor on a machine that lacks something.
func crippled(what, dir string) {
	must := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	switch what {
	case "deleted binary":
		must(os.Remove(os.Args[0]))
	case "private binary":
	default:
		must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	}
	possible := false
	switch what {
	case "deleted binary", "private binary":
		possible = true
	case "masked proc":
		must(unix.Mount("/dev/null", "/proc/cmdline", "", unix.MS_BIND, ""))
	case "no namespaces":
		must(os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0))
	case "no idmap":
		must(unix.Mount("none", dir, "ramfs", 0, ""))
	}
	s := sandbox.Spec{Program: "/usr/bin/env", Workspace: dir, Wall: 1e9, StreamBytes: 1024}
	if strings.Contains(what, "alias") {
		home, alias := filepath.Join(dir, "home"), filepath.Join(dir, "alias")
		s.Workspace = filepath.Join(dir, "work")
		for _, d := range []string{home + "/keys", alias, s.Workspace} {
			must(os.MkdirAll(d, 0o755))
		}
		must(unix.Mount(home, alias, "", unix.MS_BIND, ""))
		s.Protected, s.Read = []string{home}, []string{alias}
		if what == "inside of an alias" {
			s.Read = []string{alias + "/keys"}
		}
	}
	p, err := sandbox.Start(s)
	if err == nil {
		p.Stop()
		p.Wait()
	}
	fmt.Println("start:", err)
	if what != "no idmap" && s.Protected == nil {
		fmt.Printf("probe: %+v\n", sandbox.Probe())
		if (sandbox.Probe().Mechanism != "") != possible {
			os.Exit(1)
		}
	}
}

func BenchmarkPlainExec(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
