package host

import (
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// recoverOperation is request.operation: what came of an earlier request of the
// same signer, when its reply was lost for good. It changes nothing and is not
// retained; the standing is checked in the transaction that is read from, just
// before sealing.
func (h *Host) recoverOperation(k *call, op nip.RequestOperation) error {
	var reply nip.Reply
	lost := false
	if err := h.db.View(func(tx *bbolt.Tx) error {
		now := h.now()
		code, err := h.standing(tx, k.who.sender, nip.Observe, now)
		if lost = code != ""; err != nil || lost {
			return err
		}
		reply, err = h.recorded(tx, k, op, now)
		return err
	}); err != nil {
		return err
	}
	if lost {
		return h.refuseStanding(k)
	}
	return h.answerOnce(k, reply)
}

// recorded makes the checks in the order of NIP-HOST, request.operation: signer
// and event, retention, grant and epoch, the original's right.
func (h *Host) recorded(tx *bbolt.Tx, k *call, op nip.RequestOperation, now int64) (nip.Reply, error) {
	no := func(code nip.Code) (nip.Reply, error) { return nip.Reply{Refusal: &nip.Refusal{Code: code}}, nil }
	var row recoveryRow
	found, err := getJSON(tx, bucketRecovery, string(op.Request), &row)
	if err != nil {
		return nip.Reply{}, err
	}
	out := nip.RecordedOperation{Request: op.Request, RequestEvent: op.RequestEvent}
	if !found {
		code, err := h.unrecorded(tx, k, op, now)
		if err != nil || code == "" {
			return nip.Reply{Outcome: out}, err
		}
		return no(code)
	}
	switch {
	case !row.answers(k.opened.Signer, op.RequestEvent):
		return no(nip.Forbidden)
	case now >= row.ends():
		return no(nip.Unavailable)
	case row.Grant != k.who.sender.Grant || row.Epoch != k.who.sender.Epoch:
		return no(nip.Stale)
	}
	right := recoverable[row.Kind]
	code, err := h.standing(tx, k.who.sender, right, now)
	switch {
	case err != nil:
		return nip.Reply{}, err
	case code == nip.MissingRight:
		return nip.Reply{Refusal: &nip.Refusal{Code: code, Missing: right}}, nil
	}
	out.Result, err = h.resultOf(tx, &row)
	return nip.Reply{Outcome: out}, err
}

// journalledRequests are the operations of devices that leave an entry under
// their request ID.
var journalledRequests = []string{
	"task.create", "task.steer", "task.cancel", "task.archive", "task.queue", "task.queue.at_revision", "artifact.put",
	"enroll.redeem", "enroll.approve", "enroll.deny", "invite.create", "invite.cancel", "device.revoke",
}

// unrecorded says of a request without a row why it has none, "" where this host
// knows nothing of it. Null is only said then. Of a request that is journalled
// under its own ID a device may conclude from it that it never took effect; a
// command is journalled under the command's ID, and asked about by that.
func (h *Host) unrecorded(tx *bbolt.Tx, k *call, op nip.RequestOperation, now int64) (nip.Code, error) {
	var kept retainedReply
	if found, err := getJSON(tx, bucketReplies, string(op.Request), &kept); err != nil {
		return "", err
	} else if found {
		if kept.Signer != k.opened.Signer || kept.RequestEvent != op.RequestEvent {
			return nip.Forbidden, nil
		}
		return nip.Unavailable, nil // of a kind that is kept for its minute only
	}
	for _, kind := range journalledRequests {
		known, err := h.journal.Known(tx, commands.Key{Principal: k.opened.Signer, Kind: kind, ID: string(op.Request)})
		if err != nil || known {
			return nip.Unavailable, err
		}
	}
	if getCount(tx, bucketMeta, forgottenOf(k.opened.Signer)) > now {
		return nip.Unavailable, nil
	}
	return "", nil
}

// resultOf is the stored result, nil while undecided. A command that a stop cut
// off before its answer was committed is answered from its entry, which the next
// start decided.
func (h *Host) resultOf(tx *bbolt.Tx, row *recoveryRow) (*nip.Result, error) {
	if row.Result != nil {
		res, err := nip.ParseResult(row.Result)
		if err != nil {
			return nil, fmt.Errorf("host.db recovery row: %w", err)
		}
		return &res, nil
	}
	if row.Command == "" {
		return nil, nil
	}
	e, known, err := h.journal.Get(tx, commands.Key{Principal: row.Signer, Kind: commands.KindCommand, ID: string(row.Command)})
	if err != nil || !known || e.State != commands.StateHeld && e.State != commands.StateDone {
		return nil, err
	}
	r := commandReply(row.Kind, nip.Command{Task: e.Task}, e, nil)
	return &nip.Result{Outcome: r.Outcome, Refusal: r.Refusal}, nil
}
