package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/host"
	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
)

const (
	inboundRoom  = 256
	strangerRoom = 64 // the redemption subscription's limit
	overlap      = time.Minute
)

// links joins the host to its relays: it is the Transport over relay.Links.
type links struct {
	self     nip.PubKey
	embedded *embedded.Relay // nil without one
	own      []nip.RelayURL  // its names, the first for new devices; fixed before start
	list     []relay.Link    // the primary first; fixed after start
	known    []*relay.Subscription
	inbound  chan host.Inbound
	stop     chan struct{}
	pumps    sync.WaitGroup
	gaps     *gapBook

	// authors is the owner and the active devices, replaced whole.
	authors atomic.Pointer[map[nip.PubKey]bool]
}

func newLinks(self nip.PubKey) *links {
	l := &links{self: self, inbound: make(chan host.Inbound, inboundRoom), stop: make(chan struct{}), gaps: newGapBook()}
	l.authors.Store(&map[nip.PubKey]bool{})
	return l
}

// start subscribes on every link. The two subscriptions are the host's whole
// ear: known principals, and strangers that redeem an invitation.
func (l *links) start(list []relay.Link) {
	l.list = list
	for _, link := range list {
		known := link.Subscribe(knownSub, func(now time.Time) []nip.Filter {
			var keys []string
			for k := range *l.authors.Load() {
				keys = append(keys, string(k))
			}
			return []nip.Filter{l.filter(now, keys, 0)}
		})
		strangers := link.Subscribe("redeem", func(now time.Time) []nip.Filter {
			return []nip.Filter{l.filter(now, nil, strangerRoom)}
		})
		l.known = append(l.known, known)
		l.pumps.Go(func() { l.pump(known, true) })
		l.pumps.Go(func() { l.pump(strangers, false) })
		l.pumps.Go(func() { l.firstHeard(known, l.names(link)) })
	}
	l.pumps.Go(func() { l.gaps.run(l.stop) })
}

// names lists the names of a link's relay, the first for new devices.
func (l *links) names(link relay.Link) []nip.RelayURL {
	if len(l.own) > 0 && link.URL() == l.own[0] {
		return l.own
	}
	return []nip.RelayURL{link.URL()}
}

// served lists all names, the one for new devices first.
func (l *links) served() (out []nip.RelayURL) {
	for _, link := range l.list {
		out = append(out, l.names(link)...)
	}
	return out
}

// on returns the link to the relay of that name, nil where there is none.
func (l *links) on(name nip.RelayURL) relay.Link {
	for _, link := range l.list {
		if slices.Contains(l.names(link), name) {
			return link
		}
	}
	return nil
}

// filter reads a minute back: that covers every request that can still be
// fresh, whatever the connection missed.
func (l *links) filter(now time.Time, authors []string, limit int) nip.Filter {
	since := now.Add(-overlap)
	f := nip.Filter{Kinds: []int{nip.KindArtifact}, Authors: authors, Tags: map[string][]string{"p": {string(l.self)}}, Limit: limit}
	f.Since = timestamp(since)
	return f
}

// pump forwards one subscription. An event of a known author is left to the
// known subscription, so that each event comes once a link.
func (l *links) pump(sub *relay.Subscription, known bool) {
	for d := range sub.C() {
		if l.isKnown(nip.PubKey(d.Event.Event().PubKey)) != known {
			continue
		}
		select {
		case l.inbound <- host.Inbound{Event: d.Event, Relay: d.Relay}:
		case <-l.stop:
		}
	}
}

func (l *links) Inbound() <-chan host.Inbound { return l.inbound }

// members replaces the set of those who are no strangers.
func (l *links) members(keys []nip.PubKey) {
	set := make(map[nip.PubKey]bool, len(keys))
	for _, k := range keys {
		set[k] = true
	}
	l.authors.Store(&set)
}

// Authors replaces the set and renews the subscriptions that name it.
func (l *links) Authors(keys []nip.PubKey) {
	l.members(keys)
	for _, s := range l.known {
		s.Renew()
	}
}

func (l *links) Publish(ctx context.Context, name nip.RelayURL, ev *nip.Event) error {
	if link := l.on(name); link != nil {
		return link.Publish(ctx, ev)
	}
	return fmt.Errorf("this host is not on relay %s", name)
}

// PublishSealed spares the embedded relay the check of a signature that this
// process just made.
func (l *links) PublishSealed(ctx context.Context, name nip.RelayURL, v nip.Verified) error {
	if link, ok := l.on(name).(interface {
		PublishVerified(ctx context.Context, v nip.Verified) error
	}); ok {
		return link.PublishVerified(ctx, v)
	}
	return l.Publish(ctx, name, v.Event())
}

func (l *links) Relays() []host.RelayHealth {
	out := make([]host.RelayHealth, 0, len(l.list))
	for _, link := range l.list {
		h := link.Health()
		out = append(out, host.RelayHealth{
			URL: h.URL, Also: l.names(link)[1:], State: h.State, Authenticated: h.Authenticated, Since: h.Since.Unix(), LastError: h.LastError,
			Gap: int64(h.Gap / time.Second),
		})
	}
	return out
}

// Disconnect closes the key's connections; what it may do afterwards is what
// any stranger may, so that it can still be told that it was revoked.
func (l *links) Disconnect(key nip.PubKey) {
	if l.embedded != nil {
		l.embedded.Disconnect(key)
	}
}

// isKnown sorts traffic before its signature is looked at: what strangers send
// has a budget, what the owner and active devices send has a wide one.
func (l *links) isKnown(key nip.PubKey) bool { return (*l.authors.Load())[key] }

// class is the embedded relay's question about a key.
func (l *links) class(key nip.PubKey) embedded.Class {
	if key == l.self || l.isKnown(key) {
		return embedded.Member
	}
	return embedded.Stranger
}

func (l *links) close() {
	close(l.stop)
	for _, link := range l.list {
		_ = link.Close()
	}
	l.pumps.Wait()
}
