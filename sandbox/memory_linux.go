package sandbox

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// memoryLook is how often init adds the group's memory up; memoryShare
	// bounds what that costs to a part of the processor's time.
	memoryLook  = 20 * time.Millisecond
	memoryShare = 20
	// memorySlack is what one process may have beyond the group's limit, or as
	// much again where that is more: RLIMIT_DATA stands between two looks. It
	// counts what is reserved, too, so at the limit itself it would refuse
	// programs that never use what they reserve.
	memorySlack = 256 << 20
)

// dataLimit is the RLIMIT_DATA of each process of a group with this limit.
func dataLimit(memory int64) int64 { return memory + max(memory, memorySlack) }

// watchMemory says once that the processes of this PID namespace together use
// more private memory than limit. It ends with the process.
func watchMemory(limit int64) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		for wait := memoryLook; ; {
			time.Sleep(wait)
			began := time.Now()
			if overMemory("/proc", limit) {
				close(over)
				return
			}
			wait = max(memoryLook, memoryShare*time.Since(began))
		}
	}()
	return over
}

// overMemory adds up what proc shows. The first sum is cheap and counts a page
// once for each process that shares it since a fork; only where that is over
// the limit are the pages' shares asked for.
func overMemory(proc string, limit int64) bool {
	var pids []string
	var sum int64
	entries, err := os.ReadDir(proc)
	if err != nil {
		return false
	}
	for _, e := range entries {
		// Init's own memory is not the program's.
		if pid, err := strconv.Atoi(e.Name()); err != nil || pid == 1 {
			continue
		}
		if n := residentOf(proc + "/" + e.Name()); n > 0 {
			pids = append(pids, e.Name())
			sum += n
		}
	}
	if sum <= limit {
		return false
	}
	sum = 0
	for _, pid := range pids {
		sum += shareOf(proc + "/" + pid)
	}
	return sum > limit
}

// residentOf is the resident memory of a process that is backed by no file and
// no shared memory, in bytes; 0 where the process is gone.
func residentOf(dir string) int64 {
	b, err := os.ReadFile(dir + "/statm")
	fields := strings.Fields(string(b)) // pages: size, resident, shared, ...
	if err != nil || len(fields) < 3 {
		return 0
	}
	resident, err1 := strconv.ParseInt(fields[1], 10, 64)
	shared, err2 := strconv.ParseInt(fields[2], 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return max(0, resident-shared) * int64(os.Getpagesize())
}

// shareOf is residentOf with each page divided by the processes that share it.
// A program can keep that to itself, and then counts in full.
func shareOf(dir string) int64 {
	b, err := os.ReadFile(dir + "/smaps_rollup")
	if err == nil {
		for line := range bytes.Lines(b) {
			rest, ok := bytes.CutPrefix(line, []byte("Pss_Anon:"))
			if !ok {
				continue
			}
			if kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(rest)), " kB"), 10, 64); err == nil {
				return kib << 10
			}
		}
	}
	return residentOf(dir)
}
