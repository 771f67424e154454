package commands

import (
	"encoding/hex"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// Record journals a new entry in StateReceived, with its sender and its place
// in the arrival order. It is hop 5 of the data path: host/admit.go comes
// before, decide.go after. A known key with equal content returns the entry as
// it stands, whoever's grant carries it now; the first sender stays. Other
// content is ErrConflict, a pruned key ErrPruned, a full task or device ErrFull.
//
// Once the caller's commit returned, a crash cannot lose the command; before,
// it was never here.
func (j Journal) Record(tx *bbolt.Tx, e Entry, now int64) (Entry, error) {
	old, known, err := j.Get(tx, e.Key)
	if err != nil {
		return Entry{}, err
	}
	if known {
		if !sameContent(old, e) {
			return Entry{}, ErrConflict
		}
		return old, nil
	}
	fresh := Entry{
		Key: e.Key, Sender: e.Sender, Command: e.Command, Task: e.Task, Exact: e.Exact,
		Text: e.Command.Text, Note: e.Note, State: StateReceived, ReceivedAt: j.Time(tx, now),
	}
	if e.Key.Kind == KindCommand && (e.Key.ID != string(e.Command.ID) || e.Task != e.Command.Task) {
		panic("commands: a command's key or task is not its own")
	}
	if j.pruned(tx, e.Key) {
		return Entry{}, ErrPruned
	}
	if full, err := j.full(tx, fresh); err != nil || full {
		if err == nil {
			err = ErrFull
		}
		return Entry{}, err
	}
	return j.write(tx, Entry{}, fresh, "received")
}

// sameContent compares what was asked, not who carried it. Command holds every
// member of the wire's object as a decoded value, so equal structs are equal
// canonical bytes.
func sameContent(old, e Entry) bool {
	return old.Command == e.Command && old.Task == e.Task && old.Exact == e.Exact && old.Note == e.Note
}

// Journal reads and changes the journal inside a transaction. It has no state of its own.
type Journal struct{}

// Limits of undecided entries, so that one device cannot fill the host. Room is
// kept beyond them for interrupts: a full queue must not keep anybody from
// stopping the task.
const (
	MaxUndecidedTask   = 4096
	MaxUndecidedDevice = 1024
	InterruptReserve   = 64
)

// Names of the buckets; the package comment has their layout.
var (
	bucketHistory = []byte("journal.history")
	bucketEntry   = []byte("journal.entry")
	bucketTask    = []byte("journal.task")
	bucketOf      = []byte("journal.of")
	bucketLease   = []byte("journal.lease")
	bucketCount   = []byte("journal.count")
	bucketPruned  = []byte("journal.pruned")
	bucketMeta    = []byte("journal.meta")
)

// Setup creates the buckets; call once in the opening transaction.
func (Journal) Setup(tx *bbolt.Tx) error {
	for _, name := range [][]byte{
		bucketHistory, bucketEntry, bucketTask, bucketOf,
		bucketLease, bucketCount, bucketPruned, bucketMeta,
	} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return fmt.Errorf("set up the journal: %w", err)
		}
	}
	return nil
}

// storedKey is principal, kind, 0, ID. A kind holds no zero byte.
func storedKey(k Key) ([]byte, error) {
	raw, err := hex.DecodeString(string(k.Principal))
	if err != nil || len(raw) != 32 || k.Kind == "" || len(k.Kind) > maxWord || k.ID == "" || len(k.ID) > maxWord {
		return nil, fmt.Errorf("journal key of kind %q is not complete", k.Kind)
	}
	for i := range len(k.Kind) {
		if k.Kind[i] == 0 {
			return nil, fmt.Errorf("journal kind %q holds a zero byte", k.Kind)
		}
	}
	b := make([]byte, 0, 33+len(k.Kind)+len(k.ID))
	b = append(b, raw...)
	b = append(b, k.Kind...)
	b = append(b, 0)
	return append(b, k.ID...), nil
}

// Get returns the entry as it stands, and whether there is one.
func (Journal) Get(tx *bbolt.Tx, k Key) (Entry, bool, error) {
	key, err := storedKey(k)
	if err != nil {
		return Entry{}, false, err
	}
	return getEntry(tx, key, k)
}

// Known reports whether there was ever an entry under the key, also one that was
// pruned since.
func (j Journal) Known(tx *bbolt.Tx, k Key) (bool, error) {
	_, known, err := j.Get(tx, k)
	return known || err == nil && j.pruned(tx, k), err
}

func getEntry(tx *bbolt.Tx, key []byte, k Key) (Entry, bool, error) {
	b := tx.Bucket(bucketEntry).Get(key)
	if b == nil {
		return Entry{}, false, nil
	}
	e, err := decodeEntry(b)
	if err != nil || e.Key != k {
		return Entry{}, false, fmt.Errorf("%w: entry %s %s of %.8s cannot be read", ErrChain, k.Kind, k.ID, k.Principal)
	}
	return e, true, nil
}

// Note journals another effectful request that is decided at once (task.create,
// device.revoke, enroll.redeem, ...). note says in short what was asked, never a
// secret or a prompt. A known key with equal content changes nothing.
func (j Journal) Note(tx *bbolt.Tx, k Key, s Sender, task nip.TaskID, note string, outcome Outcome, reason nip.Code, revision int64, now int64) error {
	old, known, err := j.Get(tx, k)
	if err != nil {
		return err
	}
	if known {
		if old.Task != task || old.Note != note {
			return ErrConflict
		}
		return nil
	}
	if j.pruned(tx, k) {
		return ErrPruned
	}
	at := j.Time(tx, now)
	_, err = j.write(tx, Entry{}, Entry{
		Key: k, Sender: s, Task: task, Note: note, State: StateDone, Outcome: outcome,
		Reason: reason, Revision: revision, ReceivedAt: at, DecidedAt: at,
	}, outcome.String())
	return err
}
