package host

import (
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

// putOrigin records whose turn starts at the revision. At most one row a
// command, so a task of 64 turns has few; they stay as long as the task does.
func putOrigin(tx *bbolt.Tx, task owner.TaskID, start int64, o turnOrigin) error {
	raw, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return tx.Bucket(bucketTurns).Put(turnKey(task, start), raw)
}

func getOrigin(tx *bbolt.Tx, task owner.TaskID, start int64) (turnOrigin, bool, error) {
	raw := tx.Bucket(bucketTurns).Get(turnKey(task, start))
	if raw == nil {
		return turnOrigin{}, false, nil
	}
	var o turnOrigin
	if err := json.Unmarshal(raw, &o); err != nil {
		return turnOrigin{}, false, fmt.Errorf("host.db turns row: %w", err)
	}
	return o, true, nil
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
		h.starter.wake()
	}
}
