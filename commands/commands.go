// Package commands is the durable journal of device commands and the pure
// decision over it (NIP-HOST, durable commands).
//
// An entry is one command as it stands: who sent it, what it asked, and its
// state. A transition is one step of an entry, appended to the history and
// never changed. A decision is what Decide says about one undecided entry.
// host hands a verified command to Evaluator.Submit; the Journal records it,
// Decide judges it, and the Evaluator carries the decision to the task through
// the Tasks interface. Evaluation is serial within a task, parallel across
// tasks; every method may be called from any goroutine. Journal has no state
// and works inside the caller's transaction.
//
// Durable: a command is in the journal before anything else happens to it; the
// exact bytes of an effect are recorded before the task sees them, and applied
// again, unchanged, when a crash hides whether it did. Their store command ID
// makes the second time harmless.
//
// Buckets of host.db, integers big-endian:
//
//	journal.history  sequence (8) -> transition, with the SHA-256 of the transition before it
//	journal.entry    principal (32) kind 0 id -> entry
//	journal.task     task -> bucket of sequence (8) -> row: the undecided commands in arrival order
//	journal.of       task 0 sequence (8) -> entry key: all entries of a task
//	journal.decided  task 0 device (32) sequence (8) -> entry key: a sender's decided commands, by decision
//	journal.lease    task -> device (32), expiry (8)
//	journal.count    't' task or 'd' device -> undecided entries (4)
//	journal.pruned   first 16 bytes of SHA-256 of an entry key -> empty
//	journal.meta     head, checkpoint, restored, decided
//
// The head holds the last sequence, its hash, the last journalled time and the
// counts. Pruning moves the checkpoint, the sequence and hash from which the
// rest of the chain verifies. Entries, transitions and rows are
// length-prefixed, begin with a format byte, and have one encoding each.
//
// What is not here: who may send, sealing, the text of receipts, and the task.
package commands

import (
	"context"

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
	Device nip.PubKey  `json:"device"`
	Grant  nip.GrantID `json:"grant"`
	Epoch  int64       `json:"epoch"`
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
	OutcomeUnknown            // other kinds: a stop cut it off, and whether it happened cannot be seen
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
	Exact      bool  // sent as the exact-revision variant: the task must stand at Command.BasedOn when first decided
	Position   int64 // order among held ones of the task: ascending; arrival order until reordered; 0: never held
	State      State
	Then       State // of a dispatching one. StateHeld: after its effect, an emulated stop, it is held with priority. StateReceived: it was sent now, and stands there again if its bytes are refused for the revision
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
	PhaseChecking // ended, and its checks run: no turn begins before they have come to something
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

// Standing reports whether the sender still holds operate under the same grant and epoch.
type Standing func(tx *bbolt.Tx, s Sender, now int64) bool
