package sandbox

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"holdfast/internal/procid"
)

// Gone reports whether nothing is left of a group that was started earlier,
// perhaps by a supervisor that has died since. An error means that it is not
// known, and the caller must go on treating the group as alive.
func Gone(id Identity) (bool, error) {
	boot, err := procid.BootID()
	if err != nil {
		return false, err
	}
	if id.BootID != boot {
		return true, nil // nothing survives a boot
	}
	alive, err := procid.Alive(procid.ID{PID: id.PID, StartTime: id.StartTime, BootID: id.BootID})
	if err != nil || alive {
		return false, err
	}
	if id.Shared {
		return false, errUnprovable
	}
	inUse, err := namespaceInUse(id, 0)
	return err == nil && !inUse, err
}

// errUnprovable: what descends from a dead init has no mark that it could not
// take off.
var errUnprovable = errors.New("the turn ran without namespaces, so nothing can prove that none of its processes is left before this machine starts anew")

// namespaceInUse reports whether a process that can be seen lives in the PID
// namespace of a group. Processes of other users are passed over: the group's
// are this user's, or everybody's where this is root. So are zombies: after the
// death of a supervisor the group's init is reaped by the machine's first
// process, which in a container may take its time or never do it.
//
// The process except does not count; 0 is none.
func namespaceInUse(id Identity, except int) (bool, error) {
	if id.PIDNS == 0 {
		return false, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false, err
	}
	want := "pid:[" + strconv.FormatUint(id.PIDNS, 10) + "]"
	found := false
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == except {
			continue
		}
		if link, err := os.Readlink(procDir(pid) + "/ns/pid"); err != nil || link != want {
			continue
		}
		if runsNoMore(pid) {
			continue
		}
		if recycled(pid, id) {
			return false, nil
		}
		found = true
	}
	return found, nil
}

// runsNoMore reports whether a process is gone or a zombie. Not knowing is not
// knowing it ended.
func runsNoMore(pid int) bool {
	id, err := procid.Of(pid)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	alive, err := procid.Alive(id)
	return err == nil && !alive
}

// recycled reports whether a process is the init of another, later namespace
// that was given the same inode number.
func recycled(pid int, id Identity) bool {
	status, err := readStatus(procDir(pid) + "/status")
	if err != nil {
		return false
	}
	inside := strings.Fields(status["NSpid"])
	if len(inside) < 2 || inside[len(inside)-1] != "1" {
		return false
	}
	other, err := procid.Of(pid)
	return err == nil && other.StartTime != id.StartTime
}
