// Package procid names a process so that a recycled pid is never mistaken for
// the process that had it before.
//
// Its one noun is the ID: a pid, the moment the kernel started it, and the boot
// it belongs to. Two processes of one machine never share all three. Of and
// Self read an ID from the running system, Alive asks whether the named
// process still runs. Anybody may call from any goroutine; nothing is kept.
//
// A zombie runs no more code, so it is not alive. Whether something that the
// process started is alive is not answered here: a process group or a PID
// namespace is asked for that.
//
// IDs can be stored: they stay true across restarts of the program and, by the
// boot ID, across restarts of the machine. Linux is served, and macOS by code that
// never ran on a Mac; elsewhere Of and Self return ErrUnsupported, and Alive
// fails instead of guessing.
package procid

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ID names one process of one boot.
type ID struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // clock ticks since boot, field 22 of /proc/PID/stat; microseconds of the wall clock on macOS
	BootID    string `json:"boot_id"`
}

// ErrUnsupported is returned where the system offers no start times.
var ErrUnsupported = errors.New("process identities need linux or macOS")

// stat is the part of /proc/PID/stat that is used here.
type stat struct {
	state   byte
	threads uint64
	start   uint64
}

// over says that no thread of the process runs any more. A process whose first
// thread alone has ended shows the same state as a zombie.
func (s stat) over() bool { return (s.state == 'Z' || s.state == 'X') && s.threads <= 1 }

// parseStat reads a /proc/PID/stat line. The second field is the program's own
// choice of up to 15 bytes in parentheses, and may itself hold spaces,
// parentheses and newlines: only what follows the last ')' is trusted.
func parseStat(line string) (stat, error) {
	end := strings.LastIndexByte(line, ')')
	if end < 0 {
		return stat{}, errors.New("parse process stat: no command field")
	}
	fields := strings.Fields(line[end+1:])
	// Field 3 (state) is fields[0], field 20 (threads) fields[17], field 22 (start time) fields[19].
	if len(fields) < 20 || len(fields[0]) != 1 {
		return stat{}, errors.New("parse process stat: too few fields")
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("parse process stat: start time: %w", err)
	}
	threads, err := strconv.ParseUint(fields[17], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("parse process stat: threads: %w", err)
	}
	return stat{state: fields[0][0], threads: threads, start: start}, nil
}
