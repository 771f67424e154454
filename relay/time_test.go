package relay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// TestClosedIsRetried: whatever the prefix, the REQ comes again, after a wait
// that fits it.
func TestClosedIsRetried(t *testing.T) {
	for _, row := range []struct {
		prefix     string
		first, top time.Duration // bounds of the first wait, and of any
	}{
		{"duplicate", 5 * time.Second, 120 * time.Second},
		{"blocked", 5 * time.Second, 120 * time.Second},
		{"rate-limited", 2 * time.Second, 60 * time.Second},
		{"invalid", 5 * time.Second, 120 * time.Second},
		{"restricted", 5 * time.Second, 120 * time.Second},
		{"error", 5 * time.Second, 120 * time.Second},
		{"unsupported", 5 * time.Second, 120 * time.Second},
		{"pow", 5 * time.Second, 120 * time.Second},
		{"mute", 5 * time.Second, 120 * time.Second},
		{"", 5 * time.Second, 120 * time.Second},
	} {
		t.Run("prefix "+row.prefix, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var waits []time.Duration
				h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
					c.Login()
					c.Await("REQ")
					for range 8 {
						at := time.Now()
						c.Send("CLOSED", "s", row.prefix+": go away")
						c.Await("REQ")
						waits = append(waits, time.Since(at))
					}
					c.Send("EOSE", "s")
					c.Drain()
				})
				l, k := dial(t, h)
				s := l.Subscribe("s", relaytest.To(k.Public()))
				<-s.EOSE()
				if waits[0] < row.first || waits[0] > 2*row.first {
					t.Errorf("the first retry came after %v", waits[0])
				}
				for _, w := range waits {
					if w > row.top {
						t.Errorf("a retry came after %v", w)
					}
				}
				if waits[7] < row.top/2 {
					t.Errorf("the eighth retry came after %v already", waits[7])
				}
				if h.Conns() != 1 {
					t.Error("the connection was lost")
				}
			})
		})
	}
}

// TestAuthRequiredForEver: a relay that never has enough is asked again slowly,
// and one challenge is not signed without end.
func TestAuthRequiredForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signed, asked := 0, 0
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Serve(func(m relaytest.Message) {
				switch m.Label {
				case "AUTH":
					signed++
				case "REQ":
					asked++
					c.Send("CLOSED", "s", "auth-required: more")
				}
			})
		})
		l, k := dial(t, h)
		l.Subscribe("s", relaytest.To(k.Public()))
		time.Sleep(10 * time.Minute)
		l.Close()
		synctest.Wait()
		if signed > 2 || asked < 5 || asked > 40 {
			t.Fatalf("signed %d times, asked %d times in 10 minutes", signed, asked)
		}
	})
}

func TestNoChallenge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked time.Duration
		began := time.Now()
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Serve(func(m relaytest.Message) {
				if m.Label == "REQ" {
					asked = time.Since(began)
				}
			})
		})
		l, k := dial(t, h)
		s := l.Subscribe("s", relaytest.To(k.Public()))
		<-s.EOSE()
		synctest.Wait()
		if asked != 2*time.Second {
			t.Fatalf("asked after %v", asked)
		}
		if h := l.Health(); h.Authenticated || h.State != relay.StateOpen || h.LastError == "" {
			t.Fatalf("health %+v", h)
		}
		if err := publish(t, l, own(t, k, 10), time.Second); err != nil {
			t.Fatal(err)
		}
	})
}

func TestBackoffOfARelayThatAcceptsAndDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := make(chan time.Time, 100)
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			dials <- time.Now()
			if c.N == 12 {
				c.Login()
				time.Sleep(2 * time.Minute) // a good while, then it drops again
			}
		})
		dial(t, h)
		var at []time.Time
		for range 13 {
			at = append(at, <-dials)
		}
		for i := 1; i < 12; i++ {
			want := min(time.Second<<(i-1), time.Minute)
			if wait := at[i].Sub(at[i-1]); wait < want/2 || wait > want {
				t.Errorf("dial %d after %v, want %v to %v", i+1, wait, want/2, want)
			}
		}
		if wait := at[12].Sub(at[11]); wait > 2*time.Minute+time.Second {
			t.Errorf("after a steady session the next dial came only after %v", wait-2*time.Minute)
		}
	})
}

func TestRefusedAuthentication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Send("AUTH", strings.Repeat("c", 64))
			ev := c.Await("AUTH").Event()
			c.Send("OK", ev.ID, false, "restricted: revoked")
			c.Drain()
		})
		l, k := dial(t, h)
		if err := publish(t, l, own(t, k, 10), 10*time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		if n := h.Conns(); n > 21 {
			t.Fatalf("%d dials in ten minutes", n)
		}
		if h := l.Health(); !strings.Contains(h.LastError, "restricted: revoked") || h.Authenticated {
			t.Fatalf("health %+v", h)
		}
	})
}

func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			if c.N == 1 {
				c.Await("REQ")
				c.Send("EOSE", "s")
				c.Hang() // neither reads nor answers a ping
			}
			c.Serve(nil)
		})
		l, k := dial(t, h)
		<-l.Subscribe("s", relaytest.To(k.Public())).EOSE()
		began := time.Now()
		for h.Conns() < 2 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if d := time.Since(began); d > 45*time.Second {
			t.Fatalf("noticed after %v", d)
		}
	})
}

// TestNoOKButAlive: nothing but the caller's context ends a publish that a
// living relay never answers.
func TestNoOKButAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Drain()
		})
		l, k := dial(t, h)
		if err := publish(t, l, own(t, k, 10), 5*time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		if h.Conns() != 1 {
			t.Fatal("the connection was lost")
		}
	})
}

func TestStuckWriteDropsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			if c.N == 1 {
				c.Hang()
			}
			c.Serve(nil)
		})
		l, k := dial(t, h)
		began := time.Now()
		if err := publish(t, l, own(t, k, 50_000), time.Hour); !errors.Is(err, relay.ErrUnconfirmed) {
			t.Fatalf("got %v", err)
		}
		if d := time.Since(began); d > 11*time.Second {
			t.Fatalf("the deadline of a write came after %v", d)
		}
		if err := publish(t, l, own(t, k, 50_000), time.Hour); err != nil {
			t.Fatal(err)
		}
	})
}

// TestSlowConsumer: while nobody reads, the link's reader waits and the
// connection stays; nothing is lost and nothing comes out of order.
func TestSlowConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, author := relaytest.Key(t), relaytest.Key(t)
		var events []*nip.Event
		for i := range 200 {
			events = append(events, relaytest.Event(t, author, k.Public(), relaytest.Mailbox('a'), time.Now().Unix(), fmt.Sprint(i)))
		}
		sent := 0
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			for _, ev := range events {
				c.Event("s", ev)
				sent++
			}
			c.Drain()
		})
		l, _ := dial(t, h, func(o *relay.Options) { o.Key = k })
		s := l.Subscribe("s", relaytest.To(k.Public()))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if sent > 70 {
			t.Fatalf("the reader took %d events that nobody read", sent)
		}
		for i := range 200 {
			if d := <-s.C(); d.Event.Event().Content != fmt.Sprint(i) {
				t.Fatalf("delivery %d is %q", i, d.Event.Event().Content)
			}
		}
		if h.Conns() != 1 {
			t.Fatal("the connection was lost")
		}
	})
}

// TestOverlapAndRepetition: the overlap of stored and live events is one
// delivery; a repetition later, or on the next connection, is delivered again.
func TestOverlapAndRepetition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := relaytest.Key(t)
		ev := to(t, k.Public(), "x")
		mark := func(n int) *nip.Event { return to(t, k.Public(), fmt.Sprint("mark ", n)) }
		marks := []*nip.Event{mark(0), mark(1), mark(2)}
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			if c.N == 1 {
				c.Event("s", ev)
				c.Event("s", ev)
				c.Send("EOSE", "s")
				c.Event("s", ev)
				c.Event("s", marks[0])
				time.Sleep(6 * time.Second)
				c.Event("s", ev)
				c.Event("s", marks[1])
				time.Sleep(time.Second)
				return
			}
			c.Event("s", ev)
			c.Event("s", marks[2])
			c.Drain()
		})
		l, _ := dial(t, h, func(o *relay.Options) { o.Key = k })
		s := l.Subscribe("s", relaytest.To(k.Public()))
		for i, want := range []*nip.Event{ev, marks[0], ev, marks[1], ev, marks[2]} {
			if d := <-s.C(); d.Event.Event().ID != want.ID {
				t.Fatalf("delivery %d is %q, want %q", i, d.Event.Event().Content, want.Content)
			}
		}
	})
}

func TestResubscribesAfterADrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reqs []string
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			for range 2 {
				m := c.Await("REQ")
				reqs = append(reqs, fmt.Sprintf("%d %s %s", c.N, m.Text(0), m.Elements[1]))
			}
			if c.N < 3 {
				return
			}
			c.Send("EOSE", "a")
			c.Drain()
		})
		l, _ := dial(t, h)
		n := 0
		filters := func(time.Time) []nip.Filter { n++; return []nip.Filter{{Limit: n}} }
		a := l.Subscribe("a", filters)
		l.Subscribe("b", filters)
		<-a.EOSE()
		if len(reqs) != 6 || n != 6 {
			t.Fatalf("requests %v", reqs)
		}
	})
}

// TestChallengeWithEveryOK: a relay that sends its next challenge with each OK
// (as many do) is authenticated to once. A client that answered each would
// trade signatures with it for ever, at the full speed of both.
func TestChallengeWithEveryOK(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := 0
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Send("AUTH", strings.Repeat("a", 64))
			for {
				switch m := c.Next(); m.Label {
				case "AUTH":
					answers++
					c.Send("OK", m.Event().ID, true, "")
					c.Send("AUTH", strings.Repeat("b", 64))
				case "REQ":
					c.Send("EOSE", m.Text(0))
				}
			}
		})
		l, k := dial(t, h)
		s := l.Subscribe("s", relaytest.To(k.Public()))
		<-s.EOSE()
		time.Sleep(2 * time.Minute) // of the bubble's clock
		synctest.Wait()
		if answers != 1 || h.Conns() != 1 {
			t.Errorf("%d answers on %d connections", answers, h.Conns())
		}
	})
}
