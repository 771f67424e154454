package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"holdfast/nip"
	"holdfast/owner"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// outside is the host's transport on one scripted relay, in virtual time.
type outside struct {
	*links
	relay *relaytest.Hostile
	away  atomic.Bool
}

func newOutside(t *testing.T, key nip.SecretKey, away bool, script func(c *relaytest.HostileConn)) *outside {
	o := &outside{links: newLinks(key.Public()), relay: relaytest.NewHostilePipe(t, script)}
	o.away.Store(away)
	link := relay.Dial(relay.Options{
		URL: o.relay.URL, Key: key, OnGap: o.onGap(o.relay.URL), Log: zerolog.Nop(), Now: time.Now,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if o.away.Load() {
				return nil, errors.New("no route")
			}
			return o.relay.DialContext(ctx, network, addr)
		},
	})
	o.start([]relay.Link{link})
	t.Cleanup(o.close)
	return o
}

// named counts what Gaps says until nothing moves any more.
func (o *outside) named() (n int) {
	for {
		synctest.Wait()
		select {
		case name := <-o.Gaps():
			if name != o.relay.URL {
				panic("another relay: " + name)
			}
			n++
		default:
			return n
		}
	}
}

// TestGaps: one word after the first connection, however late it comes, one
// after each gap of over 150 s, and none after a short one. Nobody who does not
// listen holds anything up.
func TestGaps(t *testing.T) {
	for _, row := range []struct {
		name  string
		first time.Duration // until the relay is there
		gap   time.Duration
		after int
	}{
		{"there at once, a short gap", 0, 60 * time.Second, 0},
		{"there at once, gone for an hour", 0, time.Hour, 1},
		{"there after an hour, a short gap", time.Hour, 60 * time.Second, 0},
		{"there after ten minutes, a long gap", 10 * time.Minute, 10 * time.Minute, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				drop := make(chan struct{})
				o := newOutside(t, relaytest.Key(t), row.first > 0, func(c *relaytest.HostileConn) {
					c.Login()
					select {
					case <-drop: // it was dropped before: back for good
					default:
						c.Beside(func() {
							select {
							case <-drop:
								c.Drop()
							case <-c.Done():
							}
						})
					}
					c.Serve(nil)
				})
				time.Sleep(row.first)
				o.away.Store(false)
				time.Sleep(2 * time.Minute)
				if n := o.named(); n != 1 {
					t.Fatalf("%d words after the first connection", n)
				}
				o.away.Store(true)
				close(drop)
				time.Sleep(row.gap)
				o.away.Store(false)
				time.Sleep(75 * time.Second)
				if n := o.named(); n != row.after {
					t.Errorf("%d words after the gap, want %d", n, row.after)
				}
				// The status has the longest of all, in seconds, the time to begin with too.
				want := int64(max(row.first, row.gap) / time.Second)
				if got := o.Relays()[0].Gap; got < want || got > want+75 {
					t.Errorf("a gap of %d s, want about %d", got, want)
				}
				time.Sleep(time.Hour)
				if n := o.named(); n != 0 {
					t.Errorf("%d words in a quiet hour", n)
				}
			})
		})
	}
}

// TestGapsNobodyTakes: a relay that comes and goes while the host is busy is one
// word.
func TestGapsNobodyTakes(t *testing.T) {
	b := newGapBook()
	b.first([]nip.RelayURL{"wss://a/", "ws://127.0.0.1:1/"})
	for range 1000 {
		b.again("wss://a/")
		b.again("wss://never-heard/")
	}
	if len(b.waiting) != 2 || len(b.heard) != 2 {
		t.Errorf("%d words wait, %d relays are known", len(b.waiting), len(b.heard))
	}
}

// TestFetch: what a read of a relay's stored events brings, from relays of every
// kind.
func TestFetch(t *testing.T) {
	fetch := func(t *testing.T, limit int, answer func(c *relaytest.HostileConn, sub string, host nip.PubKey)) ([]nip.Verified, time.Duration, error) {
		key := relaytest.Key(t)
		o := newOutside(t, key, false, func(c *relaytest.HostileConn) {
			c.Login()
			for {
				m := c.Await("REQ")
				if !strings.HasPrefix(m.Text(0), "fetch") {
					c.Send("EOSE", m.Text(0))
					continue
				}
				c.Beside(func() { answer(c, m.Text(0), key.Public()) })
			}
		})
		time.Sleep(time.Second)
		began := time.Now()
		got, err := o.Fetch(t.Context(), o.relay.URL, relaytest.To(key.Public(), relaytest.Limit(limit))(time.Now())[0])
		return got, time.Since(began), err
	}
	event := func(t *testing.T, to nip.PubKey, content string) *nip.Event {
		return relaytest.Event(t, relaytest.Key(t), to, relaytest.Mailbox('a'), time.Now().Unix(), content)
	}
	for _, row := range []struct {
		name   string
		limit  int
		answer func(t *testing.T) func(c *relaytest.HostileConn, sub string, host nip.PubKey)
		want   int
		fails  bool
	}{
		{"some", 256, func(t *testing.T) func(c *relaytest.HostileConn, sub string, host nip.PubKey) {
			return func(c *relaytest.HostileConn, sub string, host nip.PubKey) {
				for i := range 100 {
					c.Event(sub, event(t, host, fmt.Sprint(i)))
				}
				c.Send("EOSE", sub)
			}
		}, 100, false},
		{"nothing", 256, func(t *testing.T) func(c *relaytest.HostileConn, sub string, host nip.PubKey) {
			return func(c *relaytest.HostileConn, sub string, _ nip.PubKey) { c.Send("EOSE", sub) }
		}, 0, false},
		{"more than was asked for", 10, func(t *testing.T) func(c *relaytest.HostileConn, sub string, host nip.PubKey) {
			return func(c *relaytest.HostileConn, sub string, host nip.PubKey) {
				for i := range 50 {
					c.Event(sub, event(t, host, fmt.Sprint(i)))
				}
			}
		}, 10, false},
		{"no bound of the caller's", 0, func(t *testing.T) func(c *relaytest.HostileConn, sub string, host nip.PubKey) {
			return func(c *relaytest.HostileConn, sub string, host nip.PubKey) {
				for i := range 300 {
					c.Event(sub, event(t, host, fmt.Sprint(i)))
				}
			}
		}, 256, false},
		{"forged ones between", 256, func(t *testing.T) func(c *relaytest.HostileConn, sub string, host nip.PubKey) {
			return func(c *relaytest.HostileConn, sub string, host nip.PubKey) {
				for i := range 5 {
					lie := *event(t, host, fmt.Sprint(i))
					lie.Content = "worse"
					c.Event(sub, &lie)
					c.Event(sub, event(t, relaytest.Key(t).Public(), "another's"))
					c.Event(sub, event(t, host, "good"))
				}
				c.Send("EOSE", sub)
			}
		}, 5, false},
		{"no end", 256, func(t *testing.T) func(c *relaytest.HostileConn, sub string, host nip.PubKey) {
			return func(c *relaytest.HostileConn, sub string, host nip.PubKey) { c.Event(sub, event(t, host, "x")) }
		}, 0, true},
		{"silence", 256, func(t *testing.T) func(c *relaytest.HostileConn, sub string, host nip.PubKey) {
			return func(*relaytest.HostileConn, string, nip.PubKey) {}
		}, 0, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, took, err := fetch(t, row.limit, row.answer(t))
				if len(got) != row.want || (err != nil) != row.fails {
					t.Errorf("%d events, %v", len(got), err)
				}
				if row.fails && took != 10*time.Second {
					t.Errorf("gave up after %v", took)
				}
			})
		})
	}
	t.Run("a relay that is not served", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			o := newOutside(t, relaytest.Key(t), false, func(c *relaytest.HostileConn) { c.Login(); c.Serve(nil) })
			if _, err := o.Fetch(t.Context(), "wss://other.example.com/", nip.Filter{}); err == nil {
				t.Error("asked")
			}
		})
	})
}

// TestNudgeWhileTheHostIsDown: the relay of the home goes on while its host is
// away; what a device held back and left a nudge about is done once the host is
// there again.
func TestNudgeWhileTheHostIsDown(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	addr := freePort(t)
	p, ready := up(t, s, ctx, "--listen", addr)
	url := ready["relay"].(string)
	reaches(t, s, ctx, "phone", "/dev/null", invite(t, s, ctx).Code)
	var made struct{ Task string }
	if err := s.phone(ctx, &made, "create", "--workspace", string(demoLabel), "--title", "t", "--prompt", "hello", "--wait", "completed"); err != nil {
		t.Fatal(err)
	}
	s.task = made.Task
	p.end()

	alone, err := s.spawn("relay", "serve", "--json", "--home", s.home, "--listen", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(alone.kill)
	if _, _, err := alone.await(ctx, 0, "the relay", isEvent("ready")); err != nil {
		t.Fatal(err)
	}
	// A nudge is left after the first silence, which is 12 s; the rest is for a
	// machine that has much else to do.
	if code, msg := exitOf(t, s, ctx, "device", "send", s.task, "again", "--timeout", "40s", "--profile", s.profile("phone")); code != exitUnreachable {
		t.Fatalf("without a host: exit %d, %s", code, msg)
	}
	alone.end()

	w, err := s.spawn("--json", "device", "watch", "--profile", s.profile("phone"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.kill)
	p, _ = up(t, s, ctx, "--listen", addr)
	if err := s.ended(ctx, 2, owner.Finished); err != nil {
		t.Fatal(err)
	}
	w.end()
	p.end()
	if log := p.errors.String(); !strings.Contains(log, `"message":"nudged"`) || !strings.Contains(log, url) {
		t.Errorf("the host heeded no nudge: %s", filepath.Base(lastLine(log)))
	}
}
