package relay_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// elsewhere is a key that another program holds: sign does what it does.
type elsewhere struct {
	nip.Keeper
	sign func(ctx context.Context, ev *nip.Event) error
}

func (k elsewhere) Sign(ctx context.Context, ev *nip.Event) error { return k.sign(ctx, ev) }

// kept makes a link's key one that is held elsewhere.
func kept(key nip.SecretKey, sign func(ctx context.Context, ev *nip.Event) error) func(*relay.Options) {
	return func(o *relay.Options) {
		o.Key, o.Keeper = nip.SecretKey{}, elsewhere{nip.Keep(key), sign}
	}
}

// A key that is held elsewhere authenticates, and its events come through the
// check of the parties.
func TestKeeperAuthenticates(t *testing.T) {
	key := relaytest.Key(t)
	good := to(t, key.Public(), "good")
	seen := make(chan *nip.Event, 1)
	h := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
		seen <- c.Login()
		c.Event(c.Await("REQ").Text(0), good)
		c.Serve(nil)
	})
	l, _ := dial(t, h, kept(key, func(_ context.Context, ev *nip.Event) error { return key.Sign(ev) }))
	sub := l.Subscribe("s", relaytest.To(key.Public()))
	if del := relaytest.Next(t, sub); del.Event.Event().ID != good.ID {
		t.Errorf("delivered %v", del.Event.Event())
	}
	ev := <-seen
	if _, err := nip.VerifyEvent(ev); err != nil || ev.PubKey != string(key.Public()) || ev.Kind != 22242 {
		t.Errorf("authenticated with %v: %v", ev, err)
	}
}

// A signer that refuses, lies or hangs gives nothing to the relay, holds a
// session up for a minute at most, and Health says what it did.
func TestKeeperFailsToAuthenticate(t *testing.T) {
	key, other := relaytest.Key(t), relaytest.Key(t)
	for _, tt := range []struct {
		name, words string
		sign        func(ctx context.Context, ev *nip.Event) error
	}{
		{"refuses", "not today", func(context.Context, *nip.Event) error { return errors.New("not today") }},
		{"hangs", "did not answer", func(ctx context.Context, _ *nip.Event) error { <-ctx.Done(); return ctx.Err() }},
		{"signs with another key", "another key", func(_ context.Context, ev *nip.Event) error { return other.Sign(ev) }},
		{"signs another challenge", "another event", func(_ context.Context, ev *nip.Event) error {
			ev.Tags[1][1] = "changed"
			return key.Sign(ev)
		}},
		{"gives no signature", "does not hold", func(context.Context, *nip.Event) error { return nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sent := false
				h := relaytest.NewHostilePipe(t, func(c *relaytest.HostileConn) {
					c.Send("AUTH", strings.Repeat("c", 64))
					for {
						sent = sent || c.Next().Label == "AUTH"
					}
				})
				l, _ := dial(t, h, kept(key, tt.sign))
				time.Sleep(90 * time.Second)
				synctest.Wait()
				if health := l.Health(); !strings.Contains(health.LastError, tt.words) || health.State == relay.StateOpen {
					t.Errorf("health %+v, want words %q", health, tt.words)
				}
				if sent {
					t.Error("something was sent as authentication")
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}
