package relaytest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay"
)

// World makes links of one fresh relay. The maker cleans up after the test.
type World struct {
	Link func(key nip.SecretKey) relay.Link
}

// Suite runs every rule that a relay.Link keeps, each on a fresh World.
func Suite(t *testing.T, world func(t *testing.T) World) {
	for _, row := range []struct {
		name string
		run  func(t *testing.T, s *scene)
	}{
		{"a published event is read as stored", stored},
		{"live events come in the order of their publication", ordered},
		{"a duplicate is no error", duplicate},
		{"a duplicate reaches a subscription that was not sent it", duplicateReaches},
		{"a third key sees nothing, by any filter", foreign},
		{"only the author may publish", otherAuthor},
		{"another kind is refused", otherKind},
		{"a changed event is refused", changed},
		{"what has expired is refused, what has not is shown", expiring},
		{"limit zero is live only", limitZero},
		{"a limit gives the newest, newest first", limited},
		{"mailbox, since and until narrow", narrowed},
		{"the same ID replaces", replaced},
		{"renew asks again with fresh filters", renewed},
		{"a slow reader loses nothing", slow},
		{"close ends subscriptions and publishing", closed},
		{"a done context ends publish", cancelled},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := world(t)
			s := &scene{t: t, world: w, host: Key(t), device: Key(t), now: time.Now().Unix()}
			s.hostLink, s.deviceLink = w.Link(s.host), w.Link(s.device)
			row.run(t, s)
		})
	}
}

type scene struct {
	t                    *testing.T
	world                World
	host, device         nip.SecretKey
	hostLink, deviceLink relay.Link
	now                  int64
}

// send publishes from the device to the host.
func (s *scene) send(content string, at int64, box byte) *nip.Event {
	s.t.Helper()
	ev := Event(s.t, s.device, s.host.Public(), Mailbox(box), at, content)
	Publish(s.t, s.deviceLink, ev)
	return ev
}

func stored(t *testing.T, s *scene) {
	ev := s.send("hello", s.now, 'a')
	sub := s.hostLink.Subscribe("s", To(s.host.Public()))
	d := Next(t, sub)
	if d.Event.Event().ID != ev.ID || !d.Stored || d.Relay != s.hostLink.URL() {
		t.Fatalf("got %+v", d)
	}
	AwaitEOSE(t, sub)
	own := s.deviceLink.Subscribe("own", func(time.Time) []nip.Filter {
		return []nip.Filter{{Authors: []string{string(s.device.Public())}}}
	})
	if d := Next(t, own); d.Event.Event().Content != "hello" {
		t.Fatal("the author does not see its own event")
	}
}

func ordered(t *testing.T, s *scene) {
	sub := s.hostLink.Subscribe("s", To(s.host.Public()))
	AwaitEOSE(t, sub)
	for i := range 40 {
		// Falling times: the order is that of arrival, not of created_at.
		s.send(fmt.Sprint(i), s.now-int64(i), 'a')
	}
	for i := range 40 {
		if d := Next(t, sub); d.Event.Event().Content != fmt.Sprint(i) || d.Stored {
			t.Fatalf("delivery %d is %q, stored %v", i, d.Event.Event().Content, d.Stored)
		}
	}
}

func duplicate(t *testing.T, s *scene) {
	ev := s.send("once", s.now, 'a')
	Publish(t, s.deviceLink, ev)
	sub := s.hostLink.Subscribe("s", To(s.host.Public()))
	Next(t, sub)
	AwaitEOSE(t, sub)
	Nothing(t, sub)
}

func duplicateReaches(t *testing.T, s *scene) {
	ev := s.send("again", s.now, 'a')
	sub := s.hostLink.Subscribe("s", To(s.host.Public(), LiveOnly))
	AwaitEOSE(t, sub)
	Publish(t, s.deviceLink, ev)
	if d := Next(t, sub); d.Event.Event().ID != ev.ID || d.Stored {
		t.Fatalf("got %+v", d)
	}
}

func foreign(t *testing.T, s *scene) {
	before := s.send("private", s.now, 'a')
	third := Key(t)
	link := s.world.Link(third)
	asks := map[string]nip.Filter{
		"id":        {IDs: []string{before.ID}},
		"author":    {Authors: []string{before.PubKey}},
		"recipient": {Tags: nostr.TagMap{"p": {string(s.host.Public())}}},
		"mailbox":   {Tags: nostr.TagMap{"h": {string(Mailbox('a'))}}},
		"all":       {},
	}
	var subs []*relay.Subscription
	for name, f := range asks {
		sub := link.Subscribe(name, func(time.Time) []nip.Filter { return []nip.Filter{f} })
		AwaitEOSE(t, sub)
		subs = append(subs, sub)
	}
	s.send("private too", s.now, 'a')
	// The third key's own event comes after both on every path that could show them.
	own := Event(t, third, third.Public(), Mailbox('a'), s.now, "own")
	Publish(t, link, own)
	all := link.Subscribe("own", To(third.Public()))
	Next(t, all)
	for _, sub := range subs {
		for {
			select {
			case d := <-sub.C():
				if d.Event.Event().ID != own.ID {
					t.Fatalf("a third key was shown %q", d.Event.Event().Content)
				}
				continue
			default:
			}
			break
		}
	}
}

func refused(t *testing.T, err error, prefix string) {
	t.Helper()
	var r *relay.RefusedError
	if !errors.As(err, &r) || r.Prefix != prefix {
		t.Fatalf("got %v, want a refusal %q", err, prefix)
	}
}

func (s *scene) try(ev *nip.Event) error {
	ctx, stop := context.WithTimeout(context.Background(), Patience)
	defer stop()
	return s.deviceLink.Publish(ctx, ev)
}

func otherAuthor(t *testing.T, s *scene) {
	refused(t, s.try(Event(t, s.host, s.device.Public(), Mailbox('a'), s.now, "x")), "restricted")
}

func otherKind(t *testing.T, s *scene) {
	ev := Event(t, s.device, s.host.Public(), Mailbox('a'), s.now, "x")
	ev.Kind = 1
	if err := s.device.Sign(ev); err != nil {
		t.Fatal(err)
	}
	refused(t, s.try(ev), "blocked")
}

func changed(t *testing.T, s *scene) {
	ev := Event(t, s.device, s.host.Public(), Mailbox('a'), s.now, "x")
	ev.Content = "y"
	refused(t, s.try(ev), "invalid")
	ev.Content = "x"
	Publish(t, s.deviceLink, ev) // the forged copy did not take its ID
}

func expiring(t *testing.T, s *scene) {
	sub := s.hostLink.Subscribe("s", To(s.host.Public()))
	AwaitEOSE(t, sub)
	for _, d := range []int64{-60, 3600} {
		ev := Event(t, s.device, s.host.Public(), Mailbox('a'), s.now, "x")
		ev.Tags = append(ev.Tags, nostr.Tag{"expiration", fmt.Sprint(s.now + d)})
		if err := s.device.Sign(ev); err != nil {
			t.Fatal(err)
		}
		if d < 0 {
			refused(t, s.try(ev), "invalid")
			continue
		}
		Publish(t, s.deviceLink, ev)
		if d := Next(t, sub); d.Event.Event().ID != ev.ID {
			t.Fatal("another event")
		}
	}
}

func limitZero(t *testing.T, s *scene) {
	s.send("before", s.now, 'a')
	sub := s.hostLink.Subscribe("s", To(s.host.Public(), LiveOnly))
	AwaitEOSE(t, sub)
	s.send("after", s.now, 'a')
	if d := Next(t, sub); d.Event.Event().Content != "after" || d.Stored {
		t.Fatalf("got %q", d.Event.Event().Content)
	}
}

func limited(t *testing.T, s *scene) {
	for i := range 6 {
		s.send(fmt.Sprint(i), s.now+int64(i), 'a')
	}
	sub := s.hostLink.Subscribe("s", To(s.host.Public(), Limit(4)))
	AwaitEOSE(t, sub)
	for i := 5; i >= 2; i-- {
		if d := Next(t, sub); d.Event.Event().Content != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", d.Event.Event().Content, i)
		}
	}
	Nothing(t, sub)
}

func narrowed(t *testing.T, s *scene) {
	s.send("too old", s.now-100, 'b')
	s.send("elsewhere", s.now, 'a')
	s.send("right", s.now, 'b')
	s.send("too new", s.now+100, 'b')
	since, until := nostr.Timestamp(s.now-50), nostr.Timestamp(s.now+50)
	sub := s.hostLink.Subscribe("s", To(s.host.Public(), func(f *nip.Filter) {
		f.Tags["h"] = []string{string(Mailbox('b'))}
		f.Since, f.Until = &since, &until
	}))
	AwaitEOSE(t, sub)
	s.send("elsewhere, live", s.now, 'a')
	s.send("right, live", s.now, 'b')
	for _, want := range []string{"right", "right, live"} {
		if d := Next(t, sub); d.Event.Event().Content != want {
			t.Fatalf("got %q, want %q", d.Event.Event().Content, want)
		}
	}
}

func replaced(t *testing.T, s *scene) {
	first := s.hostLink.Subscribe("s", To(s.host.Public()))
	AwaitEOSE(t, first)
	second := s.hostLink.Subscribe("s", To(s.host.Public()))
	AwaitEOSE(t, second)
	if _, open := <-first.C(); open {
		t.Fatal("the first subscription lives on")
	}
	first.Close() // must not touch the second
	s.send("x", s.now, 'a')
	Next(t, second)
	s.send("y", s.now, 'a')
	if d := Next(t, second); d.Event.Event().Content != "y" {
		t.Fatal("delivered twice: two listeners under one ID")
	}
}

func renewed(t *testing.T, s *scene) {
	boxes := make(chan byte, 8)
	boxes <- 'a'
	box := byte('b')
	sub := s.hostLink.Subscribe("s", func(time.Time) []nip.Filter {
		select {
		case b := <-boxes:
			box = b
		default:
			box = 'b'
		}
		return To(s.host.Public(), func(f *nip.Filter) { f.Tags["h"] = []string{string(Mailbox(box))} })(time.Now())
	})
	AwaitEOSE(t, sub)
	s.send("in a", s.now, 'a')
	s.send("in b", s.now, 'b')
	if d := Next(t, sub); d.Event.Event().Content != "in a" {
		t.Fatalf("got %q", d.Event.Event().Content)
	}
	sub.Renew()
	if d := Next(t, sub); d.Event.Event().Content != "in b" || !d.Stored {
		t.Fatalf("got %q, stored %v", d.Event.Event().Content, d.Stored)
	}
}

func slow(t *testing.T, s *scene) {
	sub := s.hostLink.Subscribe("s", To(s.host.Public()))
	AwaitEOSE(t, sub)
	const n = 150 // more than a subscription holds
	for i := range n {
		s.send(fmt.Sprint(i), s.now, 'a')
	}
	for i := range n {
		if d := Next(t, sub); d.Event.Event().Content != fmt.Sprint(i) {
			t.Fatalf("delivery %d is %q", i, d.Event.Event().Content)
		}
	}
}

func closed(t *testing.T, s *scene) {
	one := s.hostLink.Subscribe("one", To(s.host.Public()))
	two := s.hostLink.Subscribe("two", To(s.host.Public()))
	AwaitEOSE(t, one)
	one.Close()
	one.Close()
	if _, open := <-one.C(); open {
		t.Fatal("open after its Close")
	}
	if err := s.hostLink.Close(); err != nil {
		t.Fatal(err)
	}
	if _, open := <-two.C(); open {
		t.Fatal("open after the link's Close")
	}
	if err := s.hostLink.Publish(t.Context(), Event(t, s.host, s.device.Public(), Mailbox('a'), s.now, "x")); !errors.Is(err, relay.ErrClosed) {
		t.Fatalf("publish on a closed link: %v", err)
	}
	if _, open := <-s.hostLink.Subscribe("three", To(s.host.Public())).C(); open {
		t.Fatal("a closed link opened a subscription")
	}
	if h := s.hostLink.Health(); h.State != relay.StateClosed {
		t.Fatalf("health says %q", h.State)
	}
}

func cancelled(t *testing.T, s *scene) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := s.deviceLink.Publish(ctx, Event(t, s.device, s.host.Public(), Mailbox('a'), s.now, "x")); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}
