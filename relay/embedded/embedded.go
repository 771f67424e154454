package embedded

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"holdfast/nip"
)

// Class says how much room a key has (decided by the caller).
type Class uint8

const (
	Stranger Class = iota // may only publish to a served host and read its own exchanges
	Member                // host, owner, active device
	Revoked               // nothing; its connections are closed
)

// String is the class's word in a log.
func (c Class) String() string {
	switch c {
	case Stranger:
		return "stranger"
	case Member:
		return "member"
	case Revoked:
		return "revoked"
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// Options of a relay. Class and Served are called from any goroutine and must
// not block for long.
type Options struct {
	Path string       // bbolt file; ErrLocked, ErrNewer, ErrCorrupt from Open
	Name nip.RelayURL // the name clients authenticate with
	// Also are further names of the same relay: its loopback address beside
	// the wss name of a TLS proxy. A delivery carries the one that the
	// publisher authenticated with.
	Also  []nip.RelayURL
	Class func(nip.PubKey) Class // nil: everyone is Member (relay serve alone)
	// Served are the hosts. Everybody else writes to them only, so that no device
	// fills the room of another. nil: members write to whom they like (relay serve
	// alone), strangers to nobody.
	Served func(nip.PubKey) bool
	// AllowPlain lets Serve take a listener that other machines reach, without
	// TLS. Whoever is on the path then sees who talks to whom, when and how
	// much, may drop what it likes, and may log in as a client by passing its
	// challenge on; the artifacts themselves stay sealed.
	AllowPlain bool
	Now        func() time.Time
	Log        zerolog.Logger
}

// Relay is an open relay.
type Relay struct {
	o      Options
	store  *store
	reg    *registry
	rates  *rates
	paces  *paces
	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup // committer, connections, local subscriptions

	mu      sync.Mutex // guards closed and servers
	closed  bool
	servers map[*http.Server]struct{}
}

// Open opens or creates the store at o.Path, mode 0600, and starts its
// committer. Nobody is let in before Serve or Handler.
func Open(o Options) (*Relay, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Class == nil {
		o.Class = func(nip.PubKey) Class { return Member }
	}
	for _, name := range append([]nip.RelayURL{o.Name}, o.Also...) {
		if err := nip.CheckRelay(name, true); err != nil {
			return nil, fmt.Errorf("relay name: %w", err)
		}
	}
	st, err := openStore(o.Path, o.Now())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Relay{
		o: o, store: st, reg: newRegistry(o.Now), rates: newRates(), paces: newPaces(),
		ctx: ctx, cancel: cancel, servers: map[*http.Server]struct{}{},
	}
	c := &committer{store: st, now: o.Now, fanout: r.reg.fanout, log: o.Log}
	r.all.Go(func() { c.run(ctx) })
	return r, nil
}

// Disconnect closes every connection of key at once. What it may do afterwards
// is for Class to say.
func (r *Relay) Disconnect(key nip.PubKey) { r.reg.disconnect(key) }

// Failed is closed when a commit failed. From then on nothing is taken: whoever
// runs the relay ends it, and opening it again says what is on disk.
func (r *Relay) Failed() <-chan struct{} { return r.store.failed }

// Failure says why, once Failed is closed: ErrFailed with its cause.
func (r *Relay) Failure() error {
	select {
	case <-r.store.failed:
		return fmt.Errorf("%w: %w", ErrFailed, r.store.cause)
	default:
		return nil
	}
}

// Close ends servers, connections and local links, and closes the store. What
// was answered OK true is on disk.
func (r *Relay) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	servers := r.servers
	r.servers = nil
	r.mu.Unlock()
	r.cancel()
	for s := range servers {
		s.Close()
	}
	r.reg.close()
	r.all.Wait()
	return r.store.db.Close()
}

// enter counts a goroutine of the relay in; false after Close.
func (r *Relay) enter(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.all.Go(f)
	return true
}
