package commands

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// Where is one command as its sender may know it: its state and why, no text.
type Where struct {
	Command  nip.CommandID
	State    State
	Outcome  Outcome
	Reason   nip.Code
	Revision int64 // task revision after the effect; OutcomeApplied
	Ahead    int   // StateHeld: messages of any device that run before it
}

// Senders says where the commands of a task stand, by their sender: for every
// device that has an undecided one there, and for those named. A sender's list
// has at most limit commands: first the undecided ones, those on their way
// before the held ones, which stand in run order; then the decided ones, the
// last decision first. It reads this task's undecided commands and at most
// limit decided ones a sender, however long the journal is.
func (j Journal) Senders(tx *bbolt.Tx, task nip.TaskID, named []nip.PubKey, limit int) (map[nip.PubKey][]Where, error) {
	rows, err := j.rows(tx, task)
	if err != nil {
		return nil, err
	}
	out := make(map[nip.PubKey][]Where)
	for _, d := range named {
		out[d] = nil
	}
	add := func(e Entry, ahead int) {
		d := e.Key.Principal
		if len(out[d]) < limit {
			out[d] = append(out[d], Where{Command: e.Command.ID, State: e.State, Ahead: ahead})
		}
	}
	for _, e := range rows {
		if e.State != StateHeld {
			add(e, 0)
		}
	}
	for i, e := range RunOrder(rows) {
		if e.State == StateHeld {
			add(e, i)
		}
	}
	for d, list := range out {
		if out[d], err = j.lastDecided(tx, task, d, list, limit); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// bucketDecided holds the decided commands of a task by sender and decision. It
// is younger than the journals that may lack it: made with the first decision
// after it was introduced, and keyDecided remembers the sequence it begins
// behind.
var (
	bucketDecided = []byte("journal.decided")
	keyDecided    = []byte("decided")
)

// decidedKey is task, 0, device, sequence of the transition that decided.
func decidedKey(task nip.TaskID, device nip.PubKey, seq uint64) []byte {
	raw, _ := hex.DecodeString(string(device)) // storedKey has checked it
	b := append(append([]byte(task), 0), raw...)
	return binary.BigEndian.AppendUint64(b, seq)
}

// listedAt is where a decided command stands in the index, nil for what has no
// place there.
func listedAt(e Entry) []byte {
	if e.Key.Kind != KindCommand || e.State != StateDone || len(e.History) == 0 {
		return nil
	}
	return decidedKey(e.Task, e.Key.Principal, e.History[len(e.History)-1])
}

// decidedSince reports whether e belongs into the index of decisions.
func decidedSince(e Entry, since uint64) bool {
	return listedAt(e) != nil && e.History[len(e.History)-1] > since
}

// indexDecided lists a command with its decision; no entry changes after it.
func indexDecided(tx *bbolt.Tx, e Entry, key []byte) error {
	at := listedAt(e)
	if at == nil {
		return nil
	}
	b := tx.Bucket(bucketDecided)
	if b == nil {
		var err error
		if b, err = tx.CreateBucket(bucketDecided); err != nil {
			return err
		}
		if err := tx.Bucket(bucketMeta).Put(keyDecided, sequence(e.History[len(e.History)-1]-1)); err != nil {
			return err
		}
	}
	return b.Put(at, key)
}

// dropDecided forgets a pruned entry's place; one that is older than the index
// has none.
func dropDecided(tx *bbolt.Tx, e Entry) error {
	at, b := listedAt(e), tx.Bucket(bucketDecided)
	if b == nil || at == nil {
		return nil
	}
	return b.Delete(at)
}

// lastDecided fills list up to limit, the last decision first.
func (j Journal) lastDecided(tx *bbolt.Tx, task nip.TaskID, device nip.PubKey, list []Where, limit int) ([]Where, error) {
	b := tx.Bucket(bucketDecided)
	if b == nil || len(list) >= limit {
		return list, nil
	}
	end := decidedKey(task, device, 1<<64-1)
	prefix := end[:len(end)-8]
	c := b.Cursor()
	k, v := c.Seek(end)
	if k == nil {
		k, v = c.Last()
	} else if !bytes.Equal(k, end) {
		k, v = c.Prev()
	}
	for ; bytes.HasPrefix(k, prefix) && len(list) < limit; k, v = c.Prev() {
		e, err := decodeEntry(tx.Bucket(bucketEntry).Get(v))
		if err != nil || !bytes.Equal(listedAt(e), k) {
			return nil, fmt.Errorf("%w: the decisions of task %s list an entry that is not there", ErrChain, task)
		}
		list = append(list, Where{Command: e.Command.ID, State: e.State, Outcome: e.Outcome, Reason: e.Reason, Revision: e.Revision})
	}
	return list, nil
}

// indexedSince is the sequence behind which every decision is indexed.
func indexedSince(tx *bbolt.Tx) uint64 {
	if b := tx.Bucket(bucketMeta).Get(keyDecided); len(b) == 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 1<<64 - 1 // nothing was indexed yet
}

// checkDecided holds the index of decisions against the entries: want of them
// belong into it.
func checkDecided(tx *bbolt.Tx, want uint64) error {
	var n uint64
	if b := tx.Bucket(bucketDecided); b != nil {
		if err := b.ForEach(func(k, v []byte) error {
			n++
			e, err := decodeEntry(tx.Bucket(bucketEntry).Get(v))
			if err != nil || !bytes.Equal(listedAt(e), k) {
				return fmt.Errorf("%w: the decisions list %x, which is not there", ErrChain, k)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	if n != want {
		return fmt.Errorf("%w: %d decisions are listed, there are %d", ErrChain, n, want)
	}
	return nil
}
