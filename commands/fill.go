package commands

import (
	"context"
	"crypto/sha256"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/internal/commit"
	"holdfast/nip"
)

// Filling is a history for measurements. All members are required.
type Filling struct {
	Entries int
	Tasks   []nip.TaskID // entry i belongs to task i modulo their number
	Devices []nip.PubKey // and came from device i modulo theirs
	At      int64        // when all of it happened, Unix seconds
}

// fillBatch is how many entries share a transaction.
const fillBatch = 20_000

// Fill writes decided commands into a journal, for measurements of a long one:
// each was received, refused as a conflict, and is as Record and Change would
// have left it, transition by transition; Check accepts it. It is some ten
// times quicker, because nothing is decided and what a decision takes away
// again is not put there. The journal may hold other entries; filling it twice
// with the same devices returns ErrConflict. A crash leaves whole batches.
func (j Journal) Fill(ctx context.Context, db commit.Updater, f Filling) error {
	for from := 0; from < f.Entries; from += fillBatch {
		err := db.Update(ctx, func(tx *bbolt.Tx) error {
			return j.fill(tx, f, from, min(from+fillBatch, f.Entries))
		})
		if err != nil {
			return fmt.Errorf("fill the journal: %w", err)
		}
	}
	return nil
}

func (j Journal) fill(tx *bbolt.Tx, f Filling, from, to int) error {
	h, err := readHead(tx)
	if err != nil {
		return err
	}
	at := max(f.At, h.time)
	history, entries, of := tx.Bucket(bucketHistory), tx.Bucket(bucketEntry), tx.Bucket(bucketOf)
	history.FillPercent, of.FillPercent = 0.95, 0.95
	// step appends the transition that leaves e as it is, and returns its bytes.
	step := func(e *Entry, what string) ([]byte, error) {
		h.seq++
		e.History = append(e.History, h.seq)
		body, err := encodeEntry(*e)
		if err != nil {
			return nil, err
		}
		record, err := encodeTransition(Transition{
			Seq: h.seq, At: at, Key: e.Key, What: what, State: e.State, Outcome: e.Outcome,
			Reason: e.Reason, Entry: sha256.Sum256(body), Previous: h.hash,
		})
		if err != nil {
			return nil, err
		}
		h.hash, h.time = sha256.Sum256(record), at
		return body, history.Put(sequence(h.seq), record)
	}
	for i := from; i < to; i++ {
		e := filled(f, i, at)
		key, err := storedKey(e.Key)
		if err != nil {
			return err
		}
		if entries.Get(key) != nil {
			return ErrConflict
		}
		e.Seq = h.seq + 1
		if _, err := step(&e, "received"); err != nil {
			return err
		}
		e.State, e.Outcome, e.Reason, e.DecidedAt = StateDone, OutcomeRejected, nip.Conflict, at
		body, err := step(&e, word(e))
		if err != nil {
			return err
		}
		if err := entries.Put(key, body); err != nil {
			return err
		}
		if err := of.Put(ofKey(e.Task, e.Seq), key); err != nil {
			return err
		}
		if err := indexDecided(tx, e, key); err != nil {
			return err
		}
		h.entries++
	}
	return h.put(tx)
}

// filled is the i-th command as it was received.
func filled(f Filling, i int, at int64) Entry {
	device, task := f.Devices[i%len(f.Devices)], f.Tasks[i%len(f.Tasks)]
	c := nip.Command{
		ID: nip.CommandID(fmt.Sprintf("%064x", i+1)), Task: task, Action: nip.Send, BasedOn: 1,
		Text: fmt.Sprintf("message %d", i+1), IssuedAt: at,
	}
	return Entry{
		Key:    Key{Principal: device, Kind: KindCommand, ID: string(c.ID)},
		Sender: Sender{Device: device, Grant: "fill", Epoch: 0}, Command: c, Task: task, Text: c.Text,
		State: StateReceived, ReceivedAt: at,
	}
}
