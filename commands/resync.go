package commands

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"
)

// wordResynced names the one transition that may be dated before the one that
// it follows: a person said that the clock of now is the right one.
const wordResynced = "resynced"

var keyResync = []byte("resync")

// Resync lets the journal go on from now after a clock that was ahead had left
// later times in it: until the real time had caught up, every command of now
// would be judged too old. It returns by how many seconds the journal was ahead;
// 0 says that it was not, and that nothing was done. Leases, whose ends that
// clock gave, are dropped; the tasks they belonged to need an evaluation.
//
// It lets nothing run twice that the journal has seen: it knows that by its ID,
// as an entry or as a digest that never leaves, whatever the time is. What a
// restored store has not seen, it knows by its date alone: a restore's time that
// is later than now becomes now, which is no earlier than the restore, so what was
// issued before it by any clock that was right stays refused. Only a command that
// its device dated later than now, by the clock that was wrong, and before the
// restore, is a new one when its date has come.
func (j Journal) Resync(tx *bbolt.Tx, k Key, s Sender, now int64) (ahead int64, err error) {
	h, err := readHead(tx)
	if err != nil {
		return 0, err
	}
	if ahead = j.Ahead(tx, now); ahead == 0 {
		return 0, nil
	}
	note := fmt.Sprintf("the journal was %d s ahead of the clock", ahead)
	if restored := j.Restored(tx); restored > now {
		note += fmt.Sprintf(", the time of its restored backup %d s", restored-now)
		if err := j.SetRestored(tx, now); err != nil {
			return 0, err
		}
	}
	h.time = min(h.time, now)
	if err := h.put(tx); err != nil {
		return 0, err
	}
	tasks, err := j.LeasedTasks(tx)
	if err != nil {
		return 0, err
	}
	for _, task := range tasks {
		if err := j.SetLease(tx, task, nil); err != nil {
			return 0, err
		}
	}
	e, err := j.write(tx, Entry{}, Entry{
		Key: k, Sender: s, Note: note,
		State: StateDone, Outcome: OutcomeApplied, ReceivedAt: now, DecidedAt: now,
	}, wordResynced)
	if err != nil {
		return 0, err
	}
	b := binary.BigEndian.AppendUint64(nil, e.Seq)
	return ahead, tx.Bucket(bucketMeta).Put(keyResync, binary.BigEndian.AppendUint64(b, uint64(now)))
}

// Ahead is by how many seconds what the journal goes by is later than the clock
// of now: its last transition, or the time at which it was restored. 0: it is not.
func (j Journal) Ahead(tx *bbolt.Tx, now int64) int64 {
	return max(j.Time(tx, now), j.Restored(tx)) - now
}

// resynced is the last Resync: whatever stands in the chain up to seq was
// written at time, or before.
type resynced struct {
	seq  uint64
	time int64
}

func readResync(tx *bbolt.Tx) resynced {
	b := tx.Bucket(bucketMeta).Get(keyResync)
	if len(b) != 16 {
		return resynced{}
	}
	return resynced{binary.BigEndian.Uint64(b), int64(binary.BigEndian.Uint64(b[8:]))}
}

// at is the time of a transition as far as it can be true.
func (r resynced) at(seq uint64, at int64) int64 {
	if seq <= r.seq {
		return min(at, r.time)
	}
	return at
}
