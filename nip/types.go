package nip

import "github.com/nbd-wtf/go-nostr"

// Event and Filter are the codec's own types; this package alone decides
// whether an Event may be believed.
type (
	Event  = nostr.Event
	Filter = nostr.Filter
)

// KindArtifact is the one event kind of the product: a private artifact.
const KindArtifact = 3188

// Identifiers are 64 lowercase hex characters unless said otherwise.
type (
	PubKey       string // x-only key that is a point of the curve
	EventID      string
	RequestID    string
	CommandID    string
	TaskID       string
	GrantID      string
	InvitationID string
	EnrollmentID string
	Mailbox      string
	Digest       string // "sha256:" + 64 hex
	RelayURL     string // compared byte for byte, never normalised
	Label        string // workspace label, 1 to 128 bytes
)

// Right is one permission of a device.
type Right string

// The rights in canonical order.
const (
	Observe     Right = "observe"
	Operate     Right = "operate"
	Terminal    Right = "terminal"
	Review      Right = "review"
	AccessRead  Right = "access_read"
	AccessAdmin Right = "access_admin"
)

// Code is a refusal code of the wire.
type Code string

// The refusal codes that may be signed.
const (
	Malformed    Code = "malformed"
	Unsupported  Code = "unsupported"
	Forbidden    Code = "forbidden"
	MissingRight Code = "missing_right"
	Expired      Code = "expired"
	Revoked      Code = "revoked"
	Stale        Code = "stale"
	Conflict     Code = "conflict"
	Bounds       Code = "bounds"
	Unavailable  Code = "unavailable"
	RateLimited  Code = "rate_limited"
	WrongCode    Code = "wrong_code"
	Denied       Code = "denied"
)

// Rights is a nonempty list in canonical order without repeats.
type Rights []Right

// Verified is an event whose ID was computed and whose signature was checked in
// this process. Only VerifyEvent, of what came from elsewhere, and Keyring.Seal,
// of what it just signed itself, make one.
type Verified struct{ ev *Event }

// Event returns the verified event; callers must not change it.
func (v Verified) Event() *Event { return v.ev }

// Artifact is a HOST body on its way into or out of an envelope.
type Artifact struct {
	Schema      string // the inner `v`
	Inline      []byte // canonical JSON of the body
	IssuedAt    int64
	RetainUntil int64
}

// Opened is an artifact that passed every generic check of the envelope.
type Opened struct {
	Artifact
	Event     *Event
	EventID   EventID
	Signer    PubKey
	Recipient PubKey
	Mailbox   Mailbox
	Digest    Digest // of Inline
}

// Request is one request of a device or of the owner. A request whose outer
// members are good and whose operation is not keeps Op nil and says why in
// OpRefusal, so that a current principal gets a signed answer.
type Request struct {
	ID        RequestID
	Host      PubKey
	Grant     GrantID // "" with Epoch -1: the owner's own
	Epoch     int64
	Relay     RelayURL
	IssuedAt  int64
	ExpiresAt int64
	Kind      string // op.kind, "" where it could not be read
	Op        Operation
	OpRefusal Code // "" where Op holds
}

// Operation is one decoded operation: a value of the types in operations.go.
type Operation interface {
	Kind() string
	Right() Right // "" where none is needed
}

// The operations that have a shape here. Every other known kind decodes to Other.
type (
	EnrollRedeem struct {
		Invitation InvitationID
		Capability string // 64 hex; never logged
	}
	DeviceList   struct{}
	DeviceRevoke struct{ Device PubKey }
	TaskCreate   struct {
		Title     string
		Prompt    string
		Workspace Label
		Images    []Image
		Engine    string // "" where absent
	}
	TaskSteer struct {
		Task     TaskID
		Revision int64
		Prompt   string
	}
	TaskCancel struct {
		Task     TaskID
		Revision int64
		Reason   string
	}
	TaskArchive struct{ Task TaskID }
	TaskCommand struct{ Command Command }
	TaskQueue   struct {
		Task TaskID
		Edit QueueEdit
	}
	WorkspaceList struct{}
	TaskList      struct{ Query ListQuery }
	TaskRead      struct{ Query ReadQuery }
	TaskOriginal  struct{ Query OriginalQuery }
	// Other is a known kind that this host does not serve; Answer is the code it signs.
	Other struct {
		Name   string
		Answer Code
	}
)

// Image is a picture of task.create.
type Image struct {
	Digest    Digest
	MediaType string
	Size      int64
	Name      string
}

// Action is what a durable command asks for.
type Action string

// The actions of task.command.
const (
	Send      Action = "send"
	Queue     Action = "queue"
	Steer     Action = "steer"
	Interrupt Action = "interrupt"
	Answer    Action = "answer"
)

// Command is one durable device command, exactly as it was sent.
type Command struct {
	ID       CommandID
	Task     TaskID
	Action   Action
	BasedOn  int64
	Text     string
	Emulate  bool
	IssuedAt int64
}

// QueueEdit is one edit of the held messages. Action is one of list, lease,
// release, edit, remove, reorder, send_now; the other members as it needs.
type QueueEdit struct {
	Action   string
	Command  CommandID   // edit, remove, send_now
	Text     string      // edit
	Commands []CommandID // reorder, 1 to 64
}

// Reply is a decoded reply. Exactly one of Outcome and Refusal is set.
type Reply struct {
	Request      RequestID
	RequestEvent EventID
	Host         PubKey
	IssuedAt     int64
	ExpiresAt    int64
	Outcome      Outcome
	Refusal      *Refusal
}

// Refusal is a negative answer: a value, never an error.
type Refusal struct {
	Code    Code
	Missing Right // only with MissingRight
}

// Outcome is one decoded outcome: a value of the types below.
type Outcome interface{ OutcomeKind() string }

type (
	Granted struct{ Authorization *Event }
	Devices struct{ Devices []DeviceEntry }
	// RevokedDevice is the outcome "revoked".
	RevokedDevice struct {
		Device PubKey
		Epoch  int64
		Grants []GrantID
	}
	Dispatched struct{ Operation, Reference string }
	QueueState struct {
		Task     TaskID
		Revision int64
		Lease    *Lease
		Items    []QueueItem
	}
	Workspaces struct{ Workspaces []Label }
	Tasks      struct{ Tasks TaskListing }
	TaskPage   struct{ Task Page }
	Original   struct{ Original Chunk }
)

// DeviceEntry is one row of device.list.
type DeviceEntry struct {
	Device    PubKey
	Grant     GrantID
	Rights    Rights
	Epoch     int64
	Origin    string // "invitation" | "approval"
	IssuedAt  int64
	ExpiresAt int64
	State     string // "active" | "revoked" | "expired"
	LastSeen  *int64
}

// Lease is the exclusive right to edit a queue until ExpiresAt.
type Lease struct {
	Device    PubKey
	ExpiresAt int64
}

// QueueItem is one held message in run order; Text only for the asker's own.
type QueueItem struct {
	Command  CommandID
	Device   PubKey
	Text     *string
	Priority bool
}

// Grant is the body of a host-signed grant. Its JSON names are those of the
// wire; stores keep it so.
type Grant struct {
	ID        GrantID  `json:"grant"`
	Origin    Origin   `json:"origin"`
	Host      PubKey   `json:"host"`
	Owner     PubKey   `json:"owner"`
	Device    PubKey   `json:"device"`
	Relay     RelayURL `json:"relay"`
	Epoch     int64    `json:"epoch"`
	IssuedAt  int64    `json:"issued_at"`
	ExpiresAt int64    `json:"expires_at"`
	Rights    Rights   `json:"rights"`
}

// Origin says what a grant came from.
type Origin struct {
	Kind   string `json:"kind"` // "invitation" | "approval"
	ID     string `json:"id"`
	Issuer PubKey `json:"issuer"`
}

// Invitation is what a `coder-host:` string carries.
type Invitation struct {
	Host       PubKey
	ID         InvitationID
	Capability string // 64 hex; never logged
	IssuedAt   int64
	ExpiresAt  int64 // exactly IssuedAt+300
	Relay      RelayURL
}

// Summary is one activity summary.
type Summary struct {
	Host      PubKey `json:"host"`
	Task      TaskID `json:"task"` // subject kind "task"
	Sequence  int64  `json:"sequence"`
	Phase     Phase  `json:"phase"`
	Headline  string `json:"headline"`
	Attention string `json:"attention"` // none, approval, input, completed, failed
	UpdatedAt int64  `json:"updated_at"`
}

// Phase is a summary phase.
type Phase string

// The seven phases.
const (
	PhaseQueued    Phase = "queued"
	PhaseRunning   Phase = "running"
	PhaseWaiting   Phase = "waiting"
	PhaseCompleted Phase = "completed"
	PhaseFailed    Phase = "failed"
	PhaseCancelled Phase = "cancelled"
	PhaseUnknown   Phase = "unknown"
)

// Presence says that the host is there and what it can do.
type Presence struct {
	Host         PubKey
	Owner        PubKey
	Generation   int64
	Protocol     int64
	Min, Max     int64
	Capabilities []string
	ObservedAt   int64
}
