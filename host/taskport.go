package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

// taskPort shows the owner's tasks to the evaluator (hop 7, between
// commands/evaluate.go and owner/apply.go).
type taskPort struct{ c *Core }

// View settles a run of which nothing is left before it answers, so that an
// interrupt never waits for the dead.
func (p taskPort) View(ctx context.Context, task nip.TaskID) (commands.TaskView, error) {
	t, err := p.c.settled(ctx, owner.TaskID(task))
	var refused *owner.Error
	if errors.As(err, &refused) && refused.Code == "not_found" {
		return commands.TaskView{Phase: commands.PhaseMissing}, nil
	}
	if err != nil {
		return commands.TaskView{}, err
	}
	return taskView(&t), nil
}

func taskView(t *owner.Task) commands.TaskView {
	s := owner.SteeringOf(t.Intent.Configuration.Adapter)
	v := commands.TaskView{
		Revision: t.Revision, TurnStart: t.TurnStart(), Question: t.Pending() != "", Archived: t.Archived != nil,
		Steering: commands.Steering{MidTurn: s.MidTurn, Emulate: s.Emulate},
	}
	switch t.Status {
	case owner.Queued:
		v.Phase = commands.PhaseNotStarted
	case owner.Running:
		v.Phase = commands.PhaseRunning
	case owner.CancelRequested:
		v.Phase = commands.PhaseStopping
	case owner.Finished, owner.Cancelled:
		v.Phase = commands.PhaseEnded
		if t.Checks == owner.ChecksRunning {
			v.Phase = commands.PhaseChecking // the store takes no continuation meanwhile
		}
	default:
		v.Phase = commands.PhaseUnknown
	}
	return v
}

// settled is the task after a dead run was settled.
func (c *Core) settled(ctx context.Context, id owner.TaskID) (owner.Task, error) {
	t, err := c.store.Get(id)
	if err != nil || (t.Status != owner.Running && t.Status != owner.CancelRequested && t.Status != owner.StatusUnknown && t.Checks != owner.ChecksRunning) {
		return t, err
	}
	alive, err := c.store.OwnerAlive(id)
	if err != nil || alive {
		return t, err
	}
	ctx, cancel := context.WithTimeout(ctx, effectWait)
	defer cancel()
	t, _, err = c.store.Settle(ctx, id)
	return t, err
}

// storeCommandID derives the store's command ID of one step of one request.
func storeCommandID(device nip.PubKey, command, step string) string {
	h := sha256.New()
	for i, part := range []string{"holdfast.store-command.v1", string(device), command, step} {
		if i > 0 {
			h.Write([]byte{0})
		}
		h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Compile is pure: the same entry, effect and view give the same bytes.
func (p taskPort) Compile(e commands.Entry, effect commands.Effect, view commands.TaskView) ([]byte, error) {
	step := "apply"
	cmd := owner.Command{TaskID: owner.TaskID(e.Task), Expected: &view.Revision}
	switch effect {
	case commands.EffectCancel:
		step = "stop"
		reason := "stopped by a device"
		if e.Command.Action == nip.Interrupt {
			reason, step = e.Text, "apply"
		}
		cmd.Action.Cancel = &owner.CancelAction{Reason: reason}
	case commands.EffectContinue:
		cmd.Action.Continue = &owner.ContinueAction{Prompt: e.Text}
	case commands.EffectCorrect:
		cmd.Action.Correct = &owner.CorrectAction{Prompt: e.Text, Reason: "steered by a device"}
	default:
		return nil, fmt.Errorf("effect %d has no task command", effect)
	}
	cmd.CommandID = storeCommandID(e.Key.Principal, e.Key.ID, step)
	return owner.EncodeCommand(cmd)
}

// Apply hands exact bytes to the store.
func (p taskPort) Apply(ctx context.Context, task nip.TaskID, request []byte) (commands.Applied, error) {
	rec, err := p.c.apply(ctx, owner.TaskID(task), request)
	var refused *owner.Error
	if errors.As(err, &refused) {
		switch refused.Code {
		case "revision_mismatch", "invalid_transition", "limit_exceeded", "command_conflict", "not_found":
			return commands.Applied{Refused: refused.Code}, nil
		case "store_busy":
			return commands.Applied{}, err
		}
		return commands.Applied{Refused: "other"}, nil
	}
	return commands.Applied{Revision: rec.Revision}, err
}
