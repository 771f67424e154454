package relay

import (
	"time"

	"github.com/rs/zerolog"

	"holdfast/nip"
)

// Subscription is one live subscription of a Link.
type Subscription struct{}

// C delivers in arrival order and is closed by Close or when the link closes.
// It is bounded: while nobody reads, the link's reader waits.
func (s *Subscription) C() <-chan Delivery { panic("stub") }

// EOSE is closed at the first end of stored events.
func (s *Subscription) EOSE() <-chan struct{} { panic("stub") }

// Renew sends the REQ again with fresh filters.
func (s *Subscription) Renew() { panic("stub") }

// Close ends the subscription.
func (s *Subscription) Close() { panic("stub") }

// Options of a websocket client.
type Options struct {
	URL nip.RelayURL
	Key nip.SecretKey // authenticates by NIP-42
	Log zerolog.Logger
	// Admit is the cheap check before the signature (author known, tags): nil admits all. It must not block.
	Admit       func(ev *nip.Event) bool
	Now         func() time.Time
	DialContext any // func(ctx, network, addr) (net.Conn, error); nil is the real network. For tests over net.Pipe.
}

// Dial returns at once and connects in the background.
func Dial(o Options) Link { panic("stub") }
