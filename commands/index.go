package commands

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// index keeps the arrival order, the listing by task and the counts in step
// with one transition. key is e's stored key.
func (Journal) index(tx *bbolt.Tx, old, e Entry, key []byte, h *head) error {
	if old.State == StateNone && e.Task != "" {
		if err := tx.Bucket(bucketOf).Put(ofKey(e.Task, e.Seq), key); err != nil {
			return err
		}
	}
	was, is := undecided(old), undecided(e)
	if was != is {
		step := 1
		if was {
			step = -1
		}
		h.undecided += uint64(step)
		for _, k := range countKeys(e) {
			if err := count(tx, k, step); err != nil {
				return err
			}
		}
	}
	if err := indexDecided(tx, e, key); err != nil {
		return err
	}
	if e.Key.Kind != KindCommand || !was && !is {
		return nil
	}
	tasks := tx.Bucket(bucketTask)
	if !is {
		rows := tasks.Bucket([]byte(e.Task))
		if rows == nil {
			return fmt.Errorf("%w: task %s has no arrival order", ErrChain, e.Task)
		}
		if err := rows.Delete(sequence(e.Seq)); err != nil {
			return err
		}
		if k, _ := rows.Cursor().First(); k == nil {
			return tasks.DeleteBucket([]byte(e.Task))
		}
		return nil
	}
	rows, err := tasks.CreateBucketIfNotExists([]byte(e.Task))
	if err != nil {
		return err
	}
	row, err := encodeRow(e)
	if err != nil {
		return err
	}
	return rows.Put(sequence(e.Seq), row)
}

func undecided(e Entry) bool { return e.State != StateNone && e.State != StateDone }

// ofKey is task, 0, sequence. A task ID holds no zero byte.
func ofKey(task nip.TaskID, seq uint64) []byte {
	b := append([]byte(task), 0)
	return binary.BigEndian.AppendUint64(b, seq)
}

// countKeys are the counters an undecided entry is part of.
func countKeys(e Entry) [][]byte {
	raw, _ := hex.DecodeString(string(e.Key.Principal)) // storedKey has checked it
	return [][]byte{append([]byte{'t'}, e.Task...), append([]byte{'d'}, raw...)}
}

func counter(tx *bbolt.Tx, key []byte) int {
	if b := tx.Bucket(bucketCount).Get(key); len(b) == 4 {
		return int(binary.BigEndian.Uint32(b))
	}
	return 0
}

func count(tx *bbolt.Tx, key []byte, step int) error {
	n := counter(tx, key) + step
	if n < 0 {
		return fmt.Errorf("%w: a count fell below nothing", ErrChain)
	}
	if n == 0 {
		return tx.Bucket(bucketCount).Delete(key)
	}
	return tx.Bucket(bucketCount).Put(key, binary.BigEndian.AppendUint32(nil, uint32(n)))
}

func (Journal) full(tx *bbolt.Tx, e Entry) (bool, error) {
	if _, err := storedKey(e.Key); err != nil {
		return false, err
	}
	more := 0
	if e.Command.Action == nip.Interrupt {
		more = InterruptReserve
	}
	keys := countKeys(e)
	return counter(tx, keys[0]) >= MaxUndecidedTask+more || counter(tx, keys[1]) >= MaxUndecidedDevice+more, nil
}

// rows are the task's undecided commands in arrival order, as partial entries:
// everything Decide reads, no texts.
func (Journal) rows(tx *bbolt.Tx, task nip.TaskID) ([]Entry, error) {
	b := tx.Bucket(bucketTask).Bucket([]byte(task))
	if b == nil {
		return nil, nil
	}
	var out []Entry
	err := b.ForEach(func(k, v []byte) error {
		if len(k) != 8 {
			return fmt.Errorf("%w: task %s has a damaged arrival order", ErrChain, task)
		}
		e, err := decodeRow(binary.BigEndian.Uint64(k), task, v)
		if err != nil {
			return fmt.Errorf("%w: task %s has a damaged arrival order", ErrChain, task)
		}
		out = append(out, e)
		return nil
	})
	return out, err
}

// load replaces partial entries by whole ones.
func (j Journal) load(tx *bbolt.Tx, rows []Entry) ([]Entry, error) {
	for i, row := range rows {
		e, known, err := j.Get(tx, row.Key)
		if err != nil {
			return nil, err
		}
		if !known {
			return nil, fmt.Errorf("%w: the arrival order names an entry that is gone", ErrChain)
		}
		rows[i] = e
	}
	return rows, nil
}

// Undecided returns the task's commands in StateReceived, StateHeld and
// StateDispatching, in arrival order, at most MaxUndecidedTask and the interrupts
// beyond it.
func (j Journal) Undecided(tx *bbolt.Tx, task nip.TaskID) ([]Entry, error) {
	rows, err := j.rows(tx, task)
	if err != nil {
		return nil, err
	}
	return j.load(tx, rows)
}

// Held returns up to limit held messages of the task in run order, and how many
// there are: priority ones first in journal order, then queued ones by position.
func (j Journal) Held(tx *bbolt.Tx, task nip.TaskID, limit int) ([]Entry, int, error) {
	rows, err := j.rows(tx, task)
	if err != nil {
		return nil, 0, err
	}
	held := RunOrder(rows)
	total := len(held)
	held, err = j.load(tx, held[:min(limit, total)])
	return held, total, err
}

// inLine says that an entry waits as a held message. One that was sent now and
// has not had its stop yet is on its way back into the line.
func inLine(e Entry) bool {
	return e.State == StateHeld || e.State == StateReceived && e.Priority
}

// Queued returns up to limit held messages without priority in run order, and
// how many there are.
func (j Journal) Queued(tx *bbolt.Tx, task nip.TaskID, limit int) ([]Entry, int, error) {
	rows, err := j.rows(tx, task)
	if err != nil {
		return nil, 0, err
	}
	held := RunOrder(rows)
	for len(held) > 0 && held[0].Priority {
		held = held[1:]
	}
	total := len(held)
	held, err = j.load(tx, held[:min(limit, total)])
	return held, total, err
}

// RunOrder selects the held ones of entries and sorts them as they will run.
func RunOrder(entries []Entry) []Entry {
	var held []Entry
	for _, e := range entries {
		if inLine(e) {
			held = append(held, e)
		}
	}
	slices.SortFunc(held, func(a, b Entry) int {
		if a.Priority != b.Priority {
			if a.Priority {
				return -1
			}
			return 1
		}
		return cmp.Compare(rank(a), rank(b))
	})
	return held
}

// rank orders entries of equal priority: journal order, and for queued ones
// what a reorder made of it.
func rank(e Entry) int64 {
	if e.Priority || e.Position == 0 {
		return int64(e.Seq)
	}
	return e.Position
}

// Tasks returns the tasks that have undecided commands.
func (Journal) Tasks(tx *bbolt.Tx) ([]nip.TaskID, error) {
	var out []nip.TaskID
	err := tx.Bucket(bucketTask).ForEachBucket(func(k []byte) error {
		out = append(out, nip.TaskID(k))
		return nil
	})
	return out, err
}

// Counts returns how many entries there are, and how many of them are undecided.
func (Journal) Counts(tx *bbolt.Tx) (entries, undecided int, err error) {
	h, err := readHead(tx)
	return int(h.entries), int(h.undecided), err
}

// pruned says whether a decided entry of this key left its digest behind.
func (Journal) pruned(tx *bbolt.Tx, k Key) bool {
	key, err := storedKey(k)
	if err != nil {
		return false // the write that follows refuses the key
	}
	// Get cannot tell an empty value from none on every path; a cursor can.
	digest := prunedDigest(key)
	at, _ := tx.Bucket(bucketPruned).Cursor().Seek(digest)
	return bytes.Equal(at, digest)
}
