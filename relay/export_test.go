package relay

// Held is how many things of a relay's making a link remembers.
type Held struct {
	Sessions, Subscriptions, Seen, Asks, Waiters, Sent, Frames, Challenges, Buckets, Words int
}

// HeldBy counts them.
func HeldBy(l Link) (h Held) {
	c := l.(*client)
	c.mu.Lock()
	defer c.mu.Unlock()
	h.Sessions, h.Subscriptions, h.Words = len(c.open), len(c.subs), len(c.health.LastError)
	for _, r := range c.subs {
		h.Seen += len(r.seen.young) + len(r.seen.old)
	}
	for _, s := range c.open {
		h.Asks += len(s.asks)
		h.Waiters += len(s.waiters)
		h.Sent += len(s.sent)
		h.Frames += len(s.out)
		h.Challenges += len(s.challenges)
	}
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	h.Buckets = len(c.limiter.strangers) + len(c.limiter.known)
	return h
}
