package commands

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"
)

// Change writes e's new state with its transition; it is the only way an entry
// changes. what names the step ("held", "dispatching", "edited", ...). e must be
// the entry as Get returned it, with only its mutable members changed: an
// illegal edge, a stale copy or a touched original is a bug and panics.
func (j Journal) Change(tx *bbolt.Tx, e Entry, what string, now int64) (Entry, error) {
	old, known, err := j.Get(tx, e.Key)
	if err != nil {
		return Entry{}, err
	}
	if !known {
		panic("commands: change of an entry that is not in the journal")
	}
	if !legal(old.State, e.State) {
		panic(fmt.Sprintf("commands: no way from %v to %v", old.State, e.State))
	}
	if old.Sender != e.Sender || !sameContent(old, e) || old.Seq != e.Seq || len(old.History) != len(e.History) {
		panic("commands: change of a stale copy, or of the original request")
	}
	if e.State == StateDispatching && len(e.Dispatch) == 0 || (e.State == StateDone) != (e.Outcome != OutcomeNone) {
		panic(fmt.Sprintf("commands: state %v does not agree with its bytes or outcome", e.State))
	}
	e.ReceivedAt = old.ReceivedAt
	e.Edited = e.Text != e.Command.Text
	switch e.State {
	case StateHeld:
		e.Then = StateNone
		if e.Position == 0 {
			e.Position = int64(e.Seq)
		}
	case StateReceived:
		e.Then = StateNone
	case StateDone:
		e.Then = StateNone
		e.DecidedAt = j.Time(tx, now)
	}
	return j.writeAt(tx, old, e, what, j.Time(tx, now))
}

// legal is the whole graph of states.
func legal(from, to State) bool {
	switch from {
	case StateReceived:
		return to == StateHeld || to == StateDispatching || to == StateDone
	case StateHeld: // to itself by an edit, back to received by send_now
		return to == StateHeld || to == StateReceived || to == StateDispatching || to == StateDone
	case StateDispatching: // back when the task refused the bytes for its revision
		return to == StateReceived || to == StateHeld || to == StateDone
	}
	return false
}

func (j Journal) write(tx *bbolt.Tx, old, e Entry, what string) (Entry, error) {
	return j.writeAt(tx, old, e, what, e.ReceivedAt)
}

// writeAt appends the transition, then puts the entry and every index that
// names it. All of it is one transaction of the caller: a crash leaves all or
// nothing.
func (j Journal) writeAt(tx *bbolt.Tx, old, e Entry, what string, at int64) (Entry, error) {
	h, err := readHead(tx)
	if err != nil {
		return Entry{}, err
	}
	h.seq++
	if e.Seq == 0 {
		e.Seq = h.seq
	}
	e.History = append(append(make([]uint64, 0, len(e.History)+1), e.History...), h.seq)
	key, err := storedKey(e.Key)
	if err != nil {
		return Entry{}, err
	}
	body, err := encodeEntry(e)
	if err != nil {
		return Entry{}, fmt.Errorf("journal %s: %w", e.Key.Kind, err)
	}
	record, err := encodeTransition(Transition{
		Seq: h.seq, At: at, Key: e.Key, What: what, State: e.State, Outcome: e.Outcome,
		Reason: e.Reason, Entry: sha256.Sum256(body), Previous: h.hash,
	})
	if err != nil {
		return Entry{}, fmt.Errorf("journal %s: %w", e.Key.Kind, err)
	}
	h.hash, h.time = sha256.Sum256(record), max(h.time, at)
	if old.State == StateNone {
		h.entries++
	}
	if err := j.index(tx, old, e, key, &h); err != nil {
		return Entry{}, err
	}
	history := tx.Bucket(bucketHistory)
	history.FillPercent = 0.95 // sequences only grow: leave no half-empty pages
	if err := history.Put(sequence(h.seq), record); err != nil {
		return Entry{}, err
	}
	if err := tx.Bucket(bucketEntry).Put(key, body); err != nil {
		return Entry{}, err
	}
	return e, h.put(tx)
}

// sequence is the key of a transition.
func sequence(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

var (
	keyHead       = []byte("head")
	keyCheckpoint = []byte("checkpoint")
	keyRestored   = []byte("restored")
)

// head is the end of the chain, with what every transition moves.
type head struct {
	seq       uint64
	hash      [32]byte
	time      int64
	entries   uint64
	undecided uint64
}

func readHead(tx *bbolt.Tx) (head, error) {
	b := tx.Bucket(bucketMeta).Get(keyHead)
	if b == nil {
		return head{}, nil
	}
	r := reader{b: b}
	if r.u8() != formatByte {
		return head{}, fmt.Errorf("%w: its head cannot be read", ErrChain)
	}
	h := head{seq: r.u64()}
	copy(h.hash[:], r.take(32))
	h.time, h.entries, h.undecided = r.i64(), r.u64(), r.u64()
	if r.end() != nil {
		return head{}, fmt.Errorf("%w: its head cannot be read", ErrChain)
	}
	return h, nil
}

func (h head) put(tx *bbolt.Tx) error {
	w := writer{b: make([]byte, 0, 65)}
	w.u8(formatByte)
	w.u64(h.seq)
	w.b = append(w.b, h.hash[:]...)
	w.i64(h.time)
	w.u64(h.entries)
	w.u64(h.undecided)
	return tx.Bucket(bucketMeta).Put(keyHead, w.b)
}

// Time is max(now, last journalled time): decisions never run backwards.
func (Journal) Time(tx *bbolt.Tx, now int64) int64 {
	h, err := readHead(tx)
	if err != nil {
		return now // the next write meets the same damage and says so
	}
	return max(now, h.time)
}

// Last is the time of the last transition, 0 without one.
func (Journal) Last(tx *bbolt.Tx) int64 {
	h, err := readHead(tx)
	if err != nil {
		return 0
	}
	return h.time
}

// SetRestored notes that the store was put back from a backup at this time:
// commands issued up to CommandFuture after it expire undecided, since what
// became of those that an earlier life of the host took is not known.
func (Journal) SetRestored(tx *bbolt.Tx, at int64) error {
	return tx.Bucket(bucketMeta).Put(keyRestored, sequence(uint64(at)))
}

// Restored is the time given to SetRestored, 0 without one.
func (Journal) Restored(tx *bbolt.Tx) int64 {
	if b := tx.Bucket(bucketMeta).Get(keyRestored); len(b) == 8 {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}
