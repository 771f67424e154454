package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"holdfast/nip"
)

// maxFaults is how many malformed frames and unbelievable events one session
// may bring before it is dropped: that many are no accident.
const maxFaults = 256

// session is one connection. Its manager, the goroutine in live, alone sends
// REQ, CLOSE and AUTH; EVENT comes from the publishers.
type session struct {
	c          *client
	conn       *websocket.Conn
	ctx        context.Context
	cancel     context.CancelCauseFunc
	out        chan outgoing
	challenges chan string   // one place, the newest challenge wins
	kick       chan struct{} // one place: something for the manager to look at
	waiting    atomic.Bool   // the reader waits for a consumer, not for the relay
	frames     atomic.Uint64 // read so far
	heard      atomic.Int64  // wall clock of the last sign of life, Unix nanoseconds
	faults     int           // of the reader

	// The manager's own.
	challenge string // the last one seen; "" before any
	signed    int    // how often challenge was answered

	// Guarded by client.mu.
	authenticated bool
	wantAuth      bool                          // somebody was told auth-required
	round         chan struct{}                 // closed and replaced after each attempt to authenticate
	waiters       map[nip.EventID][]chan answer // each with room for one
	sent          map[nip.EventID]int           // bytes of EVENT frames without an answer
	asks          map[string]*ask               // the subscriptions here, by ID; empty until the session is open
	unsub         []string                      // subscriptions to CLOSE
}

// outgoing is one frame for the writer.
type outgoing struct{ frame []byte }

// answer is a relay's OK.
type answer struct {
	ok      bool
	message string
	err     error // set instead: there will be no OK
}

func newSession(c *client, conn *websocket.Conn) *session {
	ctx, cancel := context.WithCancelCause(c.ctx)
	s := &session{
		c: c, conn: conn, ctx: ctx, cancel: cancel,
		out: make(chan outgoing, 32), challenges: make(chan string, 1), kick: make(chan struct{}, 1),
		round: make(chan struct{}), waiters: map[nip.EventID][]chan answer{}, sent: map[nip.EventID]int{},
		asks: map[string]*ask{},
	}
	s.heardNow()
	return s
}

// live runs the session until it ends and says why. When it returns, its
// goroutines are gone and every waiter has its answer.
func (s *session) live(due chan struct{}) error {
	c := s.c
	stop := s.retireLater(due)
	defer stop()
	var all sync.WaitGroup
	all.Go(func() { s.cancel(s.receive()) })
	all.Go(func() { s.cancel(s.write()) })
	all.Go(func() { s.cancel(s.ping()) })
	all.Go(func() { c.readDocument(s.ctx) })
	s.cancel(s.manage())
	s.conn.CloseNow()
	all.Wait()
	err := context.Cause(s.ctx)

	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.open, s); i >= 0 {
		c.open = slices.Delete(c.open, i, i+1)
		c.announce(StateConnecting)
	}
	for _, a := range s.asks {
		c.deafened(a, s.lastHeard())
	}
	s.abandon(err)
	return err
}

// abandon answers every waiter that no OK will come; called with mu held. Who
// waits on a session that retired publishes on its successor. A relay that closes with "message too big" means one frame: the largest
// without an answer. Sent again it would end every later session as well.
func (s *session) abandon(err error) {
	var largest nip.EventID
	var closing websocket.CloseError
	if errors.As(err, &closing) && closing.Code == websocket.StatusMessageTooBig {
		for id, n := range s.sent {
			if largest == "" || n > s.sent[largest] {
				largest = id
			}
		}
	}
	for id, list := range s.waiters {
		a := answer{err: ErrUnconfirmed}
		if err == errRetired {
			a.err = errRetired
		}
		if id == largest {
			a.err = ErrTooLarge
		}
		for _, w := range list {
			w <- a
		}
	}
	s.waiters = nil
	close(s.round)
}

// manage takes the session from the challenge to its end.
func (s *session) manage() error {
	c := s.c
	c.mu.Lock()
	c.settle(StateAuthenticating)
	c.mu.Unlock()

	t := time.NewTimer(challengeWait)
	defer t.Stop()
	select {
	case ch := <-s.challenges:
		if err := s.authenticate(ch); err != nil {
			return err
		}
	case <-t.C:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	s.open()
	for {
		next, err := s.reconcile()
		if err != nil {
			return err
		}
		t.Reset(next)
		select {
		case ch := <-s.challenges:
			if err := s.challenged(ch); err != nil {
				return err
			}
		case <-s.kick:
			if err := s.authenticateAgain(); err != nil {
				return err
			}
		case <-t.C:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
}

// open lets publishers in and makes every subscription due.
func (s *session) open() {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.authenticated {
		c.health.LastError = ""
	} else {
		c.health.LastError = "relay sent no challenge; used without authentication"
	}
	for _, r := range c.subs {
		s.asks[r.id] = newAsk(r)
	}
	c.open = append(c.open, s)
	c.announce(StateOpen)
}

// ping notices a half-open socket. While the reader waits for a consumer it
// cannot see a pong, so silence proves nothing then; the write deadline still
// holds.
func (s *session) ping() error {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
		if s.waiting.Load() {
			continue
		}
		before := s.frames.Load()
		ctx, stop := context.WithTimeout(s.ctx, pingTimeout)
		err := s.conn.Ping(ctx)
		stop()
		if err == nil {
			s.heardNow()
		}
		if err != nil && !s.waiting.Load() && s.frames.Load() == before {
			return fmt.Errorf("relay did not answer a ping: %w", err)
		}
	}
}

// poke makes the manager look; it never blocks.
func (s *session) poke() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}
