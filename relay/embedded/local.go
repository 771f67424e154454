package embedded

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/nip"
	"holdfast/relay"
)

// retryRefused is how often a local subscription looks whether its key is
// welcome again, or the store readable.
const retryRefused = 10 * time.Second

// local is a relay.Link inside the process: the same rules, no websocket. What
// a publisher hands in is verified once, here, and reaches local subscriptions
// as that nip.Verified; only what comes from the file is verified again.
type local struct {
	r        *Relay
	key      nip.PubKey
	ctx      context.Context
	cancel   context.CancelFunc
	all      sync.WaitGroup
	since    time.Time
	received atomic.Uint64
	dropped  atomic.Uint64

	mu     sync.Mutex // guards what follows
	subs   map[string]*localSub
	closed bool
	words  string // the last trouble
}

// localSub is one subscription and the goroutine that feeds it.
type localSub struct {
	l       *local
	filters func(now time.Time) []nip.Filter
	feed    relay.Feed
	again   chan struct{} // one place: send the REQ again
	wake    chan struct{} // one place: something is in line

	mu    sync.Mutex // guards what follows; taken under the registry's lock
	line  []*live
	bytes int
	lost  bool // the line overflowed or the key was disconnected: begin anew
}

// Local returns a link for key, authenticated by being in this process. It
// closes with the relay.
func (r *Relay) Local(key nip.PubKey) relay.Link {
	ctx, cancel := context.WithCancel(r.ctx)
	return &local{r: r, key: key, ctx: ctx, cancel: cancel, since: r.o.Now(), subs: map[string]*localSub{}}
}

func (l *local) URL() nip.RelayURL { return l.r.o.Name }

func (l *local) Health() relay.Health {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := relay.Health{
		URL: l.r.o.Name, State: relay.StateOpen, Authenticated: true, Since: l.since, LastError: l.words,
		Received: l.received.Load(), Dropped: l.dropped.Load(),
	}
	if l.closed || l.ctx.Err() != nil {
		h.State, h.Authenticated = relay.StateClosed, false
	}
	return h
}

// Close ends the link's subscriptions and waits for them.
func (l *local) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.all.Wait()
	return nil
}

// Publish returns nil after the commit; see relay.Link.
func (l *local) Publish(ctx context.Context, ev *nip.Event) error {
	if l.ctx.Err() != nil {
		return relay.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	rec, v, err := l.r.accept(l.key, "", l.r.o.Name, ev)
	if err != nil {
		return relay.NewRefused(l.r.o.Name, err.Error())
	}
	return l.put(ctx, rec, v)
}

// PublishVerified is Publish of an event that this process has verified, or
// sealed itself: it passes the same rules and is not verified again.
func (l *local) PublishVerified(ctx context.Context, v nip.Verified) error {
	if l.ctx.Err() != nil {
		return relay.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if v.Event() == nil {
		return relay.NewRefused(l.r.o.Name, notVerified.Error())
	}
	err := l.r.allow(l.key, "", v.Event())
	var rec *record
	if err == nil {
		rec, err = l.r.file(l.key, l.r.o.Name, v)
	}
	if err != nil {
		return relay.NewRefused(l.r.o.Name, err.Error())
	}
	return l.put(ctx, rec, v)
}

// put waits for the commit of a record.
func (l *local) put(ctx context.Context, rec *record, v nip.Verified) error {
	if len(rec.json)+len(`["EVENT",]`) > maxFrame {
		return relay.ErrTooLarge
	}
	done := make(chan error, 1)
	if !l.r.submit(ctx, &job{rec: rec, v: v, done: func(err error) { done <- err }}) {
		return l.ended(ctx)
	}
	select {
	case err := <-done:
		if err == nil {
			return nil
		}
		if err == errClosing {
			return relay.ErrUnconfirmed
		}
		return relay.NewRefused(l.r.o.Name, err.Error())
	case <-ctx.Done():
		return ctx.Err()
	case <-l.r.ctx.Done():
		return relay.ErrUnconfirmed
	}
}

func (l *local) ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return relay.ErrClosed
}

// Subscribe registers filters under id; see relay.Link.
func (l *local) Subscribe(id string, filters func(now time.Time) []nip.Filter) *relay.Subscription {
	s := &localSub{l: l, filters: filters, again: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	sub, feed := relay.NewSubscription(func() { nudge(s.again) }, func() { l.forget(id, s) })
	s.feed = feed
	l.mu.Lock()
	old := l.subs[id]
	l.all.Add(1)
	started := !l.closed && l.r.enter(func() { defer l.all.Done(); s.run() })
	if started {
		l.subs[id] = s
	} else {
		l.all.Done()
	}
	l.mu.Unlock()
	if !started {
		feed.End()
		return sub
	}
	if old != nil {
		old.feed.End()
	}
	return sub
}

func (l *local) forget(id string, s *localSub) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subs[id] == s {
		delete(l.subs, id)
	}
}

func (l *local) trouble(words string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.words = words
}

// run asks, replays, and goes live, again and again: at Renew, and when the
// line overflowed, exactly as a dropped connection would.
func (s *localSub) run() {
	defer s.feed.End()
	for s.l.ctx.Err() == nil {
		pause, ended := s.session()
		if ended {
			return
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-s.again:
		case <-s.feed.Done():
		case <-s.l.ctx.Done():
		}
		t.Stop()
	}
}

// session is one REQ and what follows it. It returns how long to wait before
// the next one.
func (s *localSub) session() (pause time.Duration, ended bool) {
	l, r := s.l, s.l.r
	if c := r.o.Class(l.key); c != Member && c != Stranger {
		l.trouble(string(revokedKey))
		return retryRefused, false
	}
	s.mu.Lock()
	s.line, s.bytes, s.lost = nil, 0, false
	s.mu.Unlock()
	now := r.o.Now()
	filters := s.filters(now)
	for i := range filters {
		if filters[i].Limit == 0 && !filters[i].LimitZero {
			filters[i].Limit = defaultLimit
		}
	}
	reg := &listener{key: l.key, filters: filters, take: s.take, drop: s.lose}
	r.reg.add(reg)
	defer r.reg.remove(reg)

	hits, err := r.store.find(l.key, filters, now)
	if err != nil {
		l.trouble("the relay's store cannot be read")
		return retryRefused, false
	}
	for _, h := range hits {
		rec, err := r.stored(l.key, h.id)
		if err != nil || rec == nil || !r.reg.sending(reg, h.id) {
			continue
		}
		if !s.deliverStored(rec) {
			return 0, true
		}
	}
	s.feed.EndOfStored()
	for late := r.reg.settle(reg); late != nil; late = r.reg.settle(reg) {
		for _, e := range late {
			if !s.deliver(e) {
				return 0, true
			}
		}
	}
	return s.follow()
}

// follow delivers live events until the subscription ends or must begin anew.
func (s *localSub) follow() (pause time.Duration, ended bool) {
	for {
		s.mu.Lock()
		line, lost := s.line, s.lost
		s.line, s.bytes = nil, 0
		s.mu.Unlock()
		for _, e := range line {
			if !s.deliver(e) {
				return 0, true
			}
		}
		if lost {
			return 0, false
		}
		select {
		case <-s.wake:
		case <-s.again:
			return 0, false
		case <-s.feed.Done():
			return 0, true
		case <-s.l.ctx.Done():
			return 0, true
		}
	}
}

// take puts a live event in line; called under the registry's lock.
func (s *localSub) take(e *live) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost {
		return
	}
	if len(s.line) == maxPending || s.bytes+len(e.json) > maxWaiting {
		s.lost = true
		s.l.dropped.Add(1)
	} else {
		s.line = append(s.line, e)
		s.bytes += len(e.json)
	}
	nudge(s.wake)
}

// lose makes the subscription begin anew; called under the registry's lock.
func (s *localSub) lose(string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = true
	nudge(s.wake)
}

func (s *localSub) deliver(e *live) bool {
	if ended(e.ends, s.l.r.o.Now()) {
		return true // it expired in the line
	}
	s.l.received.Add(1)
	return s.feed.Deliver(s.l.ctx.Done(), relay.Delivery{Relay: e.via, Event: e.v})
}

// deliverStored verifies what comes from the file: bytes on disk are believed
// no more than bytes from a socket.
func (s *localSub) deliverStored(rec *record) bool {
	ev, err := nip.ParseEvent(rec.json)
	if err == nil {
		var v nip.Verified
		if v, err = nip.VerifyEvent(ev); err == nil {
			s.l.received.Add(1)
			return s.feed.Deliver(s.l.ctx.Done(), relay.Delivery{Relay: rec.via, Event: v, Stored: true})
		}
	}
	s.l.dropped.Add(1)
	s.l.trouble("the relay's store holds an event that does not verify")
	return true
}
