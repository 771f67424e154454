package host

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

// turnOrigin says whose word made a turn. A turn without a row is inert: no
// policy starts it, because nobody's standing could be rechecked.
type turnOrigin struct {
	Sender commands.Sender `json:"sender"`
	Local  bool            `json:"local,omitempty"` // the person at the machine
}

func turnKey(task owner.TaskID, start int64) []byte {
	k := append([]byte(task), 0)
	return binary.BigEndian.AppendUint64(k, uint64(start))
}

// putOrigin records whose word moved the task to the revision: a new turn, or
// the correction of one. At most one row a command; they stay until the turn is
// over (see pruner).
func putOrigin(tx *bbolt.Tx, task owner.TaskID, start int64, o turnOrigin) error {
	raw, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return tx.Bucket(bucketTurns).Put(turnKey(task, start), raw)
}

// turnOrigins lists whose words made the turn that starts at the revision: the
// row of the start itself, which must be there, and those of corrections since.
func turnOrigins(tx *bbolt.Tx, task owner.TaskID, start int64) ([]turnOrigin, error) {
	var out []turnOrigin
	first := turnKey(task, start)
	c := tx.Bucket(bucketTurns).Cursor()
	for k, raw := c.Seek(first); k != nil && len(k) == len(first) && bytes.HasPrefix(k, first[:len(first)-8]); k, raw = c.Next() {
		if len(out) == 0 && !bytes.Equal(k, first) {
			return nil, nil
		}
		var o turnOrigin
		if err := json.Unmarshal(raw, &o); err != nil {
			return nil, fmt.Errorf("host.db turns row: %w", err)
		}
		out = append(out, o)
	}
	return out, nil
}

// entryDecided runs in the commit that changed an entry: a command that made a
// turn leaves its sender as the turn's origin, so that the start rechecks it.
func (c *Core) entryDecided(tx *bbolt.Tx, e commands.Entry) error {
	if e.State != commands.StateDone || e.Outcome != commands.OutcomeApplied || e.Key.Kind != commands.KindCommand {
		return nil
	}
	if e.Command.Action == nip.Interrupt {
		return nil
	}
	return putOrigin(tx, owner.TaskID(e.Task), e.Revision, turnOrigin{Sender: e.Sender})
}

// entryChanged runs after such a commit, outside any lock.
func (c *Core) entryChanged(task nip.TaskID, e commands.Entry) {
	h := c.serving
	if h == nil {
		return
	}
	h.emit(Event{Event: "command", Command: entryView(e, true)})
	h.deadlines.poke(task)
	if e.State == commands.StateDone && e.Outcome == commands.OutcomeApplied {
		h.starter.look(owner.TaskID(task))
	}
}
