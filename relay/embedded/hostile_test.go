package embedded_test

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"holdfast/nip"
	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

func TestNothingWithoutAuthentication(t *testing.T) {
	_, url := open(t)
	p := connect(t, url)
	k := relaytest.Key(t)
	has(t, "EVENT", p.publish(event(t, k, k.Public(), "x")), "auth-required:")
	for _, f := range []string{`{}`, `{"limit":0}`, `{"ids":["` + strings.Repeat("0", 64) + `"]}`} {
		_, words := p.ask("s", f)
		has(t, f, words, "auth-required:")
	}
	p.raw(`["COUNT","s",{}]`)
	has(t, "COUNT", p.await("CLOSED")[1], "unsupported:")
}

func TestAuthentication(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(ev *nip.Event)
		ok     bool
	}{
		{"as it should be", func(*nip.Event) {}, true},
		{"without the slash, as client libraries write it", func(ev *nip.Event) { ev.Tags[0][1] = strings.TrimSuffix(ev.Tags[0][1], "/") }, true},
		{"another relay", func(ev *nip.Event) { ev.Tags[0][1] = "wss://other.example/" }, false},
		{"another port", func(ev *nip.Event) { ev.Tags[0][1] = "ws://127.0.0.1:1/" }, false},
		{"another path", func(ev *nip.Event) { ev.Tags[0][1] += "x" }, false},
		{"another scheme", func(ev *nip.Event) { ev.Tags[0][1] = "wss" + ev.Tags[0][1][2:] }, false},
		{"no relay tag", func(ev *nip.Event) { ev.Tags = ev.Tags[1:] }, false},
		{"two relay tags", func(ev *nip.Event) { ev.Tags = append(ev.Tags, ev.Tags[0]) }, false},
		{"an empty relay tag", func(ev *nip.Event) { ev.Tags[0] = ev.Tags[0][:1] }, false},
		{"another challenge", func(ev *nip.Event) { ev.Tags[1][1] = strings.Repeat("0", 64) }, false},
		{"an empty challenge", func(ev *nip.Event) { ev.Tags[1][1] = "" }, false},
		{"another kind", func(ev *nip.Event) { ev.Kind = 1 }, false},
		{"too old", func(ev *nip.Event) { ev.CreatedAt -= 660 }, false},
		{"too new", func(ev *nip.Event) { ev.CreatedAt += 660 }, false},
		{"nearly too old", func(ev *nip.Event) { ev.CreatedAt -= 540 }, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, url := open(t)
			p := connect(t, url)
			k := relaytest.Key(t)
			ev := authEvent(t, k, p.await("AUTH")[0], string(url), time.Now())
			row.change(ev)
			if err := k.Sign(ev); err != nil {
				t.Fatal(err)
			}
			p.send("AUTH", nip.EncodeEvent(ev))
			if words := p.answer(ev.ID); (words == "true") != row.ok {
				t.Fatalf("the relay said %q", words)
			}
			_, closed := p.ask("s", `{"limit":0}`)
			if (closed == "") != row.ok {
				t.Fatalf("reading: %q", closed)
			}
		})
	}
	t.Run("a forged signature", func(t *testing.T) {
		_, url := open(t)
		p := connect(t, url)
		ev := authEvent(t, relaytest.Key(t), p.await("AUTH")[0], string(url), time.Now())
		ev.PubKey = string(relaytest.Key(t).Public())
		p.send("AUTH", nip.EncodeEvent(ev))
		has(t, "forged", p.answer(ev.ID), "invalid:")
	})
	t.Run("a challenge is good once", func(t *testing.T) {
		_, url := open(t)
		p := connect(t, url)
		ch := p.await("AUTH")[0]
		first, second := authEvent(t, relaytest.Key(t), ch, string(url), time.Now()), authEvent(t, relaytest.Key(t), ch, string(url), time.Now())
		p.send("AUTH", nip.EncodeEvent(first))
		has(t, "first", p.answer(first.ID), "true")
		p.send("AUTH", nip.EncodeEvent(second))
		has(t, "second", p.answer(second.ID), "invalid:")
	})
	t.Run("another connection's challenge", func(t *testing.T) {
		_, url := open(t)
		p, q := connect(t, url), connect(t, url)
		ev := authEvent(t, relaytest.Key(t), p.await("AUTH")[0], string(url), time.Now())
		q.send("AUTH", nip.EncodeEvent(ev))
		has(t, "replayed", q.answer(ev.ID), "invalid:")
	})
	t.Run("guessing ends the connection", func(t *testing.T) {
		_, url := open(t)
		p := connect(t, url)
		for range 9 {
			p.send("AUTH", nip.EncodeEvent(authEvent(t, relaytest.Key(t), "x", string(url), time.Now())))
		}
		p.gone()
	})
	t.Run("a second key does not inherit subscriptions", func(t *testing.T) {
		_, url := open(t)
		a, b := relaytest.Key(t), relaytest.Key(t)
		p := connect(t, url)
		p.login(a)
		p.ask("s", `{}`)
		// The first challenge is spent; the refusal brings the next one.
		p.send("AUTH", nip.EncodeEvent(authEvent(t, b, "spent", string(url), time.Now())))
		second := p.await("AUTH")[0]
		ev := authEvent(t, b, second, string(url), time.Now())
		p.send("AUTH", nip.EncodeEvent(ev))
		if c := p.await("CLOSED"); c[0] != "s" {
			t.Fatalf("closed %v", c)
		}
		has(t, "second key", p.answer(ev.ID), "true")
	})
}

func TestReadersSeeTheirOwnOnly(t *testing.T) {
	_, url := open(t)
	author, recipient, third := relaytest.Key(t), relaytest.Key(t), relaytest.Key(t)
	w := connect(t, url)
	w.login(author)
	ev := event(t, author, recipient.Public(), "secret")
	has(t, "publish", w.publish(ev), "true")
	for name, k := range map[string]nip.SecretKey{"author": author, "recipient": recipient, "third": third} {
		p := connect(t, url)
		p.login(k)
		for _, f := range []string{
			`{}`, `{"ids":["` + ev.ID + `"]}`, `{"authors":["` + ev.PubKey + `"]}`, `{"kinds":[3188]}`,
			`{"#p":["` + string(recipient.Public()) + `"]}`, `{"#h":["` + string(relaytest.Mailbox('a')) + `"]}`, `{"#t":["oa:artifact:v1"]}`,
			`{"authors":["` + ev.PubKey + `"],"#p":["` + string(recipient.Public()) + `"],"ids":["` + ev.ID + `"]}`,
		} {
			got, closed := p.ask("s", f)
			if want := name != "third"; closed != "" || (len(got) == 1) != want || len(got) > 1 {
				t.Errorf("%s asked %s and got %q %q", name, f, got, closed)
			}
		}
		for _, f := range []string{
			`{"kinds":[1]}`, `{"kinds":[]}`, `{"ids":[]}`, `{"authors":[]}`, `{"#t":["x"]}`, `{"#h":[]}`, `{"limit":0}`,
			`{"authors":["` + string(third.Public()) + `"]}`, `{"#p":["` + string(third.Public()) + `"]}`, `{"since":9999999999}`, `{"until":1}`,
		} {
			if got, closed := p.ask("s", f); closed != "" || len(got) != 0 {
				t.Errorf("%s asked %s and got %q %q", name, f, got, closed)
			}
		}
	}
}

func TestBadRequests(t *testing.T) {
	_, url := open(t)
	p := connect(t, url)
	p.login(relaytest.Key(t))
	for _, row := range []struct{ filters, words string }{
		{`{"#e":["x"]}`, "unsupported:"},
		{`{"search":"x"}`, "unsupported:"},
		{`{"x":1}`, "unsupported:"},
		{`{"ids":"x"}`, "invalid:"},
		{`{"ids":["x"]}`, "invalid:"},
		{`{"authors":[1]}`, "invalid:"},
		{`{"kinds":["3188"]}`, "invalid:"},
		{`{"kinds":3188}`, "invalid:"},
		{`{"kinds":null}`, "invalid:"},
		{`{"since":-1}`, "invalid:"},
		{`{"since":1.5}`, "invalid:"},
		{`{"since":"1"}`, "invalid:"},
		{`{"limit":-1}`, "invalid:"},
		{`{"limit":99999999999999999999}`, "invalid:"},
		{`[]`, "invalid:"},
		{`{"ids":[` + strings.Repeat(`"`+strings.Repeat("0", 64)+`",`, 512) + `"` + strings.Repeat("0", 64) + `"]}`, "invalid:"},
		{strings.Repeat(`{},`, 10) + `{}`, "invalid:"},
	} {
		_, closed := p.ask("s", row.filters)
		has(t, row.filters[:min(len(row.filters), 40)], closed, row.words)
	}
	p.raw(`["REQ","s"]`)
	has(t, "no filter", p.await("CLOSED")[1], "invalid:")
	if _, closed := p.ask("s", strings.Repeat(`{},`, 9)+`{}`); closed != "" {
		t.Fatalf("ten filters: %q", closed)
	}
	if _, closed := p.ask("s", `{"limit":99999999}`); closed != "" {
		t.Fatalf("a big limit: %q", closed)
	}
}

func TestRefusedRequestEndsTheOneItReplaces(t *testing.T) {
	_, url := open(t)
	k := relaytest.Key(t)
	p := connect(t, url)
	p.login(k)
	p.ask("s", `{}`)
	p.ask("s", `{"search":"x"}`)
	p.send("EVENT", nip.EncodeEvent(event(t, k, k.Public(), "x")))
	if label, _ := p.next(); label != "OK" {
		t.Fatalf("a closed subscription was sent %s", label)
	}
}

func TestTooManySubscriptions(t *testing.T) {
	_, url := open(t)
	p := connect(t, url)
	p.login(relaytest.Key(t))
	for i := range 20 {
		if _, closed := p.ask(fmt.Sprint("s", i), `{"limit":0}`); closed != "" {
			t.Fatalf("subscription %d: %s", i, closed)
		}
	}
	_, closed := p.ask("one more", `{}`)
	has(t, "the 21st", closed, "rate-limited:")
	if _, closed := p.ask("s0", `{}`); closed != "" {
		t.Fatalf("replacing one: %s", closed)
	}
	p.raw(`["CLOSE","s1"]`)
	if _, closed := p.ask("one more", `{}`); closed != "" {
		t.Fatalf("after a CLOSE: %s", closed)
	}
}

func TestBadEvents(t *testing.T) {
	_, url := open(t)
	k := relaytest.Key(t)
	p := connect(t, url)
	p.login(k)
	sign := func(change func(*nip.Event)) *nip.Event {
		ev := event(t, k, relaytest.Key(t).Public(), "x")
		change(ev)
		if err := k.Sign(ev); err != nil {
			t.Fatal(err)
		}
		return ev
	}
	other := event(t, relaytest.Key(t), k.Public(), "x")
	has(t, "another's event", p.publish(other), "restricted:")
	for _, kind := range []int{0, 1, 5, 1059, 22242, 30000, 24133} {
		has(t, fmt.Sprint("kind ", kind), p.publish(sign(func(e *nip.Event) { e.Kind = kind })), "blocked:")
	}
	has(t, `the tag ["d"] alone`, p.publish(sign(func(e *nip.Event) { e.Kind = 30000; e.Tags = append(e.Tags, []string{"d"}) })), "blocked:")
	has(t, "the future", p.publish(sign(func(e *nip.Event) { e.CreatedAt += 1000 })), "invalid:")
	has(t, "a fourth tag", p.publish(sign(func(e *nip.Event) { e.Tags = append(e.Tags, []string{"expiration", "1"}) })), "invalid:")
	has(t, "no p tag", p.publish(sign(func(e *nip.Event) { e.Tags = e.Tags[1:] })), "invalid:")
	has(t, "an empty tag", p.publish(sign(func(e *nip.Event) { e.Tags[0] = []string{} })), "invalid:")
	bad := sign(func(*nip.Event) {})
	bad.Content = "changed"
	has(t, "changed", p.publish(bad), "invalid:")
	bad.Content = "x"
	has(t, "honest", p.publish(bad), "true")
	id := strings.Repeat("1", 64)
	p.raw(`["EVENT",{"id":"` + id + `","kind":"x"}]`)
	has(t, "malformed with an ID", p.answer(id), "invalid:")
	good := string(nip.EncodeEvent(bad))
	p.raw(`["EVENT",` + strings.Replace(good, `{`, `{"kind":1,`, 1) + `]`)
	has(t, "duplicate member", p.await("NOTICE")[0], "invalid:")
}

func TestMalformedMessages(t *testing.T) {
	_, url := open(t)
	p := connect(t, url)
	bad := []string{
		`["EVENT","`, ``, `[]`, `{}`, `["EVENT"]`, `["EVENT",1]`, `["EVENT",{}]`, `["REQ"]`, `["REQ",1]`, `["REQ",""]`, `["CLOSE",null]`,
		`["AUTH","x"]`, `["AUTH",{}]`, strings.Repeat("[", 10000), `["REQ","` + strings.Repeat("s", 65) + `",{}]`, "[\"REQ\",\"\xff\",{}]", `["REQ","s",{}] x`, `["COUNT","s",{},{}`,
		`["NEG-OPEN","x"]`,
	}
	for _, b := range bad {
		p.raw(b)
		p.await("NOTICE")
	}
	for range 70 {
		if p.ws.Write(p.ctx, 1, []byte("x")) != nil {
			break
		}
	}
	p.gone()
}

func TestFrameTooLong(t *testing.T) {
	_, url := open(t)
	p := connect(t, url)
	p.login(relaytest.Key(t))
	p.raw(`["NOTICE","` + strings.Repeat("x", 128<<10) + `"]`)
	p.gone()
}

func TestNamesOfARequest(t *testing.T) {
	_, url := open(t, func(o *embedded.Options) { o.Also = []nip.RelayURL{"wss://relay.example/x"} })
	address := strings.TrimSuffix(strings.TrimPrefix(string(url), "ws://"), "/")
	_, port, _ := net.SplitHostPort(address)
	for _, row := range []struct {
		host, origin string
		ok           bool
	}{
		{address, "", true},
		{"localhost:" + port, "", true},
		{"127.0.0.1", "", true},
		{"[::1]:" + port, "", true},
		{"relay.example", "", true},
		{"evil.example", "", false},
		{"evil.example:" + port, "", false},
		{"localhost.evil.example", "", false},
		{"relay.example.evil.example", "", false},
		{"10.0.0.1", "", false},
		{address, "http://" + address, true},
		{"relay.example", "https://relay.example", true},
		{address, "http://evil.example", false},
		{address, "http://localhost:3000", false},
		{address, "null", false},
		{address, "file://", false},
		{"evil.example", "http://evil.example", false},
	} {
		t.Run(row.host+" from "+row.origin, func(t *testing.T) {
			resp := get(t, "http://"+address+"/", func(r *http.Request) {
				r.Host = row.host
				if row.origin != "" {
					r.Header.Set("Origin", row.origin)
				}
				r.Header.Set("Connection", "Upgrade")
				r.Header.Set("Upgrade", "websocket")
				r.Header.Set("Sec-WebSocket-Version", "13")
				r.Header.Set("Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")
			})
			want := http.StatusForbidden
			if row.ok {
				want = http.StatusSwitchingProtocols
			}
			if resp.StatusCode != want {
				t.Fatalf("status %d, want %d", resp.StatusCode, want)
			}
		})
	}
}

func TestDocument(t *testing.T) {
	_, url := open(t)
	address := "http" + strings.TrimPrefix(string(url), "ws")
	resp := get(t, address, func(r *http.Request) { r.Header.Set("Accept", "application/nostr+json, */*") })
	var doc struct {
		NIPs       []int          `json:"supported_nips"`
		Extensions []string       `json:"supported_extensions"`
		Limitation map[string]any `json:"limitation"`
	}
	if err := json.UnmarshalRead(resp.Body, &doc); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(doc.NIPs, []int{1, 11, 40, 42}) || len(doc.Extensions) != 1 || doc.Extensions[0] != "oa-private-artifacts-v1" || doc.Limitation["max_message_length"] != 131072.0 || doc.Limitation["auth_required"] != true {
		t.Fatalf("document %+v", doc)
	}
	if resp := get(t, address, func(*http.Request) {}); resp.StatusCode != http.StatusUpgradeRequired {
		t.Fatalf("a browser got %d", resp.StatusCode)
	}
}

func TestLoopbackOnly(t *testing.T) {
	r, _ := open(t)
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := r.Serve(ln); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Fatalf("got %v", err)
	}
}

// TestStuckReader: one subscriber stops reading. Another's publishes go on, and
// the stuck one is dropped.
func TestStuckReader(t *testing.T) {
	r, url := open(t)
	victim, author := relaytest.Key(t), relaytest.Key(t)
	stuck := connect(t, url)
	stuck.login(victim)
	stuck.ask("s", `{}`)
	w := connect(t, url)
	w.login(author)
	const n = 90 // 10 MB: more than socket buffers and queue hold
	alone := w.flood(author, author.Public(), n)
	// Who waits for the stuck one waits for its write deadline.
	if d := w.flood(author, victim.Public(), n); d > alone+embedded.WriteTimeout/2 {
		t.Fatalf("a publish took %v, and %v with nobody stuck", d, alone)
	}
	relaytest.Eventually(t, "the stuck reader to be dropped", func() bool { return embedded.Connections(r) == 1 })
}

// TestStuckReplay: one client asks for much that is stored and does not read.
func TestStuckReplay(t *testing.T) {
	_, url := open(t)
	victim, author := relaytest.Key(t), relaytest.Key(t)
	w := connect(t, url)
	w.login(author)
	w.flood(author, victim.Public(), 60)
	asked := time.Now()
	reader := func() *peer {
		p := connect(t, url)
		p.login(victim)
		p.raw(`["REQ","s",{}]`)
		return p
	}
	stuck := reader()
	const n = 20
	publish := func(to nip.PubKey) (longest time.Duration) {
		for i := range n {
			began := time.Now()
			has(t, "publish", w.publish(relaytest.Event(t, author, to, relaytest.Mailbox('a'), int64(2000+i), "y")), "true")
			longest = max(longest, time.Since(began))
		}
		return longest
	}
	stuckToo, alone := publish(victim.Public()), publish(author.Public())
	if stuckToo > alone+embedded.WriteTimeout/2 {
		t.Fatalf("a publish took %v, and %v to somebody else", stuckToo, alone)
	}
	if time.Since(asked) > embedded.WriteTimeout/2 {
		stuck = reader() // on a slow machine the relay may rightly have hung up
	}
	for n := 0; n < 80; n++ { // it reads after all: everything is there, once
		stuck.await("EVENT")
	}
}

func TestTooManyConnections(t *testing.T) {
	member := relaytest.Key(t)
	_, url := open(t, func(o *embedded.Options) {
		o.Class = func(k nip.PubKey) embedded.Class {
			if k == member.Public() {
				return embedded.Member
			}
			return embedded.Stranger
		}
	})
	first := connect(t, url)
	first.login(member)
	var silent []*peer
	for range 63 {
		silent = append(silent, connect(t, url))
	}
	for _, p := range silent {
		p.await("AUTH")
	}
	last := connect(t, url)
	last.login(member)
	silent[0].gone() // the oldest that is not a member's
	if _, closed := first.ask("s", `{}`); closed != "" {
		t.Fatalf("the member's connection: %s", closed)
	}
}
