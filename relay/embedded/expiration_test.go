package embedded_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

// until is an event that its publisher wants gone at that time.
func until(t testing.TB, from nip.SecretKey, to nip.PubKey, at time.Time, content string) *nip.Event {
	t.Helper()
	ev := event(t, from, to, content)
	ev.Tags = append(ev.Tags, nostr.Tag{"expiration", strconv.FormatInt(at.Unix(), 10)})
	if err := from.Sign(ev); err != nil {
		t.Fatal(err)
	}
	return ev
}

// TestExpirationTag: refused once past, shown until then, to nobody afterwards,
// and swept.
func TestExpirationTag(t *testing.T) {
	c := &clock{at: time.Now()}
	path := filepath.Join(t.TempDir(), "relay.db")
	r, url := open(t, func(o *embedded.Options) { o.Now, o.Path = c.now, path })
	a, b := relaytest.Key(t), relaytest.Key(t)
	p, q := connect(t, url), connect(t, url)
	p.login(a)
	q.login(b)
	q.ask("live", `{"limit":0}`)
	local := r.Local(b.Public()).Subscribe("s", relaytest.To(b.Public()))
	relaytest.AwaitEOSE(t, local)

	has(t, "past", p.publish(until(t, a, b.Public(), c.now().Add(-time.Hour), "past")), "invalid: the event has expired")
	has(t, "now", p.publish(until(t, a, b.Public(), c.now(), "now")), "invalid: the event has expired")
	soon := until(t, a, b.Public(), c.now().Add(time.Minute), "soon")
	has(t, "soon", p.publish(soon), "true")
	has(t, "plain", p.publish(event(t, a, b.Public(), "plain")), "true")
	far := until(t, a, b.Public(), c.now().Add(90*24*time.Hour), "far")
	has(t, "far", p.publish(far), "true")
	for _, want := range []string{"soon", "plain", "far"} {
		if ev, err := nip.ParseEvent([]byte(q.await("EVENT")[1])); err != nil || ev.Content != want {
			t.Fatalf("live: %v, want %s", ev, want)
		}
		if d := relaytest.Next(t, local); d.Event.Event().Content != want {
			t.Fatalf("local: %q, want %s", d.Event.Event().Content, want)
		}
	}
	if got, _ := q.ask("before", `{}`); len(got) != 3 {
		t.Fatalf("before its end: %q", got)
	}

	c.add(time.Minute)
	for sub, filter := range map[string]string{"all": `{}`, "id": fmt.Sprintf(`{"ids":["%s"]}`, soon.ID), "author": fmt.Sprintf(`{"authors":["%s"]}`, a.Public())} {
		got, _ := q.ask(sub, filter)
		for _, content := range got {
			if content == "soon" {
				t.Errorf("%s shows an expired event", sub)
			}
		}
	}
	// A duplicate goes to live subscriptions, an expired one does not.
	has(t, "again", p.publish(soon), "invalid: the event has expired")

	// The tag never lengthens a life: 30 days are 30 days.
	c.add(31 * 24 * time.Hour)
	if got, _ := q.ask("later", `{}`); len(got) != 0 {
		t.Errorf("after 31 days: %q", got)
	}
	r.Close()
	again, err := reopen(t, path, func(o *embedded.Options) { o.Now = c.now })
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if n := embedded.CountFile(t, path); n != 0 {
		t.Errorf("%d events were not swept", n)
	}
}

// TestExpirationIsSwept: an event leaves the file at its expiration, long
// before its room would let it go.
func TestExpirationIsSwept(t *testing.T) {
	c := &clock{at: time.Now()}
	path := filepath.Join(t.TempDir(), "relay.db")
	a := relaytest.Key(t)
	r, err := reopen(t, path, func(o *embedded.Options) { o.Now = c.now })
	if err != nil {
		t.Fatal(err)
	}
	l := r.Local(a.Public())
	relaytest.Publish(t, l, until(t, a, a.Public(), c.now().Add(time.Minute), "soon"))
	c.add(2 * time.Minute)
	relaytest.Publish(t, l, event(t, a, a.Public(), "plain"))
	r.Close()
	if n := embedded.CountFile(t, path); n != 1 {
		t.Errorf("%d events in the file, want the one without an expiration", n)
	}
}
