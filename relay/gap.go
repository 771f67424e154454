package relay

import "time"

// wall is the time that goes on while the computer sleeps; Go's own difference
// of two times would not count that.
func wall() time.Time { return time.Now().Round(0) }

// heardNow notes a sign of life of the relay on this connection.
func (s *session) heardNow() { s.heard.Store(wall().UnixNano()) }

func (s *session) lastHeard() time.Time { return time.Unix(0, s.heard.Load()) }

// opened notes that the relay answers a's REQ, and returns the gap that
// ended by it, where one did that is worth reporting. While another connection
// has the same subscription open there is none, unless that one was not heard
// for longer than a ping takes: it may be dead and not know, as after the sleep
// of a computer. Called with client.mu held.
func (c *client) opened(s *session, a *ask) (g Gap, report bool) {
	if a.open {
		return g, false
	}
	a.open = true
	now, from := wall(), a.r.deaf
	if from.IsZero() {
		for _, o := range c.open {
			if other := o.asks[a.r.id]; o != s && other != nil && other.open && o.lastHeard().After(from) {
				from = o.lastHeard()
			}
		}
	}
	if from.IsZero() || a.r.deaf.IsZero() && now.Sub(from) <= pingEvery+pingTimeout {
		return g, false
	}
	a.r.deaf = time.Time{}
	c.health.Gap = max(c.health.Gap, now.Sub(from))
	return Gap{Subscription: a.r.id, From: from, To: now}, now.Sub(from) > GapReported
}

// deafened notes that a's question is answered no more, since at. Called with
// client.mu held.
func (c *client) deafened(a *ask, at time.Time) {
	if !a.open {
		return
	}
	a.open = false
	for _, o := range c.open {
		if other := o.asks[a.r.id]; other != nil && other.r == a.r && other.open {
			return
		}
	}
	a.r.deaf = at
}

// answered notes that the relay sends what a's REQ asked for, be it an event or
// EOSE, and tells the link's owner of the gap that may have ended by it.
func (s *session) answered(a *ask) {
	s.c.mu.Lock()
	g, report := s.c.opened(s, a)
	s.c.mu.Unlock()
	if !report {
		return
	}
	s.c.o.Log.Info().Str("relay", string(s.c.o.URL)).Str("subscription", g.Subscription).Dur("gap", g.To.Sub(g.From)).Msg("relay subscription open again after a gap")
	if s.c.o.OnGap != nil {
		s.c.o.OnGap(g)
	}
}
