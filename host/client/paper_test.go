package client

import (
	"context"
	"slices"
	"sync"
	"time"

	"holdfast/nip"
	"holdfast/relay"
)

// paper is a relay on paper: it stores, delivers and answers OK like a real
// one, except where a test says otherwise. It lets a test script what a relay
// does between two bytes, also in virtual time.
type paper struct {
	mu     sync.Mutex // guards everything below
	stored []*nip.Event
	links  []*paperLink
	reqs   int // REQs served
	// publish decides about one event: whether it is stored, and the error of Publish.
	publish func(n int, ev *nip.Event) (keep bool, err error)
	taken   []*nip.Event // every event that Publish got, in order
	// host answers a stored event; deaf keeps the answers from live subscriptions.
	host func(ev *nip.Event) []*nip.Event
	deaf bool
}

type paperLink struct {
	p    *paper
	o    relay.Options
	subs map[string]*paperSub
	done chan struct{}
	once sync.Once
}

type paperSub struct {
	filters []nip.Filter
	feed    relay.Feed
}

func (p *paper) dial(o relay.Options) relay.Link {
	l := &paperLink{p: p, o: o, subs: map[string]*paperSub{}, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links = append(p.links, l)
	return l
}

func (l *paperLink) URL() nip.RelayURL { return l.o.URL }
func (l *paperLink) Health() relay.Health {
	return relay.Health{URL: l.o.URL, State: "open"}
}

func (l *paperLink) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.p.mu.Lock()
		defer l.p.mu.Unlock()
		for _, s := range l.subs {
			s.feed.End()
		}
		l.p.links = slices.DeleteFunc(l.p.links, func(x *paperLink) bool { return x == l })
	})
	return nil
}

func (l *paperLink) Subscribe(id string, filters func(now time.Time) []nip.Filter) *relay.Subscription {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	s := &paperSub{filters: filters(l.o.Now())}
	sub, feed := relay.NewSubscription(func() {}, func() {
		l.p.mu.Lock()
		defer l.p.mu.Unlock()
		if l.subs[id] == s {
			delete(l.subs, id)
		}
	})
	s.feed = feed
	l.subs[id] = s
	l.p.reqs++
	for _, ev := range l.p.stored {
		l.deliver(s, ev, true)
	}
	feed.EndOfStored()
	return sub
}

func (l *paperLink) deliver(s *paperSub, ev *nip.Event, stored bool) {
	if l.o.Admit != nil && !l.o.Admit(ev) {
		return
	}
	for _, f := range s.filters {
		if !f.Matches(ev) {
			continue
		}
		if v, err := nip.VerifyEvent(ev); err == nil {
			s.feed.Deliver(l.done, relay.Delivery{Relay: l.o.URL, Event: v, Stored: stored})
		}
		return
	}
}

func (l *paperLink) Publish(ctx context.Context, ev *nip.Event) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	keep, err := true, error(nil)
	l.p.taken = append(l.p.taken, ev)
	if l.p.publish != nil {
		keep, err = l.p.publish(len(l.p.taken), ev)
	}
	if keep && !slices.ContainsFunc(l.p.stored, func(x *nip.Event) bool { return x.ID == ev.ID }) {
		l.p.put(ev, true)
		if l.p.host != nil {
			for _, reply := range l.p.host(ev) {
				l.p.put(reply, !l.p.deaf)
			}
		}
	}
	return err
}

// put stores an event and shows it to live subscriptions.
func (p *paper) put(ev *nip.Event, live bool) {
	p.stored = append(p.stored, ev)
	if !live {
		return
	}
	for _, l := range p.links {
		for _, s := range l.subs {
			l.deliver(s, ev, false)
		}
	}
}

// add is put for tests.
func (p *paper) add(evs ...*nip.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ev := range evs {
		p.put(ev, true)
	}
}

func (p *paper) published() []*nip.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.taken)
}
