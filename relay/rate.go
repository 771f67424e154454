package relay

import (
	"sync"
	"time"

	"holdfast/nip"
)

// What is verified a second. A signature takes a tenth of a millisecond, so
// that all strangers together may cost 0.2 % of a core. Known authors are
// limited each for itself, far above what a device sends and above what a
// replay brings at once: a stolen phone cannot keep the others out.
const (
	strangersRate  = 20.0 // of all strangers together
	strangersBurst = 64.0 // what a subscription for them replays
	strangerRate   = 2.0  // of one
	strangerBurst  = 16.0
	knownRate      = 100.0
	knownBurst     = 1024.0
	maxBuckets     = 1024
)

// bucket is a token bucket; the zero value is full.
type bucket struct {
	used float64 // tokens missing at the time at
	at   time.Time
}

// room refills the bucket and reports whether it holds a token.
func (b *bucket) room(now time.Time, rate, burst float64) bool {
	b.used = max(0, b.used-now.Sub(b.at).Seconds()*rate)
	b.at = now
	return b.used+1 <= burst
}

// limiter decides which events are worth a signature's cost. It counts claimed
// authors: a relay that forges them limits only itself, one link is one relay.
type limiter struct {
	mu        sync.Mutex // guards everything below
	all       bucket     // strangers
	strangers map[string]*bucket
	known     map[string]*bucket
}

// room reports whether a stranger's event would be verified now, and takes
// nothing.
func (l *limiter) room(author string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roomFor(author, now)
}

// roomFor asks the author's own bucket first, so that one stranger cannot use
// up what all of them share; called with mu held.
func (l *limiter) roomFor(author string, now time.Time) bool {
	b := l.strangers[author]
	return (b == nil || b.room(now, strangerRate, strangerBurst)) && l.all.room(now, strangersRate, strangersBurst)
}

// stranger takes a token for an event of an author nobody knows.
func (l *limiter) stranger(author string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.roomFor(author, now) {
		return false
	}
	b := l.strangers[author]
	if b == nil {
		l.strangers = place(l.strangers, now)
		b = &bucket{at: now}
		l.strangers[author] = b
	}
	b.used++
	l.all.used++
	return true
}

// member takes a token for an event of a known author.
func (l *limiter) member(author nip.PubKey, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.known[string(author)]
	if b == nil {
		l.known = place(l.known, now)
		b = &bucket{at: now}
		l.known[string(author)] = b
	}
	if !b.room(now, knownRate, knownBurst) {
		return false
	}
	b.used++
	return true
}

// place makes room for one bucket more: those idle for long are full again and
// need not be kept. When all are busy, all are forgotten: memory is bounded, and
// what strangers share holds on.
func place(m map[string]*bucket, now time.Time) map[string]*bucket {
	if m == nil {
		return map[string]*bucket{}
	}
	if len(m) < maxBuckets {
		return m
	}
	for author, b := range m {
		if now.Sub(b.at) > 12*time.Second { // longer than either burst takes to refill
			delete(m, author)
		}
	}
	if len(m) >= maxBuckets {
		clear(m)
	}
	return m
}
