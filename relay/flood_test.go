package relay_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
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

// mostDelay is how much longer an enrolled device may wait, in the median, for
// its event to be delivered when each one stands behind floodBefore events of
// strangers, as a multiple of its wait without them. A quiet machine
// measures 12 to 30, a busy one up to 100: a stranger's event costs the reading
// of a message and no more. That they are not verified is counted, not timed.
const (
	mostDelay   = 250
	floodBefore = 100
)

// TestStrangersDoNotDelayMembers measures both medians in one run.
func TestStrangersDoNotDelayMembers(t *testing.T) {
	const rounds = 21
	k, device := relaytest.Key(t), relaytest.Key(t)
	var flood [][]byte
	for range 1500 {
		flood = append(flood, relay.EncodeFrame("EVENT", "strangers", nip.EncodeEvent(to(t, k.Public(), strings.Repeat("x", 1000)))))
	}
	var mine []*nip.Event
	for i := range 2 * rounds {
		mine = append(mine, relaytest.Event(t, device, k.Public(), relaytest.Mailbox('a'), time.Now().Unix(), fmt.Sprint(i)))
	}
	next := make(chan struct{})
	sent := make(chan time.Time, 1)
	h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
		c.Login()
		for range 2 {
			c.Send("EOSE", c.Await("REQ").Text(0))
		}
		at := 0
		for i, ev := range mine {
			<-next
			sent <- time.Now()
			if i >= rounds {
				for range floodBefore {
					c.Raw(flood[at%len(flood)])
					at++
				}
			}
			c.Event("members", ev)
		}
		c.Drain()
	})
	l, _ := dial(t, h, func(o *relay.Options) {
		o.Key = k
		o.Known = func(p nip.PubKey) bool { return p == device.Public() }
	})
	members := l.Subscribe("members", relaytest.To(k.Public(), func(f *nip.Filter) { f.Authors = []string{string(device.Public())} }))
	strangers := l.Subscribe("strangers", relaytest.To(k.Public())) // nobody reads it
	relaytest.AwaitEOSE(t, members)
	relaytest.AwaitEOSE(t, strangers)
	var waits []time.Duration
	for range mine {
		next <- struct{}{}
		began := <-sent
		relaytest.Next(t, members)
		waits = append(waits, time.Since(began))
	}
	median := func(d []time.Duration) time.Duration { slices.Sort(d); return d[len(d)/2] }
	calm, flooded := median(waits[:rounds]), median(waits[rounds:])
	ratio := float64(flooded) / float64(calm)
	t.Logf("median %v, behind %d strangers %v: %.1f times", calm, floodBefore, flooded, ratio)
	if ratio > mostDelay {
		t.Errorf("an enrolled device waited %.1f times as long (%v, %v)", ratio, flooded, calm)
	}
	if st := l.Health(); st.Dropped < floodBefore*rounds/2 {
		t.Errorf("of %d strangers' events %d were dropped", floodBefore*rounds, st.Dropped)
	}
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
