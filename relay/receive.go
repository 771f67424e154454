package relay

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/coder/websocket"

	"holdfast/nip"
)

// receive reads a relay's messages and hands its events to the subscriptions:
// hop 1 of the data path, event in. A relay is before it; nip/envelope.go,
// which opens the event, is the next hop. What fails here is dropped and
// counted: whoever published it sees no answer and publishes again.
func (s *session) receive() error {
	for {
		kind, b, err := s.conn.Read(s.ctx)
		if err != nil {
			return fmt.Errorf("relay connection lost: %w", err)
		}
		s.frames.Add(1)
		s.heardNow()
		if kind != websocket.MessageText || s.handle(b) != nil {
			s.c.dropped.Add(1)
			if s.faults++; s.faults > maxFaults {
				return errors.New("relay sent too much that is malformed or forged")
			}
		}
	}
}

var (
	errUnwanted = errors.New("event outside its subscription")
	errParties  = errors.New("event is neither from nor to this key")
)

// handle does one message. A panic in a parser is one malformed message more.
func (s *session) handle(b []byte) (err error) {
	defer func() {
		if recover() != nil {
			err = errFrame
		}
	}()
	f, err := parseFrame(b)
	if err != nil {
		return err
	}
	switch f.label {
	case "EVENT":
		return s.onEvent(f)
	case "OK":
		s.onOK(f)
	case "EOSE":
		s.onEOSE(f.sub)
	case "CLOSED":
		s.onClosed(f.sub, f.message)
	case "NOTICE":
		s.c.trouble("relay says: " + f.message)
	case "AUTH":
		select { // the newest challenge is the one that counts
		case <-s.challenges:
		default:
		}
		s.challenges <- f.message
	}
	return nil
}

// onEvent checks the cheap things first and the signature last, and remembers
// an ID only after that: a forged copy of an event must not suppress it.
func (s *session) onEvent(f frame) error {
	c := s.c
	a, want := s.asked(f.sub)
	if a == nil {
		return nil // in flight while we closed it: nobody's fault
	}
	if author := claimedAuthor(f.event); author != "" && c.stranger(author) && !c.limiter.room(author, time.Now()) {
		c.dropped.Add(1) // not worth taking apart
		return nil
	}
	ev, err := nip.ParseEvent(f.event)
	if err != nil {
		return err
	}
	if !concerns(ev, c.self) {
		return errParties
	}
	if !matches(want, ev) {
		return errUnwanted
	}
	s.answered(a)
	if c.o.Admit != nil && !c.o.Admit(ev) {
		c.dropped.Add(1) // the relay may not know whom we admit
		return nil
	}
	if known, _ := c.known(a, nip.EventID(ev.ID)); known {
		return nil // one more copy, or a forged one, of what was delivered: not worth a signature
	}
	stranger := c.stranger(ev.PubKey)
	if !c.worth(ev.PubKey, stranger) {
		c.dropped.Add(1)
		return nil
	}
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		return err
	}
	s.waiting.Store(!stranger)
	s.hand(a, v, stranger)
	c.mu.Lock()
	a.heard = time.Now() // the wait for a consumer was no silence of the relay
	c.mu.Unlock()
	s.waiting.Store(false)
	return nil
}

// claimedAuthor looks for the author without taking an event apart: a flood
// must cost as little as can be. "" where the writer put spaces; the quotes
// around the name cannot stand inside another string of valid JSON.
func claimedAuthor(event []byte) string {
	const member = `"pubkey":"`
	i := bytes.Index(event, []byte(member))
	if i < 0 || len(event) < i+len(member)+64 {
		return ""
	}
	return string(event[i+len(member) : i+len(member)+64])
}

// stranger reports whether an author is none that is expected.
func (c *client) stranger(author string) bool {
	return c.o.Known != nil && author != string(c.self) && !c.o.Known(nip.PubKey(author))
}

// worth takes a token for a signature.
func (c *client) worth(author string, stranger bool) bool {
	switch {
	case c.o.Known == nil:
		return true
	case stranger:
		return c.limiter.stranger(author, time.Now())
	}
	return c.limiter.member(nip.PubKey(author), time.Now())
}

// atOnce is the stop of a delivery that does not wait.
var atOnce = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// hand delivers a verified event and remembers it afterwards: one that a
// retiring connection could not hand over any more comes again by its
// successor. Of two connections that bring the same event one waits here until
// it is known what became of the other's. A stranger's event is delivered where
// there is room at once or not at all: strangers, of whom there may be any
// number, never make the reader wait.
func (s *session) hand(a *ask, v nip.Verified, stranger bool) {
	c, r, id := s.c, a.r, nip.EventID(v.Event().ID)
	stop := s.ctx.Done()
	if stranger {
		stop = atOnce
	}
	select {
	case r.turn <- struct{}{}:
	default:
		select {
		case r.turn <- struct{}{}:
		case <-stop:
			return
		}
	}
	defer func() { <-r.turn }()
	known, stored := c.known(a, id)
	if known {
		return
	}
	if !r.feed.Deliver(stop, Delivery{Relay: c.o.URL, Event: v, Stored: stored}) {
		c.dropped.Add(1)
		return
	}
	c.received.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.seen.note(id, time.Now())
}

// asked returns what stands behind a subscription ID on this session and the
// filters of its last REQ; nil where no REQ does. It notes that the relay knows
// of that REQ, whatever becomes of the message: to drop it is our doing.
func (s *session) asked(sub string) (*ask, []nip.Filter) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	a := s.asks[sub]
	if a == nil || !a.asked {
		return nil, nil
	}
	a.heard = time.Now()
	return a, a.current
}

// concerns reports whether ev is a private artifact from or to key.
func concerns(ev *nip.Event, key nip.PubKey) bool {
	if ev.Kind != nip.KindArtifact {
		return false
	}
	if ev.PubKey == string(key) {
		return true
	}
	for _, t := range ev.Tags {
		if len(t) >= 2 && t[0] == "p" && t[1] == string(key) {
			return true
		}
	}
	return false
}

func matches(filters []nip.Filter, ev *nip.Event) bool {
	for i := range filters {
		if filters[i].Matches(ev) {
			return true
		}
	}
	return false
}

// known reports whether an event is one copy more of what the subscription
// brought already, and whether it comes before EOSE. Before EOSE that is a copy
// of what was delivered since the question was put: the overlap of two
// connections, for one. After it only what came in the last seconds: a
// re-published request must reach the host again, which decides what a
// repetition means.
func (c *client) known(a *ask, id nip.EventID) (known, stored bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, seen := a.r.seen.last(id)
	if !seen {
		return false, a.stored
	}
	now := time.Now()
	answer := !at.Before(a.r.from) // to the present question
	if a.stored && now.Sub(a.at) < eoseWait {
		return answer, a.stored
	}
	return now.Sub(at) <= overlap || answer && now.Before(a.until), a.stored
}
