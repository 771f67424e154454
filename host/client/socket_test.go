package client

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"github.com/rs/zerolog"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

// realRelay is the embedded relay on a loopback socket.
func realRelay(t *testing.T) nip.RelayURL {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := nip.RelayURL("ws://" + ln.Addr().String() + "/")
	r, err := embedded.Open(embedded.Options{Path: filepath.Join(t.TempDir(), "relay.db"), Name: url, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.Serve(ln) }()
	t.Cleanup(func() {
		r.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return url
}

// online puts a host on a real relay: it answers what op says.
func (h *host) online(t *testing.T) relay.Link {
	t.Helper()
	link := relay.Dial(relay.Options{URL: h.url, Key: h.key, Log: zerolog.Nop(), Now: time.Now})
	sub := link.Subscribe("requests", func(now time.Time) []nip.Filter {
		since := nostr.Timestamp(now.Unix() - 60)
		return []nip.Filter{{Kinds: []int{nip.KindArtifact}, Tags: nostr.TagMap{"p": {string(h.key.Public())}}, Since: &since, Limit: 128}}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for del := range sub.C() {
			for _, ev := range h.serve(del.Event.Event()) {
				ctx, cancel := context.WithTimeout(context.Background(), relaytest.Patience)
				// That the test has ended before the OK is no fault.
				if err := link.Publish(ctx, ev); err != nil && !errors.Is(err, relay.ErrUnconfirmed) && !errors.Is(err, relay.ErrClosed) {
					t.Errorf("host publishes a reply: %v", err)
				}
				cancel()
			}
		}
	}()
	t.Cleanup(func() {
		link.Close()
		<-done
	})
	<-sub.EOSE()
	return link
}

func onSocket(t *testing.T, url nip.RelayURL) *Device {
	t.Helper()
	d, err := Init(filepath.Join(t.TempDir(), "profile"), Options{Loopback: true, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// Pairing, a command and a refusal over a real relay and real sockets.
func TestOverSockets(t *testing.T) {
	url := realRelay(t)
	h := newHost(t, url)
	h.online(t)
	d := onSocket(t, url)
	ctx, cancel := context.WithTimeout(t.Context(), 3*relaytest.Patience)
	defer cancel()
	if _, err := d.Pair(ctx, h.code(h.invitation())); err != nil {
		t.Fatal(err)
	}
	h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		if out := dispatched(r); out != nil {
			return out, nil
		}
		return nil, &nip.Refusal{Code: nip.Revoked}
	}
	if _, _, err := d.Command(ctx, command(t, nip.Send, "go")); err != nil {
		t.Fatal(err)
	}
	var refused *Refused
	if _, err := d.Call(ctx, nip.DeviceList{}); !errors.As(err, &refused) || refused.Code != nip.Revoked {
		t.Errorf("err = %v", err)
	}
}

// summary is a valid summary of one task.
func (h *host) summary(task string, sequence int64, phase nip.Phase, at int64) nip.Summary {
	words := map[nip.Phase][2]string{nip.PhaseQueued: {"Task queued", "none"}, nip.PhaseRunning: {"Task running", "none"},
		nip.PhaseCompleted: {"Task finished", "completed"}}[phase]
	return nip.Summary{Host: h.key.Public(), Task: nip.TaskID(task), Sequence: sequence, Phase: phase,
		Headline: words[0], Attention: words[1], UpdatedAt: at}
}

func (h *host) sealSummary(key nip.SecretKey, to nip.PubKey, s nip.Summary) *nip.Event {
	h.t.Helper()
	box, err := nip.DeriveMailbox(h.key, to, nip.StreamSummaries)
	if err != nil {
		h.t.Fatal(err)
	}
	a, err := nip.EncodeSummary(s)
	if err != nil {
		h.t.Fatal(err)
	}
	return seal(h.t, key, to, box, a)
}

func (h *host) sealPresence(to nip.PubKey, generation, at int64) *nip.Event {
	h.t.Helper()
	box, err := nip.DeriveMailbox(h.key, to, nip.StreamPresence)
	if err != nil {
		h.t.Fatal(err)
	}
	a, err := nip.EncodePresence(nip.Presence{Host: h.key.Public(), Owner: h.owner.Public(), Generation: generation,
		Protocol: 1, Min: 1, Max: 1, ObservedAt: at}, at+240)
	if err != nil {
		h.t.Fatal(err)
	}
	return seal(h.t, h.key, to, box, a)
}

// next waits for one update.
func next(t *testing.T, updates <-chan Update) Update {
	t.Helper()
	select {
	case u, ok := <-updates:
		if !ok {
			t.Fatal("watch ended")
		}
		return u
	case <-time.After(relaytest.Patience):
		t.Fatal("no update")
	}
	return Update{}
}

// Watch shows what was kept and what comes, the highest of each task, from the
// pinned host alone; and its sequences survive the process.
func TestWatch(t *testing.T) {
	url := realRelay(t)
	h := newHost(t, url)
	link := h.online(t)
	d := onSocket(t, url)
	if _, err := d.Pair(t.Context(), h.code(h.invitation())); err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	a, b := strings.Repeat("0a", 32), strings.Repeat("0b", 32)
	send := func(ev *nip.Event) { t.Helper(); relaytest.Publish(t, link, ev) }

	send(h.sealSummary(h.key, d.PubKey(), h.summary(a, 4, nip.PhaseRunning, now-20))) // before the watch: stored
	ctx, cancel := context.WithCancel(t.Context())
	updates, err := d.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if u := next(t, updates); u.Summary == nil || u.Summary.Sequence != 4 {
		t.Fatalf("stored: %+v", u)
	}
	send(h.sealSummary(h.key, d.PubKey(), h.summary(a, 3, nip.PhaseQueued, now-10))) // lower
	send(h.sealSummary(h.key, d.PubKey(), h.summary(a, 4, nip.PhaseRunning, now-9))) // again, stamped anew
	send(h.sealSummary(h.key, d.PubKey(), h.summary(a, 4, nip.PhaseQueued, now-8)))  // conflict
	forger := newKey(t)                                                              // knows everything but the host's key
	forgery := relay.Dial(relay.Options{URL: url, Key: forger, Log: zerolog.Nop(), Now: time.Now})
	defer forgery.Close()
	relaytest.Publish(t, forgery, h.sealSummary(forger, d.PubKey(), h.summary(a, 9, nip.PhaseCompleted, now-7)))
	send(h.sealSummary(h.key, d.PubKey(), h.summary(b, 1, nip.PhaseQueued, now-6))) // another task
	if u := next(t, updates); u.Summary == nil || string(u.Summary.Task) != b {
		t.Fatalf("after noise: %+v", u.Summary)
	}
	send(h.sealPresence(d.PubKey(), 7, now-5))
	if u := next(t, updates); u.Presence == nil || u.Presence.Generation != 7 {
		t.Fatalf("presence: %+v", u)
	}
	send(h.sealPresence(d.PubKey(), 6, now-4)) // backwards
	send(h.sealPresence(d.PubKey(), 7, now-5)) // not newer
	send(h.sealPresence(d.PubKey(), 8, now-3))
	if u := next(t, updates); u.Presence == nil || u.Presence.Generation != 8 {
		t.Fatalf("presence: %+v", u.Presence)
	}
	cancel()
	for range updates {
	}

	// Another process of the same profile starts from what was kept.
	n, err := Open(d.dir, Options{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if s, ok, err := n.Known(nip.TaskID(a)); err != nil || !ok || s.Sequence != 4 || s.Phase != nip.PhaseRunning {
		t.Errorf("known: %+v, %v, %v", s, ok, err)
	}
	send(h.sealSummary(h.key, d.PubKey(), h.summary(a, 5, nip.PhaseCompleted, now)))
	if err := n.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	updates, err = n.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := []string{string(next(t, updates).Summary.Task), string(next(t, updates).Summary.Task)}
	slices.Sort(got)
	if !slices.Equal(got, []string{a, b}) {
		t.Errorf("kept: %v", got)
	}
	if s, _, _ := n.Known(nip.TaskID(a)); s.Sequence != 5 {
		t.Errorf("refresh kept %d", s.Sequence)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	for range updates { // ends with the device
	}
}

// The checks of a publication hold without the link's cheap one before them.
func TestPublicationsNotBelieved(t *testing.T) {
	d, h, _ := paired(t)
	m, err := d.mailboxes()
	if err != nil {
		t.Fatal(err)
	}
	task, now := strings.Repeat("0a", 32), time.Now().Unix()
	sum := h.summary(task, 1, nip.PhaseQueued, now)
	foreign := sum
	foreign.Host = newKey(t).Public()
	a, err := nip.EncodeSummary(sum)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		ev   *nip.Event
		ok   bool
	}{
		{"honest", h.sealSummary(h.key, d.PubKey(), sum), true},
		{"another signer", h.sealSummary(newKey(t), d.PubKey(), sum), false},
		{"another host named", h.sealSummary(h.key, d.PubKey(), foreign), false},
		{"presence's mailbox", seal(t, h.key, d.PubKey(), m.presence, a), false},
	} {
		v, err := nip.VerifyEvent(tt.ev)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.open(relay.Delivery{Event: v}); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestJudge(t *testing.T) {
	h := newHost(t, paperURL)
	known := h.summary(strings.Repeat("0a", 32), 4, nip.PhaseRunning, 100)
	for _, tt := range []struct {
		name  string
		known *nip.Summary
		s     nip.Summary
		want  verdict
	}{
		{"first", nil, known, newer},
		{"higher", &known, h.summary(string(known.Task), 5, nip.PhaseQueued, 90), newer},
		{"lower", &known, h.summary(string(known.Task), 3, nip.PhaseQueued, 110), stale},
		{"again", &known, known, again},
		{"again, stamped anew", &known, h.summary(string(known.Task), 4, nip.PhaseRunning, 110), again},
		{"the same revision with other words", &known, h.summary(string(known.Task), 4, nip.PhaseQueued, 100), clash},
	} {
		if got := judge(tt.known, tt.s); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A host that shows itself after a silence gets what waited, under the same ID.
func TestWatchResends(t *testing.T) {
	d, h, p := paired(t)
	p.host = nil
	d.pace = pace{try: 40 * time.Millisecond, again: 10 * time.Millisecond, settle: time.Millisecond, between: time.Millisecond}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	c, _, err := d.Command(ctx, command(t, nip.Send, "go"))
	if !errors.Is(err, ErrNoAnswer) {
		t.Fatal(err)
	}
	d.pace = defaultPace // an answer that a busy machine holds up is not asked for again
	var got []nip.CommandID
	answered := make(chan struct{})
	h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		got = append(got, r.Op.(nip.TaskCommand).Command.ID)
		defer close(answered)
		return dispatched(r), nil
	}
	p.mu.Lock()
	p.host = h.serve
	p.mu.Unlock()
	watching, stop := context.WithCancel(t.Context())
	updates, err := d.Watch(watching)
	if err != nil {
		t.Fatal(err)
	}
	p.add(h.sealPresence(d.PubKey(), 2, time.Now().Unix()))
	next(t, updates)
	<-answered
	relaytest.Eventually(t, "the outbox is empty", func() bool {
		rows, err := d.Outbox()
		return err == nil && len(rows) == 0
	})
	stop()
	for range updates {
	}
	if len(got) != 1 || got[0] != c.ID {
		t.Errorf("sent %v, want %s once", got, c.ID)
	}
}

// A relay that drops the connection at each EVENT, then behaves: the same
// request arrives, once.
func TestHostileDrops(t *testing.T) {
	d, h, _ := paired(t)
	sent := make(chan *nip.Event, 16)
	hostile := relaytest.NewHostile(t, func(c *relaytest.HostileConn) {
		c.Login()
		for {
			switch m := c.Next(); m.Label {
			case "REQ":
				c.Send("EOSE", m.Text(0))
			case "EVENT":
				ev := m.Event()
				sent <- ev
				if c.N < 3 {
					return // without an OK
				}
				r, _ := h.open(ev)
				rep := h.reply(r, ev)
				rep.Outcome = nip.Workspaces{}
				c.Event(string(r.ID), h.sealReply(rep, ev.PubKey)) // before the OK
				c.Send("OK", ev.ID, true, "")
			}
		}
	})
	d.dial = func(o relay.Options) relay.Link {
		o.URL = hostile.URL
		return relay.Dial(o)
	}
	d.link = nil
	ctx, cancel := context.WithTimeout(t.Context(), 2*relaytest.Patience)
	defer cancel()
	x, err := d.Exchange(ctx, nip.WorkspaceList{})
	if err != nil {
		t.Fatal(err)
	}
	close(sent)
	n := 0
	for ev := range sent {
		n++
		if ev.ID != x.Event.ID {
			t.Error("another event was sent")
		}
	}
	if n != 3 {
		t.Errorf("sent %d times, want 3", n)
	}
}

// A relay that is not there is said to be not reachable.
func TestUnreachable(t *testing.T) {
	d, _, _ := paired(t)
	d.dial = func(o relay.Options) relay.Link {
		o.URL = "ws://127.0.0.1:1/"
		return relay.Dial(o)
	}
	d.link = nil
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := d.Call(ctx, nip.WorkspaceList{}); !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "not reachable") {
		t.Errorf("err = %v", err)
	}
	if err := d.Refresh(ctx); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("refresh: %v", err)
	}
}
