package sandbox

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/skip"
)

func TestGroupPlaces(t *testing.T) {
	const v1 = "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n31 25 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
	const v2 = "40 25 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	for name, row := range map[string]struct {
		own, mounts string
		want        []groupPlace
	}{
		"none":        {"", "", nil},
		"not mounted": {"0::/a\n4:memory:/b\n", "", nil},
		"version 2": {"0::/user.slice/app.service\n", v2, []groupPlace{
			{dir: "/sys/fs/cgroup/user.slice/app.service", v2: true}, {dir: "/sys/fs/cgroup/user.slice", v2: true}}},
		"at the root": {"0::/\n", v2, []groupPlace{{dir: "/sys/fs/cgroup", v2: true}}},
		"version 1": {"8:pids:/\n4:memory:/x\n1:cpu:/\n", v1, []groupPlace{
			{dir: "/sys/fs/cgroup/pids", controller: "pids"}, {dir: "/sys/fs/cgroup/memory/x", controller: "memory"}}},
		"outside of what is mounted": {"0::/../other\n", v2, nil},
		"a part is mounted":          {"0::/a\n", strings.Replace(v2, " / /sys", " /a /sys", 1), nil},
		"nonsense":                   {"x\n::\n0:\n", "a b c\n - \n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := groupPlaces([]byte(row.own), []byte(row.mounts)); !reflect.DeepEqual(got, row.want) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestGroupFiles makes a group in folders that look like hierarchies. Version 2
// with a memory controller is not at hand on every machine.
func TestGroupFiles(t *testing.T) {
	// The kernel makes a group's files with it; here nobody does, so a group
	// without them must be given up and leave nothing.
	dir := t.TempDir()
	if g := groupIn([]groupPlace{{dir: dir, v2: true}, {dir: dir, controller: "memory"}}); g != nil {
		t.Errorf("%+v", g)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v stay: %v", entries, err)
	}
	for name, row := range map[string]struct {
		v2         bool
		file, text string
		want       bool
	}{
		"version 2, killed": {true, "memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 1\n", true},
		"version 2, not":    {true, "memory.events", "max 9\noom 0\noom_kill 0\n", false},
		"version 1, killed": {false, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", true},
		"version 1, not":    {false, "memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 0\n", false},
		"cannot be read":    {true, "other", "oom_kill 1\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			g := &cgroup{memory: t.TempDir(), v2: row.v2, bounded: true}
			if err := os.WriteFile(filepath.Join(g.memory, row.file), []byte(row.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if g.exceeded() != row.want {
				t.Error(!row.want)
			}
			if g.bounded = false; g.exceeded() {
				t.Error("a group that bounds no memory was exceeded")
			}
		})
	}
	var none *cgroup
	if none.exceeded() || none.bounds() || !none.end() || none.add(1) != nil {
		t.Error("a turn without a group")
	}
}

// TestSweepGroups: a group whose supervisor lives is not taken from it, however
// empty it is.
func TestSweepGroups(t *testing.T) {
	dead := exec.Command("/bin/true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	of := func(pid int) string { return filepath.Join(dir, groupPrefix+strconv.Itoa(pid)+"-x") }
	foreign := filepath.Join(dir, groupPrefix+"of-somebody")
	for _, d := range []string{of(os.Getpid()), of(dead.Process.Pid), foreign} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	sweepGroups(dir)
	for d, want := range map[string]bool{of(os.Getpid()): true, of(dead.Process.Pid): false, foreign: true} {
		if _, err := os.Stat(d); (err == nil) != want {
			t.Errorf("%s is there: %v", filepath.Base(d), err == nil)
		}
	}
}

// TestGroupVersion2 places a process in a real group of version 2, which needs
// no controller, and ends it with the group. No memory can be bounded there, and
// the group does not say that it is.
func TestGroupVersion2(t *testing.T) {
	root := ""
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range groupPlaces([]byte("0::/\n"), mounts) {
		root = p.dir
	}
	dir := filepath.Join(root, groupPrefix+strconv.Itoa(os.Getpid())+"-test")
	if root == "" {
		skip.Missing(t, "control groups of version 2 are not mounted")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		skip.Root(t, "make a control group where none is delegated")
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	g := &cgroup{dirs: []string{dir}, memory: dir, v2: true}
	if _, err := os.Stat(filepath.Join(dir, "memory.max")); err != nil {
		if g.bound(64 << 20); g.bounds() {
			t.Error("it says that it bounds memory, and this kernel has no file for that")
		}
	}
	held := exec.Command("/bin/sleep", "600")
	if err := held.Start(); err != nil {
		t.Fatal(err)
	}
	if err := g.add(held.Process.Pid); err != nil {
		t.Fatal(err)
	}
	placed, err := os.ReadFile(procDir(held.Process.Pid) + "/cgroup")
	if err != nil || !strings.Contains(string(placed), filepath.Base(dir)) {
		t.Errorf("%v: %s", err, placed)
	}
	ended := make(chan error, 1)
	go func() { ended <- held.Wait() }()
	if !g.end() {
		t.Error("the group stays")
		held.Process.Signal(syscall.SIGTERM)
	}
	var status *exec.ExitError
	if err := <-ended; !errors.As(err, &status) || status.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process ended otherwise: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestGroupOfTheDead: that a process is gone is told from a machine that lets
// nothing be placed.
func TestGroupOfTheDead(t *testing.T) {
	skip.Root(t, "make a control group where none is delegated")
	g := newCgroup()
	if g == nil {
		skip.Missing(t, "no group of processes can be made here")
	}
	defer g.end()
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	if err := g.add(gone.Process.Pid); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("%v", err)
	}
}
