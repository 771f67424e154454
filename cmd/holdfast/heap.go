package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	heapBusy   = 8 << 20  // bytes allocated a second from which collecting less often is worth memory
	heapRoom   = 48 << 20 // bytes that the heap may then be larger
	heapMost   = 800      // percent: how much a very small heap may grow
	heapWindow = 2 * time.Second
)

// heapTuner gives a busy host more memory and takes it back from an idle one.
// The runtime collects when the heap has doubled, and the heap of a host is small:
// under load it would collect many times a second, a tenth of all its work. At
// rest memory is what matters. It wakes nobody: it looks only when a collection
// has just ended, of which an idle process has one in two minutes.
type heapTuner struct {
	window time.Duration
	set    func(percent int) int

	// mu guards the members below.
	mu        sync.Mutex
	since     time.Time // of the window
	allocated uint64    // until then
	percent   int
}

var tuneHeapOnce sync.Once

// tuneHeap begins to tune this process, once, unless GOGC says what its user wants.
func tuneHeap() {
	if os.Getenv("GOGC") != "" {
		return
	}
	tuneHeapOnce.Do(func() { newHeapTuner(heapWindow, debug.SetGCPercent).arm() })
}

func newHeapTuner(window time.Duration, set func(int) int) *heapTuner {
	t := &heapTuner{window: window, set: set, percent: 100, since: time.Now()}
	t.allocated, _ = readHeap()
	return t
}

// arm has look called behind the next collection, and every later one.
func (t *heapTuner) arm() {
	mark := &struct{ self *heapTuner }{t} // garbage at once
	runtime.AddCleanup(mark, func(t *heapTuner) {
		t.look(time.Now())
		t.arm()
	}, t)
}

func (t *heapTuner) look(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	passed := now.Sub(t.since)
	if passed < t.window {
		return
	}
	allocated, live := readHeap()
	rate := float64(allocated-t.allocated) / passed.Seconds()
	t.since, t.allocated = now, allocated
	if p := heapPercent(rate, live); p != t.percent {
		t.percent = p
		t.set(p)
	}
}

// heapPercent is how much the heap may grow between two collections, in percent
// of what lives of it, for a rate in bytes a second.
func heapPercent(rate float64, live uint64) int {
	if rate < heapBusy {
		return 100
	}
	more := heapMost - 100
	if live > 0 {
		more = int(min(uint64(more), heapRoom*100/live))
	}
	return 100 + more
}

// readHeap is what the process has allocated since its start, and what the last
// collection left alive, in bytes.
func readHeap() (allocated, live uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64()
}
