// Package relay moves events between this process and Nostr relays.
package relay

import (
	"context"
	"errors"
	"time"

	"holdfast/nip"
)

// Delivery is one verified event that a subscription brought.
type Delivery struct {
	Relay  nip.RelayURL // the name under which the link authenticated
	Event  nip.Verified
	Stored bool // came before EOSE
}

// Link is one authenticated path to one relay for one key. It connects in the
// background, and its subscriptions outlive every drop and CLOSED.
// All methods may be called from any goroutine.
type Link interface {
	URL() nip.RelayURL
	// Subscribe registers filters under id, replacing an earlier one of that
	// id. filters is called again with the current time at every (re-)REQ.
	Subscribe(id string, filters func(now time.Time) []nip.Filter) *Subscription
	// Publish returns nil only after the relay answered OK true (a duplicate
	// counts). *RefusedError after OK false; ErrUnconfirmed when the
	// connection dropped before an answer; ctx's error when that ran out.
	// It waits for a connection as long as ctx lasts.
	Publish(ctx context.Context, ev *nip.Event) error
	Health() Health
	Close() error
}

// Health is what status shows of a link.
type Health struct {
	URL           nip.RelayURL
	State         string // "connecting" | "authenticating" | "open" | "closed"
	Authenticated bool   // false on a relay that sent no challenge
	Since         time.Time
	LastError     string // plain words, no secret
	Received      uint64
	Dropped       uint64 // refused before or at verification
}

// RefusedError is a relay's OK false. Prefix is the NIP-01 machine word before
// the colon ("" where there is none).
type RefusedError struct {
	Relay   nip.RelayURL
	Prefix  string
	Message string // bounded to 256 bytes, printable
}

func (e *RefusedError) Error() string {
	return "relay " + string(e.Relay) + " refused the event: " + e.Message
}

var (
	// ErrUnconfirmed is returned when the connection ended before the relay's OK.
	ErrUnconfirmed = errors.New("relay connection ended before it confirmed the event")
	// ErrClosed is returned by a closed link.
	ErrClosed = errors.New("relay link closed")
	// ErrTooLarge is returned for an event over the relay's message limit.
	ErrTooLarge = errors.New("event larger than the relay accepts")
)
