package commands

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/internal/commit"
	"holdfast/nip"
)

// BenchmarkSubmit is one command from its arrival to its committed answer, with
// every sync: held ones cost one commit, effects two and an apply. Many devices
// share commits.
func BenchmarkSubmit(b *testing.B) {
	for _, effect := range []bool{false, true} {
		for _, devices := range []int{1, 8, 64} {
			name := "held"
			if effect {
				name = "effect"
			}
			b.Run(fmt.Sprintf("%s/%d", name, devices), func(b *testing.B) { benchSubmit(b, devices, effect) })
		}
	}
}

func benchSubmit(b *testing.B, devices int, effect bool) {
	db, err := commit.Open(filepath.Join(b.TempDir(), "host.db"), commit.Options{Kind: "holdfast-host", Version: 1})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(context.Background(), Journal{}.Setup); err != nil {
		b.Fatal(err)
	}
	tasks := newTasks(newStore(b))
	v := &Evaluator{
		DB: db, Tasks: tasks, Now: func() time.Time { return time.Unix(start, 0) },
		Standing: func(*bbolt.Tx, Sender, int64) bool { return true },
	}
	action := nip.Send // refused: journalled, decided and answered
	view := TaskView{Phase: PhaseRunning, Revision: 1}
	if effect {
		action, view = nip.Steer, TaskView{Phase: PhaseNotStarted, Revision: 1}
	}
	on := make([]nip.TaskID, devices)
	for i := range on {
		on[i] = nip.TaskID(fmt.Sprintf("%064x", i+1))
		tasks.add(on[i], view)
	}
	var n atomic.Int64
	took := make([][]time.Duration, devices)
	b.ResetTimer()
	var wg sync.WaitGroup
	for d := range devices {
		wg.Go(func() {
			for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
				c := command(int(i), action, 1)
				c.Task = on[d]
				begin := time.Now()
				e, err := v.Submit(context.Background(), sender(d), c, Hooks{})
				if err != nil || e.State != StateDone {
					b.Errorf("%v %s", err, short(e))
					return
				}
				took[d] = append(took[d], time.Since(begin))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) > 0 {
		b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
		b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "commands/s")
	}
}

// BenchmarkDecideAndCommit is one command, from its arrival to its committed
// decision, into journals of two sizes, without syncs: what the journal holds
// already must not matter.
func BenchmarkDecideAndCommit(b *testing.B) {
	for _, size := range []int{1_000, 1_000_000} {
		r := memoryRig(b)
		r.tasks.add(task(0), running)
		if err := r.Journal.Fill(context.Background(), r.store, filling(size, 100, 64)); err != nil {
			b.Fatal(err)
		}
		n := 0
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			for b.Loop() {
				n++
				r.submit(sender(0), command(n, nip.Send, 5))
			}
		})
	}
}
