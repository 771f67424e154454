package sandbox_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"holdfast/sandbox"
)

// groupsLeft lists the groups of turns in every hierarchy.
func groupsLeft(t *testing.T) (left []string) {
	t.Helper()
	filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "holdfast-turn-") {
			left = append(left, path)
		}
		return nil
	})
	return left
}

// TestMemoryCgroup: where this machine lets a group be made, one holds the turn,
// counts files in memory that no process maps, and is gone afterwards. Elsewhere
// the report says that there is none.
func TestMemoryCgroup(t *testing.T) {
	s := hostile(t, "memory", "memfd", strconv.Itoa(600*raced))
	s.MemoryBytes = raced * 128 << 20
	p := start(t, s)
	grouped := strings.HasPrefix(p.Report().Memory, "memcg+")
	if _, err := os.Stat("/sys/fs/cgroup"); os.Geteuid() == 0 && err == nil && !grouped && writable("/sys/fs/cgroup/memory") {
		t.Errorf("root may make groups here, and the report says %q", p.Report().Memory)
	}
	if err := p.Release(); err != nil {
		t.Fatal(err)
	}
	r, o := finish(t, p)
	if grouped && (r.Ending != sandbox.EndingMemory || r.ExitCode != nil) {
		t.Errorf("ending %d, %s", r.Ending, clip(o.stdout.String()))
	}
	if !grouped {
		exited(t, r, o, 9) // the program is told that there are no such files
	}
	for _, left := range groupsLeft(t) {
		if strings.Contains(left, "-"+strconv.Itoa(os.Getpid())+"-") {
			t.Errorf("%s stays", left)
		}
	}
}

// writable reports whether a group can be made in a directory.
func writable(dir string) bool {
	probe := filepath.Join(dir, "holdfast-test-probe-"+strconv.Itoa(os.Getpid()))
	if os.Mkdir(probe, 0o700) != nil {
		return false
	}
	return os.Remove(probe) == nil
}
