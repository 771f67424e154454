package commands

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"
)

// Check walks the whole chain from its checkpoint and every entry against it.
// It returns the number of transitions it walked, and ErrChain naming the first
// thing that is not as it was written: a changed, removed, added or reordered
// transition or entry, an index or a count that disagrees. It finds what was
// changed in the file, not what somebody rewrote from there to its end.
func (j Journal) Check(tx *bbolt.Tx) (records uint64, err error) {
	h, err := readHead(tx)
	if err != nil {
		return 0, err
	}
	cp, err := readCheckpoint(tx)
	if err != nil {
		return 0, err
	}
	at := cp
	var owned uint64
	var lastTime int64
	err = tx.Bucket(bucketHistory).ForEach(func(k, v []byte) error {
		t, err := decodeTransition(v)
		switch {
		case err != nil:
			return fmt.Errorf("%w: transition %s cannot be read", ErrChain, placeOf(k))
		case len(k) == 8 && binary.BigEndian.Uint64(k) > at.seq+1:
			return fmt.Errorf("%w: transition %d is missing; %s stands behind %d", ErrChain, at.seq+1, placeOf(k), at.seq)
		case !bytes.Equal(k, sequence(t.Seq)) || t.Seq != at.seq+1:
			return fmt.Errorf("%w: at the place of transition %s stands %d", ErrChain, placeOf(k), t.Seq)
		case t.Previous != at.hash:
			return fmt.Errorf("%w: transition %d is not the one that %d continues; one of the two was changed", ErrChain, at.seq, t.Seq)
		case t.At < lastTime && t.What != wordResynced:
			return fmt.Errorf("%w: transition %d runs back in time", ErrChain, t.Seq)
		}
		at = checkpoint{seq: t.Seq, hash: sha256.Sum256(v)}
		lastTime = t.At
		records++
		mine, err := j.checkStep(tx, t)
		if mine {
			owned++
		}
		return err
	})
	if err != nil {
		return records, err
	}
	switch {
	case at.seq < h.seq:
		return records, fmt.Errorf("%w: it ends at transition %d, its head says %d: those from %d on are missing", ErrChain, at.seq, h.seq, at.seq+1)
	case at.seq > h.seq:
		return records, fmt.Errorf("%w: its head says %d, but transition %d stands behind it", ErrChain, h.seq, h.seq+1)
	case at.hash != h.hash:
		return records, fmt.Errorf("%w: transition %d, its last one, is not the one that its head names", ErrChain, at.seq)
	}
	return records, j.checkEntries(tx, h, cp, owned)
}

// placeOf is a history key as a sequence.
func placeOf(k []byte) string {
	if len(k) != 8 {
		return fmt.Sprintf("at %x", k)
	}
	return fmt.Sprint(binary.BigEndian.Uint64(k))
}

// checkStep holds one transition against its entry. mine says that the entry is
// still there.
func (j Journal) checkStep(tx *bbolt.Tx, t Transition) (mine bool, err error) {
	key, err := storedKey(t.Key)
	if err != nil {
		return false, fmt.Errorf("%w: transition %d has a damaged key", ErrChain, t.Seq)
	}
	body := tx.Bucket(bucketEntry).Get(key)
	if body == nil {
		if !j.pruned(tx, t.Key) {
			return false, fmt.Errorf("%w: the entry of transition %d is gone", ErrChain, t.Seq)
		}
		return false, nil
	}
	e, _, err := getEntry(tx, key, t.Key)
	if err != nil {
		return true, fmt.Errorf("transition %d: %w", t.Seq, err)
	}
	if _, found := slices.BinarySearch(e.History, t.Seq); !found {
		return true, fmt.Errorf("%w: an entry does not know its transition %d", ErrChain, t.Seq)
	}
	if e.History[len(e.History)-1] == t.Seq {
		if sha256.Sum256(body) != t.Entry || e.State != t.State || e.Outcome != t.Outcome || e.Reason != t.Reason {
			return true, fmt.Errorf("%w: an entry is not as transition %d left it", ErrChain, t.Seq)
		}
	}
	return true, nil
}

// checkEntries visits every entry: its transitions must be the ones counted,
// and the indexes and counts must name it and nothing else.
func (j Journal) checkEntries(tx *bbolt.Tx, h head, cp checkpoint, owned uint64) error {
	var entries, open, claimed, listed, decided uint64
	since := indexedSince(tx)
	counts := make(map[string]int)
	err := tx.Bucket(bucketEntry).ForEach(func(k, v []byte) error {
		e, err := decodeEntry(v)
		if err != nil {
			return fmt.Errorf("%w: entry %x cannot be read", ErrChain, k)
		}
		key, err := storedKey(e.Key)
		if err != nil || !bytes.Equal(key, k) || len(e.History) == 0 {
			return fmt.Errorf("%w: entry %x is not under its own key", ErrChain, k)
		}
		entries++
		for _, seq := range e.History {
			if seq > cp.seq {
				claimed++
			}
		}
		if last := e.History[len(e.History)-1]; last <= cp.seq || last > h.seq {
			return fmt.Errorf("%w: entry %x has no transition in the chain", ErrChain, k)
		}
		if e.Task != "" {
			listed++
			if !bytes.Equal(tx.Bucket(bucketOf).Get(ofKey(e.Task, e.Seq)), k) {
				return fmt.Errorf("%w: task %s does not list its entry %d", ErrChain, e.Task, e.Seq)
			}
		}
		if !undecided(e) {
			if decidedSince(e, since) {
				decided++
			}
			return nil
		}
		open++
		for _, c := range countKeys(e) {
			counts[string(c)]++
		}
		if e.Key.Kind != KindCommand {
			return nil
		}
		row, err := encodeRow(e)
		if err != nil {
			return err
		}
		rows := tx.Bucket(bucketTask).Bucket([]byte(e.Task))
		if rows == nil || !bytes.Equal(rows.Get(sequence(e.Seq)), row) {
			return fmt.Errorf("%w: the arrival order of task %s lacks entry %d", ErrChain, e.Task, e.Seq)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case claimed != owned:
		return fmt.Errorf("%w: entries claim %d transitions, the chain holds %d", ErrChain, claimed, owned)
	case entries != h.entries || open != h.undecided:
		return fmt.Errorf("%w: %d entries, %d undecided; its head says %d, %d", ErrChain, entries, open, h.entries, h.undecided)
	}
	if err := checkDecided(tx, decided); err != nil {
		return err
	}
	return j.checkIndexes(tx, listed, counts)
}

// checkIndexes looks for what an index holds too much.
func (j Journal) checkIndexes(tx *bbolt.Tx, listed uint64, counts map[string]int) error {
	var n uint64
	err := tx.Bucket(bucketOf).ForEach(func(_, _ []byte) error { n++; return nil })
	if err == nil && n != listed {
		err = fmt.Errorf("%w: tasks list %d entries, there are %d", ErrChain, n, listed)
	}
	if err != nil {
		return err
	}
	err = tx.Bucket(bucketCount).ForEach(func(k, v []byte) error {
		if len(v) != 4 || int(binary.BigEndian.Uint32(v)) != counts[string(k)] {
			return fmt.Errorf("%w: a count of undecided entries is wrong", ErrChain)
		}
		delete(counts, string(k))
		return nil
	})
	if err == nil && len(counts) != 0 {
		err = fmt.Errorf("%w: a count of undecided entries is missing", ErrChain)
	}
	if err != nil {
		return err
	}
	tasks, err := j.Tasks(tx)
	if err != nil {
		return err
	}
	for _, task := range tasks {
		rows, err := j.Undecided(tx, task)
		if err != nil {
			return err
		}
		for _, e := range rows {
			if !undecided(e) || e.Task != task {
				return fmt.Errorf("%w: the arrival order of task %s holds a decided entry", ErrChain, task)
			}
		}
	}
	return nil
}
