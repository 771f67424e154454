package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"holdfast/internal/procid"
)

// markName is the variable that every process of a turn inherits, unless its
// program takes it away. The kernel shows no environment of Apple's own
// programs; those are found by session, group and parent alone.
const markName = "HOLDFAST_TURN="

const zombieState = 5 // SZOMB

// members lists the living processes of a turn: of its session or group, with
// its mark, or a child of one of them. There is no PID namespace to ask, so a
// process that left all four between two looks is not found.
func members(id Identity) ([]int, error) {
	all, err := unix.SysctlKinfoProcSlice("kern.proc.uid", os.Geteuid())
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	mark := []byte("\x00" + markName + markOf(id) + "\x00")
	in := map[int]bool{}
	for _, k := range all {
		pid := int(k.Proc.P_pid)
		if k.Proc.P_stat == zombieState || pid == os.Getpid() || startedBefore(k.Proc.P_starttime, id) {
			continue
		}
		sid, err := unix.Getsid(pid)
		in[pid] = pid == id.PID || int(k.Eproc.Pgid) == id.PID || err == nil && sid == id.PID || marked(pid, mark)
	}
	for grown := true; grown; {
		grown = false
		for _, k := range all {
			pid := int(k.Proc.P_pid)
			if found, listed := in[pid]; listed && !found && in[int(k.Eproc.Ppid)] {
				in[pid], grown = true, true
			}
		}
	}
	var found []int
	for pid, is := range in {
		if is {
			found = append(found, pid)
		}
	}
	return found, nil
}

// startedBefore tells a process that is older than the turn from one of it,
// whose number and session may be those of an earlier process.
func startedBefore(at unix.Timeval, id Identity) bool {
	return uint64(at.Sec)*1_000_000+uint64(at.Usec) < id.StartTime
}

func marked(pid int, mark []byte) bool {
	raw, err := unix.SysctlRaw("kern.procargs2", pid)
	return err == nil && bytes.Contains(raw, mark)
}

func markOf(id Identity) string { return strconv.FormatUint(id.PIDNS, 16) }

// sweep kills what is left of a turn and looks again until two looks in a row
// find nothing. left is what the first look found.
func sweep(id Identity, limit time.Duration) (left int, clean bool) {
	empty := 0
	for round, end := 0, time.Now().Add(limit); ; round++ {
		found, err := members(id)
		if err != nil {
			return left, false
		}
		if round == 0 {
			left = len(found)
		}
		if len(found) == 0 {
			if empty++; empty == 2 {
				return left, true
			}
			continue
		}
		empty = 0
		unix.Kill(-id.PID, unix.SIGKILL)
		for _, pid := range found {
			unix.Kill(pid, unix.SIGKILL)
		}
		if time.Now().After(end) {
			return left, false
		}
		time.Sleep(2 * time.Millisecond)
	}
}

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
	if id.PID <= 1 || id.PIDNS == 0 {
		return false, errors.New("an identity without process or mark")
	}
	found, err := members(id)
	return err == nil && len(found) == 0, err
}
