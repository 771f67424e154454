package sandbox_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/sandbox"
)

// fork makes a child that ends at once, after making a child of its own where
// it is to leave an orphan.
func fork(orphan bool) (int, error) {
	pid, _, no := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if no != 0 {
		return 0, no
	}
	if pid != 0 {
		return int(pid), nil
	}
	if orphan {
		if _, _, no = unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0); no != 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 1, 0, 0)
		}
	}
	for {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// zombies makes children and waits for none, until it may make no more.
func zombies([]string) {
	n := 0
	var err error
	for err == nil && n < 5000 {
		if _, err = fork(false); err == nil {
			n++
		}
	}
	fmt.Println(n, err)
	time.Sleep(2 * time.Second)
}

// orphans leaves n zombies to the first process, as fast as it can.
func orphans(args []string) {
	n, _ := strconv.Atoi(args[0])
	for left := n; left > 0; {
		pid, err := fork(true)
		if err != nil {
			continue // too many at once: init is behind
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, 0, nil); err == nil && status.ExitStatus() == 0 {
			left--
		}
	}
	fmt.Println("made")
}

// S26 by zombies: whoever ended and is not waited for counts too. The host goes on forking. The layer is rlimits.
func TestThreatS26Zombies(t *testing.T) {
	p := start(t, hostile(t, "zombies"))
	must(t, p.Release())
	most, forks := 0, 0
	done := make(chan struct{})
	var r sandbox.Result
	var o *output
	go func() { defer close(done); r, o = finish(t, p) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
			most = max(most, len(members(t, p.Identity().PIDNS)))
			if err := exec.Command("/bin/true").Run(); err != nil {
				t.Errorf("the host cannot fork: %v", err)
			}
			forks++
		}
	}
	exited(t, r, o, 0)
	made, why, _ := strings.Cut(strings.TrimSpace(o.stdout.String()), " ")
	if n, err := strconv.Atoi(made); err != nil || n > 512 || why != unix.EAGAIN.Error() {
		t.Errorf("it made %s children: %s", made, why)
	}
	t.Logf("%s zombies, at most %d seen, %d forks of the host meanwhile", made, most, forks)
}

// S38: orphans that have ended are waited for by init, so that they never add up, and each is counted.
func TestThreatS38(t *testing.T) {
	n := many(t, "HOLDFAST_ORPHANS", 300)
	r, o := run(t, hostile(t, "orphans", strconv.Itoa(n)))
	exited(t, r, o, 0)
	if r.Cleanup.Reaped < n {
		t.Errorf("%d reaped of %d", r.Cleanup.Reaped, n)
	}
}

// S59: segments, files and queues in shared memory end with the turn. The layer is the IPC namespace and the view.
func TestThreatS59(t *testing.T) {
	look := func() string {
		var all strings.Builder
		for _, f := range []string{"shm", "msg", "sem"} {
			b, err := os.ReadFile("/proc/sysvipc/" + f)
			must(t, err)
			fmt.Fprintln(&all, f, strings.Count(string(b), "\n"))
		}
		entries, _ := os.ReadDir("/dev/shm")
		for _, e := range entries {
			if strings.Contains(e.Name(), "holdfast-s59") {
				fmt.Fprintln(&all, e.Name())
			}
		}
		return all.String()
	}
	before := look()
	r, o := run(t, shell(t, `ipcmk -M 4096 -Q -S 4 >&2; echo x > /dev/shm/holdfast-s59; exit 0`))
	exited(t, r, o, 0)
	if after := look(); after != before {
		t.Errorf("the host has %s, had %s", after, before)
	}
}
