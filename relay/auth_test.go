package relay_test

import (
	"strings"
	"testing"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// TestAuthenticates: NIP-42 at each moment at which a relay may ask for it, each
// time for this relay's own name, with what was refused asked again afterwards.
func TestAuthenticates(t *testing.T) {
	challenge := strings.Repeat("c", 64)
	for _, row := range []struct {
		name    string
		publish bool                                      // before anything else
		script  func(c *relaytest.HostileConn) *nip.Event // until the answer to the challenge
	}{
		{"on connect", false, func(c *relaytest.HostileConn) *nip.Event { return c.Login() }},
		{"when a REQ is refused", false, func(c *relaytest.HostileConn) *nip.Event {
			c.Send("CLOSED", c.Await("REQ").Text(0), "auth-required: who are you")
			return c.Login()
		}},
		{"when a REQ is refused after a challenge that was too late", false, func(c *relaytest.HostileConn) *nip.Event {
			sub := c.Await("REQ").Text(0)
			c.Send("AUTH", challenge)
			ev := c.Await("AUTH").Event()
			c.Send("CLOSED", sub, "auth-required: who are you")
			c.Send("OK", ev.ID, true, "")
			return ev
		}},
		{"when an EVENT is refused", true, func(c *relaytest.HostileConn) *nip.Event {
			ev := c.Await("EVENT").Event()
			c.Send("OK", ev.ID, false, "auth-required: who are you")
			return c.Login()
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel() // a relay that does not ask is waited for
			k := relaytest.Key(t)
			good := to(t, k.Public(), "good")
			answered := make(chan *nip.Event, 1)
			h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
				answered <- row.script(c)
				c.Serve(func(m relaytest.Message) {
					if m.Label == "REQ" {
						c.Event(m.Text(0), good)
					}
				})
			})
			l, _ := dial(t, h, func(o *relay.Options) { o.Key = k })
			if row.publish {
				relaytest.Publish(t, l, own(t, k, 10))
			}
			s := l.Subscribe("s", relaytest.To(k.Public()))
			if d := relaytest.Next(t, s); d.Event.Event().ID != good.ID {
				t.Error("another event")
			}
			relaytest.Publish(t, l, own(t, k, 10))
			ev := <-answered
			if ev.Kind != 22242 || ev.PubKey != string(k.Public()) || ev.Tags.Find("relay")[1] != string(h.URL) || ev.Tags.Find("challenge")[1] != challenge {
				t.Errorf("answered with %v", ev)
			}
			if h.Conns() != 1 {
				t.Errorf("%d connections", h.Conns())
			}
		})
	}
	// A relay that joins while others are served, as one does with a device's
	// second host, is authenticated to under its own name.
	t.Run("a relay added at run time", func(t *testing.T) {
		t.Parallel()
		k := relaytest.Key(t)
		names := make(chan string, 2)
		script := func(c *relaytest.HostileConn) {
			names <- c.Login().Tags.Find("relay")[1]
			c.Serve(nil)
		}
		for range 2 {
			h := relaytest.NewHostile(t, script)
			l, _ := dial(t, h, func(o *relay.Options) { o.Key = k })
			relaytest.Publish(t, l, own(t, k, 10))
			if got := <-names; got != string(h.URL) || !l.Health().Authenticated {
				t.Errorf("authenticated to %s as %s", h.URL, got)
			}
		}
	})
}
