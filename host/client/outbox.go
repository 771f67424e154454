package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// OutboxRow is what waits to be sent, and why.
type OutboxRow struct {
	Kind      string // "command" | "create"
	ID        string // command ID; of a create its request ID, which is the task's
	Task      nip.TaskID
	Action    nip.Action // of a command
	Since     int64      // local Unix seconds
	Tries     int
	State     string // "waiting", "unknown"
	LastError string
	Foreign   bool // made for another host than the one the device is turned to; not sent
	Host      nip.PubKey
	Replaces  string // the create that the host signed away as never made
}

// Outbox lists what waits, oldest first.
func (d *Device) Outbox() ([]OutboxRow, error) {
	rows, err := d.store.rows()
	if err != nil {
		return nil, err
	}
	grant, _ := d.standing() // none: every row is another host's
	list := make([]OutboxRow, 0, len(rows))
	for _, r := range rows {
		o := OutboxRow{Kind: kindCreate, ID: r.id(), Task: nip.TaskID(r.Request), Since: r.Since, Tries: r.Tries, State: r.State,
			LastError: r.LastError, Foreign: r.Host != grant.Host, Host: r.Host, Replaces: string(r.Replaces)}
		if c, ok := r.command(); ok {
			o.Kind, o.Task, o.Action = kindCommand, c.Task, c.Action
		}
		list = append(list, o)
	}
	return list, nil
}

// Drop forgets a waiting row by a person's word. What was sent already may
// still happen; Drop only ends the resending. False when there is no such row.
func (d *Device) Drop(id string) (bool, error) {
	rows, err := d.store.rows()
	if err != nil {
		return false, err
	}
	for _, r := range rows {
		if r.id() == id {
			return true, d.store.removeRow(r)
		}
	}
	return false, nil
}

// Resend works through the outbox once. A task whose command got no answer
// keeps its later ones too, so that they arrive in the order they were made.
// A signed refusal is an outcome, not an error: its row leaves, and the log
// says what it was. The first trouble of a row is returned after the last row.
func (d *Device) Resend(ctx context.Context) error {
	rows, err := d.store.rows()
	if err != nil {
		return err
	}
	grant, err := d.standing()
	if err != nil {
		return err
	}
	var first error
	stuck := map[nip.TaskID]bool{}
	for _, r := range rows {
		if ctx.Err() != nil {
			break
		}
		task := nip.TaskID(r.Request)
		if c, ok := r.command(); ok {
			task = c.Task
		}
		if r.Host != grant.Host || stuck[task] {
			continue
		}
		err := d.resendRow(ctx, r)
		var refused *Refused
		if errors.As(err, &refused) {
			d.o.Log.Info().Str("id", r.id()).Str("code", string(refused.Code)).Msg("waiting request was refused")
			continue
		}
		if err != nil {
			stuck[task] = true
			if first == nil {
				first = err
			}
		}
	}
	return first
}

func (d *Device) resendRow(ctx context.Context, r row) error {
	if _, ok := r.command(); ok {
		_, err := d.sendRow(ctx, r)
		return err
	}
	_, err := d.settleCreate(ctx, r, true)
	return err
}

// note records an unanswered try and why.
func (d *Device) note(r row, state string, why error) {
	now := d.now()
	err := d.store.changeRow(r, func(r *row) {
		r.Tries++
		r.LastTry, r.State, r.LastError = now, state, bounded(why.Error())
	})
	if err != nil {
		d.o.Log.Debug().Err(err).Msg("outbox row not updated")
	}
}

func bounded(s string) string {
	if len(s) > maxWords {
		s = s[:maxWords]
	}
	return strings.ToValidUTF8(s, "")
}

// lastFailure is the local time of the newest unanswered try at a host, and
// whether anything waits for it. A row without a noted try counts with the time
// it was made once a request would have ended: its process is gone.
func (d *Device) lastFailure(host nip.PubKey) (last int64, waits bool, err error) {
	rows, err := d.store.rows()
	now := d.now()
	for _, r := range rows {
		switch {
		case r.Host != host:
		case r.Tries > 0:
			last, waits = max(last, r.LastTry), true
		case r.Since+requestLife <= now:
			last, waits = max(last, r.Since), true
		}
	}
	return last, waits, err
}

// errGone is returned inside for a row that another process has settled.
var errGone = errors.New("outbox row was settled elsewhere")

// rows returns the outbox in the order of arrival.
func (s *store) rows() ([]row, error) {
	var list []row
	err := s.view(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketOutbox).ForEach(func(k, raw []byte) error {
			if len(k) != 8 {
				return fmt.Errorf("%w: outbox key", ErrDamaged)
			}
			r, err := decodeRow(binary.BigEndian.Uint64(k), raw)
			list = append(list, r)
			return err
		})
	})
	return list, err
}

// addRow puts r at the end; nil means that it is on disk. A row of the same ID
// is kept instead: it is returned when it says the same, else ErrConflict.
func (s *store) addRow(r row) (row, error) {
	raw, err := r.encode()
	if err != nil {
		return row{}, err
	}
	op, err := nip.EncodeOperation(r.Op)
	if err != nil {
		return row{}, err
	}
	err = s.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketOutbox)
		c := b.Cursor()
		for k, old := c.First(); k != nil; k, old = c.Next() {
			o, err := decodeRow(binary.BigEndian.Uint64(k), old)
			if err != nil {
				return err
			}
			if o.id() != r.id() {
				continue
			}
			was, err := nip.EncodeOperation(o.Op)
			if err != nil {
				return err
			}
			if string(was) != string(op) || o.Host != r.Host {
				return fmt.Errorf("%w: %s waits already with other content", ErrConflict, r.id())
			}
			r = o
			return nil
		}
		if r.seq, err = b.NextSequence(); err != nil {
			return err
		}
		return errors.Join(b.Put(rowKey(r), raw), remember(tx, r))
	})
	return r, err
}

func rowKey(r row) []byte { return binary.BigEndian.AppendUint64(nil, r.seq) }

// changeRow applies change to the stored row, unless it is gone or no longer
// the one that r was read as (errGone).
func (s *store) changeRow(r row, change func(r *row)) error {
	return s.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketOutbox)
		cur, err := current(b, r)
		if err != nil {
			return err
		}
		change(&cur)
		raw, err := cur.encode()
		if err != nil {
			return err
		}
		return b.Put(rowKey(r), raw)
	})
}

// removeRow takes a settled row out. One that is gone already is no error.
func (s *store) removeRow(r row) error {
	return s.update(func(tx *bbolt.Tx) error { return dropRow(tx, r) })
}

func dropRow(tx *bbolt.Tx, r row) error {
	b := tx.Bucket(bucketOutbox)
	if _, err := current(b, r); err != nil {
		if errors.Is(err, errGone) {
			return nil
		}
		return err
	}
	return b.Delete(rowKey(r))
}

func current(b *bbolt.Bucket, r row) (row, error) {
	raw := b.Get(rowKey(r))
	if raw == nil {
		return row{}, errGone
	}
	cur, err := decodeRow(r.seq, raw)
	if err == nil && cur.id() != r.id() {
		return row{}, errGone
	}
	return cur, err
}
