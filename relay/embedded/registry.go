package embedded

import (
	"sync"
	"time"

	"holdfast/nip"
)

const (
	// dupWindow is how long a listener that was sent an ID is not sent it
	// again. After it a duplicate goes through: a client that repeats its
	// request means the host to see it again.
	dupWindow  = 5 * time.Second
	maxRecent  = 2048 // IDs of one half of the window
	maxPending = 1024 // live events that wait for the end of a replay
	maxWaiting = 8 << 20
)

// live is one event for listeners.
type live struct {
	id   [32]byte
	v    nip.Verified
	via  nip.RelayURL
	json []byte
	ends uint64 // an expiration may come while the event waits for its turn
}

// listener is one subscription. Everything but key and take is guarded by the
// registry's lock.
type listener struct {
	key     nip.PubKey // who authenticated: author or recipient of all it is shown
	filters []nip.Filter
	// take hands a live event on while no replay runs. It must not block and
	// must not call the registry.
	take func(e *live)
	// drop is called once when the listener cannot keep up or must go.
	drop func(why string)

	replaying bool
	pending   []*live
	waiting   int                   // bytes of pending
	snapshot  map[[32]byte]struct{} // sent by the running replay
	recent    [2]map[[32]byte]struct{}
	turned    time.Time // when recent[0] was begun
	dropped   bool
}

// registry is who listens, by key: showing an event to its author and its
// recipient is two look-ups, and nobody else is ever asked.
type registry struct {
	now   func() time.Time
	mu    sync.Mutex // guards everything here and in listeners
	keys  map[nip.PubKey]map[*listener]struct{}
	conns map[*conn]struct{}
}

func newRegistry(now func() time.Time) *registry {
	return &registry{now: now, keys: map[nip.PubKey]map[*listener]struct{}{}, conns: map[*conn]struct{}{}}
}

// add registers l, replaying: live events wait until settle.
func (g *registry) add(l *listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.replaying, l.snapshot = true, map[[32]byte]struct{}{}
	set := g.keys[l.key]
	if set == nil {
		set = map[*listener]struct{}{}
		g.keys[l.key] = set
	}
	set[l] = struct{}{}
}

func (g *registry) remove(l *listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	set := g.keys[l.key]
	delete(set, l)
	if len(set) == 0 {
		delete(g.keys, l.key)
	}
	l.pending, l.waiting, l.snapshot = nil, 0, nil
}

// sending notes that the replay sends id; false when it did already.
func (g *registry) sending(l *listener, id [32]byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, done := l.snapshot[id]; done || l.snapshot == nil {
		return false
	}
	l.snapshot[id] = struct{}{}
	l.note(id, g.now())
	return true
}

// settle returns what came in during the replay and was not part of it. When
// it returns nothing, the listener is live from that moment on.
func (g *registry) settle(l *listener) []*live {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []*live
	for _, e := range l.pending {
		if _, done := l.snapshot[e.id]; !done && !ended(e.ends, g.now()) {
			out = append(out, e)
		}
	}
	l.pending, l.waiting = nil, 0
	if len(out) == 0 {
		l.replaying, l.snapshot = false, nil
	}
	return out
}

// fanout shows a committed event, new or duplicate, to whoever listens for its
// author or its recipient.
func (g *registry) fanout(rec *record, v nip.Verified) {
	ev := v.Event()
	e := &live{id: rec.id, v: v, via: rec.via, json: rec.json, ends: rec.expires}
	recipient := nip.PubKey(recipientOf(ev))
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.show(nip.PubKey(ev.PubKey), ev, e, now)
	if recipient != nip.PubKey(ev.PubKey) {
		g.show(recipient, ev, e, now)
	}
}

func (g *registry) show(key nip.PubKey, ev *nip.Event, e *live, now time.Time) {
	for l := range g.keys[key] {
		if l.dropped || !matchesAny(l.filters, ev) || !l.note(e.id, now) {
			continue
		}
		if !l.replaying {
			l.take(e)
			continue
		}
		if len(l.pending) == maxPending || l.waiting+len(e.json) > maxWaiting {
			l.dropped = true
			l.pending = nil
			l.drop("too slow: more live events than a replay may hold back")
			continue
		}
		l.pending = append(l.pending, e)
		l.waiting += len(e.json)
	}
}

// note remembers that id is sent now; false when it was, within the window.
// Two sets, turned every window, forget without a walk.
func (l *listener) note(id [32]byte, now time.Time) bool {
	if now.Sub(l.turned) > dupWindow || len(l.recent[0]) >= maxRecent {
		if now.Sub(l.turned) > 2*dupWindow {
			l.recent[0] = nil
		}
		l.recent[1], l.recent[0], l.turned = l.recent[0], map[[32]byte]struct{}{}, now
	}
	for _, set := range l.recent {
		if _, sent := set[id]; sent {
			return false
		}
	}
	l.recent[0][id] = struct{}{}
	return true
}

// disconnect drops every connection and in-process subscription of key.
func (g *registry) disconnect(key nip.PubKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		if c.key == key {
			c.kill("this key was revoked")
		}
	}
	for l := range g.keys[key] {
		if !l.dropped {
			l.dropped = true
			l.drop("this key was revoked")
		}
	}
}

// enter admits a connection. When all places are taken, or all that strangers
// have from one address, the longest-standing connection there that is not a
// member's gives way: strangers cannot keep the paired devices out.
func (g *registry) enter(c *conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	var oldest, neighbour *conn
	neighbours := 0
	for o := range g.conns {
		if o.key != "" && o.class == Member {
			continue
		}
		if oldest == nil || o.began.Before(oldest.began) {
			oldest = o
		}
		if o.address == c.address {
			neighbours++
			if neighbour == nil || o.began.Before(neighbour.began) {
				neighbour = o
			}
		}
	}
	switch {
	case neighbours >= maxStrangers:
		oldest = neighbour
	case len(g.conns) < maxConns:
		oldest = nil
	case oldest == nil:
		return false
	}
	if oldest != nil {
		oldest.kill("too many connections")
		delete(g.conns, oldest)
	}
	g.conns[c] = struct{}{}
	return true
}

// leave takes a connection out.
func (g *registry) leave(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

// login notes who c is. class is asked after the key is visible to disconnect:
// a revocation committed meanwhile is seen by one of the two.
func (g *registry) login(c *conn, key nip.PubKey, class func(nip.PubKey) Class) bool {
	g.mu.Lock()
	c.key = key
	g.mu.Unlock()
	k := class(key)
	g.mu.Lock()
	defer g.mu.Unlock()
	c.class = k
	return k == Member || k == Stranger
}

func (g *registry) killUnlessAuthenticated(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.key == "" {
		c.kill("not authenticated in time")
	}
}

func (g *registry) setReplaying(c *conn, on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.replay = on
}

func (g *registry) replaying(c *conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.replay
}

func (g *registry) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		c.kill("relay closed")
	}
}

func matchesAny(filters []nip.Filter, ev *nip.Event) bool {
	for i := range filters {
		if filters[i].Matches(ev) {
			return true
		}
	}
	return false
}

func recipientOf(ev *nip.Event) string {
	for _, t := range ev.Tags {
		if len(t) >= 2 && t[0] == "p" {
			return t[1]
		}
	}
	return ""
}
