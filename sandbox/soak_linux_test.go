package sandbox_test

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/sandbox"
)

// soakVariable is how many turns TestSoak plays instead of 50; 2,000 take some
// minutes.
const soakVariable = "HOLDFAST_SOAK"

// leavings is what turns could leave behind in the world outside.
type leavings struct{ descriptors, routines, mounts, files, processes int }

// countLeavings counts them; marker stands in the arguments of every process of
// the turns, and dirs are where files could appear.
func countLeavings(t *testing.T, marker string, dirs ...string) leavings {
	t.Helper()
	list := func(dir string) []os.DirEntry {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return entries
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	l := leavings{descriptors: len(list("/proc/self/fd")), routines: runtime.NumGoroutine(), mounts: bytes.Count(mounts, []byte("\n"))}
	for _, dir := range dirs {
		l.files += len(list(dir))
	}
	for _, e := range list("/proc") {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && bytes.Contains(line, []byte(marker)) {
			l.processes++
		}
	}
	return l
}

// TestSoak starts and ends many turns in every way, and looks for what stays.
func TestSoak(t *testing.T) {
	turns := 50
	if v := os.Getenv(soakVariable); v != "" {
		var err error
		if turns, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	work, scratch := temp(t), temp(t)
	t.Setenv("TMPDIR", scratch)
	marker := fmt.Sprintf("soak-%d-%d", os.Getpid(), time.Now().UnixNano())
	// Each leaves a process in a session of its own that ignores TERM; the
	// middle one also waits to be ended.
	ends := []struct {
		name    string
		release bool
		end     func(*sandbox.Process)
	}{
		{"stopped at its gate", false, (*sandbox.Process).Stop},
		{"ended by itself", true, func(*sandbox.Process) {}},
		{"stopped while it ran", true, (*sandbox.Process).Stop},
		{"killed from outside", true, func(p *sandbox.Process) { unix.Kill(p.Identity().PID, unix.SIGKILL) }},
	}
	once := func(i int) {
		end := ends[i%len(ends)]
		s := shell(t, `trap "" TERM; setsid sh -c 'trap "" TERM; sleep 300 & wait' "$1" & [ "$2" = 1 ] || sleep 300; exit 0`,
			marker, strconv.Itoa(i%len(ends)))
		s.Workspace, s.Grace = work, time.Millisecond
		p, err := sandbox.Start(s)
		if err != nil {
			t.Fatal(err)
		}
		if end.release {
			if err := p.Release(); err != nil {
				t.Fatal(err)
			}
		}
		end.end(p)
		rest(p)
		if r := p.Wait(); !r.Cleanup.Confirmed {
			t.Errorf("turn %d, %s: %+v", i, end.name, r)
		}
	}
	for i := range ends {
		once(i)
	}
	before := countLeavings(t, marker, work, scratch)
	if before.processes != 0 {
		t.Errorf("%d processes outlived their turns", before.processes)
	}
	for i := range turns {
		once(i)
	}
	var after leavings
	eventually(t, "nothing stays", 30*time.Second, func() bool {
		after = countLeavings(t, marker, work, scratch)
		return after.descriptors <= before.descriptors && after.routines <= before.routines
	})
	after.descriptors, after.routines = before.descriptors, before.routines
	if after != before {
		t.Errorf("%d turns left %+v, before them it was %+v", turns, after, before)
	}
}
