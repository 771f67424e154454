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
	r, want := c.asked(f.sub)
	if r == nil {
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
	if c.o.Admit != nil && !c.o.Admit(ev) {
		c.dropped.Add(1) // the relay may not know whom we admit
		return nil
	}
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		return err
	}
	stored, fresh := c.remember(r, nip.EventID(v.Event().ID))
	if !fresh {
		return nil
	}
	c.received.Add(1)
	s.waiting.Store(true)
	r.feed.Deliver(s.ctx.Done(), Delivery{Relay: c.o.URL, Event: v, Stored: stored})
	s.waiting.Store(false)
	return nil
}

// asked returns the request behind a subscription ID and the filters of its
// last REQ; nil where no REQ of this session stands behind it.
func (c *client) asked(sub string) (*request, []nip.Filter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.subs[sub]
	if r == nil || !r.asked {
		return nil, nil
	}
	return r, r.current
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

// remember notes a verified ID and reports whether the event comes before
// EOSE and whether it is new. Only the overlap of stored and live events is
// suppressed: a re-published request must reach the host again, which decides
// what a repetition means.
func (c *client) remember(r *request, id nip.EventID) (stored, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !r.until.IsZero() && time.Now().After(r.until) {
		r.seen = nil
	}
	if r.stored {
		r.heard = time.Now()
	}
	if _, known := r.seen[id]; known {
		return r.stored, false
	}
	if r.seen != nil && len(r.seen) < maxSeen {
		r.seen[id] = struct{}{}
	}
	return r.stored, true
}
