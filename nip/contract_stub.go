package nip

import (
	"io"
)

// Stubs so that dependents compile; replaced by the implementation.

// Error is what every parser and verifier here returns: the wire code that the
// fault has and the layer that found it ("json", "event", "envelope", "schema",
// "request", "operation", "policy"). Its text names the member, never its value.
type Error struct {
	Code   Code
	Layer  string
	Detail string
}

func (e *Error) Error() string { panic("stub") }

// SecretKey is a secp256k1 secret; its String is redacted.
type SecretKey struct{ b [32]byte }

func GenerateSecretKey(r io.Reader) (SecretKey, error) { panic("stub") }
func ParseSecretKey(hex string) (SecretKey, error)     { panic("stub") }
func (k SecretKey) Hex() string                        { panic("stub") }
func (k SecretKey) String() string                     { panic("stub") }
func (k SecretKey) Public() PubKey                     { panic("stub") }
func (k SecretKey) Sign(ev *Event) error               { panic("stub") } // sets PubKey, ID, Sig

func ParsePubKey(s string) (PubKey, error)    { panic("stub") } // 64 hex, on the curve; also accepts nothing else
func ParseAnyPubKey(s string) (PubKey, error) { panic("stub") } // hex or npub1..., for people
func ValidID(s string) bool                   { panic("stub") } // 64 lowercase hex
func NewID(r io.Reader) (string, error)       { panic("stub") } // 32 random bytes as hex

func VerifyEvent(ev *Event) (Verified, error) { panic("stub") } // ID recomputed, tags and sizes bounded, signature last

// ParseEvent decodes one NIP-01 event strictly and boundedly (no duplicate members, no unknown ones). It does not verify.
func ParseEvent(b []byte) (*Event, error) { panic("stub") }
func EncodeEvent(ev *Event) []byte        { panic("stub") }

func Canonical(b []byte) ([]byte, error) { panic("stub") } // strict decode + RFC 8785; integers beyond 2^53-1, floats, depth > 64, size > 1 MiB refuse
func DigestOf(b []byte) Digest           { panic("stub") }

// Seal makes the signed event that carries a to recipient in mailbox. nonce nil means crypto/rand.
func Seal(key SecretKey, to PubKey, mailbox Mailbox, a Artifact, nonce []byte) (*Event, error) {
	panic("stub")
}

// Open decrypts and checks everything of the envelope that needs no expectation; the reader is the recipient or the author.
func Open(v Verified, key SecretKey) (Opened, error) { panic("stub") }

// Stream names a derived mailbox.
type Stream string

const (
	StreamPresence  Stream = "openagents.host-mailbox.presence.v1"
	StreamHints     Stream = "openagents.host-mailbox.hints.v1"
	StreamSummaries Stream = "openagents.host-mailbox.summaries.v1"
	StreamNudges    Stream = "openagents.host-mailbox.nudges.v1"
)

func DeriveMailbox(key SecretKey, peer PubKey, s Stream) (Mailbox, error) { panic("stub") }

const (
	SchemaGrant    = "openagents.host-grant.v1"
	SchemaAccess   = "openagents.host-access.v1"
	SchemaRequest  = "openagents.host-request.v1"
	SchemaReply    = "openagents.host-reply.v1"
	SchemaSummary  = "openagents.activity-summary.v1"
	SchemaPresence = "openagents.host-presence.v1"
)

func ParseRights(list []string) (Rights, error) { panic("stub") } // canonical order demanded
func (r Rights) Has(x Right) bool               { panic("stub") }
func (r Rights) Within(ceiling Rights) bool     { panic("stub") }
func StandardRights() Rights                    { panic("stub") }
func PairingRights() Rights                     { panic("stub") }

// CheckRelay applies the relay policy; loopback additionally allows ws:// to a literal loopback IP (an operator's or a person's explicit word, never a scanned string's).
func CheckRelay(u RelayURL, loopback bool) error { panic("stub") }

// Profile says which relay URLs a parser accepts.
type Profile struct{ Loopback bool }

func ParseRequest(inline []byte, p Profile) (Request, error)             { panic("stub") } // error: outer members bad (silence on the host)
func EncodeRequest(r Request) (Artifact, error)                          { panic("stub") } // used by devices; validates, computes the artifact with issued/expires
func ParseReply(inline []byte) (Reply, error)                            { panic("stub") }
func EncodeReply(r Reply) (Artifact, error)                              { panic("stub") } // validates outcome bounds (48 KiB, 40,960-byte plaintext): code Bounds when too big
func ParseGrant(inline []byte, p Profile) (Grant, error)                 { panic("stub") }
func EncodeGrant(g Grant) (Artifact, error)                              { panic("stub") }
func ParseInvitation(s string, p Profile, now int64) (Invitation, error) { panic("stub") }
func EncodeInvitation(i Invitation, p Profile) (string, error)           { panic("stub") }
func ParseSummary(inline []byte, env Artifact) (Summary, error)          { panic("stub") }
func EncodeSummary(s Summary) (Artifact, error)                          { panic("stub") } // refuses what redaction would change
func Headline(s string, fallback string) string                          { panic("stub") } // redacts and bounds
func ParsePresence(inline []byte) (Presence, error)                      { panic("stub") }
func EncodePresence(p Presence, retain int64) (Artifact, error)          { panic("stub") }

// ParseOperation and EncodeOperation are the op object alone (device call --op JSON).
func ParseOperation(b []byte) (Operation, Code, error) { panic("stub") }
func EncodeOperation(op Operation) ([]byte, error)     { panic("stub") }

// EncodeOutcome is the outcome object alone, for printing.
func EncodeOutcome(o Outcome) ([]byte, error) { panic("stub") }
func EncodeCommand(c Command) ([]byte, error) { panic("stub") } // canonical bytes, for comparing replays

// Answers reports whether outcome o may answer operation op (kinds and references agree).
func Answers(op Operation, o Outcome) bool { panic("stub") }

func (EnrollRedeem) Kind() string  { return "enroll.redeem" }
func (DeviceList) Kind() string    { return "device.list" }
func (DeviceRevoke) Kind() string  { return "device.revoke" }
func (TaskCreate) Kind() string    { return "task.create" }
func (TaskSteer) Kind() string     { return "task.steer" }
func (TaskCancel) Kind() string    { return "task.cancel" }
func (TaskArchive) Kind() string   { return "task.archive" }
func (TaskCommand) Kind() string   { return "task.command" }
func (TaskQueue) Kind() string     { return "task.queue" }
func (WorkspaceList) Kind() string { return "workspace.list" }
func (TaskList) Kind() string      { return "task.list" }
func (TaskRead) Kind() string      { return "task.read" }
func (TaskOriginal) Kind() string  { return "task.original" }
func (o Other) Kind() string       { return o.Name }

func (EnrollRedeem) Right() Right  { return "" }
func (DeviceList) Right() Right    { return AccessRead }
func (DeviceRevoke) Right() Right  { return AccessAdmin }
func (TaskCreate) Right() Right    { return Operate }
func (TaskSteer) Right() Right     { return Operate }
func (TaskCancel) Right() Right    { return Operate }
func (TaskArchive) Right() Right   { return Operate }
func (TaskCommand) Right() Right   { return Operate }
func (TaskQueue) Right() Right     { return Operate }
func (WorkspaceList) Right() Right { return Operate }
func (TaskList) Right() Right      { return Observe }
func (TaskRead) Right() Right      { return Observe }
func (TaskOriginal) Right() Right  { return Observe }
func (o Other) Right() Right       { panic("stub") } // the right the wire names for that kind

func (Granted) OutcomeKind() string       { return "granted" }
func (Devices) OutcomeKind() string       { return "devices" }
func (RevokedDevice) OutcomeKind() string { return "revoked" }
func (Dispatched) OutcomeKind() string    { return "dispatched" }
func (QueueState) OutcomeKind() string    { return "queue" }
func (Workspaces) OutcomeKind() string    { return "workspaces" }
func (Tasks) OutcomeKind() string         { return "tasks" }
func (TaskPage) OutcomeKind() string      { return "task" }
func (Original) OutcomeKind() string      { return "task_original" }
