package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay"
)

// requestLife is how long a request is valid, in seconds: the wire's maximum.
const requestLife = 60

// prepared is one signed request. Every retry sends these same bytes.
type prepared struct {
	req   nip.Request
	event *nip.Event
	sent  int64 // local time before which it cannot have been answered
}

// Exchange is a call with what went over the wire, for tours and tests.
type Exchange struct {
	Request    nip.Request
	Event      *nip.Event
	Reply      nip.Reply
	ReplyEvent *nip.Event
	Tries      int
	Took       time.Duration
}

// Call makes one request and waits for its verified reply: a signed refusal is
// a *Refused error, no answer is ErrNoAnswer (outcome unknown), a relay that
// would not take the event is a *relay.RefusedError. Retries are the same
// signed bytes, read first, until the request expires (60 s) or ctx ends.
func (d *Device) Call(ctx context.Context, op nip.Operation) (nip.Outcome, error) {
	x, err := d.Exchange(ctx, op)
	if err != nil {
		return nil, err
	}
	return x.Reply.Outcome, nil
}

// Exchange is Call with what went over the wire. With a *Refused error the
// exchange is complete too.
func (d *Device) Exchange(ctx context.Context, op nip.Operation) (Exchange, error) {
	p, err := d.peer()
	if err != nil {
		return Exchange{}, err
	}
	r, err := d.prepare(ctx, p, op)
	if err != nil {
		return Exchange{}, err
	}
	return d.exchange(ctx, p, r)
}

const (
	// maxMints is how often a signer may take so long that the request it signed
	// is too old to be sent.
	maxMints = 3
	// enoughLife is what such a request must have left, in seconds.
	enoughLife = 20
)

// prepare makes a request that can be sent at once. A signer elsewhere is asked
// late, when the relay listens; what it signed too slowly was never sent and is
// minted anew, with another ID and other times.
func (d *Device) prepare(ctx context.Context, p peer, op nip.Operation) (prepared, error) {
	if err := d.ready(ctx, p.link); err != nil {
		return prepared{}, err
	}
	for range maxMints {
		r, err := d.mint(ctx, p, op)
		if err != nil || !d.elsewhere() || r.req.ExpiresAt-d.hostNow() >= enoughLife {
			return r, err
		}
	}
	return prepared{}, &nip.KeeperError{Part: "sign in time", Err: fmt.Errorf("a request lives %d s, and it took longer %d times; nothing was sent", requestLife, maxMints)}
}

// mint mints and seals a request in the host's time, inside the standing it is
// made by.
func (d *Device) mint(ctx context.Context, p peer, op nip.Operation) (prepared, error) {
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		return prepared{}, fmt.Errorf("mint request: %w", err)
	}
	issued := max(d.hostNow(), p.from)
	expires := min(issued+requestLife, p.until)
	if expires <= issued {
		if p.grant == "" {
			return prepared{}, errors.New("the invitation has expired; ask for a new one")
		}
		return prepared{}, ErrGrantExpired
	}
	req := nip.Request{ID: nip.RequestID(id), Host: p.host, Grant: p.grant, Epoch: p.epoch, Relay: p.relay,
		IssuedAt: issued, ExpiresAt: expires, Kind: op.Kind(), Op: op}
	art, err := nip.EncodeRequest(req)
	if err != nil {
		return prepared{}, fmt.Errorf("encode %s: %w", op.Kind(), err)
	}
	ev, err := nip.SealBy(ctx, d.hold, p.host, nip.Mailbox(id), art)
	if err != nil {
		return prepared{}, fmt.Errorf("seal %s: %w", op.Kind(), err)
	}
	return prepared{req: req, event: ev, sent: d.now()}, nil
}

// exchange tries a prepared request until a verified reply, an error that
// another try cannot mend, the request's end, or ctx's.
func (d *Device) exchange(ctx context.Context, p peer, r prepared) (Exchange, error) {
	began := time.Now()
	x := Exchange{Request: r.req, Event: r.event}
	renewal := d.expectRenewal(ctx, p, r)
	defer func() { renewal(x.ReplyEvent != nil) }()
	whole := ctx // a person may agree to decrypt after the request's end
	left := time.Duration(r.req.ExpiresAt-d.hostNow()) * time.Second
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	var last error
	dialled := began // at most one connection in the time of a try is given up for a fresh one
	busy := 0        // tries in a row that the relay did not take for want of something
	for {
		x.Tries++
		rep, ev, err := d.try(ctx, whole, p, r)
		x.Took = time.Since(began)
		var quiet *quietError
		switch {
		case err == nil:
			x.Reply, x.ReplyEvent = rep, ev
			if rep.Refusal != nil {
				return x, &Refused{Op: r.req.Op.Kind(), Code: rep.Refusal.Code, Missing: rep.Refusal.Missing}
			}
			return x, nil
		case errors.Is(err, relay.ErrClosed) && d.follow(&p):
			continue // another call gave up the connection for a fresh one
		case !errors.As(err, &quiet):
			return x, err
		}
		if quiet.why != nil {
			last = quiet.why
		}
		if passing(quiet.why) {
			pause(ctx, d.pace.refused<<min(busy, 4))
			busy++
		} else {
			// A host that is there answers within a try.
			d.nudge(ctx, p)
			pause(ctx, d.pace.between)
			busy = 0
		}
		if time.Since(dialled) >= d.pace.try {
			d.relink()
			d.follow(&p)
			dialled = time.Now()
		}
		if ctx.Err() != nil {
			d.learn((*clock).silent)
			return x, noAnswer(p.link.Health(), last)
		}
	}
}

// pause keeps a relay that drops each connection from being asked in a circle.
func pause(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// quietError ends a try that another one may mend.
type quietError struct{ why error }

func (e *quietError) Error() string { return "no reply in this try" }

// noAnswer says what is known about a silence.
func noAnswer(h relay.Health, why error) error {
	switch {
	case why != nil:
		return fmt.Errorf("%w: %w", ErrNoAnswer, why)
	case h.State != "open" && h.LastError != "":
		return fmt.Errorf("%w: relay %s is not reachable: %s", ErrNoAnswer, h.URL, h.LastError)
	case h.State != "open":
		return fmt.Errorf("%w: relay %s is not reachable", ErrNoAnswer, h.URL)
	}
	return fmt.Errorf("%w: the relay took the request and the host is silent", ErrNoAnswer)
}

// try reads the reply mailbox, publishes if nothing is stored there, and waits.
//
// The reading comes first at every try: relays answer a duplicate with OK and
// broadcast nothing, so what a repeated publication would bring again is only
// what is stored already.
func (d *Device) try(ctx, whole context.Context, p peer, r prepared) (nip.Reply, *nip.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, d.pace.try)
	defer cancel()
	c := &candidates{d: d, p: p, r: r, whole: whole}
	sub := p.link.Subscribe(string(r.req.ID), func(time.Time) []nip.Filter {
		return []nip.Filter{{Kinds: []int{nip.KindArtifact}, Authors: []string{string(p.host)}, Limit: 4,
			Tags: nostr.TagMap{"p": {string(d.pub)}, "h": {string(r.req.ID)}}}}
	})
	defer sub.Close()
	if err := c.stored(ctx, sub); err != nil {
		return nip.Reply{}, nil, err
	}
	if c.event == nil {
		if err := c.live(ctx, sub); err != nil {
			return nip.Reply{}, nil, err
		}
	}
	if c.clash {
		return nip.Reply{}, nil, fmt.Errorf("%w: the host signed two different answers to request %s", ErrConflict, r.req.ID)
	}
	return c.reply, c.event, nil
}

// stored takes what comes before the end of stored events.
func (c *candidates) stored(ctx context.Context, sub *relay.Subscription) error {
	eose := sub.EOSE()
	for {
		select {
		case del, ok := <-sub.C():
			if !ok {
				return relay.ErrClosed
			}
			c.add(del)
		case <-eose:
			return c.drain(sub)
		case <-ctx.Done():
			if c.event != nil {
				return nil
			}
			return &quietError{c.last}
		}
		if c.ended() {
			return c.end()
		}
	}
}

// drain takes what has arrived without waiting for more.
func (c *candidates) drain(sub *relay.Subscription) error {
	for !c.ended() {
		select {
		case del, ok := <-sub.C():
			if !ok {
				return relay.ErrClosed
			}
			c.add(del)
		default:
			return nil
		}
	}
	return c.end()
}

// live publishes the request and waits for the reply. The relay's OK only
// starts the wait; a reply that comes first is as good, and lingers for the OK
// so that a second, different reply is seen.
func (c *candidates) live(ctx context.Context, sub *relay.Subscription) error {
	ctx, cancel := context.WithCancel(ctx)
	published := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		published <- c.p.link.Publish(ctx, c.r.event)
	}()
	defer func() { cancel(); <-done }()

	timer := time.NewTimer(c.d.pace.try)
	defer timer.Stop()
	confirmed := false
	for {
		select {
		case del, ok := <-sub.C():
			if !ok {
				return relay.ErrClosed
			}
			c.add(del)
			switch {
			case c.ended():
				return c.end()
			case c.event != nil && confirmed:
				return c.drain(sub)
			case c.event != nil:
				timer.Reset(c.d.pace.settle)
			}
		case err := <-published:
			if c.event != nil {
				return c.drain(sub)
			}
			if err != nil {
				return publishError(err)
			}
			confirmed = true
			timer.Reset(c.d.pace.again)
		case <-timer.C:
			if c.event != nil {
				return nil
			}
			return &quietError{c.last}
		case <-ctx.Done():
			if c.event != nil {
				return nil
			}
			return &quietError{c.last}
		}
	}
}

// passing reports a relay's refusal that says nothing about the event: the
// relay is short of something (NIP-01, OK messages).
func passing(err error) bool {
	var refused *relay.RefusedError
	return errors.As(err, &refused) && (refused.Prefix == "error" || refused.Prefix == "rate-limited") && !errors.Is(err, relay.ErrTooLarge)
}

// publishError tells what another try cannot mend: a relay's own no, an event
// too large for it, a closed link.
func publishError(err error) error {
	if passing(err) {
		return &quietError{err}
	}
	var refused *relay.RefusedError
	if errors.As(err, &refused) || errors.Is(err, relay.ErrTooLarge) || errors.Is(err, relay.ErrClosed) {
		return err
	}
	if errors.Is(err, relay.ErrUnconfirmed) {
		return &quietError{err}
	}
	return &quietError{}
}
