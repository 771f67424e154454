package embedded

import (
	"context"
	"sync"
	"time"
)

// How fast messages of one address are read that come from no member, on all its
// connections together. Pairing takes a handful. Whoever sends more fills its own
// socket and waits: reading a message costs a processor even where the answer is
// a refusal, and that is time a member's request would wait for.
const (
	paceBurst = 64   // at once
	paceRate  = 20.0 // a second after that
	// paceDebt is the most that can be missing: a message waits in a connection,
	// so what is owed beyond that is owed by connections that are gone, and whoever
	// comes next from the address, as everybody behind a proxy does, is not to pay it.
	paceDebt = paceBurst + maxConns
)

// paces counts messages that are no member's by address.
type paces struct {
	mu sync.Mutex // guards of
	of map[string]*pace
}

// pace is a token bucket that may be overdrawn by who waits; the zero value is
// full.
type pace struct {
	used float64 // tokens missing at the time at
	at   time.Time
}

func newPaces() *paces { return &paces{of: map[string]*pace{}} }

// take counts one message and says how long to wait before it is handled. More
// addresses than fit share one bucket: memory stays bounded and the pace holds.
func (p *paces) take(address string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.of[address]
	if b == nil {
		if len(p.of) >= maxAddresses {
			for a, x := range p.of {
				if now.Sub(x.at).Seconds()*paceRate >= x.used {
					delete(p.of, a) // full again
				}
			}
		}
		if len(p.of) >= maxAddresses {
			address = ""
			b = p.of[address]
		}
		if b == nil {
			b = &pace{at: now}
			p.of[address] = b
		}
	}
	b.used = min(max(0, b.used-now.Sub(b.at).Seconds()*paceRate)+1, paceDebt)
	b.at = now
	return time.Duration(max(0, b.used-paceBurst) / paceRate * float64(time.Second))
}

// pace holds the connection's reader back while it is no member's; false when
// the connection ended meanwhile.
func (c *conn) pace() bool {
	if c.key != "" && c.r.o.Class(c.key) == Member {
		return true
	}
	wait := c.r.paces.take(c.address, time.Now())
	if wait == 0 {
		return true
	}
	return sleep(c.ctx, wait)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
