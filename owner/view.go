package owner

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
