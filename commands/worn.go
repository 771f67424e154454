package commands

import (
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// LeaseSeconds is how long a lease lasts from when it was taken or renewed.
const LeaseSeconds = 60

// leaseAges knows, within this process, for how long each lease has been held by
// a clock that nobody sets. A lease's end is a time of day: where that clock
// steps back, or stands behind the journal, the end would stay ahead for as long
// as the step.
type leaseAges struct {
	// mu guards since.
	mu    sync.Mutex
	since map[nip.TaskID]time.Duration
}

// Leased says that the task's lease was taken or renewed just now, or that it is
// seen for the first time. The caller edits the task, or has not served yet.
func (v *Evaluator) Leased(task nip.TaskID) {
	if v.Elapsed == nil {
		return
	}
	v.ages.mu.Lock()
	defer v.ages.mu.Unlock()
	if v.ages.since == nil {
		v.ages.since = make(map[nip.TaskID]time.Duration)
	}
	v.ages.since[task] = v.Elapsed()
}

// worn reports whether the task's lease has had its time whatever the clock
// says. One that this process has not seen before begins to age now.
func (v *Evaluator) worn(task nip.TaskID) bool {
	if v.Elapsed == nil {
		return false
	}
	v.ages.mu.Lock()
	since, known := v.ages.since[task]
	v.ages.mu.Unlock()
	if !known {
		v.Leased(task)
		return false
	}
	return v.Elapsed()-since >= LeaseSeconds*time.Second
}

// unlease forgets the age of a lease that ended.
func (v *Evaluator) unlease(task nip.TaskID) {
	v.ages.mu.Lock()
	defer v.ages.mu.Unlock()
	delete(v.ages.since, task)
}

// dropWorn drops a lease that has had its time, so that whoever edits next finds
// none.
func (v *Evaluator) dropWorn(tx *bbolt.Tx, task nip.TaskID) error {
	_, leased, err := v.Journal.Lease(tx, task)
	if err != nil || !leased || !v.worn(task) {
		return err
	}
	return v.Journal.SetLease(tx, task, nil)
}
