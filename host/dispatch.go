package host

import (
	"context"
	"errors"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// dispatch carries an admitted request out. Every branch ends in a signed
// reply or in errSilent.
func (h *Host) dispatch(ctx context.Context, k *call) error {
	switch op := k.req.Op.(type) {
	case nip.TaskCommand:
		return h.command(ctx, k, op.Command, false)
	case nip.TaskCommandAt:
		return h.command(ctx, k, op.Command, true)
	case nip.TaskQueue:
		return h.queueEdit(ctx, k, queueAsk{task: op.Task, edit: op.Edit})
	case nip.TaskQueueAt:
		return h.queueEdit(ctx, k, queueAsk{task: op.Task, edit: op.Edit, at: &op})
	case nip.TaskCreate, nip.TaskSteer, nip.TaskCancel, nip.TaskArchive:
		return h.taskEffect(ctx, k)
	case nip.InviteCreate:
		return h.inviteFromWire(ctx, k, op)
	case nip.InviteCancel:
		return h.cancelInvitation(ctx, k, op)
	case nip.EnrollApprove:
		return h.approve(ctx, k, op)
	case nip.EnrollDeny:
		return h.deny(ctx, k, op)
	case nip.DeviceRevoke:
		return h.revokeFromWire(ctx, k, op)
	case nip.DeviceList, nip.WorkspaceList:
		return h.answerRetained(ctx, k, nip.Reply{}, func(tx *bbolt.Tx, now int64) (nip.Reply, error) {
			return h.listing(tx, k.req.Op, now)
		})
	case nip.TaskList, nip.TaskRead, nip.TaskOriginal:
		return h.read(k)
	case nip.RequestOperation:
		return h.recoverOperation(k, op)
	case nip.ArtifactPut:
		return h.putArtifact(ctx, k, op)
	}
	// Known, and not carried out here: said in this one place, signed, so that
	// no operation that the codec will read some day is ever a fault of the host.
	return h.answerRetained(ctx, k, nip.Reply{Refusal: &nip.Refusal{Code: nip.Unsupported}}, nil)
}

func (h *Host) listing(tx *bbolt.Tx, op nip.Operation, now int64) (nip.Reply, error) {
	if _, ok := op.(nip.DeviceList); ok {
		list, err := h.deviceEntries(tx, now)
		return nip.Reply{Outcome: nip.Devices{Devices: fitDevices(list)}}, err
	}
	ws, err := loadWorkspaces(h.home)
	if err != nil {
		h.log.Error().Err(err).Msg("workspaces cannot be read")
		return nip.Reply{Refusal: &nip.Refusal{Code: nip.Unavailable}}, nil
	}
	return nip.Reply{Outcome: nip.Workspaces{Workspaces: ws.labels()}}, nil
}

// command is task.command: journalled, decided once, answered with where it
// stands. The reply is retained in the commit that makes it true.
// exact is task.command.at_revision: refused as stale where the task does not
// stand at the revision that the command is based on.
func (h *Host) command(ctx context.Context, k *call, cmd nip.Command, exact bool) error {
	var ev *nip.Event
	full := false
	k.ahead = h.sealAhead(k, accepted(k.req.Kind, cmd))
	defer func() { <-k.ahead.done }()
	_, err := h.eval.Submit(ctx, k.who.sender, cmd, commands.Hooks{
		Exact: exact,
		Admit: func(tx *bbolt.Tx) error {
			code, err := h.standing(tx, k.who.sender, nip.Operate, h.now())
			if err == nil && code != "" {
				err = errLostStanding
			}
			if err != nil {
				return err
			}
			if full, err = repliesFull(tx, k.opened.Signer, h.now()); err == nil && full {
				err = errRepliesFull
			}
			if err != nil || !exact {
				return err
			}
			// In the commit that records the command: a stop before its answer
			// leaves a row that leads to the entry.
			return h.remember(tx, k, func(row *recoveryRow) { row.Command = cmd.ID })
		},
		Answer: func(tx *bbolt.Tx, e commands.Entry, cause error) error {
			var err error
			ev, err = h.retain(tx, k, commandReply(k.req.Kind, cmd, e, cause))
			return err
		},
	})
	switch {
	case errors.Is(err, errLostStanding):
		return h.refuseStanding(k)
	case errors.Is(err, errRepliesFull):
		// Any refusal would be the end of the command where its device keeps it:
		// unanswered it stays there, and is sent again under its ID once the
		// signer's replies have run out.
		h.log.Warn().Str("device", string(k.who.sender.Device)).Str("command", string(cmd.ID)).Msg("this device's retained replies are full; its command is taken when it is sent again")
		return nil
	case errors.Is(err, commands.ErrConflict), errors.Is(err, commands.ErrPruned), errors.Is(err, commands.ErrFull):
	case err != nil:
		if fatal(err) || !errors.Is(err, commands.ErrUnsettled) {
			return err
		}
		h.log.Error().Err(err).Str("command", string(cmd.ID)).Msg("evaluation stopped after the command was recorded; it is tried again soon")
		h.deadlines.failed(cmd.Task)
	}
	h.sendReply(k, ev)
	return nil
}

// errRepliesFull aborts a submission before anything was recorded.
var errRepliesFull = errors.New("retained replies are full")

// accepted is the outcome of a command that was not refused.
func accepted(kind string, cmd nip.Command) nip.Dispatched {
	return nip.Dispatched{Operation: kind, Reference: string(cmd.Task)}
}

// commandReply maps an entry to the wire (NIP-HOST, task.command, reply mapping).
func commandReply(kind string, cmd nip.Command, e commands.Entry, cause error) nip.Reply {
	no := func(code nip.Code) nip.Reply { return nip.Reply{Refusal: &nip.Refusal{Code: code}} }
	yes := nip.Reply{Outcome: accepted(kind, cmd)}
	switch {
	case errors.Is(cause, commands.ErrConflict):
		return no(nip.Conflict)
	case errors.Is(cause, commands.ErrPruned):
		return no(nip.Expired)
	case errors.Is(cause, commands.ErrFull):
		return no(nip.Bounds)
	case e.State != commands.StateDone:
		return yes
	}
	switch e.Outcome {
	case commands.OutcomeApplied, commands.OutcomeRemoved:
		return yes
	case commands.OutcomeExpired:
		return no(nip.Expired)
	case commands.OutcomeSuperseded:
		return no(nip.Stale)
	}
	return no(e.Reason)
}

// outcomeRoom is what an outcome may take so that its reply, sealed and in
// base64, stays under the 40,960 bytes that this host writes.
const outcomeRoom = 29 << 10

// note journals an effectful request other than a command.
func (h *Host) note(tx *bbolt.Tx, k *call, task nip.TaskID, what string, refusal *nip.Refusal, revision, now int64) error {
	outcome, reason := commands.OutcomeApplied, nip.Code("")
	if refusal != nil {
		outcome, reason = commands.OutcomeRejected, refusal.Code
	}
	key := commands.Key{Principal: k.opened.Signer, Kind: k.req.Kind, ID: string(k.req.ID)}
	return h.journal.Note(tx, key, k.who.sender, task, what, outcome, reason, revision, now)
}
