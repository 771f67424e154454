package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/nip"
	"holdfast/relay"
)

// The bounds of one Fetch (NIP-HOST, relay behaviour).
const (
	fetchTime   = 10 * time.Second
	fetchEvents = 256
)

// knownSub is the subscription to known principals: the one whose gaps count,
// because whom nobody knows leaves no nudges.
const knownSub = "known"

// gapBook hands the host one relay name for each gap that is not yet taken. It
// holds each name at most once, so that a relay which comes and goes costs
// nothing while the host is busy.
type gapBook struct {
	out  chan nip.RelayURL
	bell chan struct{} // one place: something waits

	mu      sync.Mutex // guards both
	waiting []nip.RelayURL
	heard   map[nip.RelayURL]bool // connected once in this process
}

func newGapBook() *gapBook {
	return &gapBook{out: make(chan nip.RelayURL), bell: make(chan struct{}, 1), heard: map[nip.RelayURL]bool{}}
}

// first notes a relay's first connection of this process, under all its names.
func (b *gapBook) first(names []nip.RelayURL) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range names {
		b.heard[n] = true
		b.put(n)
	}
}

// again notes a gap. Before the first connection was noted there is none: that
// one stands for all the time before it.
func (b *gapBook) again(name nip.RelayURL) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.heard[name] {
		b.put(name)
	}
}

// put is called with mu held. It never blocks.
func (b *gapBook) put(name nip.RelayURL) {
	if !slices.Contains(b.waiting, name) {
		b.waiting = append(b.waiting, name)
	}
	select {
	case b.bell <- struct{}{}:
	default:
	}
}

func (b *gapBook) next() (nip.RelayURL, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		return "", false
	}
	n := b.waiting[0]
	b.waiting = b.waiting[1:]
	return n, true
}

func (b *gapBook) run(stop <-chan struct{}) {
	for {
		name, ok := b.next()
		if !ok {
			select {
			case <-b.bell:
				continue
			case <-stop:
				return
			}
		}
		select {
		case b.out <- name:
		case <-stop:
			return
		}
	}
}

// Gaps names a relay after its first connection of this process, and after each
// time of over 150 s in which nobody listened there.
func (l *links) Gaps() <-chan nip.RelayURL { return l.gaps.out }

// onGap is the OnGap of the link to that relay. A link calls it on its reader.
func (l *links) onGap(url nip.RelayURL) func(relay.Gap) {
	return func(g relay.Gap) {
		if g.Subscription == knownSub {
			l.gaps.again(url)
		}
	}
}

// firstHeard waits for the relay's first answer.
func (l *links) firstHeard(known *relay.Subscription, names []nip.RelayURL) {
	select {
	case <-known.EOSE():
		l.gaps.first(names)
	case <-l.stop:
	}
}

// fetches numbers the subscriptions of Fetch: two at once must not replace each
// other.
var fetches atomic.Uint64

// Fetch asks one relay for what it stores and returns at its EOSE, after 10 s
// with an error, or once it has 256 events, or as many as the filter's limit.
func (l *links) Fetch(ctx context.Context, name nip.RelayURL, f nip.Filter) ([]nip.Verified, error) {
	link := l.on(name)
	if link == nil {
		return nil, fmt.Errorf("this host is not on relay %s", name)
	}
	ctx, stop := context.WithTimeout(ctx, fetchTime)
	defer stop()
	if f.Limit <= 0 || f.Limit > fetchEvents {
		f.Limit = fetchEvents
	}
	sub := link.Subscribe(fmt.Sprintf("fetch%d", fetches.Add(1)), func(time.Time) []nip.Filter { return []nip.Filter{f} })
	defer sub.Close()
	var out []nip.Verified
	for len(out) < f.Limit {
		select {
		case d, open := <-sub.C():
			if !open {
				return nil, relay.ErrClosed
			}
			out = append(out, d.Event)
		case <-sub.EOSE():
			return append(out, rest(sub, f.Limit-len(out))...), nil
		case <-ctx.Done():
			return nil, fmt.Errorf("read from relay %s: %w", name, ctx.Err())
		}
	}
	return out, nil
}

// rest takes what was delivered before EOSE and not read yet.
func rest(sub *relay.Subscription, most int) (out []nip.Verified) {
	for len(out) < most {
		select {
		case d, open := <-sub.C():
			if !open {
				return out
			}
			out = append(out, d.Event)
		default:
			return out
		}
	}
	return out
}
