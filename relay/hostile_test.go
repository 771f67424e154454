package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"github.com/rs/zerolog"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// TestBadFrames sends each bad message and then an honest event on the same
// connection: the one is dropped and counted, the other arrives.
func TestBadFrames(t *testing.T) {
	for _, row := range []struct {
		name  string
		frame string
	}{
		{"ten bytes that crash a slicing parser", `["EVENT","`},
		{"a short OK", `["OK","`},
		{"EVENT without an event", `["EVENT","s"]`},
		{"an event that is a string", `["EVENT","s","x"]`},
		{"an event that is empty", `["EVENT","s",{}]`},
		{"EVENT inside another message", `["NOTICE","\"EVENT\",\""`},
		{"no array", `{"EVENT":1}`},
		{"nothing", ``},
		{"an empty array", `[]`},
		{"a label that is a number", `[1,"s"]`},
		{"OK that is neither", `["OK","x","true",""]`},
		{"something behind the array", `["EOSE","other"]x`},
		{"duplicate members", `["EVENT","s",{"kind":1,"kind":3188}]`},
		{"bad UTF-8", "[\"NOTICE\",\"\xff\"]"},
		{"depth", strings.Repeat("[", 20000)},
		{"an empty challenge", `["AUTH",""]`},
		{"a challenge without end", `["AUTH","` + strings.Repeat("c", 5000) + `"]`},
		{"a subscription ID too long", `["EOSE","` + strings.Repeat("s", 65) + `"]`},
	} {
		t.Run(row.name, func(t *testing.T) {
			var honest *nip.Event
			h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
				c.Login()
				c.Await("REQ")
				c.Raw([]byte(row.frame))
				c.Binary([]byte(row.frame))
				c.Event("s", honest)
				c.Send("EOSE", "s")
				c.Drain()
			})
			k := relaytest.Key(t)
			honest = to(t, k.Public(), "honest")
			l, _ := dial(t, h, func(o *relay.Options) { o.Key = k })
			s := l.Subscribe("s", relaytest.To(k.Public()))
			if d := relaytest.Next(t, s); d.Event.Event().ID != honest.ID {
				t.Fatal("another event")
			}
			relaytest.AwaitEOSE(t, s)
			if n := l.Health().Dropped; n < 2 || n > 3 {
				t.Fatalf("dropped %d", n)
			}
			if h.Conns() != 1 {
				t.Fatal("the connection was lost")
			}
		})
	}
}

// TestUnwantedEvents sends events that must not be delivered, then one that
// must.
func TestUnwantedEvents(t *testing.T) {
	k, author := relaytest.Key(t), relaytest.Key(t)
	now := time.Now().Unix()
	sign := func(change func(*nip.Event)) *nip.Event {
		ev := relaytest.Event(t, author, k.Public(), relaytest.Mailbox('a'), now, "bad")
		change(ev)
		if err := author.Sign(ev); err != nil {
			t.Fatal(err)
		}
		return ev
	}
	genuine := relaytest.Event(t, author, k.Public(), relaytest.Mailbox('a'), now, "bad")
	alter := func(change func(*nip.Event)) *nip.Event { c := *genuine; change(&c); return &c }
	for _, row := range []struct {
		name string
		sub  string
		ev   *nip.Event
	}{
		{"a genuine event under another ID", "s", alter(func(e *nip.Event) { e.ID = strings.Repeat("0", 64) })},
		{"a genuine event with other content", "s", alter(func(e *nip.Event) { e.Content = "worse" })},
		{"a genuine event under another author", "s", alter(func(e *nip.Event) { e.PubKey = string(relaytest.Key(t).Public()) })},
		{"another's signature", "s", alter(func(e *nip.Event) { e.Sig = to(t, k.Public(), "x").Sig })},
		{"another kind", "s", sign(func(e *nip.Event) { e.Kind = 1 })},
		{"another recipient", "s", sign(func(e *nip.Event) { e.Tags[0][1] = string(author.Public()) })},
		{"a fourth tag", "s", sign(func(e *nip.Event) { e.Tags = append(e.Tags, nostr.Tag{"e", "x"}) })},
		{"outside the filter", "s", sign(func(e *nip.Event) { e.Tags[1][1] = string(relaytest.Mailbox('b')) })},
		{"older than the filter", "s", sign(func(e *nip.Event) { e.CreatedAt -= 1000 })},
		{"a subscription that is not there", "other", genuine},
		{"an author who is not admitted", "s", to(t, k.Public(), "bad")},
	} {
		t.Run(row.name, func(t *testing.T) {
			good := relaytest.Event(t, author, k.Public(), relaytest.Mailbox('a'), now, "good")
			h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
				c.Login()
				c.Await("REQ")
				c.Event(row.sub, row.ev)
				c.Event("s", good)
				c.Drain()
			})
			l, _ := dial(t, h, func(o *relay.Options) {
				o.Key = k
				o.Admit = func(ev *nip.Event) bool { return ev.PubKey == string(author.Public()) }
			})
			s := l.Subscribe("s", relaytest.To(k.Public(), func(f *nip.Filter) {
				since := nostr.Timestamp(now - 60)
				f.Since = &since
				f.Tags["h"] = []string{string(relaytest.Mailbox('a'))}
			}))
			if d := relaytest.Next(t, s); d.Event.Event().Content != "good" {
				t.Fatalf("delivered %q", d.Event.Event().Content)
			}
		})
	}
}

// TestOnlyOurOwnEvents: even where the filters would take everything, only
// private artifacts from or to this key are delivered.
func TestOnlyOurOwnEvents(t *testing.T) {
	k := relaytest.Key(t)
	note := to(t, k.Public(), "a note")
	author := relaytest.Key(t)
	note.Kind = 1
	if err := author.Sign(note); err != nil {
		t.Fatal(err)
	}
	mine := relaytest.Event(t, k, author.Public(), relaytest.Mailbox('a'), time.Now().Unix(), "mine")
	h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
		c.Login()
		c.Await("REQ")
		c.Event("s", note)
		c.Event("s", to(t, author.Public(), "another's"))
		c.Event("s", mine)
		c.Drain()
	})
	l, _ := dial(t, h, func(o *relay.Options) { o.Key = k })
	s := l.Subscribe("s", func(time.Time) []nip.Filter { return []nip.Filter{{}} })
	if d := relaytest.Next(t, s); d.Event.Event().ID != mine.ID {
		t.Fatalf("delivered %q", d.Event.Event().Content)
	}
}

func TestForgedCopyDoesNotSuppress(t *testing.T) {
	k := relaytest.Key(t)
	honest := to(t, k.Public(), "honest")
	forged := *honest
	forged.Sig = to(t, k.Public(), "other").Sig
	h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
		c.Login()
		c.Await("REQ")
		c.Event("s", &forged)
		c.Event("s", honest)
		c.Drain()
	})
	l, _ := dial(t, h, func(o *relay.Options) { o.Key = k })
	if d := relaytest.Next(t, l.Subscribe("s", relaytest.To(k.Public()))); d.Event.Event().Sig != honest.Sig {
		t.Fatal("the forged copy was delivered")
	}
}

func TestPublishAnswers(t *testing.T) {
	for _, row := range []struct {
		message string
		prefix  string
		ok      bool
	}{
		{"duplicate: have it", "", true},
		{"blocked: no", "blocked", false},
		{"rate-limited: slow down", "rate-limited", false},
		{"invalid: event too large", "invalid", false},
		{"pow: 20", "pow", false},
		{"restricted: not you", "restricted", false},
		{"error: disk", "error", false},
		{"mute: hm", "mute", false},
		{"no prefix at all", "", false},
		{"Not A Word: x", "", false},
		{"", "", false},
		{"error: " + strings.Repeat("\x1b[31m\u202e", 500), "error", false},
	} {
		t.Run(row.message[:min(20, len(row.message))], func(t *testing.T) {
			h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
				c.Login()
				ev := c.Await("EVENT").Event()
				c.Send("OK", strings.Repeat("0", 64), true, "for another")
				c.Send("OK", ev.ID, false, row.message)
				c.Drain()
			})
			l, k := dial(t, h)
			err := publish(t, l, own(t, k, 10), relaytest.Patience)
			if row.ok {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantRefusal(t, err, row.prefix)
			if msg := err.(*relay.RefusedError).Message; len(msg) > 256 || strings.ContainsAny(msg, "\x1b\u202e") {
				t.Fatalf("a relay's words came through as %q", msg)
			}
			if errors.Is(err, relay.ErrTooLarge) != strings.Contains(row.message, "too large") {
				t.Fatal("a refusal for size is not seen as one, or another is")
			}
		})
	}
}

func TestDropBeforeOK(t *testing.T) {
	h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
		c.Login()
		if c.N == 1 {
			c.Await("EVENT")
			return
		}
		c.Serve(nil)
	})
	l, k := dial(t, h)
	ev := own(t, k, 10)
	if err := publish(t, l, ev, relaytest.Patience); !errors.Is(err, relay.ErrUnconfirmed) {
		t.Fatalf("got %v", err)
	}
	if err := publish(t, l, ev, relaytest.Patience); err != nil {
		t.Fatal(err)
	}
	if h.Conns() != 2 {
		t.Fatalf("%d connections", h.Conns())
	}
}

func TestTooLarge(t *testing.T) {
	h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
		c.Login()
		c.Await("EVENT")
		c.Await("EVENT")
		c.Close(1009, "message too big")
	})
	l, k := dial(t, h)
	if err := publish(t, l, own(t, k, 200_000), relaytest.Patience); !errors.Is(err, relay.ErrTooLarge) {
		t.Fatalf("our own bound: %v", err)
	}
	small := make(chan error, 1)
	go func() { small <- publish(t, l, own(t, k, 10), relaytest.Patience) }()
	if err := publish(t, l, own(t, k, 100_000), relaytest.Patience); !errors.Is(err, relay.ErrTooLarge) {
		t.Fatalf("the relay's bound: %v", err)
	}
	if err := <-small; !errors.Is(err, relay.ErrUnconfirmed) {
		t.Fatalf("an innocent event: %v", err)
	}
}

// TestNeverReads: with the socket's buffers full, every Publish still ends with
// its own context, and Close ends at once.
func TestNeverReads(t *testing.T) {
	h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
		c.Login()
		c.Hang()
	})
	l, k := dial(t, h)
	ev := own(t, k, 100_000)
	done := make(chan error)
	const n = 120 // 12 MB: more than socket buffers and queue hold
	for range n {
		go func() { done <- publish(t, l, ev, 400*time.Millisecond) }()
	}
	for range n {
		select {
		case err := <-done:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("got %v", err)
			}
		case <-time.After(relaytest.Patience):
			t.Fatal("a publish outlived its context")
		}
	}
	began := time.Now()
	l.Close()
	if d := time.Since(began); d > 8*time.Second { // waiting for a write's deadline is 10 s
		t.Fatalf("close took %v", d)
	}
}

func TestFloodOfGarbageDropsTheConnection(t *testing.T) {
	k := relaytest.Key(t)
	forged := to(t, k.Public(), "x")
	forged.Sig = to(t, k.Public(), "y").Sig
	good := to(t, k.Public(), "good")
	h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
		c.Login()
		c.Await("REQ")
		if c.N == 1 {
			for {
				c.Event("s", forged)
			}
		}
		c.Event("s", good)
		c.Drain()
	})
	l, _ := dial(t, h, func(o *relay.Options) { o.Key = k })
	if d := relaytest.Next(t, l.Subscribe("s", relaytest.To(k.Public()))); d.Event.Event().ID != good.ID {
		t.Fatal("another event")
	}
	if n := l.Health().Dropped; n != 257 {
		t.Fatalf("dropped %d before the connection was", n)
	}
}

func TestHugeFrame(t *testing.T) {
	h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
		c.Login()
		if c.N == 1 {
			c.Await("REQ")
			c.Raw(bytes.Repeat([]byte{' '}, 600<<10))
		}
		c.Serve(nil)
	})
	l, k := dial(t, h)
	relaytest.AwaitEOSE(t, l.Subscribe("s", relaytest.To(k.Public())))
	if h.Conns() != 2 {
		t.Fatalf("%d connections", h.Conns())
	}
}

func TestAuthSignsTheURLItWasGiven(t *testing.T) {
	seen := make(chan *nip.Event, 1)
	h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
		seen <- c.Login()
		c.Serve(nil)
	})
	l, k := dial(t, h)
	ev := <-seen
	v, err := nip.VerifyEvent(ev)
	if err != nil || ev.Kind != 22242 || ev.PubKey != string(k.Public()) {
		t.Fatalf("AUTH event %v: %v", ev, err)
	}
	want := fmt.Sprint(nostr.Tags{{"relay", string(h.URL)}, {"challenge", strings.Repeat("c", 64)}})
	if got := fmt.Sprint(v.Event().Tags); got != want {
		t.Fatalf("tags %s, want %s", got, want)
	}
	relaytest.Eventually(t, "open and authenticated", func() bool {
		h := l.Health()
		return h.State == relay.StateOpen && h.Authenticated
	})
}

func TestAuthInTheMiddle(t *testing.T) {
	k := relaytest.Key(t)
	good := to(t, k.Public(), "good")
	h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
		// A relay that asks for authentication only when it refuses.
		sub := c.Await("REQ").Text(0)
		c.Send("CLOSED", sub, "auth-required: who are you")
		c.Login()
		sub = c.Await("REQ").Text(0)
		c.Event(sub, good)
		c.Send("EOSE", sub)
		ev := c.Await("EVENT").Event()
		c.Send("OK", ev.ID, false, "auth-required: once more")
		c.Send("AUTH", strings.Repeat("d", 64)) // a second challenge
		again := c.Await("AUTH").Event()
		c.Send("OK", again.ID, true, "")
		ev = c.Await("EVENT").Event()
		c.Send("OK", ev.ID, true, "")
		c.Drain()
	})
	l, _ := dial(t, h, func(o *relay.Options) { o.Key = k })
	s := l.Subscribe("s", relaytest.To(k.Public()))
	relaytest.AwaitEOSE(t, s)
	if d := relaytest.Next(t, s); d.Event.Event().ID != good.ID {
		t.Fatal("another event")
	}
	relaytest.Publish(t, l, own(t, k, 10))
	if h.Conns() != 1 {
		t.Fatal("the connection was lost")
	}
}

func TestAddressNotAllowed(t *testing.T) {
	for _, u := range []nip.RelayURL{"ws://example.com/", "http://127.0.0.1/", "", "ws://localhost:1/"} {
		l := relay.Dial(relay.Options{URL: u, Key: relaytest.Key(t), Log: zerolog.Nop()})
		if h := l.Health(); h.State != relay.StateClosed || h.LastError == "" {
			t.Fatalf("%q: %+v", u, h)
		}
		if err := l.Publish(t.Context(), to(t, relaytest.Key(t).Public(), "x")); !errors.Is(err, relay.ErrClosed) {
			t.Fatalf("%q: %v", u, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	reached := make(chan struct{}, 1)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }))
	defer other.Close()
	first := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusFound))
	defer first.Close()
	l := relay.Dial(relay.Options{URL: nip.RelayURL("ws" + strings.TrimPrefix(first.URL, "http") + "/"), Key: relaytest.Key(t), Log: zerolog.Nop()})
	defer l.Close()
	relaytest.Eventually(t, "the refusal to show in health", func() bool { return strings.Contains(l.Health().LastError, "302") })
	select {
	case <-reached:
		t.Fatal("followed")
	default:
	}
}
