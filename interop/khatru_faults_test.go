package interop

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fiatjaf/khatru"
	"github.com/fiatjaf/khatru/policies"
	"github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip11"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// take reads as many deliveries as want has, in any order: khatru handles each
// message and each filter in a goroutine of its own.
func take(t *testing.T, s *relay.Subscription, want ...string) {
	t.Helper()
	left := map[string]bool{}
	for _, w := range want {
		left[w] = true
	}
	for range want {
		if got := relaytest.Next(t, s).Event.Event().Content; !left[got] {
			t.Fatalf("got %q, which is another's or came twice; still missing are %v", got, left)
		} else {
			delete(left, got)
		}
	}
}

// TestKhatruRestarts: khatru ends between taking an event and saying OK, and
// another run begins at the same address.
func TestKhatruRestarts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		keep bool
		want []string // of the new run's
	}{
		{"with what it stored", true, []string{"before", "unanswered", "after"}},
		{"with an empty store", false, []string{"unanswered", "after"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			host, device := relaytest.Key(t), relaytest.Key(t)
			event := func(content string) *nip.Event {
				return relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), time.Now().Unix(), content)
			}
			store := khatruStore(t)
			stored, ended := make(chan struct{}), make(chan struct{})
			first := startKhatru(t, "127.0.0.1:0", store, func(r *khatru.Relay) {
				r.OnEventSaved = append(r.OnEventSaved, func(_ context.Context, ev *nostr.Event) {
					if ev.Content == "unanswered" {
						close(stored)
						<-ended
					}
				})
			})
			d, h := link(t, first.url, device, 0), link(t, first.url, host, 0)
			s := h.Subscribe("s", relaytest.To(host.Public()))
			relaytest.AwaitEOSE(t, s)
			relaytest.Publish(t, d, event("before"))
			take(t, s, "before")

			ctx, stop := context.WithTimeout(t.Context(), relaytest.Patience)
			defer stop()
			unanswered, result := event("unanswered"), make(chan error, 1)
			go func() { result <- d.Publish(ctx, unanswered) }()
			select {
			case <-stored:
			case err := <-result:
				t.Fatal("answered: ", err)
			}
			first.kill()
			close(ended)
			if err := <-result; !errors.Is(err, relay.ErrUnconfirmed) {
				t.Fatalf("the publish that was under way: %v", err)
			}
			if !c.keep {
				store = khatruStore(t)
			}
			asked := make(chan string, 8)
			startKhatru(t, first.addr, store, func(r *khatru.Relay) {
				query := r.QueryEvents[0]
				r.QueryEvents[0] = func(ctx context.Context, f nostr.Filter) (chan *nostr.Event, error) {
					if len(f.Tags["p"]) > 0 { // not its own look for a deletion
						asked <- ""
					}
					return query(ctx, f)
				}
			})
			next(t, asked, "the subscription on the new run")
			relaytest.Publish(t, d, unanswered)
			relaytest.Publish(t, d, event("after"))
			take(t, s, c.want...)
			relaytest.Publish(t, d, event("last"))
			take(t, s, "last")
		})
	}
}

// TestKhatruRefuses: khatru's own ways to say no to an event. None of them ends
// the connection or reaches a subscriber.
func TestKhatruRefuses(t *testing.T) {
	t.Parallel()
	now := time.Now().Unix()
	type hook = func(context.Context, *nostr.Event) (bool, string)
	says := func(words string) hook {
		return func(context.Context, *nostr.Event) (bool, string) { return true, words }
	}
	rows := []struct {
		name   string
		at     int64
		reject hook
		store  error
		accept bool
		prefix string
		words  string
	}{
		{name: "a policy without a word", at: now - 7200, reject: policies.PreventTimestampsInThePast(time.Hour), prefix: "blocked", words: "blocked: event too old"},
		// The policy's goroutine outlives the test: it has no stop.
		{name: "its rate limiter", reject: policies.EventPubKeyRateLimiter(1, time.Hour, 0), prefix: "rate-limited", words: "rate-limited: slow down, please"},
		{name: "no reason", reject: says(""), prefix: "blocked", words: "blocked: no reason"},
		{name: "a sentence with a colon", reject: says("for members only: pay first"), prefix: "blocked", words: "blocked: for members only: pay first"},
		{name: "no machine word before the colon", reject: says("Sorry: no"), prefix: "", words: "Sorry: no"},
		{name: "authentication that is never enough", reject: says("auth-required: as somebody else"), prefix: "auth-required", words: "auth-required: as somebody else"},
		{name: "a store that fails", store: errors.New("disk full"), prefix: "error", words: "error: disk full"},
		{name: "a store that has it under another error", store: errors.New("duplicate: have it"), accept: true},
	}
	conns := atomic.Int32{}
	run := startKhatru(t, "127.0.0.1:0", khatruStore(t), func(r *khatru.Relay) {
		r.OnConnect = append(r.OnConnect, func(context.Context) { conns.Add(1) })
		for _, c := range rows {
			if c.reject != nil {
				r.RejectEvent = append(r.RejectEvent, func(ctx context.Context, ev *nostr.Event) (bool, string) {
					if ev.Content != c.name {
						return false, ""
					}
					return c.reject(ctx, ev)
				})
				continue
			}
			save := r.StoreEvent[0]
			r.StoreEvent[0] = func(ctx context.Context, ev *nostr.Event) error {
				if ev.Content == c.name {
					return c.store
				}
				return save(ctx, ev)
			}
		}
	})
	host, device := relaytest.Key(t), relaytest.Key(t)
	d, h := link(t, run.url, device, 0), link(t, run.url, host, 0)
	s := h.Subscribe("s", relaytest.To(host.Public()))
	relaytest.AwaitEOSE(t, s)
	ctx, stop := context.WithTimeout(t.Context(), relaytest.Patience)
	defer stop()
	for _, c := range rows {
		if c.at == 0 {
			c.at = now
		}
		err := d.Publish(ctx, relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), c.at, c.name))
		var refused *relay.RefusedError
		switch {
		case c.accept && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case !c.accept && (!errors.As(err, &refused) || refused.Prefix != c.prefix || refused.Message != c.words || refused.Relay != run.url):
			t.Errorf("%s: %#v", c.name, err)
		}
	}
	relaytest.Publish(t, d, relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), now, "welcome"))
	if got := conns.Load(); got != 2 {
		t.Errorf("%d connections of two links", got)
	}
	take(t, s, "welcome")
}

// TestKhatruAsksLate: a khatru as its README sets it up sends no challenge
// before something was refused. It never refuses a filter of limit zero, so
// that one is open, and deaf, until the other one made the link authenticate.
func TestKhatruAsksLate(t *testing.T) {
	t.Parallel()
	run := startKhatru(t, "127.0.0.1:0", khatruStore(t), func(r *khatru.Relay) {
		r.OnConnect = nil
		r.PreventBroadcast = append(r.PreventBroadcast, func(ws *khatru.WebSocket, ev *nostr.Event) bool {
			return ev.Tags.FindWithValue("p", ws.AuthedPublicKey) == nil
		})
	})
	host, device := relaytest.Key(t), relaytest.Key(t)
	d, h := link(t, run.url, device, 0), link(t, run.url, host, 0)
	live := h.Subscribe("live", relaytest.To(host.Public(), relaytest.LiveOnly))
	s := h.Subscribe("s", relaytest.To(host.Public()))
	relaytest.AwaitEOSE(t, live)
	relaytest.AwaitEOSE(t, s)
	if st := h.Health(); !st.Authenticated || st.LastError != "" {
		t.Errorf("health %+v", st)
	}
	for _, content := range []string{"one", "two"} {
		relaytest.Publish(t, d, relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), time.Now().Unix(), content))
		take(t, s, content)
		take(t, live, content)
	}
}

// TestKhatruHalfClosed: khatru refuses the second filter of a subscription and
// goes on to send what matches the first, under an ID that it said CLOSED to.
// Asked again it adds to that listener instead of replacing it.
func TestKhatruHalfClosed(t *testing.T) {
	t.Parallel()
	const refusedOnce = 7 // the limit by which the filter is known
	var refusals, copies atomic.Int32
	run := startKhatru(t, "127.0.0.1:0", khatruStore(t), func(r *khatru.Relay) {
		r.RejectFilter = append(r.RejectFilter, func(_ context.Context, f nostr.Filter) (bool, string) {
			return f.Limit == refusedOnce && refusals.Add(1) == 1, "rate-limited: one filter at a time"
		})
		r.PreventBroadcast = append(r.PreventBroadcast, func(_ *khatru.WebSocket, ev *nostr.Event) bool {
			if ev.Content == "live" {
				copies.Add(1)
			}
			return false
		})
	})
	host, device := relaytest.Key(t), relaytest.Key(t)
	publish := func(content string) {
		relaytest.Publish(t, link(t, run.url, device, 0), relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), time.Now().Unix(), content))
	}
	h := link(t, run.url, host, 0)
	s := h.Subscribe("s", func(now time.Time) []nip.Filter {
		return append(relaytest.To(host.Public())(now), relaytest.To(host.Public(), relaytest.Limit(refusedOnce))(now)...)
	})
	relaytest.Eventually(t, "the refusal in Health", func() bool {
		return strings.Contains(h.Health().LastError, "rate-limited: one filter at a time")
	})
	publish("meanwhile") // comes under the closed ID now, and stored when the client has asked again
	take(t, s, "meanwhile")
	relaytest.AwaitEOSE(t, s)
	publish("live")
	take(t, s, "live")
	publish("last")
	take(t, s, "last")
	if n := copies.Load(); n != 3 {
		t.Errorf("khatru sent %d copies; the test is of one listener left over and two new ones", n)
	}
}

// TestKhatruLimit: an event longer than khatru reads, where its document says
// so and where only its socket does. The next event goes through.
func TestKhatruLimit(t *testing.T) {
	t.Parallel()
	const limit = 20_000 // bytes of a message
	for _, c := range []struct {
		name   string
		change func(*khatru.Relay)
	}{
		{"its document says so", func(r *khatru.Relay) {
			r.Info.Limitation = &nip11.RelayLimitationDocument{MaxMessageLength: limit}
		}},
		{"its socket says so", func(r *khatru.Relay) { r.MaxMessageSize = limit }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			run := startKhatru(t, "127.0.0.1:0", khatruStore(t), c.change)
			host, device := relaytest.Key(t), relaytest.Key(t)
			d := link(t, run.url, device, 0)
			now := time.Now().Unix()
			ctx, stop := context.WithTimeout(t.Context(), relaytest.Patience)
			defer stop()
			relaytest.Eventually(t, "ErrTooLarge", func() bool {
				now--
				err := d.Publish(ctx, relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), now, strings.Repeat("x", 3*limit)))
				// nil is from before the document was read. khatru closes its socket
				// on what it did not read: the reset may overtake its close frame,
				// and the client cannot know why the connection ended.
				if err != nil && !errors.Is(err, relay.ErrTooLarge) && !errors.Is(err, relay.ErrUnconfirmed) {
					t.Fatal(err)
				}
				return errors.Is(err, relay.ErrTooLarge)
			})
			relaytest.Publish(t, d, relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), now, strings.Repeat("x", limit/2)))
		})
	}
}
