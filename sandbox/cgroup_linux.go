package sandbox

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	groupPrefix = "holdfast-turn-"
	// groupSlack is what a memory cgroup has beyond the turn's limit, or an
	// eighth of that where it is more: init lives in it too, and the meter, which
	// ends a turn with its reason, comes first where it can.
	groupSlack = 48 << 20
	// groupTasks is beyond the limit of processes, for init's threads.
	groupTasks = limitProcesses + 64
	// groupWait is how long the removal of a group may take: the kernel counts
	// a process out of it some moments after it was reaped.
	groupWait = 2 * time.Second
)

// cgroup is the control group of one turn, in as many hierarchies as it takes:
// of version 2 where one is delegated to this process, of version 1 where
// this process may make groups there, which is root. nil is none: the meter and
// the limits of processes then hold alone, and the Report says so.
type cgroup struct {
	dirs    []string
	memory  string // the directory that bounds memory
	v2      bool
	bounded bool // whether it does so yet
}

// groupsUnusable is set once a process could not be placed: a machine that
// lets groups be made and not be used is not asked again.
var groupsUnusable atomic.Bool

// newCgroup makes the group of a turn.
func newCgroup() *cgroup {
	if !on(layerMemory) || groupsUnusable.Load() {
		return nil
	}
	own, err := readKernel("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	mounts, err := readKernel("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	return groupIn(groupPlaces(own, mounts))
}

// groupPlace is a directory in which a turn's group may be made.
type groupPlace struct {
	dir        string
	v2         bool
	controller string // of version 1
}

// groupPlaces finds where this process may have groups: of version 2 below its
// own and, since a group with processes may have no bounded ones below it,
// beside its own; of version 1 below its own.
func groupPlaces(own, mounts []byte) (places []groupPlace) {
	at := map[string]string{} // controller, "" for version 2 -> mount point
	lines := bufio.NewScanner(bytes.NewReader(mounts))
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(left), strings.Fields(right)
		if !ok || len(fields) < 5 || len(kind) < 3 || fields[3] != "/" {
			continue // a part of a hierarchy: its paths are not those of /proc
		}
		switch kind[0] {
		case "cgroup2":
			at[""] = fields[4]
		case "cgroup":
			for _, option := range strings.Split(kind[2], ",") {
				if option == "memory" || option == "pids" {
					at[option] = fields[4]
				}
			}
		}
	}
	lines = bufio.NewScanner(bytes.NewReader(own))
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), ":", 3) // number:controllers:path
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") || strings.Contains(parts[2], "/..") {
			continue
		}
		if parts[1] == "" {
			if root, ok := at[""]; ok {
				dir := filepath.Join(root, parts[2])
				places = append(places, groupPlace{dir: dir, v2: true})
				if parts[2] != "/" {
					places = append(places, groupPlace{dir: filepath.Dir(dir), v2: true})
				}
			}
			continue
		}
		for _, c := range strings.Split(parts[1], ",") {
			if root, ok := at[c]; ok {
				places = append(places, groupPlace{dir: filepath.Join(root, parts[2]), controller: c})
			}
		}
	}
	return places
}

// groupIn makes the group in the first place of version 2 that bounds memory,
// else in those of version 1. It returns nil where no memory can be bounded; none
// is yet.
func groupIn(places []groupPlace) *cgroup {
	name := groupPrefix + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	tasks := strconv.Itoa(groupTasks)
	g := &cgroup{}
	for _, p := range places {
		dir := filepath.Join(p.dir, name)
		if g.memory != "" && (g.v2 || p.v2) {
			continue
		}
		sweepGroups(p.dir)
		if os.Mkdir(dir, 0o700) != nil {
			continue
		}
		var err error
		switch {
		case p.v2:
			err = errors.Join(setGroup(dir, "memory.max", "max"), setGroup(dir, "memory.oom.group", "1"))
			setGroup(dir, "pids.max", tasks)
			g.v2 = err == nil
		case p.controller == "memory":
			err = setGroup(dir, "memory.limit_in_bytes", "-1")
		default:
			err = setGroup(dir, "pids.max", tasks)
		}
		if err != nil {
			os.Remove(dir)
			continue
		}
		g.dirs = append(g.dirs, dir)
		if p.controller != "pids" {
			g.memory = dir
		}
	}
	if g.memory == "" {
		g.end()
		return nil
	}
	return g
}

// setGroup writes to a file of a group.
func setGroup(dir, file, value string) error { return writeKernel(filepath.Join(dir, file), value) }

// sweepGroups removes what turns of supervisors that died left: the kernel
// refuses where a process is still in one. A group of a supervisor that lives
// may be empty because its first process is about to be placed, so it stays.
func sweepGroups(dir string) {
	left, err := filepath.Glob(filepath.Join(dir, groupPrefix+"*"))
	if err != nil {
		return
	}
	for _, l := range left {
		maker, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(l), groupPrefix), "-")
		pid, err := strconv.Atoi(maker)
		if err != nil || pid < 1 {
			continue // not one of these
		}
		if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) {
			unix.Rmdir(l)
		}
	}
}

// bound bounds the group's memory to a turn's limit and what it may have beyond.
// Where that fails, or the limit is 0, the group bounds none.
func (g *cgroup) bound(memory int64) {
	if g == nil || memory == 0 {
		return
	}
	limit := strconv.FormatInt(memory+max(groupSlack, memory/8), 10)
	if g.v2 {
		g.bounded = setGroup(g.memory, "memory.max", limit) == nil
		setGroup(g.memory, "memory.swap.max", "0") // where swap is counted
		return
	}
	g.bounded = setGroup(g.memory, "memory.limit_in_bytes", limit) == nil
	setGroup(g.memory, "memory.memsw.limit_in_bytes", limit) // where swap is counted
}

// bounds reports whether the group bounds memory.
func (g *cgroup) bounds() bool { return g != nil && g.bounded }

// add places a process, and with it whatever it makes from then on.
func (g *cgroup) add(pid int) error {
	if g == nil {
		return nil
	}
	for _, dir := range g.dirs {
		if err := setGroup(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return nil
}

// exceeded reports whether the kernel killed a process of the group because it
// used too much memory. A group that bounds none has nothing to exceed: what the
// kernel kills there it kills for want of memory elsewhere.
func (g *cgroup) exceeded() bool {
	if !g.bounds() {
		return false
	}
	file := "memory.oom_control"
	if g.v2 {
		file = "memory.events"
	}
	b, err := readKernel(filepath.Join(g.memory, file))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return n != "0"
		}
	}
	return false
}

// end kills what is in the group, where it can, and removes it. It reports
// whether it is gone, which the kernel allows only once nothing is in it.
func (g *cgroup) end() bool {
	if g == nil {
		return true
	}
	gone := true
	for _, dir := range g.dirs {
		if g.v2 {
			setGroup(dir, "cgroup.kill", "1")
		}
		gone = removeGroup(dir) && gone
	}
	return gone
}

func removeGroup(dir string) bool {
	limit := time.NewTimer(groupWait)
	defer limit.Stop()
	for wait := time.Millisecond; ; wait *= 2 {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return true
		}
		select {
		case <-limit.C:
			return false
		case <-time.After(wait):
		}
	}
}
