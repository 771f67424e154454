package relay

import "sync"

// queued is how many deliveries wait in a Subscription before the link's
// reader waits too.
const queued = 64

// Subscription is one live subscription of a Link.
type Subscription struct {
	c        chan Delivery
	eose     chan struct{}
	done     chan struct{} // closed first: whoever sends lets go of mu
	renew    func()
	closed   func()
	mu       sync.Mutex // held by the one that sends to c or closes it
	eoseOnce sync.Once
	endOnce  sync.Once
}

// C delivers in arrival order and is closed by Close or when the link closes.
// It is bounded: while nobody reads, the link's reader waits.
func (s *Subscription) C() <-chan Delivery { return s.c }

// EOSE is closed at the first end of stored events.
func (s *Subscription) EOSE() <-chan struct{} { return s.eose }

// Renew sends the REQ again with fresh filters.
func (s *Subscription) Renew() { s.renew() }

// Close ends the subscription.
func (s *Subscription) Close() {
	Feed{s}.End()
	s.closed()
}

// Feed is the side of a Subscription that an implementation of Link holds.
type Feed struct{ s *Subscription }

// NewSubscription makes a Subscription and its Feed. renew and closed are
// called by the consumer's Renew and Close, on its goroutine; neither may
// block. closed may be called more than once.
func NewSubscription(renew, closed func()) (*Subscription, Feed) {
	s := &Subscription{
		c: make(chan Delivery, queued), eose: make(chan struct{}), done: make(chan struct{}),
		renew: renew, closed: closed,
	}
	return s, Feed{s}
}

// Deliver hands d over and waits while the consumer is slow, until stop or
// the end of the subscription; then it returns false. A stop that is closed
// already means: where there is room at once.
func (f Feed) Deliver(stop <-chan struct{}, d Delivery) bool {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	select {
	case <-f.s.done:
		return false
	default:
	}
	select {
	case f.s.c <- d:
		return true
	default:
	}
	select {
	case f.s.c <- d:
		return true
	case <-f.s.done:
		return false
	case <-stop:
		return false
	}
}

// EndOfStored closes EOSE; later calls do nothing.
func (f Feed) EndOfStored() { f.s.eoseOnce.Do(func() { close(f.s.eose) }) }

// End closes C once nobody sends.
func (f Feed) End() {
	f.s.endOnce.Do(func() {
		close(f.s.done)
		f.s.mu.Lock()
		close(f.s.c)
		f.s.mu.Unlock()
	})
}

// Done is closed when the subscription ended.
func (f Feed) Done() <-chan struct{} { return f.s.done }
