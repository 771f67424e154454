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
	Task   nip.TaskID
	Device nip.PubKey
	State  State
	Since  int64  // received at this time or later
	After  uint64 // arrived after this sequence (Entry.Seq); the last entry's continues a listing
	Limit  int    // 0 is 256
}

// List returns entries in arrival order. With a task it reads that task's alone.
func (j Journal) List(tx *bbolt.Tx, f Filter) ([]Entry, error) {
	if f.Limit <= 0 {
		f.Limit = 256
	}
	var out []Entry
	add := func(e Entry) {
		if (f.Task == "" || e.Task == f.Task) && (f.Device == "" || e.Key.Principal == f.Device) &&
			(f.State == StateNone || e.State == f.State) && e.ReceivedAt >= f.Since && e.Seq > f.After {
			out = append(out, e)
		}
	}
	if f.Task != "" {
		return out, j.eachOf(tx, f.Task, f.After, func(e Entry) bool {
			add(e)
			return len(out) < f.Limit
		})
	}
	c := tx.Bucket(bucketHistory).Cursor()
	start := max(f.After+1, firstAt(tx, f.Since))
	for k, v := c.Seek(sequence(start)); k != nil && len(out) < f.Limit; k, v = c.Next() {
		t, err := decodeTransition(v)
		if err != nil {
			return out, fmt.Errorf("%w: transition %x cannot be read", ErrChain, k)
		}
		e, known, err := j.Get(tx, t.Key)
		if err != nil {
			return out, err
		}
		if known && (e.Seq == t.Seq || t.What == wordCarried) {
			add(e)
		}
	}
	return out, nil
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
