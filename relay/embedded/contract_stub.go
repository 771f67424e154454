// Package embedded is the small relay that runs inside the host.
package embedded

import (
	"net"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"holdfast/nip"
	"holdfast/relay"
)

// Class says how much room a key has (decided by the caller).
type Class uint8

const (
	Stranger Class = iota // may only publish to a served host and read its own exchanges
	Member                // host, owner, active device
	Revoked               // nothing; its connections are closed
)

// Options of a relay.
type Options struct {
	Path   string                 // bbolt file; ErrLocked, ErrNewer, ErrCorrupt from Open
	Name   nip.RelayURL           // the name clients authenticate with
	Class  func(nip.PubKey) Class // nil: everyone is Member (relay serve alone)
	Served func(nip.PubKey) bool  // hosts that a stranger may write to
	Now    func() time.Time
	Log    zerolog.Logger
}

type Relay struct{}

func Open(o Options) (*Relay, error)             { panic("stub") }
func (r *Relay) Handler() http.Handler           { panic("stub") }
func (r *Relay) Serve(ln net.Listener) error     { panic("stub") } // until Close; loopback listeners only
func (r *Relay) Local(key nip.PubKey) relay.Link { panic("stub") } // in process: events verified once
func (r *Relay) Disconnect(key nip.PubKey)       { panic("stub") } // closes its connections now
func (r *Relay) Close() error                    { panic("stub") }
