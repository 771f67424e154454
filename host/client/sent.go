package client

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// maxSent bounds the commands of one host that the profile remembers after
// their end; beyond it the one that was heard of longest ago is forgotten.
const maxSent = 4096

const (
	sentVersion = "holdfast.device-command.v1"
	maxSentRow  = 4096
	replyTaken  = "dispatched" // of sentRow.Reply
)

// sentRow is what a profile remembers of one of its commands: the host's reply
// to it, and the host's latest published word. It holds none of its text.
type sentRow struct {
	V         string     `json:"v"`
	Task      nip.TaskID `json:"task"`
	Action    nip.Action `json:"action"`     // "" of a command that only the host's words told of
	IssuedAt  int64      `json:"issued_at"`  // host time; 0 as above
	Reply     string     `json:"reply"`      // "", "dispatched", or the code of a signed refusal
	RepliedAt int64      `json:"replied_at"` // host time
	// The latest published state: of the record of the task's revision Of that
	// was issued at StatedAt; State "" without one.
	State    string   `json:"state"`
	Position *int     `json:"position"`
	Revision *int64   `json:"revision"`
	Reason   nip.Code `json:"reason"`
	Of       int64    `json:"of"`
	StatedAt int64    `json:"stated_at"`
}

func (r sentRow) encode() ([]byte, error) {
	r.V = sentVersion
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return withSum(body), nil
}

// decodeSent is the inverse of encode. Anything else is ErrDamaged, or ErrNewer
// for a row of a later version.
func decodeSent(raw []byte) (sentRow, error) {
	if len(raw) < 4 || len(raw) > maxSentRow || binary.BigEndian.Uint32(raw) != crc32.Checksum(raw[4:], castagnoli) {
		return sentRow{}, fmt.Errorf("%w: remembered command", ErrDamaged)
	}
	dec := json.NewDecoder(bytes.NewReader(raw[4:]))
	dec.DisallowUnknownFields()
	var r sentRow
	if err := dec.Decode(&r); err != nil || dec.More() {
		return sentRow{}, fmt.Errorf("%w: remembered command", ErrDamaged)
	}
	if r.V != sentVersion {
		return sentRow{}, fmt.Errorf("%w: remembered command", ErrNewer)
	}
	return r, nil
}

// rank orders the states by how far a command has come; 3 is an end.
func rank(state string) int {
	switch state {
	case "received":
		return 0
	case "held":
		return 1
	case "dispatching":
		return 2
	}
	return 3
}

// state takes one published state, unless a later word is known. A record of a
// lower revision never replaces one of a higher; of one revision the later
// issue counts. Within one second the state that has come further is the later
// one, and where both came as far, the one that came live.
func (r *sentRow) state(s nip.CommandStates, c nip.CommandState, live bool) (taken bool) {
	if r.State != "" {
		switch {
		case s.Revision != r.Of:
			if s.Revision < r.Of {
				return false
			}
		case s.IssuedAt != r.StatedAt:
			if s.IssuedAt < r.StatedAt {
				return false
			}
		case rank(c.State) < rank(r.State), rank(c.State) == rank(r.State) && !live:
			return r.says(c) // once more
		}
	}
	r.State, r.Position, r.Revision, r.Reason, r.Of, r.StatedAt = c.State, c.Position, c.Revision, c.Reason, s.Revision, s.IssuedAt
	return true
}

// says reports whether c is the state that is known.
func (r sentRow) says(c nip.CommandState) bool {
	return r.State == c.State && r.Reason == c.Reason && equal(r.Position, c.Position) && equal(r.Revision, c.Revision)
}

func equal[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// heard is the latest time at which anything was known of the command.
func (r sentRow) heard() int64 { return max(r.IssuedAt, r.RepliedAt, r.StatedAt) }

func getSent(b *bbolt.Bucket, host nip.PubKey, id nip.CommandID) (sentRow, bool, error) {
	raw := b.Get(append(seenPrefix(host), id...))
	if raw == nil {
		return sentRow{}, false, nil
	}
	r, err := decodeSent(raw)
	return r, err == nil, err
}

func putSent(b *bbolt.Bucket, host nip.PubKey, id nip.CommandID, r sentRow) error {
	raw, err := r.encode()
	if err != nil {
		return err
	}
	prefix := seenPrefix(host)
	key := append(prefix[:len(prefix):len(prefix)], id...)
	known := b.Get(key) != nil
	if err := b.Put(key, raw); err != nil || known {
		return err
	}
	return trimOldest(b, prefix, maxSent, func(raw []byte) (int64, error) {
		r, err := decodeSent(raw)
		return r.heard(), err
	})
}

// remember notes a command of the outbox. It runs in the transaction that puts
// the row there, so that a command that may have been sent is never forgotten.
func remember(tx *bbolt.Tx, r row) error {
	c, ok := r.command()
	if !ok {
		return nil
	}
	b := tx.Bucket(bucketSent)
	known, _, err := getSent(b, r.Host, c.ID)
	if err != nil {
		return err
	}
	known.Task, known.Action, known.IssuedAt = c.Task, c.Action, c.IssuedAt
	return putSent(b, r.Host, c.ID, known)
}

// settle takes a command's row out with the host's signed reply to it, and
// remembers the reply in the same transaction.
func (s *store) settle(r row, rep nip.Reply) error {
	c, ok := r.command()
	if !ok {
		return errors.New("not a command")
	}
	return s.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketSent)
		known, _, err := getSent(b, r.Host, c.ID)
		if err != nil {
			return err
		}
		known.Task, known.Action, known.IssuedAt = c.Task, c.Action, c.IssuedAt
		known.Reply, known.RepliedAt = replyTaken, rep.IssuedAt
		if rep.Refusal != nil {
			known.Reply = string(rep.Refusal.Code)
		}
		if err := putSent(b, r.Host, c.ID, known); err != nil {
			return err
		}
		return dropRow(tx, r)
	})
}

// stated is a command with the published word about it that is kept.
type stated struct {
	id  nip.CommandID
	row sentRow
}

// keepStates takes published states in one transaction, so that two watching
// processes never go back. It returns, for each, the commands of which it has
// the last word; another process may have kept that word before.
func (s *store) keepStates(host nip.PubKey, pubs []publication) ([][]stated, error) {
	out := make([][]stated, len(pubs))
	err := s.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketSent)
		for i, p := range pubs {
			for _, c := range p.states.Commands {
				r, known, err := getSent(b, host, c.Command)
				if err != nil {
					return err
				}
				if known && r.Task != p.states.Task {
					continue // of a command that this device gave for another task
				}
				was := r
				r.Task = p.states.Task
				if !r.state(*p.states, c, p.live) {
					continue
				}
				out[i] = append(out[i], stated{c.Command, r})
				if known && was.says(c) && was.Of == r.Of && was.StatedAt == r.StatedAt {
					continue
				}
				if err := putSent(b, host, c.Command, r); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return out, err
}

// sent calls fn with each remembered command of a host.
func (s *store) sent(host nip.PubKey, fn func(id nip.CommandID, r sentRow)) error {
	prefix := seenPrefix(host)
	return s.view(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketSent)
		if b == nil {
			return nil
		}
		c := b.Cursor()
		for k, raw := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, raw = c.Next() {
			r, err := decodeSent(raw)
			if err != nil {
				return err
			}
			fn(nip.CommandID(k[len(prefix):]), r)
		}
		return nil
	})
}
