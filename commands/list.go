package commands

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// Transition is one history record.
type Transition struct {
	Seq      uint64
	At       int64
	Key      Key
	What     string // "received", "held", "dispatching", "applied", "rejected", "edited", ...
	State    State
	Outcome  Outcome
	Reason   nip.Code
	Entry    [32]byte // SHA-256 of the entry's bytes after this step
	Previous [32]byte // SHA-256 of the transition before
}

// Transitions returns up to limit transitions after a sequence, in their order.
func (Journal) Transitions(tx *bbolt.Tx, after uint64, limit int) ([]Transition, error) {
	var out []Transition
	c := tx.Bucket(bucketHistory).Cursor()
	for k, v := c.Seek(sequence(after + 1)); k != nil && len(out) < limit; k, v = c.Next() {
		t, err := decodeTransition(v)
		if err != nil {
			return out, fmt.Errorf("%w: transition %x cannot be read", ErrChain, k)
		}
		out = append(out, t)
	}
	return out, nil
}

// Filter selects entries for the operator. Empty members select everything.
type Filter struct {
	Task    nip.TaskID
	Device  nip.PubKey
	State   State
	Outcome Outcome
	Since   int64  // received at this time or later
	After   uint64 // where the page before said that the listing goes on
	Limit   int    // 0 is 256
	Bytes   int    // of texts, beyond which a page takes no further entry; 0 is no bound
}

// Page returns entries in the order of their places, and where the listing goes
// on, 0 at its end. An entry's place is its arrival; one that stayed undecided
// for so long that its arrival was pruned stands at the first of its transitions
// that is still there. With a task it reads that task's alone, by arrival.
func (j Journal) Page(tx *bbolt.Tx, f Filter) (out []Entry, next uint64, err error) {
	if f.Limit <= 0 {
		f.Limit = 256
	}
	bytes := 0
	add := func(e Entry, place uint64) (more bool) {
		if (f.Task == "" || e.Task == f.Task) && (f.Device == "" || e.Key.Principal == f.Device) &&
			(f.State == StateNone || e.State == f.State) && (f.Outcome == OutcomeNone || e.Outcome == f.Outcome) && e.ReceivedAt >= f.Since {
			out = append(out, e)
			bytes += len(e.Text) + len(e.Command.Text)
			if len(out) >= f.Limit || f.Bytes > 0 && bytes >= f.Bytes {
				next = place
			}
		}
		return next == 0
	}
	if f.Task != "" {
		err = j.eachOf(tx, f.Task, f.After, func(e Entry) bool { return add(e, e.Seq) })
		return out, next, err
	}
	cp, err := readCheckpoint(tx)
	if err != nil {
		return nil, 0, err
	}
	c := tx.Bucket(bucketHistory).Cursor()
	start := max(f.After+1, firstAt(tx, f.Since))
	for k, v := c.Seek(sequence(start)); k != nil; k, v = c.Next() {
		t, err := decodeTransition(v)
		if err != nil {
			return out, 0, fmt.Errorf("%w: transition %x cannot be read", ErrChain, k)
		}
		e, known, err := j.Get(tx, t.Key)
		if err != nil {
			return out, 0, err
		}
		if known && placeIn(e, cp) == t.Seq && !add(e, t.Seq) {
			break
		}
	}
	return out, next, nil
}

// placeIn is the first transition of e behind the checkpoint.
func placeIn(e Entry, cp checkpoint) uint64 {
	for _, seq := range e.History {
		if seq > cp.seq {
			return seq
		}
	}
	return 0
}

// eachOf visits the entries of a task that arrived after a sequence.
func (j Journal) eachOf(tx *bbolt.Tx, task nip.TaskID, after uint64, visit func(Entry) bool) error {
	prefix := len(task) + 1
	c := tx.Bucket(bucketOf).Cursor()
	for k, v := c.Seek(ofKey(task, after+1)); len(k) == prefix+8 && string(k[:prefix-1]) == string(task); k, v = c.Next() {
		e, err := decodeEntry(tx.Bucket(bucketEntry).Get(v))
		if err != nil || e.Seq != binary.BigEndian.Uint64(k[prefix:]) {
			return fmt.Errorf("%w: task %s lists an entry that is not there", ErrChain, task)
		}
		if !visit(e) {
			return nil
		}
	}
	return nil
}

// firstAt is the first sequence whose time is at or after since: times never
// fall along the chain, so it is found by halving.
func firstAt(tx *bbolt.Tx, since int64) uint64 {
	h, err := readHead(tx)
	if err != nil {
		return 0
	}
	cp, err := readCheckpoint(tx)
	if err != nil {
		return 0
	}
	history := tx.Bucket(bucketHistory)
	low, high := cp.seq+1, h.seq+1
	for low < high {
		mid := low + (high-low)/2
		t, err := decodeTransition(history.Get(sequence(mid)))
		if err != nil {
			return 0 // List meets the same record and says so
		}
		if t.At < since {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}
