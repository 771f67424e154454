package sandbox

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sweepEvery is how often init goes on killing what is left where no PID
// namespace does it at once.
const sweepEvery = 5 * time.Millisecond

// processes are what init may signal: everything of the turn, and nothing else.
// In a PID namespace that is everybody. Without one, init is the reaper of all
// that descends from it, so whoever loses its parent becomes its child: the
// turn is what descends from init, and is over when init has no child.
type processes struct {
	loose bool // without a PID namespace
}

// signal sends to every process of the turn but init. Without a namespace it
// can miss what is made meanwhile, so it is repeated until nothing is left.
func (p processes) signal(sig unix.Signal) {
	if !p.loose {
		unix.Kill(-1, sig)
		return
	}
	for _, pid := range descendants() {
		signalDescendant(pid, sig)
	}
}

// alive counts the processes of the turn but init, zombies apart.
func (p processes) alive() int {
	if !p.loose {
		return countAlive()
	}
	return len(descendants())
}

// signalDescendant sends to a process by a descriptor that no other process can
// take over, after it was seen again to descend from this one.
func signalDescendant(pid int, sig unix.Signal) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	own := os.Getpid()
	for up, steps := pid, 0; steps < maxDepth; steps++ {
		parent, _, err := parentOf(up)
		if err != nil || parent <= 1 {
			return
		}
		if parent == own {
			unix.PidfdSendSignal(fd, sig, nil, 0)
			return
		}
		up = parent
	}
}

// maxDepth bounds the walk up from a process: more than limitProcesses cannot
// lie between it and init.
const maxDepth = 2 * limitProcesses

// descendants lists the live processes that descend from this one.
func descendants() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	zombie := map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		parent, state, err := parentOf(pid)
		if err != nil {
			continue
		}
		children[parent] = append(children[parent], pid)
		zombie[pid] = state == 'Z' || state == 'X'
	}
	var found []int
	for next := children[os.Getpid()]; len(next) > 0; {
		pid := next[0]
		next = append(next[1:], children[pid]...)
		if !zombie[pid] {
			found = append(found, pid)
		}
	}
	return found
}

var errStat = errors.New("a process's stat file cannot be read")

// parentOf returns the parent and the state of a process.
func parentOf(pid int) (parent int, state byte, err error) {
	b, err := readKernel(procDir(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	// The name is in brackets, and may hold any byte.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 2 || len(fields[0]) != 1 {
		return 0, 0, errStat
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, fields[0][0], err
}
