package owner

import (
	"encoding/json"

	"holdfast/sandbox"
)

// TaskID is 1 to 128 bytes: first ASCII alphanumeric, then alphanumeric or . _ -
type TaskID string

// Digest is "sha256:" and 64 lowercase hex characters.
type Digest string

// Epoch fences owners: an event of another epoch than the run's is refused. It grows by one with each process that
// takes the task over, through all turns.
type Epoch int64

// Status is the queue's axis. The four axes are never merged.
type Status string

// The statuses.
const (
	Queued          Status = "queued"
	Cancelled       Status = "cancelled"
	Running         Status = "running"
	CancelRequested Status = "cancel_requested"
	Finished        Status = "finished"
	StatusUnknown   Status = "unknown"
)

// Execution is the process's axis.
type Execution string

// The executions.
const (
	NotStarted       Execution = "not_started"
	ExecRunning      Execution = "running"
	ExecFinished     Execution = "finished"
	ExecFailed       Execution = "failed"
	ExecStopped      Execution = "stopped"
	ExecutionUnknown Execution = "unknown"
)

// Checks is the verification's axis. The integration's is Task.Integration: nothing but a person's word moves it.
type Checks string

// NotRun says that nothing was checked. The other states stand in check_report.go.
const NotRun Checks = "not_run"

// Endings that are not "exit N", "stopped by a signal", "timed out" or "failed: WHY".
const (
	EndingCancelledBefore = "cancelled_before_dispatch"
	EndingRefusedBefore   = "refused_before_dispatch"
	EndingOwnerEnded      = "owner_process_ended"
	EndingAskedQuestion   = "asked_question"
	EndingAskedApproval   = "asked_approval"
	EndingOutputLimit     = "output_limit"
	EndingMemoryLimit     = "memory_limit"
	EndingDiskLimit       = "disk_limit"
	EndingStopped         = "stopped"
	EndingTimedOut        = "timed out"
)

// Adapters.
const (
	BoundedCommand = "bounded-command"
	PromptCommand  = "prompt-command"
)

// Task is the state derived by replaying the task's log.
type Task struct {
	ID           TaskID       `json:"task_id"`
	Revision     int64        `json:"revision"`
	Intent       Intent       `json:"intent"`
	IntentDigest Digest       `json:"intent_digest"`
	Status       Status       `json:"status"`
	Execution    Execution    `json:"execution"`
	Checks       Checks       `json:"checks"`
	CancelReason string       `json:"cancellation_reason,omitempty"`
	Corrections  []Correction `json:"corrections"`
	FollowUps    []FollowUp   `json:"follow_ups"`
	Run          *Run         `json:"run,omitempty"` // the current turn's
	Earlier      []Run        `json:"earlier"`
	Worktree     *Worktree    `json:"worktree,omitempty"`
	WorktreeGone int64        `json:"worktree_gone,omitempty"` // Unix seconds: when it was let go, by policy
	Archived     *Archived    `json:"archived,omitempty"`
	Applied      *Applied     `json:"applied,omitempty"`     // the newest, by a person's word
	NotStarted   string       `json:"not_started,omitempty"` // cause of "Couldn't start", of the current turn
	CreatedAt    int64        `json:"created_at"`
	UpdatedAt    int64        `json:"updated_at"` // Unix seconds of the last record that moved the revision
}

// Intent is what was asked for; immutable.
type Intent struct {
	Title         string        `json:"title"`
	Prompt        string        `json:"prompt"`
	Workspace     Workspace     `json:"workspace"`
	Configuration Configuration `json:"configuration"`
}

// Workspace names the root the operator gave a label to.
type Workspace struct {
	Path           string `json:"path"`
	SourceRevision string `json:"source_revision,omitempty"`
}

// Configuration names the adapter and, where it needs one, the model.
type Configuration struct {
	Adapter string  `json:"adapter"`
	Model   *string `json:"model"`
}

// Correction replaces instructions; accepted is not consumed.
type Correction struct {
	Revision int64  `json:"revision"`
	Prompt   string `json:"prompt"`
	Reason   string `json:"reason"`
}

// FollowUp is the prompt of a later turn.
type FollowUp struct {
	Revision  int64  `json:"revision"`
	Prompt    string `json:"prompt"`
	CommandID string `json:"command_id"`
}

// Worktree is where the task's turns run; it does not move the revision.
type Worktree struct {
	Path      string `json:"path"`
	Base      string `json:"base"`       // commit
	CommonDir string `json:"common_dir"` // the repository's common Git directory
}

// Archived says who archived and why.
type Archived struct {
	Reason string `json:"reason"`
	By     string `json:"by"` // "owner" or a device's 64 hex
	At     int64  `json:"at"`
}

// Applied says that a candidate was made one commit on a new branch of the repository.
type Applied struct {
	Turn      int    `json:"turn"` // the newest turn whose changes are in it
	Candidate Digest `json:"candidate_snapshot"`
	Base      string `json:"base"` // the commit's parent: the worktree's base
	Branch    string `json:"branch"`
	Commit    string `json:"commit"`
	At        int64  `json:"at"` // Unix seconds
}

// Run is one turn that was admitted.
type Run struct {
	Turn           int               `json:"turn"`
	Epoch          Epoch             `json:"epoch"`
	Admission      Admission         `json:"admission"`
	EffectID       string            `json:"effect_id,omitempty"`
	Process        *sandbox.Identity `json:"process,omitempty"`
	Result         *Result           `json:"result,omitempty"`
	RecoveryReason string            `json:"recovery_reason,omitempty"`
	Cleared        *Cleared          `json:"cleared,omitempty"`
	Attempts       int               `json:"check_attempts,omitempty"`
	Report         *CheckReport      `json:"check_report,omitempty"` // of the last attempt that was reported
}

// Cleared says that nothing of a run is left whose result could not say so.
type Cleared struct {
	Proof string `json:"proof"` // ProofBoot or ProofEmpty
	At    int64  `json:"at"`    // Unix milliseconds
}

// What proves that nothing of a run is left.
const (
	ProofBoot  = "another_boot"    // the machine was started anew since
	ProofEmpty = "processes_ended" // the group's first process ended, and its PID namespace has no member
)

// Admission is what was pinned before dispatch.
type Admission struct {
	GrantDigest    Digest           `json:"grant_digest"` // of the exact bytes, kept as a blob
	Adapter        string           `json:"adapter"`
	Workspace      string           `json:"workspace"` // canonical
	SourceRevision string           `json:"source_revision,omitempty"`
	SourceSnapshot Digest           `json:"source_snapshot,omitempty"` // of the workspace; absent in logs before snapshots
	Program        string           `json:"program"`
	ProgramDigest  Digest           `json:"program_digest"`
	Network        json.RawMessage  `json:"network"`
	Prompt         Digest           `json:"prompt_digest"` // of the effective prompt
	ReadRevision   int64            `json:"read_revision"` // task revision that the context read
	TraceFile      string           `json:"trace_file"`
	Checks         *CheckPlan       `json:"checks,omitempty"`
	Context        Digest           `json:"context_digest,omitempty"` // the manifest of what was frozen to read, a blob; absent without Checks
	Owner          sandbox.Identity `json:"owner"`                    // the owner process
	At             int64            `json:"at"`
}

// Result is how a turn ended.
type Result struct {
	Ending           string          `json:"ending"`
	ExitCode         *int            `json:"exit_code,omitempty"`
	StopRequested    bool            `json:"stop_requested"`
	GroupClear       bool            `json:"group_clear"`
	ElapsedMS        int64           `json:"elapsed_ms"`
	TraceDigest      Digest          `json:"trace_digest"`
	OutputIncomplete bool            `json:"output_incomplete"`
	Candidate        Digest          `json:"candidate_snapshot,omitempty"` // of the workspace as the turn left it, where all of it was seen
	Artifacts        Digest          `json:"artifact_digest,omitempty"`    // the manifest of what it changed, a blob
	Reply            string          `json:"reply,omitempty"`              // at most 32 KiB
	Ask              string          `json:"ask,omitempty"`                // "", "question", "approval"
	CostStatus       string          `json:"cost_status"`                  // "unknown" unless reported
	Confinement      json.RawMessage `json:"confinement,omitempty"`
	Cleanup          json.RawMessage `json:"cleanup,omitempty"`
	Egress           json.RawMessage `json:"egress,omitempty"` // what was reached through an allow list, and what was tried
	At               int64           `json:"at"`
}

// Clear reports whether nothing of the run can still be running.
func (r *Run) Clear() bool { return r.Result != nil && (r.Result.GroupClear || r.Cleared != nil) }

// NextEpoch is the epoch of the next process that takes the task over.
func (t *Task) NextEpoch() Epoch {
	if t.Run != nil {
		return t.Run.Epoch + 1
	}
	if n := len(t.Earlier); n > 0 {
		return t.Earlier[n-1].Epoch + 1
	}
	return 1
}

// Turn is the number of the current turn, from 1.
func (t *Task) Turn() int { return len(t.Earlier) + 1 }

// TurnStart is the revision at which the current turn was asked for.
func (t *Task) TurnStart() int64 {
	if n := len(t.FollowUps); n > 0 {
		return t.FollowUps[n-1].Revision
	}
	return 1
}

// Receipt is the durable answer to one exact command.
type Receipt struct {
	Schema        string    `json:"schema"` // openagents.coder.task-receipt.v1
	CommandID     string    `json:"command_id"`
	TaskID        TaskID    `json:"task_id"`
	RequestDigest Digest    `json:"request_digest"`
	Sequence      int64     `json:"sequence"`
	Revision      int64     `json:"revision"`
	Status        Status    `json:"status"`
	Execution     Execution `json:"execution"`
	Checks        Checks    `json:"checks"`
}

// Action of a task command: exactly one is set. The bytes are
// {"schema":"openagents.coder.task-command.v1","command_id":..,"task_id":..,"expected_revision":N|null,"action":{"type":"submit","intent":{..}}}.
type Action struct {
	Submit   *Intent
	Cancel   *CancelAction
	Correct  *CorrectAction
	Continue *ContinueAction
}

type (
	// CancelAction asks the current turn, or a queued task, to stop.
	CancelAction struct{ Reason string }
	// CorrectAction replaces instructions.
	CorrectAction struct{ Prompt, Reason string }
	// ContinueAction asks for another turn.
	ContinueAction struct{ Prompt string }
)

// Command is one decoded task command.
type Command struct {
	CommandID string
	TaskID    TaskID
	Expected  *int64 // null for submit
	Action    Action
}

// Event is one owner event: exactly one member is set. All but Worktree and
// WorktreeGone move the revision.
type Event struct {
	Admitted     *Admission        `json:"admitted,omitempty"`
	EffectIntent *string           `json:"effect_intent,omitempty"` // TASK:N:command
	Spawned      *sandbox.Identity `json:"spawned,omitempty"`
	Result       *Result           `json:"result,omitempty"`
	OwnerLost    bool              `json:"owner_lost,omitempty"`
	Cleared      *Cleared          `json:"cleared,omitempty"`
	CheckIntent  *CheckIntent      `json:"check_intent,omitempty"`
	Checked      *CheckReport      `json:"checked,omitempty"`
	CheckLost    bool              `json:"check_owner_lost,omitempty"`
	NotStarted   *string           `json:"not_started,omitempty"` // queued, no run: cancelled, with the cause
	Worktree     *Worktree         `json:"worktree,omitempty"`
	Archived     *Archived         `json:"archived,omitempty"`
	Restored     bool              `json:"restored,omitempty"`
	Applied      *Applied          `json:"applied,omitempty"`
	WorktreeGone bool              `json:"worktree_gone,omitempty"`
}

// Grant is a decoded execution grant of either schema.
type Grant struct {
	Schema           string // openagents.coder.task-execution-grant.v1 | holdfast.execution-grant.v1
	TaskID           TaskID
	IntentDigest     Digest
	ExpectedRevision int64
	ExpectedSnapshot Digest // "" where null or absent
	Program          string
	Arguments        []string
	Write            bool
	WallSeconds      int64
	StreamBytes      int64
	MemoryBytes      int64
	Adapter          string          // bounded-command for the public schema
	Network          json.RawMessage // "none" | "host" | {"allow":[..]}
	Read             []string
	Environment      []string
	Git              string // "hidden" | "read"
	Degraded         bool
	PolicyDigest     Digest        // "" where null
	Requirements     *Requirements // nil where null or absent
}
