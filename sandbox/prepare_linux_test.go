package sandbox_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/sandbox"
)

// TestPrepared: a turn with a prepared start is as confined as any other, whatever
// became of what was prepared, and nothing of it is left.
func TestPrepared(t *testing.T) {
	for name, row := range map[string]struct {
		network sandbox.Network
		slot    int
		memory  int64
		before  func(t *testing.T, p *sandbox.Prepared)
	}{
		"waiting":         {sandbox.NetworkNone, 7, 64 << 20, func(_ *testing.T, p *sandbox.Prepared) { p.Ready() }},
		"not there yet":   {sandbox.NetworkNone, 7, 64 << 20, func(*testing.T, *sandbox.Prepared) {}},
		"another network": {sandbox.NetworkHost, 7, 64 << 20, func(_ *testing.T, p *sandbox.Prepared) { p.Ready() }},
		"another slot":    {sandbox.NetworkNone, 8, 64 << 20, func(_ *testing.T, p *sandbox.Prepared) { p.Ready() }},
		"another memory":  {sandbox.NetworkNone, 7, 96 << 20, func(_ *testing.T, p *sandbox.Prepared) { p.Ready() }},
		"without a bound": {sandbox.NetworkNone, 7, 0, func(_ *testing.T, p *sandbox.Prepared) { p.Ready() }},
		"discarded":       {sandbox.NetworkNone, 7, 64 << 20, func(_ *testing.T, p *sandbox.Prepared) { p.Discard() }},
		"killed by the system": {sandbox.NetworkNone, 7, 64 << 20, func(t *testing.T, p *sandbox.Prepared) {
			p.Ready()
			for _, pid := range children(t) {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "the end of what was prepared", time.Minute, func() bool { return len(children(t)) == 0 })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := shell(t, "read line; echo $line; id -u; df -k --output=size /dev/shm | tail -n 1 | tr -d ' '; ls /proc | grep -c '^[0-9]'")
			s.Stdin, s.Slot, s.MemoryBytes = []byte("said\n"), 7, 64<<20
			ahead := sandbox.Prepare(row.network, row.slot, row.memory)
			row.before(t, ahead)
			p, err := ahead.Start(s)
			if err != nil {
				t.Fatal(err)
			}
			if r := p.Report(); r.Network != "netns-no-lo" || os.Geteuid() == 0 && !strings.HasSuffix(r.UIDMap, " 200007 1") {
				t.Errorf("network %s, users %s", r.Network, r.UIDMap)
			}
			if err := p.Release(); err != nil {
				t.Fatal(err)
			}
			r, o := finish(t, p)
			exited(t, r, o, 0)
			if got := o.stdout.String(); !strings.HasPrefix(got, "said\n1000\n16384\n") {
				t.Errorf("%q", got)
			}
			if left := children(t); len(left) != 0 {
				t.Errorf("%v are left", left)
			}
		})
	}
}

// TestPreparedIsUsedOnce: of two starts one is a cold one, and a refused Spec
// leaves nothing.
func TestPreparedIsUsedOnce(t *testing.T) {
	s := shell(t, "exit 3")
	ahead := sandbox.Prepare(s.Network, s.Slot, s.MemoryBytes)
	for range 2 {
		p, err := ahead.Start(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Release(); err != nil {
			t.Fatal(err)
		}
		r, o := finish(t, p)
		exited(t, r, o, 3)
	}
	ahead = sandbox.Prepare(s.Network, s.Slot, s.MemoryBytes)
	s.Program = "/no/such/program"
	if _, err := ahead.Start(s); !errors.Is(err, sandbox.ErrSpec) {
		t.Errorf("%v", err)
	}
	ahead.Discard()
	if left := children(t); len(left) != 0 {
		t.Errorf("%v are left", left)
	}
}

// TestNothingPrepared: on a nil one nothing was prepared, and a start is a cold one.
func TestNothingPrepared(t *testing.T) {
	var none *sandbox.Prepared
	none.Ready()
	none.Discard()
	p, err := none.Start(shell(t, "exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	r, o := finish(t, p)
	exited(t, r, o, 3)
}

// children lists the live processes whose parent this one is.
func children(t *testing.T) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it ended
		}
		rest := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if rest[0] != "Z" && rest[1] == strconv.Itoa(os.Getpid()) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestFirstProcessOutside: whoever starts this binary under the first process's
// name, without being the first of a namespace, has nothing mounted.
func TestFirstProcessOutside(t *testing.T) {
	said, report, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	c := exec.Command("/proc/self/exe")
	c.Args = []string{"holdfast-sandbox-init", "false", "0"}
	c.ExtraFiles = []*os.File{report, report, report}                                       // the third is the report
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS} // so that a fault stays there
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	report.Close()
	b, err := io.ReadAll(said)
	if err := c.Wait(); c.ProcessState.ExitCode() != 125 {
		t.Errorf("%v", err)
	}
	if err != nil || !strings.Contains(string(b), "only as the first process") {
		t.Errorf("said %q: %v", b, err)
	}
}
