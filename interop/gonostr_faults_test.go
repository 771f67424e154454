package interop

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay/relaytest"
)

// cable is a path to a relay that can go silent and be cut.
type cable struct {
	url nip.RelayURL
	ln  net.Listener
	to  string // set before the first connection

	mu     sync.Mutex // guards both
	silent bool       // what the relay says is lost
	conns  []net.Conn
}

func newCable(t *testing.T) *cable {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{url: nip.RelayURL("ws://" + ln.Addr().String() + "/"), ln: ln}
	t.Cleanup(func() { ln.Close(); c.cut() })
	return c
}

// lay connects the cable to a relay.
func (c *cable) lay(to nip.RelayURL) {
	c.to = strings.Trim(strings.TrimPrefix(string(to), "ws://"), "/")
	go func() {
		for {
			in, err := c.ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", c.to)
			if err != nil {
				in.Close()
				continue
			}
			c.mu.Lock()
			c.silent, c.conns = false, append(c.conns, in, out)
			c.mu.Unlock()
			go func() { io.Copy(out, in); out.Close() }()
			go func() { io.Copy(silencer{c, in}, out); in.Close() }()
		}
	}()
}

type silencer struct {
	c  *cable
	to io.Writer
}

func (s silencer) Write(b []byte) (int, error) {
	s.c.mu.Lock()
	silent := s.c.silent
	s.c.mu.Unlock()
	if silent {
		return len(b), nil
	}
	return s.to.Write(b)
}

func (c *cable) silence() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = true
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

// login connects a go-nostr client. Its Auth signs whatever challenge is there,
// none too, so that a refusal comes first.
func login(t *testing.T, ctx context.Context, url nip.RelayURL, k nip.SecretKey) *nostr.Relay {
	t.Helper()
	r, err := nostr.RelayConnect(ctx, string(url), nostr.WithNoticeHandler(func(n string) { t.Log("notice:", n) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if err := r.Publish(ctx, *relaytest.Event(t, k, k.Public(), relaytest.Mailbox('a'), time.Now().Unix(), "early")); err == nil {
		t.Fatal("published without authentication")
	}
	if err := r.Auth(ctx, func(a *nostr.Event) error { return k.Sign(a) }); err != nil {
		t.Fatal(err)
	}
	return r
}

// listen subscribes to what comes to k from now on.
func listen(t *testing.T, ctx context.Context, r *nostr.Relay, k nip.SecretKey, o ...nostr.SubscriptionOption) *nostr.Subscription {
	t.Helper()
	sub, err := r.Subscribe(ctx, nostr.Filters{{Kinds: []int{3188}, Tags: nostr.TagMap{"p": {string(k.Public())}}, LimitZero: true}}, o...)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-sub.EndOfStoredEvents:
	case why := <-sub.ClosedReason:
		t.Fatal("closed: ", why)
	case <-ctx.Done():
		t.Fatal("no EOSE")
	}
	return sub
}

// patience is for a whole test, on a machine that has much else to do.
func patience(t *testing.T) context.Context {
	ctx, stop := context.WithTimeout(t.Context(), 5*relaytest.Patience)
	t.Cleanup(stop)
	return ctx
}

func replied(t *testing.T, ctx context.Context, sub *nostr.Subscription) {
	t.Helper()
	select {
	case got, open := <-sub.Events:
		if !open || got.Content != "reply" {
			t.Fatalf("got %v, open %v", got, open)
		}
	case <-ctx.Done():
		t.Fatal("no reply")
	}
}

// TestGoNostrLosesAnAnswer: the connection ends between the relay's commit and
// its OK. go-nostr's Publish reports success where no OK came, so that a client
// that knows it publishes again on a new Relay; go-nostr keeps nothing of the
// old one's subscriptions.
func TestGoNostrLosesAnAnswer(t *testing.T) {
	t.Parallel()
	ctx := patience(t)
	wire := newCable(t)
	url := embeddedRelay(t, wire.url)
	wire.lay(url)
	host, device := relaytest.Key(t), relaytest.Key(t)
	requests := answering(t, url, host)
	request := func(content string) nostr.Event {
		return *relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), time.Now().Unix(), content)
	}
	r := login(t, ctx, wire.url, device)
	sub := listen(t, ctx, r, device)
	first, second, third := request("first"), request("second"), request("third")
	if err := r.Publish(ctx, first); err != nil {
		t.Fatal(err)
	}
	next(t, requests, "the first request")
	replied(t, ctx, sub)

	wire.silence()
	began, result := time.Now(), make(chan error, 1)
	go func() { result <- r.Publish(ctx, second) }()
	if id := next(t, requests, "the second request"); id != second.ID {
		t.Fatalf("request %s", id)
	}
	wire.cut()
	t.Log("go-nostr says of a publish without OK:", <-result)
	select {
	case ev, open := <-sub.Events:
		if open {
			t.Fatalf("got %v over a cut connection", ev)
		}
	case <-ctx.Done():
		t.Fatal("the subscription did not end with its connection")
	}

	r = login(t, ctx, wire.url, device)
	sub = listen(t, ctx, r, device)
	if err := r.Publish(ctx, second); err != nil {
		t.Error("the same event again:", err)
	}
	again := time.Since(began)
	if err := r.Publish(ctx, third); err != nil {
		t.Fatal(err)
	}
	id := next(t, requests, "the third request")
	if id == second.ID && again > 5*time.Second {
		id = next(t, requests, "the third request") // so late a copy is a retry, and shown
	}
	if id != third.ID {
		t.Errorf("after the second request came %s", id)
	}
	replied(t, ctx, sub)
	stored, err := r.QuerySync(ctx, nostr.Filter{Kinds: []int{3188}, Tags: nostr.TagMap{"p": {string(device.Public())}}, Limit: 9})
	if err != nil || len(stored) != 3 {
		t.Errorf("stored are %d replies to 3 requests, %v", len(stored), err)
	}
}

// TestGoNostrEventsRefused: what our relay does not take is refused with a
// machine word that go-nostr hands on, and costs nothing but that event.
func TestGoNostrEventsRefused(t *testing.T) {
	t.Parallel()
	ctx := patience(t)
	url := embeddedRelay(t)
	host, device, other := relaytest.Key(t), relaytest.Key(t), relaytest.Key(t)
	requests := answering(t, url, host)
	now := time.Now().Unix()
	r := login(t, ctx, url, device)
	for _, c := range []struct {
		name   string
		word   string
		other  bool // signs it
		before func(*nostr.Event)
		after  func(*nostr.Event) // the signature
	}{
		{name: "another kind", word: "blocked", before: func(e *nostr.Event) { e.Kind = 1 }},
		{name: "another's event", word: "restricted", other: true},
		{name: "from the future", word: "invalid", before: func(e *nostr.Event) { e.CreatedAt += 3600 }},
		{name: "expired", word: "invalid", before: func(e *nostr.Event) { e.Tags = append(e.Tags, nostr.Tag{"expiration", "1"}) }},
		{name: "to nobody", word: "invalid", before: func(e *nostr.Event) { e.Tags = e.Tags[1:] }},
		{name: "changed after signing", word: "invalid", after: func(e *nostr.Event) { e.Content = "changed" }},
		{name: "an id of its own", word: "invalid", after: func(e *nostr.Event) { e.ID = strings.Repeat("0", 64) }},
		{name: "no signature", word: "invalid", after: func(e *nostr.Event) { e.Sig = "" }},
	} {
		k := device
		if c.other {
			k = other
		}
		ev := relaytest.Event(t, k, host.Public(), relaytest.Mailbox('a'), now, c.name)
		if c.before != nil {
			c.before(ev)
			if err := k.Sign(ev); err != nil {
				t.Fatal(err)
			}
		}
		if c.after != nil {
			c.after(ev)
		}
		if err := r.Publish(ctx, *ev); err == nil || !strings.HasPrefix(err.Error(), "msg: "+c.word+": ") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	good := relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), now, "good")
	if err := r.Publish(ctx, *good); err != nil {
		t.Error(err)
	}
	if id := next(t, requests, "the good one"); id != good.ID {
		t.Error("a refused event reached the host")
	}
}

// TestGoNostrSubscriptions: go-nostr sends the REQ of an ID again when it is
// fired again, and one CLOSE for each context that ends.
func TestGoNostrSubscriptions(t *testing.T) {
	t.Parallel()
	ctx := patience(t)
	url := embeddedRelay(t)
	host, device := relaytest.Key(t), relaytest.Key(t)
	answering(t, url, host)
	r := login(t, ctx, url, device)
	ask := func(content string) {
		ev := relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), time.Now().Unix(), content)
		if err := r.Publish(ctx, *ev); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("one ID three times", func(t *testing.T) {
		var mu sync.Mutex // guards came
		var came []string // EVENT frames, by ID; asked on the reader, in their order
		sub := listen(t, ctx, r, device, nostr.WithCheckDuplicate(func(id, _ string) bool {
			mu.Lock()
			defer mu.Unlock()
			came = append(came, id)
			return false
		}))
		defer sub.Unsub()
		for range 2 {
			if err := sub.Fire(); err != nil {
				t.Fatal(err)
			}
		}
		for _, content := range []string{"one", "two"} {
			ask(content)
			replied(t, ctx, sub)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(came) != 2 || came[0] == came[1] {
			t.Errorf("two replies came as %v", came)
		}
	})
	t.Run("contexts that end", func(t *testing.T) {
		for range 30 { // a connection may have 20 at once
			each, stop := context.WithCancel(ctx)
			sub := listen(t, each, r, device)
			stop()
			for range sub.Events { // its end comes after the CLOSE was written
			}
		}
		sub := listen(t, ctx, r, device)
		ask("three")
		replied(t, ctx, sub)
	})
}

// TestGoNostrStopsReading: a handler that does not return stops go-nostr's one
// reader. The relay drops that connection and nobody waits for it: not who
// publishes, not another connection of the same key.
func TestGoNostrStopsReading(t *testing.T) {
	t.Parallel()
	ctx := patience(t)
	url := embeddedRelay(t)
	host, device := relaytest.Key(t), relaytest.Key(t)
	release := make(chan struct{})
	stuck := login(t, ctx, url, device)
	listen(t, ctx, stuck, device, nostr.WithCheckDuplicate(func(string, string) bool { <-release; return true }))
	well := login(t, ctx, url, device)
	sub := listen(t, ctx, well, device)

	// More than the sockets and the relay's queue hold.
	const events, size = 200, 100_000
	var longest time.Duration
	p := link(t, url, host, 0)
	body := strings.Repeat("x", size)
	now := time.Now().Unix()
	for i := range int64(events) {
		ev := relaytest.Event(t, host, device.Public(), relaytest.Mailbox('a'), now-i, body)
		began := time.Now()
		relaytest.Publish(t, p, ev)
		longest = max(longest, time.Since(began))
		select {
		case got := <-sub.Events:
			if got.ID != ev.ID {
				t.Fatal("another event")
			}
		case <-ctx.Done():
			t.Fatalf("event %d did not come", i)
		}
	}
	if longest > 8*time.Second { // a relay that waited would wait for the deadline of a write, 10 s
		t.Errorf("a publish took %v", longest)
	}
	close(release)
	select {
	case <-stuck.Context().Done():
	case <-ctx.Done():
		t.Error("the connection that does not read was not dropped")
	}
}
