package owner

import (
	"context"
	"time"
)

// Store is the task store under a home. Many processes may have it open.
type Store struct{}

// Options of Open.
type Options struct {
	Now    func() time.Time
	Create bool // make the folders of a new home; without it a missing store is an error
}

// Open opens HOME's tasks, blobs, identities and worktrees folders. ErrCorrupt, ErrNewer, ErrUnsafe.
func Open(home string, o Options) (*Store, error) { panic("stub") }
func (s *Store) Home() string                     { panic("stub") }
func (s *Store) Close() error                     { panic("stub") }

// Apply is hop 7's second half: one exact task command. The same ID with the same bytes returns the first
// receipt after an fsync barrier. *Error is a definite refusal; any other error leaves the outcome unknown.
func (s *Store) Apply(ctx context.Context, request []byte) (Receipt, error) { panic("stub") }

// Get returns the task as it is on disk now (cached by log length and last hash; reads only the new tail). *Error not_found.
func (s *Store) Get(id TaskID) (Task, error) { panic("stub") }

// List returns every task ID, sorted.
func (s *Store) List() ([]TaskID, error) { panic("stub") }

// Watch sends the ID of each task whose log grew (inotify, with a 1 s poll as fallback); "" means "look at all".
func (s *Store) Watch(ctx context.Context) <-chan TaskID { panic("stub") }

// WatchTask signals when this task's log grew.
func (s *Store) WatchTask(ctx context.Context, id TaskID) <-chan struct{} { panic("stub") }

// Locked is the task's write lock, held over several steps.
type Locked struct{}

func (s *Store) Lock(ctx context.Context, id TaskID) (*Locked, error) { panic("stub") } // waits until ctx ends; try-lock, 2 ms polls
func (l *Locked) Task() Task                                          { panic("stub") }
func (l *Locked) Append(epoch Epoch, ev Event) (Task, error)          { panic("stub") } // durable when it returns; *Error on an illegal transition
func (l *Locked) Unlock()                                             { panic("stub") }

// Append is Lock, Append, Unlock.
func (s *Store) Append(ctx context.Context, id TaskID, epoch Epoch, ev Event) (Task, error) {
	panic("stub")
}

// Ownership is the task's owner.lock.
type Ownership struct{}

func (s *Store) Own(ctx context.Context, id TaskID, wait time.Duration) (*Ownership, error) {
	panic("stub")
}                             // *Error store_busy
func (o *Ownership) Release() { panic("stub") }

func (s *Store) PutBlob(b []byte) (Digest, error)            { panic("stub") } // temp, fsync, rename, fsync dir
func (s *Store) GetBlob(d Digest, max int64) ([]byte, error) { panic("stub") } // digest verified
func (s *Store) TaskDir(id TaskID) string                    { panic("stub") }
func (s *Store) WorktreeRoot(id TaskID) string               { panic("stub") } // worktrees/DIR of the task

// ParseCommand and EncodeCommand are the closed task-command document (canonical bytes out).
func ParseCommand(b []byte) (Command, error)  { panic("stub") }
func EncodeCommand(c Command) ([]byte, error) { panic("stub") }

// Next is the pure state machine: command or event applied to a task (nil before submit).
func NextCommand(t *Task, c Command, at int64) (Task, error)           { panic("stub") }
func NextEvent(t *Task, epoch Epoch, ev Event, at int64) (Task, error) { panic("stub") }

// EffectivePrompt is the newest instruction of the current turn.
func (t *Task) EffectivePrompt() string { panic("stub") }

// Summary is the pure mapping to the activity summary's phase, headline and attention.
func (t *Task) Summary() (phase, headline, attention string) { panic("stub") }

// Pending is "question", "approval" or "".
func (t *Task) Pending() string { panic("stub") }

// View is one bounded read of a task and its current transcript.
type View struct {
	Task       Task
	Evidence   string // not_started, missing, unavailable_or_unsafe, unreadable, oversized, malformed, digest_mismatch, damaged, incomplete, sealed, unsealed
	Trace      string // trace file name, "" without a run
	Digest     Digest // of the transcript as it is
	Bytes      int64
	TotalSteps int
	Steps      []ViewStep
	Faults     []ViewFault
	MoreFaults bool
	Next       *ViewCursor
	More       bool
}

// ViewStep is one transcript step.
type ViewStep struct {
	Index  int
	JSON   []byte // nil where it is longer than the caller's step limit
	Bytes  int64
	Offset int64
}

// ViewFault is one damaged line.
type ViewFault struct {
	Line int
	Kind string
}

// ViewCursor continues a view; it binds task, intent, trace and the delivered prefix.
type ViewCursor struct {
	TaskID       TaskID `json:"task_id"`
	IntentDigest Digest `json:"intent_digest"`
	TraceFile    string `json:"trace_file"`
	NextStep     int    `json:"next_step"`
	PrefixDigest Digest `json:"prefix_digest"`
}

// View reads lock-free. *Error revision_mismatch ("stale cursor") when the delivered prefix changed.
func (s *Store) View(id TaskID, limit int, stepLimit int, c *ViewCursor) (View, error) { panic("stub") }

// Original reads bytes of "task" (the whole prompt of the current turn) or "trace:<turn>".
func (s *Store) Original(id TaskID, source string, offset int64, limit int) (data []byte, total int64, digest Digest, err error) {
	panic("stub")
}

// Check verifies every durable file, read-only, calling report for each.
func (s *Store) Check(report func(path string, ok bool, detail string)) error { panic("stub") }
