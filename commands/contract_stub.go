package commands

import (
	"context"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/internal/commit"
	"holdfast/nip"
)

// Lease is the exclusive right to edit one task's queue.
type Lease struct {
	Device    nip.PubKey
	ExpiresAt int64
}

// Journal reads and changes the journal inside a transaction. It has no state of its own.
type Journal struct{}

// Setup creates the buckets; call once in the opening transaction.
func (Journal) Setup(tx *bbolt.Tx) error { panic("stub") }

// Time is max(now, last journalled time): decisions never run backwards.
func (Journal) Time(tx *bbolt.Tx, now int64) int64 { panic("stub") }

func (Journal) Get(tx *bbolt.Tx, k Key) (Entry, bool, error)                        { panic("stub") }
func (Journal) Record(tx *bbolt.Tx, e Entry, now int64) (Entry, error)              { panic("stub") } // new entry in StateReceived; ErrConflict, ErrPruned, ErrFull
func (Journal) Change(tx *bbolt.Tx, e Entry, what string, now int64) (Entry, error) { panic("stub") } // the only transition; panics on an illegal edge
// Note journals another effectful request that is decided at once (task.create, device.revoke, enroll.redeem, ...).
func (Journal) Note(tx *bbolt.Tx, k Key, s Sender, task nip.TaskID, note string, outcome Outcome, reason nip.Code, revision int64, now int64) error {
	panic("stub")
}
func (Journal) Undecided(tx *bbolt.Tx, task nip.TaskID) ([]Entry, error) { panic("stub") } // arrival order; received, held and dispatching
func (Journal) Tasks(tx *bbolt.Tx) ([]nip.TaskID, error)                 { panic("stub") } // tasks with undecided entries
func (Journal) Lease(tx *bbolt.Tx, task nip.TaskID) (Lease, bool, error) { panic("stub") }
func (Journal) SetLease(tx *bbolt.Tx, task nip.TaskID, l *Lease) error   { panic("stub") } // nil drops it
func (Journal) DropLeases(tx *bbolt.Tx, device nip.PubKey) error         { panic("stub") }
func (Journal) Prune(tx *bbolt.Tx, now int64, limit int) (int, error)    { panic("stub") }

// Filter selects entries for the operator.
type Filter struct {
	Task   nip.TaskID
	Device nip.PubKey
	State  State
	Since  int64
	After  uint64 // history sequence; for tail
	Limit  int
}

func (Journal) List(tx *bbolt.Tx, f Filter) ([]Entry, error)            { panic("stub") }
func (Journal) Counts(tx *bbolt.Tx) (entries, undecided int, err error) { panic("stub") }

// Transition is one history record.
type Transition struct {
	Seq      uint64
	At       int64
	Key      Key
	What     string // "received", "held", "dispatching", "applied", "rejected", "edited", ...
	State    State
	Outcome  Outcome
	Reason   nip.Code
	Previous [32]byte
}

func (Journal) Transitions(tx *bbolt.Tx, after uint64, limit int) ([]Transition, error) {
	panic("stub")
}

// Check walks the whole chain from its checkpoint and every entry against it.
func (Journal) Check(tx *bbolt.Tx) (records uint64, err error) { panic("stub") }

// Evaluator records commands and carries their decisions out, serially per task and in parallel across tasks.
type Evaluator struct {
	DB       commit.Updater
	Journal  Journal
	Tasks    Tasks
	Standing Standing
	Now      func() time.Time
	// Decided runs in the commit that changes an entry's state by evaluation (also held): the host
	// notes the turn's origin and the wake-ups there. It must be idempotent. May be nil.
	Decided func(tx *bbolt.Tx, e Entry) error
	// Changed is called after such a commit, outside any lock. May be nil.
	Changed func(task nip.TaskID, e Entry)
}

// Hooks of one submission.
type Hooks struct {
	// Admit runs first in the first commit; its error aborts with nothing recorded.
	Admit func(tx *bbolt.Tx) error
	// Answer runs in the commit in which the entry's disposition for this request is known (held, done,
	// or still received): the host retains its sealed reply there.
	Answer func(tx *bbolt.Tx, e Entry, err error) error // err is ErrConflict, ErrPruned or ErrFull, with a zero Entry
}

// Submit records c once, evaluates its task, and returns the entry as it stands.
func (v *Evaluator) Submit(ctx context.Context, s Sender, c nip.Command, h Hooks) (Entry, error) {
	panic("stub")
}

// Evaluate runs the task's undecided entries until nothing changes. Entries found in StateDispatching are applied again with their exact bytes first.
func (v *Evaluator) Evaluate(ctx context.Context, task nip.TaskID) error { panic("stub") }

// Edit runs fn under the task's evaluation lock, in one commit, with a fresh view, then evaluates.
func (v *Evaluator) Edit(ctx context.Context, task nip.TaskID, fn func(tx *bbolt.Tx, view TaskView, now int64) error) error {
	panic("stub")
}

// NextDeadline is the earliest time at which the task must be evaluated again: a lease's end or a command's 24 hours. ok is false without one.
func (Journal) NextDeadline(tx *bbolt.Tx, task nip.TaskID) (at int64, ok bool, err error) {
	panic("stub")
}
