package host

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// evaluateAgain is the pause after an evaluation that failed, in seconds.
const evaluateAgain = 5

// deadlines wakes tasks whose lease ends or whose command outlives its day, and
// those whose evaluation failed. It is rebuilt at start from the journal and
// holds nothing that is not there.
type deadlines struct {
	h    *Host
	bell chan struct{}

	// mu guards due, dirty, retry and worn.
	mu    sync.Mutex
	due   dueHeap
	dirty map[nip.TaskID]bool
	retry map[nip.TaskID]int64         // tasks whose last evaluation failed -> when the next one may be
	worn  map[nip.TaskID]time.Duration // leased tasks -> when the lease has had its time by Options.Elapsed
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

// failed keeps a task whose evaluation could not finish for another try: its
// commands are journalled, and nothing else would wake it.
func (d *deadlines) failed(task nip.TaskID) {
	d.mu.Lock()
	d.retry[task] = d.h.now() + evaluateAgain
	d.mu.Unlock()
	d.poke(task)
}

// evaluate runs the task's undecided entries and returns only what must stop
// the host: one damaged task makes it deaf to no other.
func (d *deadlines) evaluate(ctx context.Context, task nip.TaskID) error {
	err := d.h.eval.Evaluate(ctx, task)
	switch {
	case err == nil:
		d.mu.Lock()
		delete(d.retry, task)
		d.mu.Unlock()
		d.poke(task)
		return nil
	case ctx.Err() != nil:
		return nil
	case fatal(err):
		return err
	}
	d.h.log.Error().Err(err).Str("task", string(task)).Msg("evaluation failed; it is tried again soon")
	d.failed(task)
	return nil
}

func (d *deadlines) run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if err := d.refresh(); err != nil {
			return err
		}
		for _, task := range d.ripe(d.h.now()) {
			if err := d.evaluate(ctx, task); err != nil {
				return err
			}
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

// set replaces the task's place in the heap. After a failure the retry's time
// counts, earlier or later than the journal's: a deadline that cannot be kept
// must not turn into a loop.
func (d *deadlines) set(task nip.TaskID, at int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, x := range d.due {
		if x.task == task {
			heap.Remove(&d.due, i)
			break
		}
	}
	if again, failed := d.retry[task]; failed {
		at, ok = again, true
	}
	if ok {
		heap.Push(&d.due, due{at, task})
	}
}

// afterLease has the task looked at when its lease, taken just now, has had its
// time by the clock that nobody sets.
func (d *deadlines) afterLease(task nip.TaskID) {
	if d.h.opts.Elapsed == nil {
		return
	}
	d.mu.Lock()
	d.worn[task] = d.h.opts.Elapsed() + commands.LeaseSeconds*time.Second
	d.mu.Unlock()
	ring(d.bell)
}

func (d *deadlines) ripe(now int64) []nip.TaskID {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []nip.TaskID
	for task, at := range d.worn {
		if d.h.opts.Elapsed() >= at {
			out = append(out, task)
			delete(d.worn, task)
		}
	}
	for len(d.due) > 0 && d.due[0].at <= now {
		out = append(out, heap.Pop(&d.due).(due).task)
	}
	return out
}

// wait is bounded to a minute so that a wall clock that jumped is noticed.
func (d *deadlines) wait(now int64) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	wait := time.Minute
	if len(d.due) > 0 {
		wait = min(wait, time.Duration(d.due[0].at-now)*time.Second)
	}
	for _, at := range d.worn {
		wait = min(wait, at-d.h.opts.Elapsed())
	}
	return max(wait, 50*time.Millisecond)
}
