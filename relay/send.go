package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coder/websocket"

	"holdfast/nip"
)

// Publish sends a signed event and waits for the relay's OK: hop 12 of the data
// path, event out. host/publish.go, which sealed the event and keeps it in an
// outbox, is the hop before; a relay is after it. An outbox entry leaves only
// on nil, which means OK true: on every error the event may or may not be
// stored, and the same bytes are published again.
func (c *client) Publish(ctx context.Context, ev *nip.Event) error {
	body := nip.EncodeEvent(ev)
	if body == nil {
		return errors.New("event is not valid UTF-8; it was not signed here")
	}
	frame := EncodeFrame("EVENT", body)
	id := nip.EventID(ev.ID)
	for authenticated := false; ; {
		if len(frame) > c.mostBytes() {
			return ErrTooLarge
		}
		s, err := c.await(ctx)
		if err != nil {
			return err
		}
		a, sent := s.publish(ctx, id, frame)
		switch {
		case !sent && a.err == ErrUnconfirmed:
			continue // the session ended before a byte of it was queued
		case a.err == errRetired:
			continue // nobody's failure: the next session asks again, and a duplicate is OK
		case a.err != nil:
			return a.err
		case a.ok || Prefix(a.message) == "duplicate":
			return nil
		case Prefix(a.message) == "auth-required" && !authenticated:
			authenticated = true
			if s.awaitAuth(ctx) {
				continue
			}
		}
		return NewRefused(c.o.URL, a.message)
	}
}

// await returns the newest open session, as soon as there is one.
func (c *client) await(ctx context.Context) (*session, error) {
	for {
		c.mu.Lock()
		open, change, closed := slices.Clone(c.open), c.change, c.closed
		c.mu.Unlock()
		if closed {
			return nil, ErrClosed
		}
		for _, s := range slices.Backward(open) {
			if s.ctx.Err() == nil {
				return s, nil
			}
		}
		select {
		case <-change:
		case <-c.ctx.Done():
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// publish sends one EVENT frame on this session and waits for its OK. sent
// says whether the frame reached the writer's queue.
func (s *session) publish(ctx context.Context, id nip.EventID, frame []byte) (a answer, sent bool) {
	w := s.wait(id, len(frame))
	defer s.forget(id, w)
	if err := s.send(ctx, frame); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return answer{err: err}, false
	}
	select {
	case a = <-w:
		return a, true
	case <-ctx.Done():
		return answer{err: ctx.Err()}, true
	}
}

// awaitAuth waits a moment for the manager to authenticate and reports whether
// an attempt ended.
func (s *session) awaitAuth(ctx context.Context) bool {
	round := s.requireAuth()
	t := time.NewTimer(challengeWait)
	defer t.Stop()
	select {
	case <-round:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// wait registers for the OK of id. Registered before the frame is sent, it
// cannot miss it. size counts against a relay that closes for size; 0 does not.
func (s *session) wait(id nip.EventID, size int) chan answer {
	w := make(chan answer, 1)
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.waiters == nil { // abandoned already
		w <- answer{err: ErrUnconfirmed}
		return w
	}
	s.waiters[id] = append(s.waiters[id], w)
	if size > 0 {
		s.sent[id] = size
	}
	return w
}

// forget takes a waiter back.
func (s *session) forget(id nip.EventID, w chan answer) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.waiters == nil {
		return
	}
	list := slices.DeleteFunc(s.waiters[id], func(x chan answer) bool { return x == w })
	if len(list) == 0 {
		delete(s.waiters, id)
		delete(s.sent, id)
		return
	}
	s.waiters[id] = list
}

// onOK gives a relay's OK to everyone who waits for that event.
func (s *session) onOK(f frame) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for _, w := range s.waiters[f.id] {
		w <- answer{ok: f.ok, message: f.message}
	}
	delete(s.waiters, f.id)
	delete(s.sent, f.id)
}

// send queues one frame for the writer and waits for room in the queue, as
// long as ctx and the session last.
func (s *session) send(ctx context.Context, frame []byte) error {
	if s.ctx.Err() != nil {
		return ErrUnconfirmed
	}
	select {
	case s.out <- outgoing{frame}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.ctx.Done():
		return ErrUnconfirmed
	}
}

// write is the one goroutine that writes messages. A write that does not end
// within its deadline drops the connection: half a frame is on the wire.
func (s *session) write() error {
	for {
		select {
		case o := <-s.out:
			ctx, stop := context.WithTimeout(s.ctx, writeTimeout)
			err := s.conn.Write(ctx, websocket.MessageText, o.frame)
			stop()
			if err != nil {
				if errors.Is(err, context.DeadlineExceeded) {
					return errors.New("relay does not read; connection dropped")
				}
				return fmt.Errorf("relay connection lost: %w", err)
			}
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
}
