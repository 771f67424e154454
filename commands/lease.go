package commands

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// Lease is the exclusive right to edit one task's queue, valid while the time
// is before ExpiresAt.
type Lease struct {
	Device    nip.PubKey
	ExpiresAt int64
}

// Lease returns the task's lease, also one that has expired since.
func (Journal) Lease(tx *bbolt.Tx, task nip.TaskID) (Lease, bool, error) {
	b := tx.Bucket(bucketLease).Get([]byte(task))
	if b == nil {
		return Lease{}, false, nil
	}
	if len(b) != 40 {
		return Lease{}, false, fmt.Errorf("%w: the lease of task %s cannot be read", ErrChain, task)
	}
	return Lease{
		Device:    nip.PubKey(hex.EncodeToString(b[:32])),
		ExpiresAt: int64(binary.BigEndian.Uint64(b[32:])),
	}, true, nil
}

// LeasedTasks lists every task that has a lease, also one that has expired since.
func (Journal) LeasedTasks(tx *bbolt.Tx) (tasks []nip.TaskID, err error) {
	err = tx.Bucket(bucketLease).ForEach(func(task, _ []byte) error {
		tasks = append(tasks, nip.TaskID(task))
		return nil
	})
	return tasks, err
}

// SetLease stores the lease; nil drops it. Who may take it is decided in queue.
func (Journal) SetLease(tx *bbolt.Tx, task nip.TaskID, l *Lease) error {
	if l == nil {
		return tx.Bucket(bucketLease).Delete([]byte(task))
	}
	raw, err := hex.DecodeString(string(l.Device))
	if err != nil || len(raw) != 32 {
		return fmt.Errorf("a lease's holder is not a public key")
	}
	return tx.Bucket(bucketLease).Put([]byte(task), binary.BigEndian.AppendUint64(raw, uint64(l.ExpiresAt)))
}

// DropLeases drops every lease of the device, in the commit that revokes it.
// The tasks they belonged to need an evaluation afterwards.
func (j Journal) DropLeases(tx *bbolt.Tx, device nip.PubKey) error {
	var drop [][]byte
	err := tx.Bucket(bucketLease).ForEach(func(task, _ []byte) error {
		l, _, err := j.Lease(tx, nip.TaskID(task))
		if err == nil && l.Device == device {
			drop = append(drop, append([]byte(nil), task...))
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, task := range drop { // collected first: deleting under a cursor skips keys
		if err := tx.Bucket(bucketLease).Delete(task); err != nil {
			return err
		}
	}
	return nil
}

// NextDeadline is the earliest time at which the task must be evaluated again:
// a lease's end or the end of a command's 24 hours. ok is false without one. An
// entry in StateDispatching has none: its bytes go to the task whatever the time.
func (j Journal) NextDeadline(tx *bbolt.Tx, task nip.TaskID) (at int64, ok bool, err error) {
	l, leased, err := j.Lease(tx, task)
	if err != nil {
		return 0, false, err
	}
	if leased {
		at, ok = l.ExpiresAt, true
	}
	rows, err := j.rows(tx, task)
	if err != nil {
		return 0, false, err
	}
	for _, e := range rows {
		end := e.Command.IssuedAt + CommandLife + 1
		if e.State != StateDispatching && (!ok || end < at) {
			at, ok = end, true
		}
	}
	return at, ok, nil
}
