package relaytest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"holdfast/nip"
	"holdfast/relay"
)

// Memory is a relay in memory.
type Memory struct {
	url    nip.RelayURL
	mu     sync.Mutex // guards everything below, and the lines of its subscriptions
	refuse func(ev *nip.Event) string
	events map[string]nip.Verified
	subs   map[*memorySub]struct{}
}

// NewMemory makes an empty relay of that name.
func NewMemory(url nip.RelayURL) *Memory {
	return &Memory{url: url, events: map[string]nip.Verified{}, subs: map[*memorySub]struct{}{}}
}

// Refuse sets a function that answers a publish with OK false and its words,
// or lets it through with "".
func (m *Memory) Refuse(f func(ev *nip.Event) string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refuse = f
}

// Events returns what is stored, newest first.
func (m *Memory) Events() []*nip.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*nip.Event
	for _, v := range m.events {
		out = append(out, v.Event())
	}
	slices.SortFunc(out, newest)
	return out
}

func newest(a, b *nip.Event) int {
	if a.CreatedAt != b.CreatedAt {
		return int(b.CreatedAt - a.CreatedAt)
	}
	if a.ID < b.ID {
		return -1
	}
	return 1
}

// Link returns a link authenticated as key.
func (m *Memory) Link(key nip.PubKey) relay.Link {
	ctx, cancel := context.WithCancel(context.Background())
	return &memoryLink{m: m, key: key, ctx: ctx, cancel: cancel, subs: map[string]*memorySub{}, since: time.Now()}
}

type memoryLink struct {
	m      *Memory
	key    nip.PubKey
	ctx    context.Context
	cancel context.CancelFunc
	since  time.Time
	all    sync.WaitGroup
	subs   map[string]*memorySub // guarded by m.mu
}

type memorySub struct {
	l       *memoryLink
	filters func(time.Time) []nip.Filter
	feed    relay.Feed
	wake    chan struct{}

	// Guarded by Memory.mu.
	current []nip.Filter
	line    []memoryItem
	sent    map[string]bool
}

type memoryItem struct {
	d    relay.Delivery
	eose bool
}

func (l *memoryLink) URL() nip.RelayURL { return l.m.url }

func (l *memoryLink) Health() relay.Health {
	h := relay.Health{URL: l.m.url, State: relay.StateOpen, Authenticated: true, Since: l.since}
	if l.ctx.Err() != nil {
		h.State, h.Authenticated = relay.StateClosed, false
	}
	return h
}

func (l *memoryLink) Close() error {
	l.cancel()
	l.m.mu.Lock()
	subs := slices.Collect(maps.Values(l.subs))
	l.m.mu.Unlock()
	for _, s := range subs {
		l.remove(s)
		s.feed.End()
	}
	l.all.Wait()
	return nil
}

func (l *memoryLink) Publish(ctx context.Context, ev *nip.Event) error {
	if l.ctx.Err() != nil {
		return relay.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if ev.Kind != nip.KindArtifact {
		return relay.NewRefused(l.m.url, "blocked: this relay keeps kind 3188 only")
	}
	if ev.PubKey != string(l.key) {
		return relay.NewRefused(l.m.url, "restricted: publish your own events only")
	}
	if at, ok := nip.Expiration(ev); ok && at <= time.Now().Unix() {
		return relay.NewRefused(l.m.url, "invalid: the event has expired")
	}
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		return relay.NewRefused(l.m.url, "invalid: "+err.Error())
	}
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.refuse != nil {
		if words := l.m.refuse(v.Event()); words != "" {
			return relay.NewRefused(l.m.url, words)
		}
	}
	if known, ok := l.m.events[ev.ID]; ok {
		v = known
	}
	l.m.events[ev.ID] = v
	for s := range l.m.subs {
		s.show(v, false)
	}
	return nil
}

// show is called with Memory.mu held.
func (s *memorySub) show(v nip.Verified, stored bool) {
	ev := v.Event()
	mine := ev.PubKey == string(s.l.key) || ev.Tags.ContainsAny("p", []string{string(s.l.key)})
	if !mine || s.sent[ev.ID] || !slices.ContainsFunc(s.current, func(f nip.Filter) bool { return f.Matches(ev) }) {
		return
	}
	s.sent[ev.ID] = true
	s.push(memoryItem{d: relay.Delivery{Relay: s.l.m.url, Event: v, Stored: stored}})
}

func (s *memorySub) push(i memoryItem) {
	s.line = append(s.line, i)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// ask is a REQ; called with Memory.mu held.
func (s *memorySub) ask(now time.Time) {
	s.current, s.sent = s.filters(now), map[string]bool{}
	all := slices.SortedFunc(maps.Values(s.l.m.events), func(a, b nip.Verified) int { return newest(a.Event(), b.Event()) })
	filters := s.current
	for _, f := range filters {
		if f.LimitZero {
			continue
		}
		s.current = []nip.Filter{f}
		before := len(s.sent)
		for _, v := range all {
			if f.Limit > 0 && len(s.sent)-before >= f.Limit {
				break
			}
			s.show(v, true)
		}
	}
	s.current = filters
	s.push(memoryItem{eose: true})
}

func (l *memoryLink) Subscribe(id string, filters func(now time.Time) []nip.Filter) *relay.Subscription {
	s := &memorySub{l: l, filters: filters, wake: make(chan struct{}, 1)}
	sub, feed := relay.NewSubscription(func() {
		l.m.mu.Lock()
		defer l.m.mu.Unlock()
		s.ask(time.Now())
	}, func() { l.remove(s) })
	s.feed = feed
	l.m.mu.Lock()
	old := l.subs[id]
	if l.ctx.Err() == nil {
		l.subs[id] = s
		l.m.subs[s] = struct{}{}
		s.ask(time.Now())
		l.all.Go(s.pump)
	} else {
		old = nil
		defer feed.End()
	}
	l.m.mu.Unlock()
	if old != nil {
		l.remove(old)
		old.feed.End()
	}
	return sub
}

func (l *memoryLink) remove(s *memorySub) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	delete(l.m.subs, s)
	maps.DeleteFunc(l.subs, func(_ string, x *memorySub) bool { return x == s })
}

func (s *memorySub) pump() {
	for {
		s.l.m.mu.Lock()
		line := s.line
		s.line = nil
		s.l.m.mu.Unlock()
		for _, i := range line {
			if i.eose {
				s.feed.EndOfStored()
			} else if !s.feed.Deliver(s.l.ctx.Done(), i.d) {
				return
			}
		}
		select {
		case <-s.wake:
		case <-s.feed.Done():
			return
		}
	}
}
