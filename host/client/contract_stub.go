// Package client is the device's side: pair, call, verify, outbox.
package client

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"holdfast/nip"
)

// Device is one paired (or not yet paired) device with its durable files in a profile folder.
type Device struct{}

// Options of Open.
type Options struct {
	Loopback bool // a person's explicit word that ws:// on a loopback address is fine
	Now      func() time.Time
	Log      zerolog.Logger
}

func Init(dir string, o Options) (*Device, error) { panic("stub") } // makes the key; an existing one is kept
func Open(dir string, o Options) (*Device, error) { panic("stub") }
func (d *Device) Close() error                    { panic("stub") }
func (d *Device) PubKey() nip.PubKey              { panic("stub") }
func (d *Device) Grant() (nip.Grant, bool)        { panic("stub") }

// Pair redeems an invitation string and keeps the verified access record.
func (d *Device) Pair(ctx context.Context, code string) (nip.Grant, error) { panic("stub") }

// Call makes one request and waits for its verified reply: a signed refusal is a *Refused error, no answer is
// ErrNoAnswer (outcome unknown). Retries are the same signed bytes, read first.
func (d *Device) Call(ctx context.Context, op nip.Operation) (nip.Outcome, error) { panic("stub") }

// CallEvent is Call with what went over the wire, for tours and tests.
type Exchange struct {
	Request    nip.Request
	Event      *nip.Event
	Reply      nip.Reply
	ReplyEvent *nip.Event
	Tries      int
	Took       time.Duration
}

func (d *Device) Exchange(ctx context.Context, op nip.Operation) (Exchange, error) { panic("stub") }

// Command puts a durable command into the outbox, sends it until a signed outcome arrives (each try a new
// request with the same command ID), and returns that. id "" mints one.
func (d *Device) Command(ctx context.Context, c nip.Command) (nip.Command, nip.Outcome, error) {
	panic("stub")
}

// Create is task.create by the rule for creates without an answer: never resent under a new ID until the task was read.
func (d *Device) Create(ctx context.Context, op nip.TaskCreate) (nip.TaskID, error) { panic("stub") }

// Resend works through the outbox once.
func (d *Device) Resend(ctx context.Context) error { panic("stub") }

// OutboxRow is what waits to be sent, and why.
type OutboxRow struct {
	Kind      string // "command" | "create"
	ID        string
	Task      nip.TaskID
	Action    nip.Action
	Since     int64
	Tries     int
	State     string // "waiting", "unknown"
	LastError string
}

func (d *Device) Outbox() ([]OutboxRow, error) { panic("stub") }

// Update is one verified publication of the host.
type Update struct {
	Summary  *nip.Summary
	Presence *nip.Presence
}

// Watch delivers verified summaries and presence, highest sequence per task, until ctx ends.
func (d *Device) Watch(ctx context.Context) (<-chan Update, error) { panic("stub") }

// Refused is the host's signed refusal.
type Refused struct {
	Op      string
	Code    nip.Code
	Missing nip.Right
}

func (e *Refused) Error() string { panic("stub") }
