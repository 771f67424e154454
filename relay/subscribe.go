package relay

import (
	"time"

	"holdfast/nip"
)

const (
	idle = time.Hour // the manager's wait when nothing is due
	// overlap is how long after EOSE a live copy of a stored event is taken
	// for the overlap of the two and not for a re-publish.
	overlap = 5 * time.Second
	maxSeen = 4096 // IDs remembered for the overlap
	// unanswered is how long a REQ may bring neither an event nor EOSE nor
	// CLOSED before it counts as lost and goes out again: a relay that lost it
	// answers pings all the same, and nothing else would end the silence.
	unanswered = 10 * time.Second
)

// request is one subscription as the client keeps it, guarded by client.mu.
// All but the first three describe the present session.
type request struct {
	id      string
	filters func(now time.Time) []nip.Filter
	feed    Feed

	due     time.Time // when the next REQ goes out; zero: none is due
	retry   backoff
	prefix  string    // of the last CLOSED
	refused bool      // a CLOSED came and no EOSE since
	reauth  bool      // told auth-required once: authentication comes before the retry
	asked   bool      // a REQ went out and no CLOSED came
	at      time.Time // when it went out
	heard   time.Time // when it went out, or its last event before EOSE came
	lost    int       // REQs since the last EOSE that nothing answered
	stored  bool      // before EOSE of the last REQ
	current []nip.Filter
	seen    map[nip.EventID]struct{}
	until   time.Time // seen is forgotten then; zero before EOSE
}

// restart makes the REQ due now, as on a new session.
func (r *request) restart() {
	r.due, r.asked, r.stored, r.reauth, r.prefix = time.Now(), false, true, false, ""
	r.seen, r.until, r.lost = nil, time.Time{}, 0
}

// patience is how long the present REQ may stay unanswered; it doubles, so
// that a relay that never says EOSE is not asked in a circle.
func (r *request) patience() time.Duration { return unanswered << min(r.lost, 4) }

// Subscribe registers filters under id; see Link.
func (c *client) Subscribe(id string, filters func(now time.Time) []nip.Filter) *Subscription {
	r := &request{id: id, filters: filters}
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
	r.restart()
	if c.sess != nil {
		c.sess.poke()
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
	r.due = time.Now() // what is in flight for the last REQ still counts
	if c.sess != nil {
		c.sess.poke()
	}
}

func (c *client) unsubscribe(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.subs[r.id] != r {
		return // replaced: the ID is another's now
	}
	delete(c.subs, r.id)
	if c.sess != nil && r.asked {
		c.sess.unsub = append(c.sess.unsub, r.id)
		c.sess.poke()
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
	for _, r := range c.subs {
		if r.due.IsZero() && r.asked && r.stored {
			left := r.patience() - now.Sub(r.heard)
			if left <= 0 && s.waiting.Load() {
				left = unanswered // the silence is a consumer's of ours
			}
			if left > 0 {
				next = min(next, left)
				continue
			}
			r.due = now
			r.lost++
			c.health.LastError = "relay did not answer a subscription; asked again"
		}
		if r.due.IsZero() {
			continue
		}
		if wait := r.due.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		r.due, r.asked, r.at, r.heard, r.stored = time.Time{}, true, now, now, true
		next = min(next, r.patience())
		r.seen, r.until = map[nip.EventID]struct{}{}, time.Time{}
		r.current = r.filters(c.o.Now())
		parts := []any{r.id}
		for _, f := range r.current {
			parts = append(parts, EncodeFilter(f))
		}
		frames = append(frames, EncodeFrame("REQ", parts...))
	}
	return frames, next
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
	for _, r := range s.c.subs {
		if !r.asked && r.prefix == "auth-required" {
			r.due = time.Now()
		}
	}
}

// onEOSE is the end of stored events of one subscription.
func (s *session) onEOSE(id string) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.subs[id]
	if r == nil || !r.asked {
		return
	}
	r.stored, r.until, r.refused, r.lost = false, time.Now().Add(overlap), false, 0
	r.feed.EndOfStored()
	for _, other := range c.subs {
		if other.refused || !s.authenticated {
			return
		}
	}
	c.health.LastError = ""
}

// onClosed plans how a subscription comes back: after authentication where
// that was missing, else later. It never stays closed.
func (s *session) onClosed(id, message string) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.subs[id]
	if r == nil || !r.asked {
		return
	}
	prefix := Prefix(message)
	if prefix != r.prefix || r.retry.first == 0 || time.Since(r.at) >= steadyAfter {
		r.retry = closedWait(prefix)
	}
	r.prefix, r.asked, r.stored, r.refused = prefix, false, true, true
	r.due = time.Now().Add(r.retry.next())
	c.health.LastError = "relay closed a subscription: " + message
	if prefix == "auth-required" && !r.reauth {
		r.reauth, s.wantAuth = true, true
	}
	s.poke()
}
