package relay

import (
	"errors"
	"slices"
	"sync"
	"time"

	"holdfast/nip"
)

const (
	defaultLife = 120 * time.Second
	leadMost    = 20 * time.Second // before its end a connection's successor is opened
)

// errRetired ends a session whose time was up.
var errRetired = errors.New("relay connection reached the end of its life")

// lead is how long before the end of a life the next connection is opened.
func lead(life time.Duration) time.Duration { return min(leadMost, life/3) }

// run keeps one connection open, until Close: it dials, and when the session is
// due to be replaced, or ended, it dials again. An old session goes on beside
// its successor until its own time is up, so that no moment is without one;
// because a successor is due no sooner than its predecessor's end, there are
// never more than two.
func (c *client) run() {
	defer close(c.done)
	var sessions sync.WaitGroup
	defer sessions.Wait()
	wait := backoff{first: retryFirst, last: retryLast}
	for {
		began := time.Now()
		due, end := make(chan struct{}), make(chan error, 1)
		sessions.Go(func() { end <- c.connect(due) })
		var err error
		select {
		case <-due:
			wait.reset()
			continue
		case err = <-end:
		}
		if c.ctx.Err() != nil {
			return
		}
		var pause time.Duration
		if time.Since(began) >= min(steadyAfter, c.o.Life/2) {
			wait.reset() // a steady session is replaced at once
		} else {
			pause = wait.next()
		}
		var refused *authRefusedError
		if errors.As(err, &refused) {
			pause = max(pause, retryLast/2) // the same key will hardly be welcome a second later
		}
		c.mu.Lock()
		c.settle(StateConnecting)
		c.health.LastError = printable(err.Error())
		c.mu.Unlock()
		c.o.Log.Debug().Str("relay", string(c.o.URL)).Str("error", printable(err.Error())).Dur("retry", pause).Msg("relay connection ended")
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-c.ctx.Done():
			t.Stop()
			return
		}
	}
}

// retireLater ends the session after its life, and closes due before that, if
// the session is open by then. The caller stops both timers.
func (s *session) retireLater(due chan struct{}) (stop func()) {
	c := s.c
	next := time.AfterFunc(c.o.Life-lead(c.o.Life), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if slices.Contains(c.open, s) {
			close(due)
		}
	})
	end := time.AfterFunc(c.o.Life, func() { s.cancel(errRetired) })
	return func() {
		next.Stop()
		end.Stop()
	}
}

// memory is which events a subscription brought, and when last: verified IDs
// only, so that a forged copy suppresses nothing. Two generations forget
// without a walk; between maxSeen and twice as many are remembered.
type memory struct {
	young, old map[nip.EventID]time.Time
}

func (m *memory) note(id nip.EventID, at time.Time) {
	if m.young == nil || len(m.young) >= maxSeen {
		m.young, m.old = map[nip.EventID]time.Time{}, m.young
	}
	m.young[id] = at
}

func (m *memory) last(id nip.EventID) (time.Time, bool) {
	at, ok := m.young[id]
	if !ok {
		at, ok = m.old[id]
	}
	return at, ok
}
