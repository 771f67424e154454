package host

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// deadlines wakes tasks whose lease ends or whose command outlives its day.
// It is rebuilt at start from the journal and holds nothing that is not there.
type deadlines struct {
	h    *Host
	bell chan struct{}

	// mu guards due and dirty.
	mu    sync.Mutex
	due   dueHeap
	dirty map[nip.TaskID]bool
}

type due struct {
	at   int64
	task nip.TaskID
}

type dueHeap []due

func (d dueHeap) Len() int           { return len(d) }
func (d dueHeap) Less(i, j int) bool { return d[i].at < d[j].at }
func (d dueHeap) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *dueHeap) Push(x any)        { *d = append(*d, x.(due)) }
func (d *dueHeap) Pop() any {
	old := *d
	x := old[len(old)-1]
	*d = old[:len(old)-1]
	return x
}

// poke asks for the task's next deadline to be looked up again.
func (d *deadlines) poke(task nip.TaskID) {
	d.mu.Lock()
	d.dirty[task] = true
	d.mu.Unlock()
	ring(d.bell)
}

func (d *deadlines) run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if err := d.refresh(); err != nil {
			return err
		}
		for _, task := range d.ripe(d.h.now()) {
			if err := d.h.eval.Evaluate(ctx, task); err != nil && ctx.Err() == nil {
				d.h.log.Error().Err(err).Str("task", string(task)).Msg("evaluation failed; it is tried again with the next event")
			}
			d.poke(task)
		}
		timer.Reset(d.wait(d.h.now()))
		select {
		case <-ctx.Done():
			return nil
		case <-d.bell:
		case <-timer.C:
		}
	}
}

// refresh looks up the deadlines of the poked tasks.
func (d *deadlines) refresh() error {
	d.mu.Lock()
	tasks := d.dirty
	d.dirty = map[nip.TaskID]bool{}
	d.mu.Unlock()
	if len(tasks) == 0 {
		return nil
	}
	return d.h.db.View(func(tx *bbolt.Tx) error {
		for task := range tasks {
			at, ok, err := d.h.journal.NextDeadline(tx, task)
			if err != nil {
				return err
			}
			d.set(task, at, ok)
		}
		return nil
	})
}

func (d *deadlines) set(task nip.TaskID, at int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, x := range d.due {
		if x.task == task {
			heap.Remove(&d.due, i)
			break
		}
	}
	if ok {
		heap.Push(&d.due, due{at, task})
	}
}

func (d *deadlines) ripe(now int64) []nip.TaskID {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []nip.TaskID
	for len(d.due) > 0 && d.due[0].at <= now {
		out = append(out, heap.Pop(&d.due).(due).task)
	}
	return out
}

// wait is bounded to a minute so that a wall clock that jumped is noticed.
func (d *deadlines) wait(now int64) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.due) == 0 {
		return time.Minute
	}
	return min(time.Minute, max(time.Duration(d.due[0].at-now)*time.Second, 50*time.Millisecond))
}
