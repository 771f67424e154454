package relay

import (
	"context"
	"strings"
	"time"

	"holdfast/nip"
)

// Delivery is one verified event that a subscription brought.
type Delivery struct {
	// Relay is the name under which the connection that brought the event
	// authenticated. On an in-process link it is the name that the
	// publisher's own connection used.
	Relay  nip.RelayURL
	Event  nip.Verified
	Stored bool // came before EOSE
}

// Link is one authenticated path to one relay for one key. It connects in the
// background, and its subscriptions outlive every drop and CLOSED.
// All methods may be called from any goroutine.
type Link interface {
	URL() nip.RelayURL
	// Subscribe registers filters under id (1 to 64 printable ASCII
	// characters), replacing an earlier one of that id. filters is called
	// again with the current time at every (re-)REQ; it must not block.
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
	// Gap is the longest time that a subscription of this link was open on no
	// connection, the present one included.
	Gap time.Duration
}

// GapReported is the length from which Options.OnGap hears of a gap: what was
// published meanwhile may have outlived its 60 s and the relay's patience.
const GapReported = 150 * time.Second

// Gap is a time during which one subscription was open on no connection, by
// the wall clock of this machine: a computer that slept has a gap.
type Gap struct {
	Subscription string
	From, To     time.Time
}

// The values of Health.State.
const (
	StateConnecting     = "connecting"
	StateAuthenticating = "authenticating"
	StateOpen           = "open"
	StateClosed         = "closed"
)

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

// Is reports a refusal for size as ErrTooLarge. NIP-01 has no machine word for
// it, so the relay's own words decide.
func (e *RefusedError) Is(target error) bool {
	if target != ErrTooLarge {
		return false
	}
	m := strings.ToLower(e.Message)
	return strings.Contains(m, "too large") || strings.Contains(m, "too big") || strings.Contains(m, "too long")
}

// NewRefused makes the error for a relay's OK false from its message, which is
// cut to 256 bytes and stripped of what is not printable. For implementations
// of Link.
func NewRefused(u nip.RelayURL, message string) *RefusedError {
	m := printable(message)
	return &RefusedError{Relay: u, Prefix: Prefix(m), Message: m}
}
