package relay_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// TestHeld counts what a link remembers of each thing that a relay can send
// without end: nothing grows with it.
func TestHeld(t *testing.T) {
	const many = 500
	for _, row := range []struct {
		name string
		pour func(t *testing.T, c *relaytest.HostileConn, self nip.PubKey)
		seen int // IDs that it may remember: what it delivered
	}{
		{"answers to events that nobody published", func(_ *testing.T, c *relaytest.HostileConn, _ nip.PubKey) {
			for i := range many {
				c.Send("OK", fmt.Sprintf("%064x", i), true, "")
			}
		}, 0},
		{"subscriptions that nobody made", func(_ *testing.T, c *relaytest.HostileConn, _ nip.PubKey) {
			for i := range many {
				c.Send("EOSE", fmt.Sprint(i))
				c.Send("CLOSED", fmt.Sprint(i), "auth-required: x")
			}
		}, 0},
		{"challenges", func(_ *testing.T, c *relaytest.HostileConn, _ nip.PubKey) {
			for i := range many {
				c.Send("AUTH", fmt.Sprintf("%064x", i))
			}
		}, 0},
		{"notices", func(_ *testing.T, c *relaytest.HostileConn, _ nip.PubKey) {
			for range many {
				c.Send("NOTICE", strings.Repeat("x", 4000))
			}
		}, 0},
		{"one event over and over", func(t *testing.T, c *relaytest.HostileConn, self nip.PubKey) {
			ev := to(t, self, "x")
			for range many {
				c.Event("s", ev)
			}
		}, 1},
		{"lies about IDs", func(t *testing.T, c *relaytest.HostileConn, self nip.PubKey) {
			lie := *to(t, self, "x")
			for i := range 200 { // more would end the connection
				lie.ID = fmt.Sprintf("%064x", i)
				c.Event("s", &lie)
			}
		}, 0},
		{"strangers", func(t *testing.T, c *relaytest.HostileConn, self nip.PubKey) {
			for i := range many {
				c.Event("s", to(t, self, fmt.Sprint(i)))
			}
		}, 64},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := relaytest.Key(t)
				poured := false
				h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
					c.Login()
					c.Send("EOSE", c.Await("REQ").Text(0))
					c.Beside(func() {
						row.pour(t, c, k.Public())
						poured = true
					})
					c.Drain()
				})
				l, _ := dial(t, h, func(o *relay.Options) {
					o.Key = k
					o.Known = func(nip.PubKey) bool { return false }
				})
				s := l.Subscribe("s", relaytest.To(k.Public()))
				<-s.EOSE()
				time.Sleep(time.Second)
				synctest.Wait()
				got := relay.HeldBy(l)
				if !poured || h.Conns() != 1 {
					t.Fatalf("poured %v on %d connections", poured, h.Conns())
				}
				if got.Seen > row.seen || got.Buckets > max(row.seen, 1) || got.Words > 256 {
					t.Errorf("held %+v", got)
				}
				got.Seen, got.Buckets, got.Words = 0, 0, 0
				if want := (relay.Held{Sessions: 1, Subscriptions: 1, Asks: 1}); got != want {
					t.Errorf("held %+v, want %+v", got, want)
				}
			})
		})
	}
}
