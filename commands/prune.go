package commands

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"
)

// Retention is how long, in seconds, a decided entry stays after its decision.
const Retention = 172_800

// wordCarried names the transition that repeats a state so that older ones can go.
const wordCarried = "carried"

// Prune drops up to limit transitions from the old end of the chain, with the
// entries they began: decided ones, older than Retention. Each pruned entry
// leaves a 16-byte digest of its key, so that its command never runs again, and
// the checkpoint moves to the last dropped transition, from which the rest of
// the chain verifies. It returns the number of dropped transitions. Call it again while it
// returns limit.
//
// An undecided entry at the old end would keep everything behind it; a command
// is decided within its 24 hours, and one whose bytes cannot be applied is
// carried: its state is appended once more, so that its old transitions can go.
func (j Journal) Prune(tx *bbolt.Tx, now int64, limit int) (int, error) {
	now = j.Time(tx, now)
	cp, err := readCheckpoint(tx)
	if err != nil {
		return 0, err
	}
	type old struct {
		seq    uint64
		record []byte
	}
	var batch []old
	c := tx.Bucket(bucketHistory).Cursor()
	for k, v := c.First(); k != nil && len(batch) < limit; k, v = c.Next() {
		if len(k) != 8 {
			return 0, fmt.Errorf("%w: the history holds a strange key", ErrChain)
		}
		batch = append(batch, old{binary.BigEndian.Uint64(k), append([]byte(nil), v...)})
	}
	dropped, clock := 0, readResync(tx)
	for _, o := range batch {
		t, err := decodeTransition(o.record)
		if err != nil || t.Seq != o.seq || t.Seq != cp.seq+1 || t.Previous != cp.hash {
			return dropped, fmt.Errorf("%w at transition %d; nothing behind it is pruned", ErrChain, o.seq)
		}
		t.At = clock.at(t.Seq, t.At)
		if now-t.At < Retention {
			break
		}
		kept, err := j.release(tx, t, now, clock)
		if err != nil {
			return dropped, err
		}
		if kept {
			break
		}
		if err := tx.Bucket(bucketHistory).Delete(sequence(t.Seq)); err != nil {
			return dropped, err
		}
		cp = checkpoint{seq: t.Seq, hash: sha256.Sum256(o.record), count: cp.count + 1}
		dropped++
	}
	if dropped == 0 {
		return 0, nil
	}
	return dropped, cp.put(tx)
}

// release lets go of the entry that t belongs to, if it may, and says whether t
// must stay.
func (j Journal) release(tx *bbolt.Tx, t Transition, now int64, clock resynced) (kept bool, err error) {
	e, known, err := j.Get(tx, t.Key)
	if err != nil || !known {
		return false, err // its first transition went before, and the entry with it
	}
	if e.State != StateDone {
		if e.History[len(e.History)-1] == t.Seq {
			if now-t.At < 2*Retention {
				return true, nil
			}
			_, err := j.writeAt(tx, e, e, wordCarried, now)
			return false, err
		}
		return false, nil // a later transition holds its state
	}
	if now-clock.at(e.History[len(e.History)-1], e.DecidedAt) < Retention {
		return true, nil
	}
	return false, j.drop(tx, e)
}

// drop removes the entry and leaves its digest.
func (Journal) drop(tx *bbolt.Tx, e Entry) error {
	key, err := storedKey(e.Key)
	if err != nil {
		return err
	}
	if err := tx.Bucket(bucketPruned).Put(prunedDigest(key), nil); err != nil {
		return err
	}
	if err := tx.Bucket(bucketEntry).Delete(key); err != nil {
		return err
	}
	if e.Task != "" {
		if err := tx.Bucket(bucketOf).Delete(ofKey(e.Task, e.Seq)); err != nil {
			return err
		}
	}
	if err := dropDecided(tx, e); err != nil {
		return err
	}
	h, err := readHead(tx)
	if err != nil {
		return err
	}
	h.entries--
	return h.put(tx)
}

// prunedDigest is what remains of a pruned key: enough that nobody finds a
// second one by chance, and too little to learn the first.
func prunedDigest(key []byte) []byte {
	sum := sha256.Sum256(key)
	return sum[:16]
}

// checkpoint is the root of the chain that is still there.
type checkpoint struct {
	seq   uint64   // last dropped transition
	hash  [32]byte // its hash
	count uint64   // transitions dropped in all
}

func readCheckpoint(tx *bbolt.Tx) (checkpoint, error) {
	b := tx.Bucket(bucketMeta).Get(keyCheckpoint)
	if b == nil {
		return checkpoint{}, nil
	}
	r := reader{b: b}
	format := r.u8()
	c := checkpoint{seq: r.u64()}
	copy(c.hash[:], r.take(32))
	c.count = r.u64()
	if r.end() != nil || format != formatByte {
		return checkpoint{}, fmt.Errorf("%w: its checkpoint cannot be read", ErrChain)
	}
	return c, nil
}

func (c checkpoint) put(tx *bbolt.Tx) error {
	w := writer{b: make([]byte, 0, 49)}
	w.u8(formatByte)
	w.u64(c.seq)
	w.b = append(w.b, c.hash[:]...)
	w.u64(c.count)
	return tx.Bucket(bucketMeta).Put(keyCheckpoint, w.b)
}
