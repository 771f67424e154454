package relay_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// TestStrangersDoNotDelayMembers counts what stands between an enrolled device's
// event and its delivery when a hundred events of as many strangers come before
// each: signatures take the time, and at most strangersBurst of them are checked
// at once, then 20 for each second that passed. The rest cost the reading of a
// message. No clock of this machine takes part, so that a busy one changes
// nothing; BenchmarkRequestUnderFlood in the embedded relay has the times.
func TestStrangersDoNotDelayMembers(t *testing.T) {
	const rounds, before, burst, second = 6, 100, 64, 20
	synctest.Test(t, func(t *testing.T) {
		k, device := relaytest.Key(t), relaytest.Key(t)
		next := make(chan struct{})
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			for range 2 {
				c.Send("EOSE", c.Await("REQ").Text(0))
			}
			c.Beside(func() {
				for i := range rounds {
					select {
					case <-next:
					case <-c.Done():
						return
					}
					for range before {
						c.Event("strangers", to(t, k.Public(), strings.Repeat("x", 1000)))
					}
					c.Event("members", relaytest.Event(t, device, k.Public(), relaytest.Mailbox('a'), time.Now().Unix(), fmt.Sprint(i)))
				}
			})
			c.Drain()
		})
		l, _ := dial(t, h, func(o *relay.Options) {
			o.Key = k
			o.Known = func(p nip.PubKey) bool { return p == device.Public() }
		})
		members := l.Subscribe("members", relaytest.To(k.Public(), func(f *nip.Filter) { f.Authors = []string{string(device.Public())} }))
		strangers := l.Subscribe("strangers", relaytest.To(k.Public()))
		<-members.EOSE()
		<-strangers.EOSE()
		verified := 0
		for i := range rounds {
			began := time.Now()
			next <- struct{}{}
			if d := <-members.C(); d.Event.Event().Content != fmt.Sprint(i) {
				t.Fatalf("delivery %d is %q", i, d.Event.Event().Content)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("round %d: the member's event waited %v for a timer", i, took)
			}
			n := len(take(strangers))
			if i == 0 && n != burst || i > 0 && (n < second-1 || n > second+1) {
				t.Errorf("round %d: %d strangers were verified before the member's event", i, n)
			}
			verified += n
			time.Sleep(time.Second)
		}
		if st := l.Health(); st.Dropped != uint64(rounds*before-verified) || st.Received != uint64(rounds+verified) {
			t.Errorf("of %d strangers' events %d were verified, health %+v", rounds*before, verified, st)
		}
	})
}

// TestFullSubscriptionOfStrangers: nobody reads what strangers send, for an
// hour. The members' events arrive all the same.
func TestFullSubscriptionOfStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, device := relaytest.Key(t), relaytest.Key(t)
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			c.Await("REQ")
			c.Beside(func() {
				for i := range 300 {
					c.Event("strangers", to(t, k.Public(), fmt.Sprint(i)))
					c.Pause(time.Second)
				}
				c.Event("members", relaytest.Event(t, device, k.Public(), relaytest.Mailbox('a'), time.Now().Unix(), "mine"))
			})
			c.Drain()
		})
		l, _ := dial(t, h, func(o *relay.Options) {
			o.Key = k
			o.Known = func(p nip.PubKey) bool { return p == device.Public() }
		})
		members := l.Subscribe("members", relaytest.To(k.Public()))
		strangers := l.Subscribe("strangers", relaytest.To(k.Public()))
		time.Sleep(301 * time.Second)
		wantContents(t, "members", take(members), "mine")
		if got := take(strangers); len(got) != 64 {
			t.Errorf("%d strangers' events waited", len(got))
		}
		if st := l.Health(); st.Dropped != 300-64 {
			t.Errorf("dropped %d", st.Dropped)
		}
	})
}

// TestOneMemberCannotFloodTheOthers: known authors are limited each for itself.
func TestOneMemberCannotFloodTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, stolen, device := relaytest.Key(t), relaytest.Key(t), relaytest.Key(t)
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			c.Beside(func() {
				for i := range 1500 {
					c.Event("s", relaytest.Event(t, stolen, k.Public(), relaytest.Mailbox('a'), time.Now().Unix(), fmt.Sprint(i)))
				}
				c.Event("s", relaytest.Event(t, device, k.Public(), relaytest.Mailbox('a'), time.Now().Unix(), "mine"))
			})
			c.Drain()
		})
		l, _ := dial(t, h, func(o *relay.Options) {
			o.Key = k
			o.Known = func(nip.PubKey) bool { return true }
		})
		s := l.Subscribe("s", relaytest.To(k.Public()))
		n := 0
		for d := range s.C() {
			if d.Event.Event().Content == "mine" {
				break
			}
			n++
		}
		if n != 1024 {
			t.Errorf("%d events of one device at once", n)
		}
	})
}

// documented is a relay that answers every event OK true, beside a NIP-11
// document of that text.
func documented(t *testing.T, document func(w http.ResponseWriter, r *http.Request)) (nip.RelayURL, *atomic.Int64) {
	t.Helper()
	var events atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			if r.Header.Get("Accept") != "application/nostr+json" {
				t.Error("a request that is for no document")
			}
			document(w, r)
			return
		}
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		ws.SetReadLimit(1 << 20)
		for {
			_, b, err := ws.Read(r.Context())
			if err != nil {
				return
			}
			parts, err := relay.SplitFrame(b, 8)
			if err != nil || string(parts[0]) != `"EVENT"` {
				continue
			}
			events.Add(1)
			ev, err := nip.ParseEvent(parts[1])
			if err != nil || ws.Write(r.Context(), websocket.MessageText, relay.EncodeFrame("OK", ev.ID, true, "")) != nil {
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	return nip.RelayURL("ws" + strings.TrimPrefix(s.URL, "http") + "/"), &events
}

func TestDocumentOfARelay(t *testing.T) {
	for _, row := range []struct {
		name     string
		document func(w http.ResponseWriter, r *http.Request)
		tooLarge bool
	}{
		{"a small limit", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"limitation":{"max_message_length":5000}}`)
		}, true},
		{"a large limit", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"limitation":{"max_message_length":5000000}}`)
		}, false},
		{"no document", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "what?", 404) }, false},
		{"a limit in an error", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			fmt.Fprint(w, `{"limitation":{"max_message_length":5000}}`)
		}, false},
		{"another relay's", func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/" {
				http.Redirect(w, r, "/other", http.StatusFound)
				return
			}
			fmt.Fprint(w, `{"limitation":{"max_message_length":5000}}`)
		}, false},
		{"a document without end", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"limitation":{"max_message_length":5000}}`)
			for r.Context().Err() == nil {
				if _, err := fmt.Fprint(w, strings.Repeat(" ", 4096)); err != nil {
					return
				}
			}
		}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			answered := make(chan struct{}, 8)
			url, events := documented(t, func(w http.ResponseWriter, r *http.Request) {
				defer func() { answered <- struct{}{} }()
				row.document(w, r)
			})
			k := relaytest.Key(t)
			l := relay.Dial(relay.Options{URL: url, Key: k, Log: zerolog.Nop()})
			t.Cleanup(func() { l.Close() })
			<-answered
			if row.tooLarge {
				// The answer is on its way; the limit holds from some moment on.
				relaytest.Eventually(t, "the relay's limit", func() bool {
					before := events.Load()
					err := publish(t, l, own(t, k, 6000), relaytest.Patience)
					return errors.Is(err, relay.ErrTooLarge) && events.Load() == before
				})
				relaytest.Publish(t, l, own(t, k, 3000))
				return
			}
			relaytest.Publish(t, l, own(t, k, 6000))
			if err := publish(t, l, own(t, k, 200_000), relaytest.Patience); !errors.Is(err, relay.ErrTooLarge) {
				t.Errorf("an event over our own limit: %v", err)
			}
		})
	}
}

// TestDocumentThatNeverComes: a relay that hangs on its document serves events.
func TestDocumentThatNeverComes(t *testing.T) {
	url, _ := documented(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	k := relaytest.Key(t)
	l := relay.Dial(relay.Options{URL: url, Key: k, Log: zerolog.Nop()})
	defer l.Close()
	relaytest.Publish(t, l, own(t, k, 3000))
}
