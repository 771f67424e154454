// Package host is the resident host: the access book, admission, dispatch,
// the auto-start policy, publication and the operator's socket.
//
// Its nouns: a Core is one opened home (host.db, the task store, the keys)
// under host.lock; a Host is a Core that serves, joined to relays through the
// Transport that it declares; an Inbound is one verified event that a relay
// delivered.
//
// What goes in are verified events and operator verbs; what comes out are
// sealed events handed to the Transport. cmd builds both and is the only
// caller besides tests. A Core's methods may be called from any goroutine:
// host.db has one committer, each task one evaluation lock, and the little
// that is held in memory has a lock whose comment says what it guards.
//
// Durable when it returns: an admitted request, a journalled command, an
// access change and the retained reply are in host.db before anything is
// sent. Nothing in memory decides whether something happened.
//
// It does not: move events (relay), decide a command (commands), execute
// (owner), or parse the wire (nip).
package host

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"holdfast/commands"
	"holdfast/internal/commit"
	"holdfast/nip"
	"holdfast/owner"
)

// Inbound is one verified event and the relay name it arrived under.
type Inbound struct {
	Event nip.Verified
	Relay nip.RelayURL
}

// RelayHealth is what status shows of one relay.
type RelayHealth struct {
	URL           nip.RelayURL   `json:"url"`
	Also          []nip.RelayURL `json:"also,omitempty"` // further names of the same relay
	State         string         `json:"state"`
	Authenticated bool           `json:"authenticated"`
	Since         int64          `json:"since"`
	LastError     string         `json:"last_error"`
	Gap           int64          `json:"gap"`     // seconds: the longest time in which the host did not listen there
	Waiting       int            `json:"waiting"` // events that wait in the outbox for this relay; filled in by status
}

// has reports whether name is one of the relay's.
func (r RelayHealth) has(name nip.RelayURL) bool {
	return r.URL == name || slices.Contains(r.Also, name)
}

// Transport is what the host needs of relays; cmd joins it to package relay.
type Transport interface {
	// Inbound delivers verified events addressed to the host, in arrival order a relay.
	Inbound() <-chan Inbound
	// Authors renews the subscription to the owner and the active devices.
	Authors(keys []nip.PubKey)
	// Publish returns nil only when the relay accepted the event durably.
	Publish(ctx context.Context, relay nip.RelayURL, ev *nip.Event) error
	// Relays lists the names served, the primary first.
	Relays() []RelayHealth
	// Disconnect closes every connection of the key to the embedded relay.
	Disconnect(key nip.PubKey)
}

// SealedTransport is a Transport that takes what the host sealed itself, so that
// a relay in this process need not verify it again. One without it works too.
type SealedTransport interface {
	Transport
	// PublishSealed is Publish.
	PublishSealed(ctx context.Context, relay nip.RelayURL, v nip.Verified) error
}

// Options of OpenCore.
type Options struct {
	Now func() time.Time // nil is time.Now
	// Elapsed is a clock that nobody sets, since any moment, so that leases end
	// where Now steps back; nil goes by Now alone.
	Elapsed func() time.Duration
	Log     zerolog.Logger
	Version string
	// Launch starts a turn's owner; nil is owner.Launch. Tests replace it.
	Launch func(s *owner.Store, id owner.TaskID, grant owner.Digest) (*owner.Launched, error)
	// Probe says what confinement this machine can enforce, and what not; nil
	// says nothing. cmd joins it to package sandbox.
	Probe func() (mechanism string, gaps []string)
	// Check verifies what others keep in this home, read-only, for the verb
	// check: the embedded relay's store. nil is nothing. cmd joins it to package
	// relay.
	Check func(report func(path string, ok bool, detail string))
	// LockWait bounds the wait for host.lock; 0 is 5 s.
	LockWait time.Duration
}

// Core is one opened home under its lock.
type Core struct {
	home    string
	opts    Options
	key     nip.SecretKey
	ring    *nip.Keyring // of key, for the devices
	passing *nip.Keyring // of key, for everybody else
	self    nip.PubKey
	owner   nip.PubKey
	db      *commit.DB
	store   *owner.Store
	journal commands.Journal
	eval    *commands.Evaluator
	lock    *homeLock
	log     zerolog.Logger

	grants grantCache

	// effects is held shared by whoever carries an effect of a device to the
	// task store, from the last check of its standing on; held alone it says
	// that no such effect is under way.
	effects sync.RWMutex

	// serving is set once, before any loop starts, when a Host was made of this Core.
	serving *Host
}

// now is the wall clock in Unix seconds.
func (c *Core) now() int64 { return c.opts.Now().Unix() }

// keeper is the host's key as it serves peer. The keys shared with devices are
// remembered; strangers, of whom there may be any number, would only drive those
// out.
func (c *Core) keeper(peer nip.PubKey) *nip.Keyring {
	if h := c.serving; h != nil && h.isMember(string(peer)) {
		return c.ring
	}
	return c.passing
}

// sealFor seals what goes to a device.
func (c *Core) sealFor(device nip.PubKey, box nip.Mailbox, a nip.Artifact) (*nip.Event, error) {
	v, err := c.ring.Seal(device, box, a)
	return v.Event(), err
}

// Self is the host's public key.
func (c *Core) Self() nip.PubKey { return c.self }

// Owner is the owner's public key.
func (c *Core) Owner() nip.PubKey { return c.owner }

// RelayKey is the host's key for authenticating to relays; it signs nothing
// else there.
func (c *Core) RelayKey() nip.SecretKey { return c.key }
