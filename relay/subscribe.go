package relay

import (
	"time"

	"holdfast/nip"
)

const (
	idle = time.Hour // the manager's wait when nothing is due
	// overlap is how long a live copy of an event is taken for the overlap of
	// stored and live, or of two connections, and not for a re-publish. It is
	// counted from the delivery, and from EOSE for what was stored.
	overlap = 5 * time.Second
	// unanswered is how long a REQ may bring neither an event nor EOSE nor
	// CLOSED before it counts as lost and goes out again: a relay that lost it
	// answers pings all the same, and nothing else would end the silence.
	unanswered = 10 * time.Second
	// eoseWait is how long a relay may take to send what is stored. One that
	// never sends EOSE must not make re-published requests vanish for ever.
	eoseWait = 60 * time.Second
	maxSeen  = 4096 // IDs remembered of a subscription
)

// request is one subscription as the client keeps it. All but the first four
// are guarded by client.mu.
type request struct {
	id      string
	filters func(now time.Time) []nip.Filter
	feed    Feed
	turn    chan struct{} // one place: held by the session that hands an event over

	from time.Time // when the present question was put: by Subscribe, by Renew, or after a gap
	seen memory
	deaf time.Time // wall clock since when no connection has it open; zero while one has
}

// ask is one request on one session; guarded by client.mu.
type ask struct {
	r       *request
	due     time.Time // when the next REQ goes out; zero: none is due
	retry   backoff
	prefix  string    // of the last CLOSED
	refused bool      // a CLOSED came and no EOSE since
	reauth  bool      // told auth-required once: authentication comes before the retry
	asked   bool      // a REQ went out and no CLOSED came
	open    bool      // the relay answered it, and no CLOSED came since
	at      time.Time // when the REQ went out; of those that were lost, the first
	heard   time.Time // when the last REQ went out, or a later message of the relay under this ID
	lost    int       // REQs since the last EOSE that nothing answered
	stored  bool      // before EOSE of the last REQ
	until   time.Time // the overlap of stored and live ends then; zero before EOSE
	current []nip.Filter
}

// newAsk is due now.
func newAsk(r *request) *ask { return &ask{r: r, due: time.Now(), stored: true} }

// patience is how long the present REQ may stay unanswered; it doubles, so
// that a relay that never says EOSE is not asked in a circle.
func (a *ask) patience() time.Duration { return unanswered << min(a.lost, 4) }

// Subscribe registers filters under id; see Link.
func (c *client) Subscribe(id string, filters func(now time.Time) []nip.Filter) *Subscription {
	r := &request{id: id, filters: filters, turn: make(chan struct{}, 1), from: time.Now(), deaf: wall()}
	sub, feed := NewSubscription(func() { c.renew(r) }, func() { c.unsubscribe(r) })
	r.feed = feed
	c.mu.Lock()
	if c.closed || !validSubID(id) {
		if !c.closed {
			c.health.LastError = "a subscription ID must be 1 to 64 printable ASCII characters"
		}
		c.mu.Unlock()
		feed.End()
		return sub
	}
	old := c.subs[id]
	c.subs[id] = r
	for _, s := range c.open {
		s.asks[id] = newAsk(r)
		s.poke()
	}
	c.mu.Unlock()
	if old != nil {
		old.feed.End()
	}
	return sub
}

func validSubID(id string) bool {
	for i := range len(id) {
		if id[i] < 0x20 || id[i] > 0x7e {
			return false
		}
	}
	return id != "" && len(id) <= maxSubID
}

func (c *client) renew(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.subs[r.id] != r {
		return
	}
	r.from = time.Now()
	for _, s := range c.open {
		s.asks[r.id].due = r.from // what is in flight for the last REQ still counts
		s.poke()
	}
}

func (c *client) unsubscribe(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.subs[r.id] != r {
		return // replaced: the ID is another's now
	}
	delete(c.subs, r.id)
	for _, s := range c.open {
		if s.asks[r.id].asked {
			s.unsub = append(s.unsub, r.id)
			s.poke()
		}
		delete(s.asks, r.id)
	}
}

// reconcile sends what is due and says how long until something else is.
func (s *session) reconcile() (time.Duration, error) {
	frames, next := s.due()
	for _, f := range frames {
		if err := s.send(s.ctx, f); err != nil {
			return 0, err
		}
	}
	return next, nil
}

// due collects the CLOSE and REQ frames to send now.
func (s *session) due() (frames [][]byte, next time.Duration) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range s.unsub {
		if c.subs[id] == nil { // else the REQ under the same ID replaces it
			frames = append(frames, EncodeFrame("CLOSE", id))
		}
	}
	s.unsub = nil
	now := time.Now()
	next = idle
	for _, a := range s.asks {
		again := false // for want of an answer
		if a.due.IsZero() && a.asked && a.stored {
			left := a.patience() - now.Sub(a.heard)
			if left <= 0 && s.waiting.Load() {
				left = unanswered // the silence is a consumer's of ours
			}
			if left > 0 {
				next = min(next, left)
				continue
			}
			again, a.due = true, now
			a.lost++
			c.health.LastError = "relay did not answer a subscription; asked again"
		}
		if a.due.IsZero() {
			continue
		}
		if wait := a.due.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		if !c.covered(a.r) {
			a.r.from = now // what was stored meanwhile is new, and the rest may be
		}
		if !again { // else eoseWait would begin anew with every REQ
			a.at = now
		}
		a.due, a.asked, a.heard, a.stored, a.until = time.Time{}, true, now, true, time.Time{}
		next = min(next, a.patience())
		a.current = a.r.filters(c.o.Now())
		parts := []any{a.r.id}
		for _, f := range a.current {
			parts = append(parts, EncodeFilter(f))
		}
		frames = append(frames, EncodeFrame("REQ", parts...))
	}
	return frames, next
}

// covered reports whether a session has put r's question; called with mu held.
func (c *client) covered(r *request) bool {
	for _, s := range c.open {
		if a := s.asks[r.id]; a != nil && a.r == r && a.asked {
			return true
		}
	}
	return false
}

// EncodeFilter writes one NIP-01 filter.
func EncodeFilter(f nip.Filter) []byte {
	b, err := f.MarshalJSON()
	if err != nil {
		panic("relay: a filter did not encode: " + err.Error())
	}
	return b
}

// askAgain makes due what was closed for want of authentication.
func (s *session) askAgain() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for _, a := range s.asks {
		if !a.asked && a.prefix == "auth-required" {
			a.due = time.Now()
		}
	}
}

// onEOSE is the end of stored events of one subscription.
func (s *session) onEOSE(id string) {
	c := s.c
	a, _ := s.asked(id)
	if a == nil {
		return
	}
	s.answered(a)
	c.mu.Lock()
	defer c.mu.Unlock()
	a.stored, a.until, a.refused, a.lost = false, time.Now().Add(overlap), false, 0
	a.r.feed.EndOfStored()
	well := s.authenticated
	for _, other := range s.asks {
		well = well && !other.refused
	}
	if well {
		c.health.LastError = ""
	}
}

// onClosed plans how a subscription comes back: after authentication where
// that was missing, else later. It never stays closed.
func (s *session) onClosed(id, message string) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	a := s.asks[id]
	if a == nil || !a.asked {
		return
	}
	prefix := Prefix(message)
	if prefix != a.prefix || a.retry.first == 0 || time.Since(a.at) >= steadyAfter {
		a.retry = closedWait(prefix)
	}
	a.prefix, a.asked, a.stored, a.refused = prefix, false, true, true
	c.deafened(a, wall())
	a.due = time.Now().Add(a.retry.next())
	c.health.LastError = "relay closed a subscription: " + message
	if prefix == "auth-required" && !a.reauth {
		a.reauth, s.wantAuth = true, true
	}
	s.poke()
}
