package relay_test

import (
	"testing"
	"testing/synctest"
	"time"

	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// TestLostSubscription: a relay that lost a REQ answers pings and nothing else
// of it, and is asked again, more and more slowly; one that sends stored
// events, however slowly, is not.
func TestLostSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waits []time.Duration
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			for range 8 {
				at := time.Now()
				c.Await("REQ")
				waits = append(waits, time.Since(at))
			}
			c.Send("EOSE", "s")
			c.Drain()
		})
		l, k := dial(t, h)
		<-l.Subscribe("s", relaytest.To(k.Public())).EOSE()
		if waits[0] != 10*time.Second || waits[1] != 20*time.Second || waits[7] != 160*time.Second {
			t.Errorf("asked again after %v", waits)
		}
		if h.Conns() != 1 {
			t.Error("the connection was lost")
		}
	})
	t.Run("slow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			k := relaytest.Key(t)
			h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
				c.Login()
				c.Await("REQ")
				for i := range int64(3) {
					time.Sleep(9 * time.Second)
					c.Event("s", relaytest.Event(t, relaytest.Key(t), k.Public(), relaytest.Mailbox('a'), 1_700_000_000+i, "x"))
				}
				c.Send("EOSE", "s")
				c.Serve(func(m relaytest.Message) {
					if m.Label == "REQ" {
						asked++
					}
				})
			})
			l, _ := dial(t, h, func(o *relay.Options) { o.Key = k })
			s := l.Subscribe("s", relaytest.To(k.Public()))
			for range 3 {
				<-s.C()
			}
			<-s.EOSE()
			time.Sleep(10 * time.Minute)
			if asked != 0 {
				t.Errorf("asked %d times more", asked)
			}
		})
	})
}

// TestRefusedToAuthenticateAgain: a relay that said auth-required to a key that
// it had let in, and then refuses the used challenge, is dialled again soon.
func TestRefusedToAuthenticateAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			if c.N == 1 {
				c.Send("CLOSED", "s", "auth-required: again")
				c.Send("OK", c.Await("AUTH").Event().ID, false, "invalid: not the last challenge")
				c.Drain()
			}
			c.Send("EOSE", "s")
			c.Drain()
		})
		l, k := dial(t, h)
		began := time.Now()
		<-l.Subscribe("s", relaytest.To(k.Public())).EOSE()
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("back after %v", d)
		}
	})
}

// TestAskedAgainWithoutEOSE: that a REQ goes out again does not prolong the time
// during which a re-published event counts as a copy of what was stored.
func TestAskedAgainWithoutEOSE(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := relaytest.Key(t)
		ev := to(t, k.Public(), "again")
		h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
			c.Login()
			c.Await("REQ")
			c.Beside(func() {
				c.Event("s", ev)
				c.Pause(65 * time.Second)
				c.Event("s", ev)
			})
			c.Drain()
		})
		l, _ := dial(t, h, func(o *relay.Options) { o.Key = k })
		s := l.Subscribe("s", relaytest.To(k.Public()))
		time.Sleep(66 * time.Second)
		wantContents(t, "a re-publish", take(s), "again", "again")
	})
}
