// Package commands is the durable journal of device commands and the pure
// decision over it.
package commands

import (
	"context"
	"errors"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// KindCommand is the Key.Kind of a task.command; other kinds are operation names.
const KindCommand = "command"

// Key names one entry: who asked, what kind of thing, under which ID.
type Key struct {
	Principal nip.PubKey
	Kind      string
	ID        string // command ID, or request ID for other kinds
}

// Sender is the principal as it was admitted. Grant is "" and Epoch -1 for the owner key.
type Sender struct {
	Device nip.PubKey
	Grant  nip.GrantID
	Epoch  int64
}

// State is where an entry stands. Values are stored: never renumber.
type State uint8

const (
	StateNone        State = iota
	StateReceived          // journalled, not yet decided
	StateHeld              // waits for its turn
	StateDispatching       // exact task-command bytes recorded; the effect may or may not have happened
	StateDone              // decided, with an Outcome
)

// Outcome is how an entry ended. Values are stored: never renumber.
type Outcome uint8

const (
	OutcomeNone       Outcome = iota
	OutcomeApplied            // Revision holds
	OutcomeRejected           // Reason holds
	OutcomeExpired            // outlived 24 hours
	OutcomeSuperseded         // a newer one, or the turn's end, made it moot
	OutcomeRemoved            // removed unrun by its device
)

// Entry is one journalled command (or other effectful request) as it stands.
type Entry struct {
	Key        Key
	Sender     Sender      // the first sender; replays by a renewed grant do not change it
	Command    nip.Command // the original request, never overwritten by an edit
	Task       nip.TaskID
	Text       string // current text (differs from Command.Text after an edit)
	Edited     bool
	Priority   bool  // runs ahead of queued ones
	Position   int64 // order among held ones of the task: ascending; arrival order until reordered
	State      State
	Then       State // StateHeld: after the recorded effect (an emulated stop) the entry is held with priority
	Outcome    Outcome
	Reason     nip.Code
	Revision   int64 // task revision after the effect
	Dispatch   []byte
	ReceivedAt int64
	DecidedAt  int64
	Seq        uint64   // first history sequence: the arrival number
	History    []uint64 // every transition's sequence
	Note       string   // other kinds: what was asked, in short, without secrets
}

// Phase is the task as Decide sees it.
type Phase uint8

const (
	PhaseMissing    Phase = iota // no such task
	PhaseNotStarted              // queued
	PhaseRunning
	PhaseStopping
	PhaseEnded // finished or cancelled
	PhaseUnknown
)

// TaskView is everything Decide may know of a task.
type TaskView struct {
	Phase     Phase
	Revision  int64
	TurnStart int64 // revision at which the current turn started
	Question  bool  // the ended turn asked, and nothing followed yet
	Archived  bool
	Steering  Steering
}

// Steering is what the task's adapter offers.
type Steering struct {
	MidTurn bool // native steering reaches a running turn
	Emulate bool // cancel_and_continue
}

// Effect is what a decision asks the task for.
type Effect uint8

const (
	EffectNone     Effect = iota
	EffectCancel          // stop the current turn, or a queued task
	EffectContinue        // next turn with the entry's text
	EffectCorrect         // replace the instructions of a turn that has not started
	EffectDeliver         // hand to the running engine
)

// Tasks is the task as the evaluator needs it; host joins it to the owner.
type Tasks interface {
	View(ctx context.Context, task nip.TaskID) (TaskView, error)
	// Compile returns the exact task-command bytes for the effect: a pure
	// function of its arguments. Its store command ID is derived from the
	// device, the command and the step, so that the same entry can never take
	// effect twice.
	Compile(e Entry, effect Effect, view TaskView) ([]byte, error)
	// Apply hands exact bytes to the task. A non-empty Refused is definite:
	// nothing happened. An error leaves it unknown; the same bytes are applied
	// again later.
	Apply(ctx context.Context, task nip.TaskID, request []byte) (Applied, error)
}

// Applied is the task's answer. Refused is one of "", "revision_mismatch",
// "invalid_transition", "limit_exceeded", "command_conflict", "not_found", "other".
type Applied struct {
	Revision int64
	Refused  string
}

var (
	// ErrConflict is returned when a known key arrives with other content.
	ErrConflict = errors.New("command id was used for something else")
	// ErrPruned is returned when a command was decided and pruned: it answers expired.
	ErrPruned = errors.New("command was decided before the journal's retention")
	// ErrFull is returned when the journal takes no further undecided entry of this task or device.
	ErrFull = errors.New("too many undecided commands")
	// ErrChain is returned when the history is not what was written.
	ErrChain = errors.New("journal history does not match its chain")
)

// Standing reports whether the sender still holds operate under the same grant and epoch.
type Standing func(tx *bbolt.Tx, s Sender, now int64) bool
