package host

import (
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

// reader is where a sender reads, and the epoch that fences it.
type reader struct {
	Epoch int64
	Relay nip.RelayURL
}

// readers are the senders that may be told anything, as of this transaction: the
// devices whose grant stands, and the owner, who has no grant and reads at the
// primary relay.
func (t *teller) readers(tx *bbolt.Tx) (map[nip.PubKey]reader, error) {
	recs, err := t.h.activeGrants(tx, t.h.now())
	out := make(map[nip.PubKey]reader, len(recs)+1)
	for _, r := range recs {
		out[r.Grant.Device] = reader{r.Grant.Epoch, r.Grant.Relay}
	}
	if rs := t.h.transport.Relays(); len(rs) > 0 {
		out[t.h.owner] = reader{-1, rs[0].URL}
	}
	return out, err
}

// revision is the task's, 0 where there is no such task. A damaged task's last
// known one serves: its commands are told all the same.
func (t *teller) revision(task nip.TaskID) int64 {
	if x, err := t.h.store.Get(owner.TaskID(task)); err == nil {
		return x.Revision
	}
	row, _ := t.h.index.get(owner.TaskID(task))
	return row.Revision
}

// stateRows is a sender's list as the wire has it, and the digest of it.
func stateRows(list []commands.Where) ([]nip.CommandState, nip.Digest, error) {
	rows := make([]nip.CommandState, 0, len(list))
	for _, w := range list {
		row := nip.CommandState{Command: w.Command, State: w.State.String()}
		switch {
		case w.State == commands.StateHeld:
			ahead := w.Ahead
			row.Position = &ahead
		case w.State == commands.StateDone:
			row.State = w.Outcome.String()
			switch w.Outcome {
			case commands.OutcomeApplied:
				revision := w.Revision
				row.Revision = &revision
			case commands.OutcomeRejected:
				row.Reason = w.Reason
			}
		}
		rows = append(rows, row)
	}
	raw, err := json.Marshal(rows)
	return rows, nip.DigestOf(raw), err
}

func (t *teller) seal(r *toldRow) error {
	a, err := nip.EncodeStates(r.states)
	if err != nil {
		return fmt.Errorf("encode command states: %w", err)
	}
	box, err := t.h.ring.Mailbox(r.device, nip.StreamCommands)
	if err != nil {
		return fmt.Errorf("derive mailbox: %w", err)
	}
	if r.row.Event, err = t.h.sealFor(r.device, box, a); err != nil {
		return fmt.Errorf("seal command states: %w", err)
	}
	return nil
}
