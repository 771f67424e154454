package nip

// The records of task.list, task.read and task.original (NIP-HOST, task reads).

// ListQuery asks for the tasks of one workspace label.
type ListQuery struct {
	Workspace Label
	Cursor    *ListCursor
	Limit     int // 1 to 64
}

// ListCursor continues a listing of one snapshot.
type ListCursor struct {
	Workspace      Label
	SnapshotDigest Digest
	Next           int
}

// TaskListing is one page of a listing.
type TaskListing struct {
	Workspace      Label
	SnapshotDigest Digest
	Rows           []TaskRow // at most 64
	Next           *ListCursor
	MoreAvailable  bool
}

// TaskRow is one task of a listing.
type TaskRow struct {
	Task     string // studio ID, 1 to 128
	Revision int64
	Title    string // at most 200 bytes
	Phase    Phase
	Attempt  *int // turn, from 1
}

// ReadQuery asks for one page of a task.
type ReadQuery struct {
	Workspace Label
	Task      string
	Revision  *int64
	Cursor    *PageCursor
	Limit     int // steps, 1 to 64
}

// Scope names exactly what a page or an original was taken from.
type Scope struct {
	Workspace    Label
	Task         string
	Revision     int64
	Attempt      *int
	IntentDigest Digest
}

// PageCursor continues a page's steps.
type PageCursor struct {
	Scope        Scope
	Source       string // "trace:<n>"
	SourceDigest Digest
	SourceBytes  int64
	NextStep     int
	PrefixDigest Digest
}

// Page is one bounded read of a task.
type Page struct {
	Scope         Scope
	Title         string
	Prompt        string // cut at 8 KiB on a character boundary; the whole is task.original
	Phase         Phase
	Execution     string
	Verification  string
	Integration   string
	Termination   string
	Delivery      string
	Cleanup       string
	CostMicroUSD  *int64
	CostStatus    string
	Evidence      Evidence
	Artifacts     []PageArtifact
	Children      []PageChild
	MoreChildren  bool
	Next          *PageCursor
	MoreAvailable bool
}

// Evidence is the transcript's state and the steps of this page.
type Evidence struct {
	State      string
	Original   *OriginalRef
	TotalSteps int
	Steps      []Step
	Faults     []LineFault
	MoreFaults bool
}

// Step is one transcript step or a gap that names the original.
type Step struct {
	Kind     string // "original" | "gap"
	Index    int
	Step     []byte       // JSON object, at most 16 KiB; kind original
	Reason   string       // "oversized"; kind gap
	Original *OriginalRef // kind gap
}

// LineFault is one damaged transcript line.
type LineFault struct {
	Line int
	Kind string
}

// OriginalRef names bytes that task.original serves.
type OriginalRef struct {
	Source    string // "task", "trace:<n>", "manifest:<n>", "artifact:<hex>"
	Digest    Digest
	Bytes     int64
	MediaType string
}

// PageArtifact is one retained artifact.
type PageArtifact struct {
	Label    string
	State    string
	Original *OriginalRef
}

// PageChild is a reference to a child run.
type PageChild struct {
	SourceStep int
	CallID     string
	Agent      string
	Reference  *string
	State      string
}

// OriginalQuery asks for bytes of an original.
type OriginalQuery struct {
	Scope    Scope
	Original OriginalRef
	Cursor   *ChunkCursor
	Limit    int // raw bytes, 1 to 16384
}

// ChunkCursor continues an original.
type ChunkCursor struct {
	Scope        Scope
	Source       string
	Digest       Digest
	NextByte     int64
	PrefixDigest Digest
}

// Chunk is one piece of an original.
type Chunk struct {
	Scope         Scope
	Original      OriginalRef
	Start         int64
	Data          []byte // at most 16384 raw bytes, base64 on the wire
	Next          *ChunkCursor
	MoreAvailable bool
}
