package main

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/nip"
)

// median is the middle of n commands of the honest device, one by one.
func (a *attacked) median(t *testing.T, n int) time.Duration {
	t.Helper()
	var took []time.Duration
	for range n {
		took = append(took, a.honest(t))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// underFlood measures the honest device while pour runs, over and over, until
// the measurement is done. A ratio within one run says more than a time on
// this machine; it is generous because the flood itself takes a processor.
func (a *attacked) underFlood(t *testing.T, pour func(stop *atomic.Bool)) {
	t.Helper()
	const rounds, most = 15, 40
	quiet := a.median(t, rounds)
	var stop atomic.Bool
	over := make(chan struct{})
	go func() { defer close(over); pour(&stop) }()
	var took []time.Duration
	for done := false; len(took) < rounds || !done; {
		took = append(took, a.honest(t))
		if len(took) >= rounds {
			stop.Store(true)
		}
		select {
		case <-over:
			done = true
		default:
		}
	}
	slices.Sort(took)
	loud := took[len(took)/2]
	t.Logf("median of a command: %s quiet, %s in the flood", quiet.Round(100*time.Microsecond), loud.Round(100*time.Microsecond))
	if loud > most*quiet {
		t.Errorf("a command took %s in the flood, %s before it: over %d times", loud, quiet, most)
	}
}

// floodOfStrangers is 2,000 requests of keys that nobody knows, from so
// many addresses that the relay's limit an address lets them in.
func floodOfStrangers(t *testing.T) {
	a := attack(t)
	const addresses, each = 32, 63
	var keys []*foe
	var events []chan *nip.Event
	for i := range addresses {
		x := a.foe(t, testKey(t), fmt.Sprintf("127.0.1.%d", i+1))
		list := make(chan *nip.Event, each)
		for range each {
			list <- x.event(t, `{"kind":"workspace.list"}`, nil)
		}
		close(list)
		keys, events = append(keys, x), append(events, list)
	}
	before := a.state(t)
	var taken atomic.Int64
	a.underFlood(t, func(*atomic.Bool) {
		var all sync.WaitGroup
		for i, x := range keys {
			for range 8 {
				all.Go(func() {
					for ev := range events[i] {
						if x.publish(ev) == nil {
							taken.Add(1)
						}
					}
				})
			}
		}
		all.Wait()
	})
	if taken.Load() < addresses*each*9/10 {
		t.Errorf("the relay took %d of %d: that was no flood", taken.Load(), addresses*each)
	}
	after := a.state(t)
	after.Records, after.Entries = before.Records, before.Entries // the honest commands
	unchanged(t, before, after)
	a.honest(t)
}

// floodOfDevice is a paired device that asks as fast as it can.
func floodOfDevice(t *testing.T) {
	a := attack(t)
	f := a.pairedFoe(t, "foe")
	before := a.state(t)
	var sent atomic.Int64
	a.underFlood(t, func(stop *atomic.Bool) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for !stop.Load() && sent.Load() < 2000 {
					ev := f.event(t, `{"kind":"workspace.list"}`, nil)
					if err := f.publish(ev); err != nil {
						return
					}
					sent.Add(1)
				}
			})
		}
		all.Wait()
	})
	t.Logf("%d events, %d answers", sent.Load(), f.count())
	after := a.state(t)
	after.Records, after.Entries = before.Records, before.Entries
	unchanged(t, before, after)
	a.honest(t)
}
