package main

import (
	"sync/atomic"
	"testing"
	"time"
)

func TestHeapPercent(t *testing.T) {
	for _, row := range []struct {
		name string
		rate float64
		live uint64
		want int
	}{
		{"at rest", 1 << 20, 8 << 20, 100},
		{"at rest with much alive", 0, 1 << 30, 100},
		{"busy, hardly anything alive", 64 << 20, 1 << 20, heapMost},
		{"busy, nothing known", 64 << 20, 0, heapMost},
		{"busy, as much alive as there is room", 64 << 20, heapRoom, 200},
		{"busy, much alive", 64 << 20, 10 * heapRoom, 110},
	} {
		if got := heapPercent(row.rate, row.live); got != row.want {
			t.Errorf("%s: %d percent, want %d", row.name, got, row.want)
		}
	}
}

// A process that allocates is given room behind one of its own collections; at
// rest it gives it back.
func TestHeapTuner(t *testing.T) {
	var percent atomic.Int64
	percent.Store(100)
	tuner := newHeapTuner(10*time.Millisecond, func(p int) int { return int(percent.Swap(int64(p))) })
	tuner.arm()
	deadline := time.Now().Add(30 * time.Second)
	for percent.Load() == 100 {
		if time.Now().After(deadline) {
			t.Fatal("no room for a process that allocates")
		}
		for range 64 {
			sink = make([]byte, 64<<10)
		}
	}
	tuner.look(time.Now()) // a window begins
	// An hour later, by the clock that look is given, hardly anything was allocated.
	tuner.look(time.Now().Add(time.Hour))
	if got := percent.Load(); got != 100 {
		t.Errorf("a process at rest has %d percent", got)
	}
}

var sink []byte
