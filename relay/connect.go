package relay

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"holdfast/nip"
)

const (
	dialTimeout   = 15 * time.Second
	writeTimeout  = 10 * time.Second
	challengeWait = 2 * time.Second // then the relay is used unauthenticated
	answerTimeout = 10 * time.Second
	pingEvery     = 25 * time.Second
	pingTimeout   = 15 * time.Second
)

// Options of a websocket client.
type Options struct {
	URL nip.RelayURL
	Key nip.SecretKey // authenticates by NIP-42
	// Keeper authenticates instead of Key when the secret is held elsewhere. It
	// is asked at each connection, and has 60 s.
	Keeper nip.Keeper
	Log    zerolog.Logger
	// Life is how long one connection lives; 0 is 120 s. The next one is opened
	// and subscribed 20 s before its end (a third of shorter lives), and both
	// are read meanwhile.
	Life time.Duration
	// OnGap is called when a subscription is open again after a gap longer
	// than GapReported, on the link's reader: it must not block.
	OnGap func(Gap)
	// Admit is the cheap check before the signature (author known, tags): nil admits all. It must not block.
	Admit func(ev *nip.Event) bool
	// Known tells the authors that are expected from strangers, before the
	// signature: of strangers at most 20 events a second are verified (2 of
	// one), and one for which a subscription has no room is dropped instead of
	// waited for. Nil: nobody is a stranger and nothing is limited. It must not
	// block.
	Known func(nip.PubKey) bool
	Now   func() time.Time
	// TLS is for a relay with a certificate of a private authority; nil trusts
	// the system's.
	TLS *tls.Config
	// DialContext makes the connection under TLS and HTTP; nil is the real
	// network. For tests over net.Pipe.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
}

// client is the Link over a websocket.
type client struct {
	o         Options
	self      nip.PubKey
	ctx       context.Context
	cancel    context.CancelFunc
	done      chan struct{} // closed when run returned
	transport *http.Transport
	received  atomic.Uint64
	dropped   atomic.Uint64
	limit     atomic.Int64 // bytes of a message that the relay's document allows; 0: it says nothing
	limiter   limiter

	mu     sync.Mutex // guards everything below, and the marked members of session, request and ask
	subs   map[string]*request
	open   []*session    // oldest first; more than one while they overlap
	change chan struct{} // closed and replaced whenever open changes
	closed bool
	health Health
}

// Dial returns at once and connects in the background. A URL that the relay
// policy refuses (wss, or ws to a literal loopback address) makes a link that
// is closed from the start and says why in Health.
func Dial(o Options) Link {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Life <= 0 {
		o.Life = defaultLife
	}
	transport := &http.Transport{
		DialContext:           o.DialContext,
		TLSClientConfig:       o.TLS,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: dialTimeout,
		DisableKeepAlives:     true,
	}
	if o.DialContext == nil {
		transport.Proxy = http.ProxyFromEnvironment
		transport.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &client{
		o: o, self: o.keeper().Public(), ctx: ctx, cancel: cancel, done: make(chan struct{}), transport: transport,
		subs: map[string]*request{}, change: make(chan struct{}),
		health: Health{URL: o.URL, State: StateConnecting, Since: o.Now()},
	}
	if err := nip.CheckRelay(o.URL, true); err != nil {
		c.health.State, c.health.LastError = StateClosed, "the relay's address is not allowed: "+err.Error()
		c.closed = true
		cancel()
		close(c.done)
		return c
	}
	go c.run()
	return c
}

func (c *client) URL() nip.RelayURL { return c.o.URL }

func (c *client) Health() Health {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.health
	for _, r := range c.subs {
		if !r.deaf.IsZero() {
			h.Gap = max(h.Gap, wall().Sub(r.deaf))
		}
	}
	h.Received, h.Dropped = c.received.Load(), c.dropped.Load()
	return h
}

// Close ends every subscription and waits until nothing of the link runs.
func (c *client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	<-c.done
	c.mu.Lock()
	subs := c.subs
	c.subs = map[string]*request{}
	c.setState(StateClosed, false)
	c.mu.Unlock()
	for _, r := range subs {
		r.feed.End()
	}
	c.transport.CloseIdleConnections()
	return nil
}

// connect lives one session from dial to drop. Its error is never nil. due is
// closed when the session is open and the next one should be.
func (c *client) connect(due chan struct{}) error {
	dial, stop := context.WithTimeout(c.ctx, dialTimeout)
	defer stop()
	conn, resp, err := websocket.Dial(dial, string(c.o.URL), &websocket.DialOptions{
		HTTPClient: &http.Client{
			Transport: c.transport,
			// A redirect would move the key's signature to another name.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return fmt.Errorf("relay answered the dial with HTTP status %d", resp.StatusCode)
		}
		return fmt.Errorf("relay not reached: %w", err)
	}
	conn.SetReadLimit(maxFrame)
	s := newSession(c, conn)
	return s.live(due)
}

// setState is called with mu held.
func (c *client) setState(state string, authenticated bool) {
	if c.health.State != state {
		c.health.Since = c.o.Now()
	}
	c.health.State, c.health.Authenticated = state, authenticated
}

// trouble puts words into Health; the link goes on.
func (c *client) trouble(words string) {
	c.mu.Lock()
	c.health.LastError = printable(words)
	c.mu.Unlock()
}

// announce tells who waits that the open sessions changed, and derives the
// state from them; other is the state while there is none. Called with mu held.
func (c *client) announce(other string) {
	c.settle(other)
	close(c.change)
	c.change = make(chan struct{})
}

// settle derives the state; called with mu held.
func (c *client) settle(other string) {
	if n := len(c.open); n > 0 {
		c.setState(StateOpen, c.open[n-1].authenticated)
		return
	}
	c.setState(other, false)
}
