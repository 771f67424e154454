package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

var taskA, taskB = strings.Repeat("0a", 32), strings.Repeat("0b", 32)

// page is the last page of a task as an honest host publishes it.
func (h *host) page(task string, revision, at int64) nip.PublishedPage {
	p := pageOf(nip.ReadQuery{Workspace: "demo", Task: task}).Task
	p.Scope.Revision = revision
	return nip.PublishedPage{Host: h.key.Public(), IssuedAt: at, ExpiresAt: at + 604_800, Page: p}
}

func (h *host) sealPage(key nip.SecretKey, to nip.PubKey, p nip.PublishedPage) *nip.Event {
	h.t.Helper()
	a, err := nip.EncodeTaskPage(p)
	if err != nil {
		h.t.Fatal(err)
	}
	return seal(h.t, key, to, h.box(to, nip.StreamPages), a)
}

func (h *host) box(to nip.PubKey, s nip.Stream) nip.Mailbox {
	h.t.Helper()
	box, err := nip.DeriveMailbox(h.key, to, s)
	if err != nil {
		h.t.Fatal(err)
	}
	return box
}

// states is a record of command states.
func (h *host) states(task string, revision, at int64, rows ...nip.CommandState) nip.CommandStates {
	return nip.CommandStates{Host: h.key.Public(), IssuedAt: at, ExpiresAt: at + 604_800, Task: nip.TaskID(task), Revision: revision, Commands: rows}
}

func (h *host) sealStates(key nip.SecretKey, to nip.PubKey, s nip.CommandStates) *nip.Event {
	h.t.Helper()
	a, err := nip.EncodeStates(s)
	if err != nil {
		h.t.Fatal(err)
	}
	return seal(h.t, key, to, h.box(to, nip.StreamCommands), a)
}

func (h *host) hints(generation, at int64, relays ...string) nip.Hints {
	hints := nip.Hints{Host: h.key.Public(), Generation: generation, IssuedAt: at, ExpiresAt: at + 7200}
	for _, r := range relays {
		hints.Hints = append(hints.Hints, nip.Hint{Class: "relay", Transport: "nostr", Address: r, Status: "reachable", ObservedAt: at})
	}
	return hints
}

func (h *host) sealHints(key nip.SecretKey, to nip.PubKey, hints nip.Hints) *nip.Event {
	h.t.Helper()
	a, err := nip.EncodeHints(hints)
	if err != nil {
		h.t.Fatal(err)
	}
	return seal(h.t, key, to, h.box(to, nip.StreamHints), a)
}

func held(id string, at int) nip.CommandState {
	return nip.CommandState{Command: nip.CommandID(id), State: "held", Position: &at}
}

func inState(id, state string) nip.CommandState {
	return nip.CommandState{Command: nip.CommandID(id), State: state}
}

// taken puts events before a device as stored or live deliveries of one batch.
func taken(t *testing.T, d *Device, seen shown, live bool, evs ...*nip.Event) []Update {
	t.Helper()
	m, err := d.mailboxes()
	if err != nil {
		t.Fatal(err)
	}
	var batch []relay.Delivery
	for _, ev := range evs {
		v, err := nip.VerifyEvent(ev)
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, relay.Delivery{Relay: paperURL, Event: v, Stored: !live})
	}
	return m.take(batch, seen)
}

// Only what the pinned host sealed to this device, in the mailbox of its kind,
// naming itself, in its time and with the envelope's times, is believed.
func TestPublishedNotBelieved(t *testing.T) {
	d, h, _ := paired(t)
	now := time.Now().Unix()
	id := newID(t)
	dev := d.PubKey()
	page, states, hints := h.page(taskA, 4, now), h.states(taskA, 4, now, held(id, 0)), h.hints(1, now, "wss://relay.example.com/")
	aPage, _ := nip.EncodeTaskPage(page)
	aStates, _ := nip.EncodeStates(states)
	aHints, _ := nip.EncodeHints(hints)
	other := newKey(t)
	for _, tt := range []struct {
		name string
		evs  [3]*nip.Event // page, states, hints
		ok   bool
	}{
		{"another signer", [3]*nip.Event{h.sealPage(other, dev, page), h.sealStates(other, dev, states), h.sealHints(other, dev, hints)}, false},
		{"another device's mailbox", [3]*nip.Event{
			seal(t, h.key, dev, h.box(other.Public(), nip.StreamPages), aPage),
			seal(t, h.key, dev, h.box(other.Public(), nip.StreamCommands), aStates),
			seal(t, h.key, dev, h.box(other.Public(), nip.StreamHints), aHints)}, false},
		{"each other's mailbox", [3]*nip.Event{
			seal(t, h.key, dev, h.box(dev, nip.StreamCommands), aPage),
			seal(t, h.key, dev, h.box(dev, nip.StreamHints), aStates),
			seal(t, h.key, dev, h.box(dev, nip.StreamPages), aHints)}, false},
		{"another host named", [3]*nip.Event{
			h.sealPage(h.key, dev, func(p nip.PublishedPage) nip.PublishedPage { p.Host = other.Public(); return p }(page)),
			h.sealStates(h.key, dev, func(s nip.CommandStates) nip.CommandStates { s.Host = other.Public(); return s }(states)),
			h.sealHints(h.key, dev, func(s nip.Hints) nip.Hints { s.Host = other.Public(); return s }(hints))}, false},
		{"over", [3]*nip.Event{
			h.sealPage(h.key, dev, h.page(taskA, 4, now-605_400)),
			h.sealStates(h.key, dev, h.states(taskA, 4, now-605_400, held(id, 0))),
			h.sealHints(h.key, dev, h.hints(1, now-7800, "wss://relay.example.com/"))}, false},
		{"of the future", [3]*nip.Event{
			h.sealPage(h.key, dev, h.page(taskA, 4, now+900)),
			h.sealStates(h.key, dev, h.states(taskA, 4, now+900, held(id, 0))),
			h.sealHints(h.key, dev, h.hints(1, now+900, "wss://relay.example.com/"))}, false},
		{"a task that is no ID, a plain relay", [3]*nip.Event{
			h.sealPage(h.key, dev, h.page("my-task", 4, now)),
			h.sealStates(other, dev, states),
			h.sealHints(h.key, dev, h.hints(1, now, "ws://127.0.0.1:7447/"))}, false},
		{"honest", [3]*nip.Event{h.sealPage(h.key, dev, page), h.sealStates(h.key, dev, states), h.sealHints(h.key, dev, hints)}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if news := taken(t, d, shown{}, true, tt.evs[:]...); (len(news) == 3) != tt.ok || !tt.ok && len(news) != 0 {
				t.Errorf("news %+v", news)
			}
			_, page, err := d.LastPage(nip.TaskID(taskA))
			if err != nil || page != tt.ok {
				t.Errorf("page kept: %v, %v", page, err)
			}
			if list, err := d.Commands(""); err != nil || (len(list) == 1) != tt.ok {
				t.Errorf("commands: %+v, %v", list, err)
			}
			if _, ok, err := d.Hints(); err != nil || ok != tt.ok {
				t.Errorf("hints kept: %v, %v", ok, err)
			}
		})
	}
}

// A page never gives way to one of a lower revision, nor to an older one of its
// own, in whatever order and however often they come.
func TestPageOrder(t *testing.T) {
	d, h, p := paired(t)
	now := time.Now().Unix()
	ev := func(revision, at int64) *nip.Event { return h.sealPage(h.key, d.PubKey(), h.page(taskA, revision, at)) }
	for _, tt := range []struct {
		name         string
		revision, at int64
		news         bool
	}{
		{"first", 4, now - 50, true},
		{"again", 4, now - 50, false},
		{"lower, issued later", 3, now - 10, false},
		{"the same revision, issued earlier", 4, now - 60, false},
		{"the same revision, issued later", 4, now - 40, true},
		{"higher, issued earlier", 5, now - 45, true},
		{"what was, once more", 4, now - 40, false},
	} {
		seen := shown{}
		if err := seen.read(d.store, h.key.Public()); err != nil {
			t.Fatal(err)
		}
		if news := taken(t, d, seen, true, ev(tt.revision, tt.at)); (len(news) == 1) != tt.news {
			t.Errorf("%s: news %+v", tt.name, news)
		}
	}
	// Another process of the profile has it, from the disk alone.
	n := reopen(t, d, p)
	page, ok, err := n.LastPage(nip.TaskID(taskA))
	if err != nil || !ok || page.Page.Scope.Revision != 5 || page.IssuedAt != now-45 || page.Page.Prompt != "p" {
		t.Errorf("kept %+v, %v, %v", page, ok, err)
	}
	if _, ok, err := n.LastPage(nip.TaskID(taskB)); ok || err != nil {
		t.Errorf("a page of nothing: %v, %v", ok, err)
	}
}

// Beyond its bound the profile forgets the page that was issued longest ago.
func TestPagesBounded(t *testing.T) {
	d, h, _ := paired(t)
	now := time.Now().Unix()
	body := func(task string, at int64) publication {
		p := h.page(task, 1, at)
		a, err := nip.EncodeTaskPage(p)
		if err != nil {
			t.Fatal(err)
		}
		return publication{Update: Update{Page: &p}, body: a.Inline, issued: at}
	}
	var pubs []publication
	for i := range maxPages + 3 {
		pubs = append(pubs, body(fmt.Sprintf("%064x", i), now-int64(i)))
	}
	if _, err := d.store.keepPages(h.key.Public(), pubs); err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := d.store.eachPage(h.key.Public(), func(string, keptPage) { n++ }); err != nil || n != maxPages {
		t.Fatalf("%d pages kept, %v", n, err)
	}
	for i, want := range map[int]bool{0: true, maxPages - 1: true, maxPages: false, maxPages + 2: false} {
		if _, ok, err := d.LastPage(nip.TaskID(fmt.Sprintf("%064x", i))); ok != want || err != nil {
			t.Errorf("page %d: kept %v, %v", i, ok, err)
		}
	}
}

// What was published of a command replaces what was known only when it is the
// later word.
func TestStateOrder(t *testing.T) {
	id := strings.Repeat("0c", 32)
	record := func(revision, at int64) nip.CommandStates { return nip.CommandStates{Revision: revision, IssuedAt: at} }
	known := sentRow{State: "held", Position: new(int), Of: 4, StatedAt: 100}
	for _, tt := range []struct {
		name  string
		s     nip.CommandStates
		c     nip.CommandState
		live  bool
		taken bool
	}{
		{"a higher revision, issued earlier", record(5, 90), inState(id, "applied"), false, true},
		{"a lower revision, issued later", record(3, 200), inState(id, "applied"), true, false},
		{"the same revision, issued later", record(4, 101), held(id, 3), false, true},
		{"the same revision, issued earlier", record(4, 99), inState(id, "applied"), true, false},
		{"the same second, further on", record(4, 100), inState(id, "removed"), false, true},
		{"the same second, not as far", record(4, 100), inState(id, "received"), true, false},
		{"the same second, another place, live", record(4, 100), held(id, 2), true, true},
		{"the same second, another place, stored", record(4, 100), held(id, 2), false, false},
		{"the same word", record(4, 100), held(id, 0), false, true},
	} {
		r := known
		if got := r.state(tt.s, tt.c, tt.live); got != tt.taken {
			t.Errorf("%s: taken %v", tt.name, got)
		}
		if r.says(tt.c) != tt.taken || !tt.taken && (r.Of != known.Of || r.StatedAt != known.StatedAt) {
			t.Errorf("%s: now %+v", tt.name, r)
		}
	}
}

// Of each command the profile knows where it stands: from the outbox, from the
// host's reply, and from what the host published, also after a restart and with
// the host off.
func TestCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, h, p := paired(t)
		task := command(t, nip.Queue, "x").Task
		give := func(text string, answer func(r nip.Request) (nip.Outcome, *nip.Refusal)) nip.CommandID {
			t.Helper()
			h.op = answer
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			c, _, _ := d.Command(ctx, command(t, nip.Queue, text))
			time.Sleep(time.Second)
			return c.ID
		}
		yes := func(r nip.Request) (nip.Outcome, *nip.Refusal) { return dispatched(r), nil }
		received := give("received", yes)
		refused := give("refused", func(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, &nip.Refusal{Code: nip.Conflict} })
		var first []nip.CommandID
		for _, words := range []string{"held", "applied", "expired", "superseded", "removed", "rejected"} {
			first = append(first, give(words, yes))
		}
		now := time.Now().Unix()
		at := int64(9)
		p.host = nil // the host is off from here on; what it published lies on the relay
		p.add(h.sealStates(h.key, d.PubKey(), h.states(string(task), 9, now,
			held(string(first[0]), 1),
			nip.CommandState{Command: first[1], State: "applied", Revision: &at},
			inState(string(first[2]), "expired"), inState(string(first[3]), "superseded"), inState(string(first[4]), "removed"),
			nip.CommandState{Command: first[5], State: "rejected", Reason: nip.Unsupported})))
		dropped := give("dropped", nil)
		if ok, err := d.Drop(string(dropped)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		waiting := give("waiting", nil)

		n := reopen(t, d, p)
		if err := n.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, err := n.Commands(task)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range list {
			word := s.State
			if s.Position != nil {
				word += fmt.Sprint(" ", *s.Position)
			}
			if s.Revision != nil {
				word += fmt.Sprint(" ", *s.Revision)
			}
			if s.Reason != "" {
				word += " " + string(s.Reason)
			}
			got = append(got, word)
			if s.Task != task || s.Action != nip.Queue || s.IssuedAt == 0 {
				t.Errorf("%+v", s)
			}
			if (s.Command == waiting) != s.Queued || s.Queued && s.Tries != 1 {
				t.Errorf("queued: %+v", s)
			}
		}
		want := []string{"received", "refused conflict", "held 1", "applied 9", "expired", "superseded", "removed", "refused unsupported", "unknown", "waiting"}
		if !slices.Equal(got, want) {
			t.Errorf("commands\n%q, want\n%q", got, want)
		}
		if list[0].Command != received || list[1].Command != refused {
			t.Error("not in the order they were given")
		}
		if list, err := n.Commands(nip.TaskID(taskB)); err != nil || len(list) != 0 {
			t.Errorf("of another task: %+v, %v", list, err)
		}
		// The host took it without the reply coming through: the word counts, the
		// row goes on waiting for its reply.
		p.add(h.sealStates(h.key, d.PubKey(), h.states(string(task), 9, now+1, held(string(waiting), 2))))
		if err := n.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, _ = n.Commands(task)
		if s := list[len(list)-1]; s.State != "held" || !s.Queued {
			t.Errorf("published while it waits: %+v", s)
		}
	})
}

// A signed no to a command that the host once held counts from then on; one to
// a command that has ended changes nothing.
func TestRefusalAndState(t *testing.T) {
	for _, tt := range []struct {
		r    sentRow
		want string
	}{
		{sentRow{Reply: "revoked", RepliedAt: 200, State: "held", Position: new(int), StatedAt: 100}, "refused"},
		{sentRow{Reply: "revoked", RepliedAt: 50, State: "held", Position: new(int), StatedAt: 100}, "held"},
		{sentRow{Reply: "revoked", RepliedAt: 200, State: "applied", StatedAt: 100}, "applied"},
		{sentRow{Reply: replyTaken, RepliedAt: 200, State: "removed", StatedAt: 100}, "removed"},
		{sentRow{Reply: replyTaken, RepliedAt: 200}, "received"},
		{sentRow{}, "unknown"},
	} {
		if got := tt.r.status("x").State; got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.r, got, tt.want)
		}
	}
}

// A record about a command of another task is not believed of that command, and
// the profile keeps a bounded number of commands.
func TestStatesBounded(t *testing.T) {
	d, h, _ := paired(t)
	now := time.Now().Unix()
	id := newID(t)
	taken(t, d, nil, true, h.sealStates(h.key, d.PubKey(), h.states(taskA, 4, now, held(id, 0))))
	if news := taken(t, d, nil, true, h.sealStates(h.key, d.PubKey(), h.states(taskB, 9, now, inState(id, "removed")))); len(news) != 0 {
		t.Errorf("news of another task's command: %+v", news)
	}
	// Up to the bound by hand, which is quick; the two beyond it as they come.
	err := d.store.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketSent)
		for i := range maxSent + 1 {
			r := sentRow{Task: nip.TaskID(taskB), State: "received", StatedAt: now - 10_000 + int64(i)}
			key := nip.CommandID(fmt.Sprintf("%064x", i))
			if i >= maxSent-1 {
				if err := putSent(b, h.key.Public(), key, r); err != nil {
					return err
				}
				continue
			}
			raw, err := r.encode()
			if err != nil {
				return err
			}
			if err := b.Put(append(seenPrefix(h.key.Public()), key...), raw); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := d.Commands("")
	if err != nil || len(list) != maxSent {
		t.Fatalf("%d commands, %v", len(list), err)
	}
	for _, s := range list {
		if n := string(s.Command); n == fmt.Sprintf("%064x", 0) || n == fmt.Sprintf("%064x", 1) {
			t.Error("the one that was heard of longest ago is still known")
		}
	}
	if list, err := d.Commands(nip.TaskID(taskA)); err != nil || len(list) != 1 || list[0].State != "held" {
		t.Errorf("%+v, %v", list, err)
	}
}

// Hints are kept by generation and time, shown where they changed, and over
// when they say so.
func TestHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, h, p := paired(t)
		now := time.Now().Unix()
		a, b := "wss://relay.example.com/", "wss://relay.example.org/"
		for _, tt := range []struct {
			name string
			h    nip.Hints
			news bool
			held string
		}{
			{"first", h.hints(3, now-100, a), true, a},
			{"the same ways", h.hints(3, now-90, a), false, a},
			{"issued earlier", h.hints(3, now-95, b), false, a},
			{"a generation back", h.hints(2, now-10, b), false, a},
			{"another generation", h.hints(4, now-80, b), true, b},
		} {
			if news := taken(t, d, shown{}, true, h.sealHints(h.key, d.PubKey(), tt.h)); (len(news) == 1) != tt.news {
				t.Errorf("%s: news %+v", tt.name, news)
			}
			if k, ok, err := reopen(t, d, p).Hints(); err != nil || !ok || k.Hints[0].Address != tt.held {
				t.Errorf("%s: kept %+v, %v, %v", tt.name, k, ok, err)
			}
		}
		if list, err := d.Hosts(); err != nil || len(list) != 1 || list[0].Hints == nil || list[0].Hints.Hints[0].Address != b {
			t.Errorf("hosts %+v, %v", list, err)
		}
		time.Sleep(2 * time.Hour)
		if _, ok, err := d.Hints(); ok || err != nil {
			t.Errorf("two hours later: %v, %v", ok, err)
		}
	})
}

// Watch brings new pages, states and hints, each once; two watching processes
// of a profile both show them.
func TestWatchPublications(t *testing.T) {
	d, h, p := paired(t)
	h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) { return dispatched(r), nil }
	c, _, err := d.Command(t.Context(), command(t, nip.Queue, "later"))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	// Known before the watch, and so no news to it.
	p.add(h.sealStates(h.key, d.PubKey(), h.states(string(c.Task), 3, now-9, held(string(c.ID), 1))),
		h.sealPage(h.key, d.PubKey(), h.page(taskA, 2, now-9)))
	if err := d.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := d.LastPage(nip.TaskID(taskA)); ok {
		t.Error("a refresh without pages read one")
	}
	if err := d.RefreshPages(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watches []<-chan Update
	for _, w := range []*Device{d, reopen(t, d, p)} {
		updates, err := w.Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		watches = append(watches, updates)
	}
	p.add(h.sealStates(h.key, d.PubKey(), h.states(string(c.Task), 3, now-8, held(string(c.ID), 1))), // nothing new in it
		h.sealStates(h.key, d.PubKey(), h.states(string(c.Task), 3, now-7, held(string(c.ID), 0))),
		h.sealPage(h.key, d.PubKey(), h.page(taskA, 3, now-6)),
		h.sealHints(h.key, d.PubKey(), h.hints(1, now-5, string(paperURL))),
		h.sealSummary(h.key, d.PubKey(), h.summary(taskB, 1, nip.PhaseQueued, now)))
	hints := 0 // advice is shown by the process that met it first, whichever that is
	for i, updates := range watches {
		var got []string
		for len(got) < 3 {
			switch u := next(t, updates); {
			case u.Commands != nil:
				got = append(got, fmt.Sprint("command ", u.Commands[0].State, *u.Commands[0].Position))
			case u.Page != nil:
				got = append(got, fmt.Sprint("page ", u.Page.Page.Scope.Revision))
			case u.Hints != nil:
				hints++
			case u.Summary != nil:
				got = append(got, "summary")
			}
		}
		slices.Sort(got)
		if want := []string{"command held0", "page 3", "summary"}; !slices.Equal(got, want) {
			t.Errorf("watch %d: %q, want %q", i, got, want)
		}
	}
	for hints == 0 {
		var u Update
		select {
		case u = <-watches[0]:
		case u = <-watches[1]:
		case <-time.After(relaytest.Patience):
			t.Fatal("neither showed the hints")
		}
		if u.Hints == nil {
			t.Fatalf("another update: %+v", u)
		}
		hints++
	}
	cancel()
	for _, updates := range watches {
		for u := range updates {
			if u.Hints != nil {
				hints++
			}
		}
	}
	if hints != 1 {
		t.Errorf("the hints were shown %d times", hints)
	}
}

// A profile of an older version, which knew neither pages nor commands, is read
// and goes on.
func TestOlderProfile(t *testing.T) {
	d, _, p := paired(t)
	p.host = nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.Command(ctx, command(t, nip.Send, "go"))
	if err := d.store.update(func(tx *bbolt.Tx) error {
		for _, b := range [][]byte{bucketPages, bucketSent} {
			if err := tx.DeleteBucket(b); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	n := reopen(t, d, p)
	if _, ok, err := n.LastPage(nip.TaskID(taskA)); ok || err != nil {
		t.Errorf("page %v, %v", ok, err)
	}
	list, err := n.Commands("")
	if err != nil || len(list) != 1 || list[0].State != "waiting" || list[0].Action != nip.Send {
		t.Errorf("commands %+v, %v", list, err)
	}
	if err := n.Refresh(t.Context()); err != nil {
		t.Error(err)
	}
}
