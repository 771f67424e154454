package relay

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
)

// maxSignatures is how many times one challenge is answered. A relay that says
// auth-required after that is asked again slowly, subscription by subscription.
const maxSignatures = 2

// authRefusedError is a relay's OK false to the first AUTH of a connection.
type authRefusedError struct{ message string }

func (e *authRefusedError) Error() string { return "relay refused authentication: " + e.message }

// authenticate signs challenge for exactly the URL that the link was given
// (NIP-42) and waits for the relay's OK. A refusal ends the session: going on
// without would only be refused later and less clearly.
func (s *session) authenticate(challenge string) error {
	c := s.c
	if challenge != s.challenge {
		s.challenge, s.signed = challenge, 0
	}
	s.signed++
	ev, err := s.signAuth(&nip.Event{
		Kind: nostr.KindClientAuthentication, CreatedAt: nostr.Timestamp(c.o.Now().Unix()),
		Tags: nostr.Tags{{"relay", string(c.o.URL)}, {"challenge", challenge}},
	})
	if err != nil {
		return err
	}
	w := s.wait(nip.EventID(ev.ID), 0)
	if err := s.send(s.ctx, EncodeFrame("AUTH", nip.EncodeEvent(ev))); err != nil {
		return err
	}
	t := time.NewTimer(answerTimeout)
	defer t.Stop()
	select {
	case a := <-w:
		if a.err != nil {
			return a.err
		}
		if !a.ok && s.authenticated {
			// The key was welcome on this very connection: the challenge is
			// used up, and the next connection brings a fresh one.
			return errors.New("relay refused to authenticate again: " + a.message)
		}
		if !a.ok {
			return &authRefusedError{a.message}
		}
	case <-t.C:
		return errors.New("relay did not answer the authentication")
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.authenticated, s.wantAuth = true, false
	if slices.Contains(c.open, s) {
		c.settle(StateOpen)
		c.health.LastError = ""
	}
	close(s.round)
	s.round = make(chan struct{})
	return nil
}

// challenged takes a challenge that came in the middle. It is answered at once
// only while the session is not authenticated; otherwise it is kept for the
// next auth-required. Two sides that answered every challenge would keep each
// other busy for ever: many relays send the next one with every OK.
func (s *session) challenged(challenge string) error {
	if !s.authenticated {
		if err := s.authenticate(challenge); err != nil {
			return err
		}
		s.askAgain()
		return nil
	}
	s.challenge, s.signed = challenge, 0
	return s.authenticateAgain()
}

// authenticateAgain answers an auth-required that came in the middle.
func (s *session) authenticateAgain() error {
	s.c.mu.Lock()
	want := s.wantAuth
	s.wantAuth = false
	s.c.mu.Unlock()
	if !want || s.challenge == "" || s.signed >= maxSignatures {
		return nil
	}
	if err := s.authenticate(s.challenge); err != nil {
		return err
	}
	s.askAgain()
	return nil
}

// requireAuth asks the manager to authenticate again and returns what is
// closed when it did.
func (s *session) requireAuth() <-chan struct{} {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.wantAuth = true
	s.poke()
	return s.round
}
