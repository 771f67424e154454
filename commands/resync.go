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
// It lets nothing run twice: what the journal has seen it knows by its ID, as an
// entry or as a digest that never leaves, whatever the time is.
func (j Journal) Resync(tx *bbolt.Tx, k Key, s Sender, now int64) (ahead int64, err error) {
	h, err := readHead(tx)
	if err != nil || h.time <= now {
		return 0, err
	}
	ahead = h.time - now
	h.time = now
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
		Key: k, Sender: s, Note: fmt.Sprintf("the journal was %d s ahead of the clock", ahead),
		State: StateDone, Outcome: OutcomeApplied, ReceivedAt: now, DecidedAt: now,
	}, wordResynced)
	if err != nil {
		return 0, err
	}
	b := binary.BigEndian.AppendUint64(nil, e.Seq)
	return ahead, tx.Bucket(bucketMeta).Put(keyResync, binary.BigEndian.AppendUint64(b, uint64(now)))
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
