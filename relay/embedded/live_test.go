package embedded_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

// TestNoGapBetweenStoredAndLive: while events are committed, subscriptions come
// up one after the other. Each is shown every event exactly once, as stored or
// as live.
func TestNoGapBetweenStoredAndLive(t *testing.T) {
	const n, subs = 100, 6
	for _, kind := range []string{"websocket", "local"} {
		t.Run(kind, func(t *testing.T) {
			r, url := open(t)
			author, reader := relaytest.Key(t), relaytest.Key(t)
			var all sync.WaitGroup
			all.Go(func() {
				w := connect(t, url)
				w.login(author)
				for i := range n {
					w.send("EVENT", nip.EncodeEvent(event(t, author, reader.Public(), fmt.Sprint(i))))
				}
				for range n {
					w.await("OK")
				}
			})
			for i := range subs {
				all.Go(func() {
					l := r.Local(reader.Public())
					if kind == "websocket" {
						l = relay.Dial(relay.Options{URL: url, Key: reader})
					}
					defer l.Close()
					s := l.Subscribe(fmt.Sprint("s", i), relaytest.To(reader.Public(), relaytest.Limit(5000)))
					seen := map[string]int{}
					for len(seen) < n {
						select {
						case d := <-s.C():
							if seen[d.Event.Event().ID]++; seen[d.Event.Event().ID] > 1 {
								t.Error("an event came twice")
								return
							}
						case <-time.After(relaytest.Patience):
							t.Errorf("only %d of %d events came", len(seen), n)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// TestVerifiedOnce: what a local publisher hands in reaches every local
// subscription as the one value that its verification made.
func TestVerifiedOnce(t *testing.T) {
	r, url := open(t)
	host, device := relaytest.Key(t), relaytest.Key(t)
	a, b := r.Local(host.Public()).Subscribe("a", relaytest.To(host.Public())), r.Local(host.Public()).Subscribe("b", relaytest.To(host.Public()))
	relaytest.AwaitEOSE(t, a)
	relaytest.AwaitEOSE(t, b)
	for _, l := range []relay.Link{r.Local(device.Public()), dial(t, url, device)} {
		relaytest.Publish(t, l, event(t, device, host.Public(), fmt.Sprint(l.Health().Since)))
		if relaytest.Next(t, a).Event.Event() != relaytest.Next(t, b).Event.Event() {
			t.Fatal("two verifications of one event")
		}
	}
}

// TestSlowLocalReader: a local subscription that is not read for long is begun
// anew, and no event is missing then.
func TestSlowLocalReader(t *testing.T) {
	r, url := open(t)
	author, reader := relaytest.Key(t), relaytest.Key(t)
	s := r.Local(reader.Public()).Subscribe("s", relaytest.To(reader.Public(), relaytest.Limit(5000)))
	relaytest.AwaitEOSE(t, s)
	w := connect(t, url)
	w.login(author)
	const n = 160 // 18 MB: more than the subscription and its line hold
	w.flood(author, reader.Public(), n)
	seen := map[string]bool{}
	for len(seen) < n {
		seen[relaytest.Next(t, s).Event.Event().ID] = true
	}
}

// TestRetryOfARequest: a client that got no answer publishes the same event
// again. The host's subscription was sent it long ago and is sent it again, but
// not many times in one moment.
func TestRetryOfARequest(t *testing.T) {
	c := &clock{at: time.Now()}
	_, url := open(t, func(o *embedded.Options) { o.Now = c.now })
	host, device := relaytest.Key(t), relaytest.Key(t)
	h, d := connect(t, url), connect(t, url)
	h.login(host)
	d.login(device)
	h.ask("s", `{"limit":0}`)
	ev := event(t, device, host.Public(), "request")
	for range 5 {
		has(t, "publish", d.publish(ev), "true")
	}
	has(t, "mark", d.publish(event(t, device, host.Public(), "mark")), "true")
	for _, want := range []string{"request", "mark"} {
		if got := h.await("EVENT"); !strings.Contains(got[1], `"`+want+`"`) {
			t.Fatalf("got %s, want %s", got[1], want)
		}
	}
	// A fresh subscription, as after a reconnect, is sent the next retry at once.
	h.ask("t", `{"limit":0}`)
	has(t, "retry", d.publish(ev), "true")
	if got := h.await("EVENT"); got[0] != "t" {
		t.Fatalf("got %v", got)
	}
	// Later both are sent it.
	c.add(11 * time.Second)
	has(t, "retry", d.publish(ev), "true")
	if a, b := h.await("EVENT")[0], h.await("EVENT")[0]; a == b {
		t.Fatalf("twice to %s", a)
	}
}

func TestFailedCommitStopsTheStore(t *testing.T) {
	r, url := open(t)
	k := relaytest.Key(t)
	p := connect(t, url)
	p.login(k)
	has(t, "before", p.publish(event(t, k, k.Public(), "before")), "true")
	embedded.Spoil(r, k.Public())
	has(t, "the failure", p.publish(event(t, k, k.Public(), "after")), "error:")
	embedded.Heal(r, k.Public())
	has(t, "after the failure", p.publish(event(t, k, k.Public(), "after")), "error:")
	if got, closed := p.ask("r", `{}`); closed != "" || len(got) != 1 || got[0] != "before" {
		t.Fatalf("reading %q %q", got, closed)
	}
	p.raw(`["CLOSE","r"]`)
	embedded.Break(r)
	has(t, "websocket", p.publish(event(t, k, k.Public(), "after")), "error:")
	var refused *relay.RefusedError
	if err := r.Local(k.Public()).Publish(t.Context(), event(t, k, k.Public(), "after")); !errors.As(err, &refused) || refused.Prefix != "error" {
		t.Fatalf("got %v", err)
	}
	_, closed := p.ask("s", `{}`)
	has(t, "reading", closed, "error:")
}

// TestPanicCostsOneMessage: a bug behind a message is answered and the process
// lives on, as does the connection.
func TestPanicCostsOneMessage(t *testing.T) {
	bug := make(chan struct{}, 1)
	_, url := open(t, func(o *embedded.Options) {
		o.Class = func(nip.PubKey) embedded.Class {
			select {
			case <-bug:
				panic("a bug")
			default:
				return embedded.Member
			}
		}
	})
	k := relaytest.Key(t)
	p := connect(t, url)
	p.login(k)
	bug <- struct{}{}
	p.raw(`["REQ","s",{}]`)
	has(t, "a REQ with a bug", p.await("NOTICE")[0], "error:")
	if _, closed := p.ask("s", `{}`); closed != "" {
		t.Fatal(closed)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.db")
	r, url := open(t, func(o *embedded.Options) { o.Path = path })
	k := relaytest.Key(t)
	stuck := connect(t, url)
	stuck.login(k)
	l := r.Local(k.Public())
	s := l.Subscribe("s", relaytest.To(k.Public()))
	relaytest.AwaitEOSE(t, s)
	began := time.Now()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d > relaytest.Patience/2 {
		t.Fatalf("close took %v", d)
	}
	stuck.gone()
	if _, open := <-s.C(); open {
		t.Fatal("a local subscription lives on")
	}
	if err := l.Publish(t.Context(), event(t, k, k.Public(), "x")); !errors.Is(err, relay.ErrClosed) {
		t.Fatalf("got %v", err)
	}
	if l.Health().State != relay.StateClosed {
		t.Fatal("a local link of a closed relay is open")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, open := <-r.Local(k.Public()).Subscribe("s", relaytest.To(k.Public())).C(); open {
		t.Fatal("a closed relay opened a subscription")
	}
}

// BenchmarkPublishReceive is one event of 2 KB from a device's Publish, over a
// websocket and a durable commit, to the host's subscription.
func BenchmarkPublishReceive(b *testing.B) {
	for _, kind := range []string{"websocket", "local"} {
		b.Run(kind, func(b *testing.B) {
			r, url := open(b)
			host, device := relaytest.Key(b), relaytest.Key(b)
			l := r.Local(host.Public())
			if kind == "websocket" {
				l = dial(b, url, host)
			}
			s := l.Subscribe("s", relaytest.To(host.Public(), relaytest.LiveOnly))
			relaytest.AwaitEOSE(b, s)
			d := dial(b, url, device)
			events := make([]*nip.Event, b.N)
			for i := range events {
				events[i] = event(b, device, host.Public(), fmt.Sprint(i, strings.Repeat("x", 2000)))
			}
			b.ResetTimer()
			for _, ev := range events {
				relaytest.Publish(b, d, ev)
				relaytest.Next(b, s)
			}
		})
	}
}
