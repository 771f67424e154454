package relay_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// gaps collects what OnGap says.
type gaps struct {
	mu  sync.Mutex
	all []relay.Gap
}

func (g *gaps) add(one relay.Gap) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = append(g.all, one)
}

func (g *gaps) taken() []relay.Gap {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]relay.Gap(nil), g.all...)
}

// rotating is a link whose connections live as long as they do by default.
func rotating(g *gaps, change ...func(*relay.Options)) func(*relay.Options) {
	return func(o *relay.Options) {
		o.Life, o.OnGap = 0, g.add
		for _, c := range change {
			c(o)
		}
	}
}

// take reads what is there once nothing moves any more.
func take(s *relay.Subscription) (contents []string) {
	for {
		synctest.Wait()
		select {
		case d, ok := <-s.C():
			if !ok {
				return append(contents, "closed")
			}
			contents = append(contents, d.Event.Event().Content)
		default:
			return contents
		}
	}
}

func wantContents(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: delivered %q, want %q", what, got, want)
	}
}

// TestRotation: the next connection comes 20 s before the end of the old one,
// both are read, an event of both is delivered once, a replay of what was
// delivered is not, and a re-published event is.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		conns := make([]*relaytest.HostileConn, 4)
		var asked, ended [4]time.Duration
		k := relaytest.Key(t)
		ev := func(s string) *nip.Event { return to(t, k.Public(), s) }
		past, both, first, second := ev("past"), ev("both"), ev("first"), ev("second")
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			asked[c.N], conns[c.N] = time.Since(began), c
			defer func() { ended[c.N] = time.Since(began) }()
			c.Event("s", past)
			c.Send("EOSE", "s")
			c.Drain()
		})
		var g gaps
		l, _ := dial(t, h, rotating(&g, func(o *relay.Options) { o.Key = k }))
		s := l.Subscribe("s", relaytest.To(k.Public()))
		wantContents(t, "stored", take(s), "past")
		time.Sleep(101 * time.Second) // the second connection is up
		wantContents(t, "the successor's replay", take(s))
		conns[1].Event("s", both)
		conns[2].Event("s", both)
		conns[1].Event("s", first)
		conns[2].Event("s", second)
		got := take(s)
		if len(got) != 3 || strings.Count(fmt.Sprint(got), "both") != 1 {
			t.Errorf("while both are read: %q", got)
		}
		time.Sleep(6 * time.Second)
		conns[2].Event("s", both) // a device that got no answer published it again
		conns[1].Event("s", both)
		wantContents(t, "a re-publish", take(s), "both")
		if st := l.Health(); st.State != relay.StateOpen || !st.Authenticated {
			t.Errorf("health %+v", st)
		}
		time.Sleep(15 * time.Second) // the first is gone
		conns[2].Event("s", first)
		wantContents(t, "a re-publish on the successor", take(s), "first")
		time.Sleep(90 * time.Second)
		synctest.Wait()
		for n, want := range []time.Duration{0, 0, 100 * time.Second, 200 * time.Second} {
			if n > 0 && asked[n] != want {
				t.Errorf("connection %d was subscribed at %v, want %v", n, asked[n], want)
			}
		}
		if ended[1] != 120*time.Second || h.Conns() != 3 {
			t.Errorf("the first connection ended at %v, %d came", ended[1], h.Conns())
		}
		if st := l.Health(); st.Gap != 0 || len(g.taken()) != 0 {
			t.Errorf("a gap of %v, reported %v", st.Gap, g.taken())
		}
	})
}

// TestRotationForHours: never more than two connections, never a moment without
// one, and nothing twice.
func TestRotationForHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, subscribed atomic.Int64
		k := relaytest.Key(t)
		past := to(t, k.Public(), "past")
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			c.Login()
			c.Await("REQ")
			c.Event("s", past)
			c.Send("EOSE", "s")
			subscribed.Add(1)
			defer subscribed.Add(-1)
			c.Drain()
		})
		var g gaps
		l, _ := dial(t, h, rotating(&g, func(o *relay.Options) { o.Key = k }))
		s := l.Subscribe("s", relaytest.To(k.Public()))
		<-s.EOSE()
		for range 4 * 60 {
			time.Sleep(time.Minute)
			synctest.Wait()
			if subscribed.Load() < 1 {
				t.Fatal("nobody listens")
			}
		}
		wantContents(t, "in four hours", take(s), "past")
		if most.Load() > 2 || h.Conns() < 140 || h.Conns() > 150 || l.Health().Gap != 0 {
			t.Errorf("%d at once, %d in all, gap %v", most.Load(), h.Conns(), l.Health().Gap)
		}
	})
}

// TestPublishAcrossTheEnd: a publish that the retiring connection never
// answered is repeated on its successor, with the same bytes.
func TestPublishAcrossTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var frames []string
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			m := c.Await("EVENT")
			frames = append(frames, string(m.Elements[0]))
			if c.N > 1 {
				c.Send("OK", m.Event().ID, true, "duplicate: have it")
			}
			c.Drain()
		})
		l, k := dial(t, h, rotating(&gaps{}))
		began := time.Now()
		if err := publish(t, l, own(t, k, 10), time.Hour); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d != 120*time.Second || len(frames) != 2 || frames[0] != frames[1] {
			t.Errorf("after %v, %d frames", d, len(frames))
		}
	})
}

// TestUnreadAcrossTheEnd: what a retiring connection could not hand to a slow
// consumer comes by its successor.
func TestUnreadAcrossTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := relaytest.Key(t)
		var events []*nip.Event
		for i := range 100 {
			events = append(events, to(t, k.Public(), fmt.Sprint(i)))
		}
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			for _, ev := range events {
				c.Event("s", ev)
			}
			c.Send("EOSE", "s")
			c.Drain()
		})
		l, _ := dial(t, h, rotating(&gaps{}, func(o *relay.Options) { o.Key = k }))
		s := l.Subscribe("s", relaytest.To(k.Public()))
		time.Sleep(130 * time.Second) // the first has ended while its reader waited
		for i := range 100 {
			if d := <-s.C(); d.Event.Event().Content != fmt.Sprint(i) {
				t.Fatalf("delivery %d is %q", i, d.Event.Event().Content)
			}
		}
		wantContents(t, "afterwards", take(s))
	})
}

// TestVanishesForAnHour: the link comes back, delivers what was stored, and
// says how long nobody listened.
func TestVanishesForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := relaytest.Key(t)
		while := to(t, k.Public(), "while away")
		var away atomic.Bool
		var dials atomic.Int64
		vanish := make(chan struct{})
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			if away.Load() {
				return
			}
			if c.N > 1 {
				c.Event("s", while)
			}
			c.Send("EOSE", "s")
			if c.N == 1 {
				<-vanish
				return
			}
			c.Drain()
		})
		var g gaps
		l, _ := dial(t, h, rotating(&g, func(o *relay.Options) {
			reach := o.DialContext
			o.Key = k
			o.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials.Add(1)
				if away.Load() {
					return nil, errors.New("no route")
				}
				return reach(ctx, network, addr)
			}
		}))
		s := l.Subscribe("s", relaytest.To(k.Public()))
		<-s.EOSE()
		time.Sleep(30 * time.Second)
		away.Store(true)
		close(vanish)
		time.Sleep(time.Hour)
		if d := l.Health().Gap; d < time.Hour || d > time.Hour+time.Minute {
			t.Errorf("while it lasts the gap is %v", d)
		}
		if n := dials.Load(); n > 140 {
			t.Errorf("%d dials in an hour", n)
		}
		away.Store(false)
		time.Sleep(61 * time.Second)
		wantContents(t, "after an hour", take(s), "while away")
		all := g.taken()
		if len(all) != 1 || all[0].Subscription != "s" || all[0].To.Sub(all[0].From) < time.Hour {
			t.Errorf("reported %v", all)
		}
		time.Sleep(time.Hour)
		if st := l.Health(); len(g.taken()) != 1 || st.Gap > time.Hour+3*time.Minute || st.State != relay.StateOpen {
			t.Errorf("an hour later: %v, health %+v", g.taken(), st)
		}
	})
}

// TestHalfOpensAgainAndAgain: every connection goes dead without a word after a
// second. No gap gets long.
func TestHalfOpensAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			c.Send("EOSE", "s")
			c.Hang()
		})
		var g gaps
		l, k := dial(t, h, rotating(&g))
		s := l.Subscribe("s", relaytest.To(k.Public()))
		<-s.EOSE()
		time.Sleep(2 * time.Hour)
		if st := l.Health(); len(g.taken()) != 0 || st.Gap > 2*time.Minute || st.Gap < 25*time.Second {
			t.Errorf("gap %v, reported %v", st.Gap, g.taken())
		}
		if n := h.Conns(); n < 60 || n > 200 {
			t.Errorf("%d connections in two hours", n)
		}
	})
}

// TestClosesEverySubscription: each REQ is closed at once, for an hour. The link
// keeps asking, slowly, counts the time as a gap, and reports it when it is
// over.
func TestClosesEverySubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		asked := 0
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			for {
				m := c.Await("REQ")
				if time.Since(began) > time.Hour {
					c.Send("EOSE", m.Text(0))
					continue
				}
				asked++
				c.Send("CLOSED", m.Text(0), "error: shutting down idle subscription")
			}
		})
		var g gaps
		l, k := dial(t, h, rotating(&g))
		s := l.Subscribe("s", relaytest.To(k.Public()))
		time.Sleep(time.Hour)
		synctest.Wait()
		if st := l.Health(); st.Gap < time.Hour-time.Second || !strings.Contains(st.LastError, "closed a subscription") {
			t.Errorf("health %+v", st)
		}
		if asked < 30 || asked > 300 {
			t.Errorf("asked %d times in an hour", asked)
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		select {
		case <-s.EOSE():
		default:
			t.Error("deaf for ever")
		}
		if all := g.taken(); len(all) != 1 || all[0].To.Sub(all[0].From) < time.Hour {
			t.Errorf("reported %v", all)
		}
	})
}

// TestReplaysOldEvents: a relay that sends the same old events all the time, as
// stored and as live, is a repetition every few seconds at most.
func TestReplaysOldEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := relaytest.Key(t)
		old := []*nip.Event{to(t, k.Public(), "one"), to(t, k.Public(), "two")}
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			for range 50 {
				c.Event("s", old[0])
				c.Event("s", old[1])
			}
			c.Send("EOSE", "s")
			c.Beside(func() {
				for {
					c.Event("s", old[0])
					c.Pause(100 * time.Millisecond)
				}
			})
			c.Drain()
		})
		l, _ := dial(t, h, rotating(&gaps{}, func(o *relay.Options) { o.Key = k }))
		s := l.Subscribe("s", relaytest.To(k.Public()))
		ones, twos := 0, 0
		end := time.After(10 * time.Minute)
		for reading := true; reading; {
			select {
			case d := <-s.C():
				if d.Event.Event().Content == "one" {
					ones++
				} else {
					twos++
				}
			case <-end:
				reading = false
			}
		}
		if twos != 1 || ones < 50 || ones > 125 {
			t.Errorf("in ten minutes: one %d times, two %d times", ones, twos)
		}
		if st := l.Health(); st.Received != uint64(ones+twos) {
			t.Errorf("health %+v", st)
		}
	})
}

// TestNeverEOSE: re-published events get through even to a subscription whose
// relay never ends its stored events.
func TestNeverEOSE(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := relaytest.Key(t)
		ev := to(t, k.Public(), "again")
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			c.Beside(func() {
				for {
					c.Event("s", ev)
					c.Pause(30 * time.Second)
				}
			})
			c.Drain()
		})
		var g gaps
		l, _ := dial(t, h, rotating(&g, func(o *relay.Options) { o.Key = k }))
		s := l.Subscribe("s", relaytest.To(k.Public()))
		time.Sleep(10 * time.Minute)
		if got := take(s); len(got) < 5 {
			t.Errorf("delivered %d times in ten minutes", len(got))
		}
		if st := l.Health(); st.Gap > time.Second || len(g.taken()) != 0 {
			t.Errorf("gap %v", st.Gap)
		}
	})
}

// TestFloods: junk without end costs the connection, again and again, with the
// waits of a failing relay; the honest events in between arrive.
func TestFloods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := relaytest.Key(t)
		forged := *to(t, k.Public(), "forged")
		forged.Content = "worse"
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			c.Event("s", to(t, k.Public(), fmt.Sprint("honest ", c.N)))
			c.Send("EOSE", "s")
			for i := 0; ; i++ {
				lie := forged
				lie.ID = fmt.Sprintf("%064x", i)
				c.Event("s", &lie)
				c.Raw([]byte(`["EVENT","`))
			}
		})
		l, _ := dial(t, h, rotating(&gaps{}, func(o *relay.Options) { o.Key = k }))
		s := l.Subscribe("s", relaytest.To(k.Public()))
		time.Sleep(10 * time.Minute)
		got := take(s)
		if n := h.Conns(); len(got) != n || n < 8 || n > 25 {
			t.Errorf("%d connections brought %q", n, got)
		}
	})
}

// TestLostBySuccessor: a REQ that only the second connection lost is asked again
// there, and what the first delivered meanwhile does not come twice.
func TestLostBySuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := relaytest.Key(t)
		past, missed := to(t, k.Public(), "past"), to(t, k.Public(), "missed")
		var waits []time.Duration
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			if c.N == 2 {
				for range 2 {
					at := time.Now()
					c.Await("REQ")
					waits = append(waits, time.Since(at))
				}
				c.Event("s", missed)
			}
			c.Event("s", past)
			c.Send("EOSE", "s")
			c.Drain()
		})
		var g gaps
		l, _ := dial(t, h, rotating(&g, func(o *relay.Options) { o.Key = k }))
		s := l.Subscribe("s", relaytest.To(k.Public()))
		wantContents(t, "stored", take(s), "past")
		time.Sleep(115 * time.Second)
		if st := l.Health(); !strings.Contains(st.LastError, "did not answer") {
			t.Errorf("health %+v", st)
		}
		time.Sleep(30 * time.Second)
		wantContents(t, "by the third REQ", take(s), "missed")
		if fmt.Sprint(waits) != "[10s 20s]" || h.Conns() != 2 {
			t.Errorf("asked again after %v, %d connections", waits, h.Conns())
		}
		if st := l.Health(); st.LastError != "" || st.Gap > 30*time.Second || len(g.taken()) != 0 {
			t.Errorf("health %+v, gaps %v", st, g.taken())
		}
	})
}
