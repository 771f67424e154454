package relay

import (
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
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		return err
	}
	s.waiting.Store(true)
	s.hand(a, v)
	s.waiting.Store(false)
	return nil
}

// hand delivers a verified event and remembers it afterwards: one that a
// retiring connection could not hand over any more comes again by its
// successor. Of two connections that bring the same event one waits here until
// it is known what became of the other's.
func (s *session) hand(a *ask, v nip.Verified) {
	c, r, id := s.c, a.r, nip.EventID(v.Event().ID)
	select {
	case r.turn <- struct{}{}:
	case <-s.ctx.Done():
		return
	}
	defer func() { <-r.turn }()
	known, stored := c.known(a, id)
	if known || !r.feed.Deliver(s.ctx.Done(), Delivery{Relay: c.o.URL, Event: v, Stored: stored}) {
		return
	}
	c.received.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.seen.note(id, time.Now())
}

// asked returns what stands behind a subscription ID on this session and the
// filters of its last REQ; nil where no REQ does.
func (s *session) asked(sub string) (*ask, []nip.Filter) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	a := s.asks[sub]
	if a == nil || !a.asked {
		return nil, nil
	}
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
