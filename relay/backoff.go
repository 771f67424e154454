package relay

import (
	"math/rand/v2"
	"time"
)

// backoff doubles a waiting time from first to last. The wait is drawn evenly
// from the upper half of it, so that many clients of a restarted relay do not
// come back in one moment, and none comes back at once.
type backoff struct {
	first, last time.Duration
	tries       int
}

func (b *backoff) next() time.Duration {
	d := b.first << min(b.tries, 20)
	if d > b.last || d <= 0 {
		d = b.last
	}
	b.tries++
	return d/2 + rand.N(d/2+1)
}

func (b *backoff) reset() { b.tries = 0 }

const (
	retryFirst = time.Second // half of it, with jitter: 0.5 s
	retryLast  = 60 * time.Second
	// steadyAfter is how long a session must last before the next dial
	// starts from the shortest wait: a relay that accepts and drops is a
	// failing relay.
	steadyAfter = 60 * time.Second
)

// closedWait says how to come back after a CLOSED with this prefix.
func closedWait(prefix string) backoff {
	if prefix == "rate-limited" {
		return backoff{first: 4 * time.Second, last: 60 * time.Second}
	}
	return backoff{first: 10 * time.Second, last: 120 * time.Second}
}
