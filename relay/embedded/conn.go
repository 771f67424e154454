package embedded

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync"
	"time"

	"github.com/coder/websocket"

	"holdfast/nip"
	"holdfast/relay"
)

const (
	maxConns     = 64
	maxStrangers = 32 // connections of one address that are no member's
	maxSubs      = 20
	maxInFlight  = 64 // EVENTs of one connection that wait for their commit
	maxFaults    = 64 // malformed messages before the connection is dropped
	maxAuths     = 8  // failed AUTHs before that
	writeTimeout = 10 * time.Second
	authTimeout  = 30 * time.Second // a silent connection keeps nobody out
	pingEvery    = 45 * time.Second
	pingTimeout  = 20 * time.Second
	farewell     = time.Second // for the last frames of a connection that we end
)

// conn is one websocket. Its reader alone handles messages and knows the
// subscriptions; the committer and the registry only push frames.
type conn struct {
	r       *Relay
	ws      *websocket.Conn
	address string // without the port
	out     *queue
	ctx     context.Context
	cancel  context.CancelFunc
	flight  chan struct{} // one place an EVENT before its commit
	left    chan struct{} // closed by the writer after the close frame

	// Guarded by registry.mu; written by the reader.
	key    nip.PubKey // "" until authenticated
	class  Class
	began  time.Time
	replay bool // the reader sends stored events

	// The reader's own.
	via       nip.RelayURL
	challenge string // "" once used
	subs      map[string]*listener
	faults    int
	auths     int
	last      string // why no further message is read; "" while they are
}

// serve runs one connection until it ends.
func (r *Relay) serve(ws *websocket.Conn, address string) {
	ctx, cancel := context.WithCancel(r.ctx)
	c := &conn{
		r: r, ws: ws, address: address, out: newQueue(), ctx: ctx, cancel: cancel,
		flight: make(chan struct{}, maxInFlight), left: make(chan struct{}), subs: map[string]*listener{}, began: time.Now(),
	}
	ws.SetReadLimit(maxFrame)
	if !r.reg.enter(c) {
		cancel()
		ws.Close(websocket.StatusTryAgainLater, "too many connections")
		return
	}
	var all sync.WaitGroup
	all.Go(c.write)
	all.Go(c.ping)
	c.issue()
	limit := time.AfterFunc(authTimeout, func() { c.r.reg.killUnlessAuthenticated(c) })
	c.read()
	limit.Stop()
	for _, l := range c.subs {
		r.reg.remove(l)
	}
	if c.last != "" && c.out.push(nil) {
		c.leaveTaking()
	}
	r.reg.leave(c)
	cancel()
	ws.CloseNow()
	all.Wait()
}

// leaveTaking gives the writer a moment to send what is queued and a close
// frame with the reason.
func (c *conn) leaveTaking() {
	t := time.NewTimer(farewell)
	defer t.Stop()
	select {
	case <-c.left:
	case <-t.C:
	case <-c.ctx.Done():
	}
}

// kill ends the connection at once, from any goroutine. It only cancels, so it
// may be called with the registry's lock held.
func (c *conn) kill(why string) {
	c.r.o.Log.Debug().Str("why", why).Msg("relay connection dropped")
	c.cancel()
}

// read handles one message after the other.
func (c *conn) read() {
	for {
		kind, b, err := c.ws.Read(c.ctx)
		if err != nil {
			return
		}
		if kind != websocket.MessageText || c.handle(b) != nil {
			if c.faults++; c.faults > maxFaults {
				c.last = "too many malformed messages"
			}
		}
		if c.last != "" {
			return
		}
	}
}

// handle does one message. A panic in it costs that message and a notice, not
// the process.
func (c *conn) handle(b []byte) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.r.o.Log.Error().Interface("panic", p).Msg("a client's message panicked")
			c.notice("error: this message could not be handled")
			err = errMessage
		}
	}()
	if !c.pace() {
		return nil
	}
	m, err := parseMessage(b)
	if err != nil {
		c.notice("invalid: a message is not as NIP-01 says")
		return err
	}
	switch m.label {
	case "EVENT":
		return c.onEvent(m)
	case "REQ":
		return c.onReq(m)
	case "CLOSE":
		if l := c.subs[m.sub]; l != nil {
			c.r.reg.remove(l)
			delete(c.subs, m.sub)
		}
	case "AUTH":
		return c.onAuth(m)
	case "COUNT":
		c.closed(m.sub, "unsupported: this relay does not count")
	default:
		c.notice("unsupported: unknown message")
	}
	return nil
}

// write is the one goroutine that writes messages. A write that does not end in
// time drops the connection; nobody else waits for it.
func (c *conn) write() {
	for {
		frame, err := c.out.pop(c.ctx)
		if err != nil {
			return
		}
		if frame == nil { // the reader's last word
			c.ws.Close(websocket.StatusPolicyViolation, c.last)
			close(c.left)
			return
		}
		ctx, stop := context.WithTimeout(c.ctx, writeTimeout)
		err = c.ws.Write(ctx, websocket.MessageText, frame)
		stop()
		if err != nil {
			c.kill("the reader is stuck")
			return
		}
	}
}

// ping notices a client that is gone.
func (c *conn) ping() {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-c.ctx.Done():
			return
		}
		ctx, stop := context.WithTimeout(c.ctx, pingTimeout)
		err := c.ws.Ping(ctx)
		stop()
		// While the reader replays it cannot see a pong; the write deadline
		// guards that time.
		if err != nil && !c.r.reg.replaying(c) {
			c.kill("no answer to a ping")
			return
		}
	}
}

// push sends a frame that is not part of a replay.
func (c *conn) push(frame []byte) {
	if !c.out.push(frame) {
		c.kill("too slow: the queue of messages is full")
	}
}

func (c *conn) ok(id string, ok bool, message string) {
	c.push(relay.EncodeFrame("OK", id, ok, message))
}
func (c *conn) closed(sub, message string) { c.push(relay.EncodeFrame("CLOSED", sub, message)) }
func (c *conn) notice(message string)      { c.push(relay.EncodeFrame("NOTICE", message)) }

// issue sends a fresh challenge: 32 random bytes, good for one AUTH.
func (c *conn) issue() {
	var b [32]byte
	rand.Read(b[:]) // never fails: crypto/rand
	c.challenge = hex.EncodeToString(b[:])
	c.push(relay.EncodeFrame("AUTH", c.challenge))
}

// onEvent takes one EVENT. OK true leaves only after its commit; many may wait
// for theirs at once, in order.
func (c *conn) onEvent(m message) error {
	if m.event == nil {
		if m.id == "" {
			c.notice("invalid: an event is not as NIP-01 says")
		} else {
			c.ok(m.id, false, "invalid: the event is not as NIP-01 says")
		}
		return errMessage
	}
	id := m.event.ID
	rec, v, err := c.r.accept(c.key, c.address, c.via, m.event)
	if err != nil {
		c.ok(id, false, err.Error())
		if err == error(revokedKey) {
			c.last = "this key was revoked"
		}
		return nil
	}
	select {
	case c.flight <- struct{}{}:
	case <-c.ctx.Done():
		return nil
	}
	c.r.submit(c.ctx, &job{rec: rec, v: v, done: func(err error) {
		<-c.flight
		if err != nil {
			c.ok(id, false, "error: not stored, publish again later")
			return
		}
		c.ok(id, true, "")
	}})
	return nil
}

// submit hands a job to the committer; false when ctx ended first.
func (r *Relay) submit(ctx context.Context, j *job) bool {
	select {
	case r.store.jobs <- j:
		return true
	case <-ctx.Done():
		return false
	case <-r.ctx.Done():
		return false
	}
}
