package host

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	"golang.org/x/sync/errgroup"
)

const (
	workers         = 64  // requests of members handled at once: they wait for the disk, and share its commits
	strangerWorkers = 2   // requests of everybody else
	signerBacklog   = 64  // waiting requests of one signer; more are dropped, a device retries
	strangerBacklog = 128 // waiting requests of all strangers together
)

// lanes hands requests to workers: one signer's requests one after the other
// and in order, different signers beside each other. A slow or hostile signer
// delays itself; strangers, of whom there may be any number, share two workers
// and one short queue, so they never stand before a member.
type lanes struct {
	h       *Host
	group   *errgroup.Group
	members chan struct{}
	others  chan struct{}

	// mu guards queues and waiting.
	mu      sync.Mutex
	queues  map[string]*signerQueue
	waiting int // requests of strangers
}

type signerQueue struct {
	member  bool
	pending []Inbound
}

func newLanes(h *Host, g *errgroup.Group) *lanes {
	return &lanes{
		h: h, group: g, queues: map[string]*signerQueue{},
		members: make(chan struct{}, workers), others: make(chan struct{}, strangerWorkers),
	}
}

// put queues an event; false says that there was no room for it.
func (l *lanes) put(ctx context.Context, in Inbound) bool {
	signer := in.Event.Event().PubKey
	member := l.h.isMember(signer)
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[signer]
	switch {
	case q != nil && len(q.pending) >= signerBacklog:
		return false
	case !member && l.waiting >= strangerBacklog:
		return false
	}
	if !member {
		l.waiting++
	}
	if q != nil {
		q.pending = append(q.pending, in)
		if q.member != member {
			// Counted as what the queue was made for, whatever the signer
			// became meanwhile.
			if q.member {
				l.waiting--
			} else {
				l.waiting++
			}
		}
		return true
	}
	l.queues[signer] = &signerQueue{member: member, pending: []Inbound{in}}
	l.group.Go(func() error { return l.drain(ctx, signer) })
	return true
}

// take removes the signer's next event; the queue leaves with the last one.
func (l *lanes) take(signer string) (Inbound, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[signer]
	if len(q.pending) == 0 {
		delete(l.queues, signer)
		return Inbound{}, false
	}
	in := q.pending[0]
	q.pending = q.pending[1:]
	if !q.member {
		l.waiting--
	}
	return in, true
}

func (l *lanes) drain(ctx context.Context, signer string) error {
	l.mu.Lock()
	slots := l.others
	if l.queues[signer].member {
		slots = l.members
	}
	l.mu.Unlock()
	for {
		// A slot an event: signers take turns.
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		in, ok := l.take(signer)
		if !ok {
			<-slots
			return nil
		}
		err := l.h.receiveSafely(ctx, in)
		<-slots
		if err != nil && ctx.Err() == nil {
			if fatal(err) {
				return err
			}
			l.h.log.Error().Err(err).Str("event", in.Event.Event().ID).Msg("request failed; the device's retry will be tried again")
		}
	}
}

// receiveSafely is receive behind a last line of defence. No event should make
// it panic; one that does is a bug, and costs that event and not the host: its
// transaction is rolled back, and a relay that offers the event again after a
// restart would otherwise stop the host again.
func (h *Host) receiveSafely(ctx context.Context, in Inbound) (err error) {
	defer func() {
		if p := recover(); p != nil {
			h.log.Error().Str("panic", fmt.Sprint(p)).Str("event", in.Event.Event().ID).
				Bytes("stack", debug.Stack()).Msg("bug: a request made the host panic; please report it")
			err = nil
		}
	}()
	return h.receive(ctx, in)
}
