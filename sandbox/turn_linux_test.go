package sandbox_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/skip"
	"holdfast/sandbox"
)

// alive lists host processes that carry a marker in their arguments.
func alive(t testing.TB, marker string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range paths {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), marker) {
			found = append(found, path)
		}
	}
	return found
}

// marker is an argument that no other process has.
func marker(t testing.TB) string {
	return "marker-" + filepath.Base(filepath.Dir(temp(t))) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
}

// await reads standard output until it holds a word n times.
func await(t testing.TB, p *sandbox.Process, word string, n int) {
	t.Helper()
	limit := time.After(time.Minute)
	var got strings.Builder
	for strings.Count(got.String(), word) < n {
		select {
		case c, ok := <-p.Chunks():
			if !ok {
				t.Fatalf("ended after %q", got.String())
			}
			got.Write(c.Bytes)
		case <-limit:
			t.Fatalf("only %q", got.String())
		}
	}
}

func rest(p *sandbox.Process) {
	for range p.Chunks() {
	}
}

func TestExitCodesAndStreams(t *testing.T) {
	s := shell(t, `echo out; echo err >&2; echo more > /dev/stdout; pwd; cat; exit 9`)
	s.Stdin = []byte("the input")
	r, o := run(t, s)
	exited(t, r, o, 9)
	if want := "out\nmore\n" + s.Workspace + "\nthe input"; o.stdout.String() != want || o.stderr.String() != "err\n" {
		t.Errorf("stdout %q, stderr %q", o.stdout.String(), o.stderr.String())
	}
	if r.Elapsed <= 0 || r.Cleanup.Reaped < 1 || r.Fault != "" || r.Signal != "" {
		t.Errorf("result %+v", r)
	}
}

func TestBytesThatAreNoText(t *testing.T) {
	s := shell(t, `printf %s "$1$VALUE" | od -An -tx1; pwd`, "a\xff<&>\u2028")
	s.Environment = []string{"VALUE=\xfe"}
	s.Workspace = filepath.Join(s.Workspace, "odd \xff\nname")
	if err := os.Mkdir(s.Workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	r, o := run(t, s)
	exited(t, r, o, 0)
	if want := " 61 ff 3c 26 3e e2 80 a8 fe\n" + s.Workspace + "\n"; o.stdout.String() != want {
		t.Errorf("%q", o.stdout.String())
	}
}

func TestSignalEnding(t *testing.T) {
	r, _ := run(t, shell(t, `kill -SEGV $$`))
	if r.Ending != sandbox.EndingSignal || r.Signal != "SIGSEGV" || r.ExitCode != nil {
		t.Errorf("ending %d, signal %q", r.Ending, r.Signal)
	}
}

func TestLargeInput(t *testing.T) {
	s := hostile(t, "count")
	s.Stdin = make([]byte, 64<<10)
	r, o := run(t, s)
	exited(t, r, o, 0)
	if got := strings.TrimSpace(o.stdout.String()); got != "65536 <nil>" {
		t.Errorf("read %s", got)
	}
}

// S25: what left its session does not outlive the turn. The layer is pid.
func TestThreatS25(t *testing.T) {
	mark := marker(t)
	s := hostile(t, "stubborn", "2", mark, "leave")
	r, o := run(t, s)
	exited(t, r, o, 0)
	if r.Elapsed >= s.Wall {
		t.Error("the turn waited for what the program left behind")
	}
	if left := alive(t, mark); len(left) > 0 {
		t.Errorf("alive: %v", left)
	}
	if r.Cleanup.Left < 6 || r.Cleanup.Reaped < 7 {
		t.Errorf("left %d, reaped %d", r.Cleanup.Left, r.Cleanup.Reaped)
	}
}

// S35: a child that holds the streams does not delay the end. The layer is pid.
func TestThreatS35(t *testing.T) {
	s := shell(t, `sleep 300 & echo done`)
	r, o := run(t, s)
	exited(t, r, o, 0)
	if r.Elapsed >= s.Wall {
		t.Error("the turn waited for what the program left behind")
	}
	if o.stdout.String() != "done\n" || r.Cleanup.Left != 1 {
		t.Errorf("stdout %q, left %d", o.stdout.String(), r.Cleanup.Left)
	}
}

// TestStreamHeldOutsideDoesNotDelayTheEnd lets a process of the host keep the
// writing end of standard output, and even write to it.
func TestStreamHeldOutsideDoesNotDelayTheEnd(t *testing.T) {
	s := shell(t, `while [ ! -e held ]; do sleep 0.02; done; echo passed`)
	begin := time.Now()
	p := start(t, s)
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	main := childOf(t, p.Identity().PID)
	var held *os.File
	eventually(t, "standard output is open to others", time.Minute, func() (open bool) {
		var err error
		held, err = os.OpenFile(fmt.Sprintf("/proc/%d/fd/1", main), os.O_WRONLY, 0) // closed until the program is executed
		return err == nil
	})
	defer held.Close()
	write(t, filepath.Join(s.Workspace, "held"), "", 0o644)
	r, o := finish(t, p)
	exited(t, r, o, 0)
	if o.stdout.String() != "passed\n" || time.Since(begin) > time.Minute {
		t.Errorf("%q after %s", o.stdout.String(), time.Since(begin))
	}
}

// childOf finds the only child of a process.
func childOf(t *testing.T, parent int) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile("/proc/" + e.Name() + "/status")
		if err == nil && strings.Contains(string(b), fmt.Sprintf("\nPPid:\t%d\n", parent)) {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("process %d has no child", parent)
	return 0
}

func TestStopIsPoliteFirst(t *testing.T) {
	s := shell(t, `trap 'echo polite; exit 0' TERM; echo up; while :; do sleep 0.05; done`)
	s.Grace = time.Minute
	p := start(t, s)
	p.Release()
	await(t, p, "up", 1)
	p.Stop()
	p.Stop()
	await(t, p, "polite", 1)
	rest(p)
	if r := p.Wait(); r.Ending != sandbox.EndingStop || !r.Cleanup.Confirmed {
		t.Errorf("result %+v", r)
	}
}

// S36: whoever ignores TERM is killed after the grace.
func TestThreatS36(t *testing.T) {
	mark := marker(t)
	s := hostile(t, "stubborn", "2", mark)
	s.Grace = 200 * time.Millisecond
	p := start(t, s)
	p.Release()
	await(t, p, "up", 7)
	begin := time.Now()
	p.Stop()
	rest(p)
	r := p.Wait()
	if took := time.Since(begin); took < s.Grace || took > time.Minute {
		t.Errorf("took %s", took)
	}
	if r.Ending != sandbox.EndingStop || r.ExitCode != nil || !r.Cleanup.Confirmed || r.Cleanup.Reaped < 7 {
		t.Errorf("result %+v", r)
	}
	if left := alive(t, mark); len(left) > 0 {
		t.Errorf("alive: %v", left)
	}
}

func TestStopBeforeRelease(t *testing.T) {
	s := shell(t, `touch ran`)
	p := start(t, s)
	p.Stop()
	r := p.Wait()
	if r.Ending != sandbox.EndingStop || r.ExitCode != nil || r.Elapsed != 0 || !r.Cleanup.Confirmed {
		t.Errorf("result %+v", r)
	}
	if err := p.Release(); err == nil {
		t.Error("release after the end succeeded")
	}
	if _, err := os.Stat(filepath.Join(s.Workspace, "ran")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the program ran: %v", err)
	}
	rest(p)
}

func TestNothingRunsBeforeRelease(t *testing.T) {
	s := shell(t, `touch ran`)
	p := start(t, s)
	id := p.Identity()
	if gone, err := sandbox.Gone(id); err != nil || gone {
		t.Errorf("gone %v, %v while at the gate", gone, err)
	}
	if id.PIDNS == 0 || id.BootID == "" || id.StartTime == 0 {
		t.Errorf("identity %+v", id)
	}
	if _, err := os.Stat(filepath.Join(s.Workspace, "ran")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the program ran: %v", err)
	}
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	if r, o := finish(t, p); r.Ending != sandbox.EndingExit {
		exited(t, r, o, 0)
	}
	if _, err := os.Stat(filepath.Join(s.Workspace, "ran")); err != nil {
		t.Error(err)
	}
}

func TestReleaseTwice(t *testing.T) {
	p := start(t, shell(t, `sleep 60`))
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(); err == nil {
		t.Error("the second release succeeded")
	}
}

// S34: streams that were closed do not delay the deadline.
func TestThreatS34(t *testing.T) {
	s := shell(t, `exec >&- 2>&-; sleep 300`)
	s.Wall = time.Second
	r, _ := run(t, s)
	if r.Ending != sandbox.EndingTimeout || r.ExitCode != nil {
		t.Errorf("result %+v", r)
	}
	// The 300 s that it would sleep are the other possibility.
	if r.Elapsed < s.Wall || r.Elapsed > s.Wall+30*time.Second {
		t.Errorf("elapsed %s", r.Elapsed)
	}
}

// S26: processes are bounded in the namespace, and the host goes on forking. The layer is rlimits.
func TestThreatS26(t *testing.T) {
	s := shell(t, `f() { f | f & }; f; sleep 300`)
	s.Wall = 1500 * time.Millisecond
	p := start(t, s)
	p.Release()
	most, forks := 0, 0
	done := make(chan struct{})
	go func() { rest(p); close(done) }()
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
	r := p.Wait()
	if r.Ending != sandbox.EndingTimeout || !r.Cleanup.Confirmed {
		t.Errorf("result %+v", r)
	}
	if r.Elapsed > s.Wall+30*time.Second { // it would go on for 300 s
		t.Errorf("ended after %s", r.Elapsed)
	}
	if most > 520 {
		t.Errorf("%d processes at once", most)
	}
	t.Logf("at most %d processes, %d forks of the host meanwhile, elapsed %s", most, forks, r.Elapsed)
}

// members lists the /proc directories of the processes of a PID namespace. The
// ns directory of init cannot be listed by an ordinary user, its links be read.
func members(t testing.TB, pidns uint64) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, e := range entries {
		dir := filepath.Join("/proc", e.Name())
		if to, err := os.Readlink(dir + "/ns/pid"); err == nil && to == "pid:["+strconv.FormatUint(pidns, 10)+"]" {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func TestMemoryLimit(t *testing.T) {
	for name, row := range map[string]struct {
		want, code int
	}{"below": {32 << 20, 0}, "above": {600 << 20, 1}} {
		t.Run(name, func(t *testing.T) {
			// dd takes its whole block as private memory. (This test binary would
			// not do: the race detector alone takes more.)
			s := shell(t, `dd if=/dev/zero of=/dev/null bs="$1" count=1`, strconv.Itoa(row.want))
			s.MemoryBytes = 256 << 20
			r, o := run(t, s)
			exited(t, r, o, row.code)
			if r.Report.Rlimits["data"] != 512<<20 {
				t.Errorf("limits %v", r.Report.Rlimits)
			}
		})
	}
}

func TestLeastMemoryStarts(t *testing.T) {
	s := shell(t, `exit 0`)
	s.MemoryBytes = 64 << 20
	r, o := run(t, s)
	exited(t, r, o, 0)
}

// S33: a flood of output is counted to the byte, and costs no memory. 200 MiB, or what HOLDFAST_FLOOD_MIB says.
func TestThreatS33(t *testing.T) {
	total := many(t, "HOLDFAST_FLOOD_MIB", 200) << 20
	s := hostile(t, "flood", strconv.Itoa(total))
	s.StreamBytes, s.OutputLimit = 64<<10, 1<<40
	p := start(t, s)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	p.Release()
	r := p.Wait() // nobody takes anything until it is over
	runtime.GC()
	runtime.ReadMemStats(&after)
	var o output
	for c := range p.Chunks() {
		o.take(t, c)
	}
	exited(t, r, &o, 0)
	if r.Stdout != int64(total) || o.next[0] != int64(total) {
		t.Errorf("result says %d, chunks end at %d", r.Stdout, o.next[0])
	}
	if kept := o.stdout.Len(); kept != s.StreamBytes || o.gaps[0] != int64(total-kept) {
		t.Errorf("kept %d, gaps %d", kept, o.gaps[0])
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("heap grew by %d", grown)
	}
}

func TestOutputLimitStops(t *testing.T) {
	s := shell(t, `while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done`)
	s.OutputLimit = 100_000
	r, o := run(t, s)
	if r.Ending != sandbox.EndingOutput {
		t.Errorf("ending %d", r.Ending)
	}
	if o.stdout.Len() != 100_000 {
		t.Errorf("delivered %d", o.stdout.Len())
	}
}

// TestThreatS60 kills a whole supervisor without warning.
func TestThreatS60(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	mark := marker(t)
	cmd := exec.Command(exe, superviseArg, temp(t), mark)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var id sandbox.Identity
	if err := json.Unmarshal(line, &id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the program runs", 30*time.Second, func() bool { return len(alive(t, mark)) > 1 })
	if gone, err := sandbox.Gone(id); err != nil || gone {
		t.Errorf("gone %v, %v while it runs", gone, err)
	}
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	eventually(t, "nothing is left", 30*time.Second, func() bool {
		gone, err := sandbox.Gone(id)
		return err == nil && gone && len(alive(t, mark)) == 0
	})
}

// supervise is the supervisor that gets killed.
func supervise(work, mark string) {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	if exe, err = filepath.EvalSymlinks(exe); err != nil {
		panic(err)
	}
	p, err := sandbox.Start(sandbox.Spec{Program: exe, Arguments: []string{hostileArg, "stubborn", "1", mark},
		Workspace: work, Wall: time.Minute, StreamBytes: 1 << 10})
	if err != nil {
		panic(err)
	}
	json.NewEncoder(os.Stdout).Encode(p.Identity())
	if err := p.Release(); err != nil {
		panic(err)
	}
	p.Wait()
}

func TestInitKilledFromOutside(t *testing.T) {
	p := start(t, shell(t, `echo up; sleep 300`))
	p.Release()
	await(t, p, "up", 1)
	if err := syscall.Kill(p.Identity().PID, syscall.SIGKILL); err != nil {
		skip.Missing(t, "init cannot be killed from outside here: "+err.Error())
	}
	rest(p)
	if r := p.Wait(); r.Ending != sandbox.EndingLost || r.ExitCode != nil || !r.Cleanup.Confirmed {
		t.Errorf("result %+v", r)
	}
}

func TestGone(t *testing.T) {
	p := start(t, shell(t, `sleep 300`))
	id := p.Identity()
	other := id
	other.BootID = "11111111-2222-3333-4444-555555555555"
	recycled := id
	recycled.StartTime++
	noNS := recycled
	noNS.PIDNS = 0
	reused := id // another namespace got the inode number; its init started at another time
	reused.PID, reused.StartTime = 1<<22+1, id.StartTime-1
	for name, row := range map[string]struct {
		id   sandbox.Identity
		gone bool
	}{
		"running":                         {id, false},
		"another boot":                    {other, true},
		"recycled pid, no namespace":      {noNS, true},
		"recycled pid, recycled pidns":    {recycled, true},
		"pid gone, namespace number used": {reused, true},
	} {
		if gone, err := sandbox.Gone(row.id); err != nil || gone != row.gone {
			t.Errorf("%s: gone %v, %v", name, gone, err)
		}
	}
}
