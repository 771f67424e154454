package embedded_test

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nbd-wtf/go-nostr"
	"github.com/rs/zerolog"

	"holdfast/internal/leaks"
	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// clock is a time that a test moves.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// open starts a relay on a real socket until the test ends.
func open(t testing.TB, change ...func(*embedded.Options)) (*embedded.Relay, nip.RelayURL) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := nip.RelayURL("ws://" + ln.Addr().String() + "/")
	o := embedded.Options{Path: filepath.Join(t.TempDir(), "relay.db"), Name: url, Log: zerolog.Nop()}
	for _, c := range change {
		c(&o)
	}
	r, err := embedded.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.Serve(ln) }()
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return r, url
}

// peer is a client that does as it is told.
type peer struct {
	t   testing.TB
	url nip.RelayURL
	ws  *websocket.Conn
	ctx context.Context
}

func connect(t testing.TB, url nip.RelayURL) *peer {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 2*relaytest.Patience)
	ws, _, err := websocket.Dial(ctx, string(url), nil)
	if err != nil {
		stop()
		t.Fatal(err)
	}
	ws.SetReadLimit(1 << 20)
	t.Cleanup(func() { ws.CloseNow(); stop() })
	return &peer{t: t, url: url, ws: ws, ctx: ctx}
}

func (p *peer) raw(b string) {
	p.t.Helper()
	if err := p.ws.Write(p.ctx, websocket.MessageText, []byte(b)); err != nil {
		p.t.Fatalf("write: %v", err)
	}
}

func (p *peer) send(label string, elements ...any) {
	p.t.Helper()
	p.raw(string(relay.EncodeFrame(label, elements...)))
}

// next reads one message as its label and its other elements.
func (p *peer) next() (string, []string) {
	p.t.Helper()
	_, b, err := p.ws.Read(p.ctx)
	if err != nil {
		p.t.Fatalf("read: %v", err)
	}
	parts, err := relay.SplitFrame(b, 8)
	if err != nil {
		p.t.Fatalf("the relay sent %s: %v", b, err)
	}
	var out []string
	for _, v := range parts {
		out = append(out, plain(v))
	}
	return out[0], out[1:]
}

func plain(v jsontext.Value) string {
	var s string
	if v.Kind() == '"' && json.Unmarshal(v, &s) == nil {
		return s
	}
	return string(v)
}

// await reads until a message has this label.
func (p *peer) await(label string) []string {
	p.t.Helper()
	for {
		if l, rest := p.next(); l == label {
			return rest
		}
	}
}

// gone waits until the relay ended the connection.
func (p *peer) gone() {
	p.t.Helper()
	for {
		if _, _, err := p.ws.Read(p.ctx); err != nil {
			if p.ctx.Err() != nil {
				p.t.Fatal("the connection lives on")
			}
			return
		}
	}
}

func authEvent(t testing.TB, k nip.SecretKey, challenge, url string, at time.Time) *nip.Event {
	t.Helper()
	ev := &nip.Event{Kind: 22242, CreatedAt: nostr.Timestamp(at.Unix()), Tags: nostr.Tags{{"relay", url}, {"challenge", challenge}}}
	if err := k.Sign(ev); err != nil {
		t.Fatal(err)
	}
	return ev
}

func (p *peer) login(k nip.SecretKey) {
	p.t.Helper()
	p.send("AUTH", nip.EncodeEvent(authEvent(p.t, k, p.await("AUTH")[0], string(p.url), time.Now())))
	if ok := p.await("OK"); ok[1] != "true" {
		p.t.Fatalf("login: %v", ok)
	}
}

// publish returns the relay's answer: "true" or the words of its refusal.
func (p *peer) publish(ev *nip.Event) string {
	p.t.Helper()
	p.send("EVENT", nip.EncodeEvent(ev))
	return p.answer(ev.ID)
}

// flood publishes n events of 115,000 bytes at once, awaits every OK and returns
// how long the latest of them was waited for.
func (p *peer) flood(from nip.SecretKey, to nip.PubKey, n int) (longest time.Duration) {
	p.t.Helper()
	content := strings.Repeat("x", 115_000)
	// A few at a time: who only writes sees no ping, and a slow machine would
	// have it dropped for that.
	const ahead = 16
	for i := range n + ahead {
		if i < n {
			p.send("EVENT", nip.EncodeEvent(relaytest.Event(p.t, from, to, relaytest.Mailbox('a'), int64(1000+i), content)))
		}
		if i < ahead {
			continue
		}
		began := time.Now()
		if ok := p.await("OK"); ok[1] != "true" {
			p.t.Fatalf("publish: %v", ok)
		}
		longest = max(longest, time.Since(began))
	}
	return longest
}

func (p *peer) answer(id string) string {
	p.t.Helper()
	for {
		if ok := p.await("OK"); ok[0] == id {
			if ok[1] == "true" {
				return "true"
			}
			return ok[2]
		}
	}
}

// ask sends a REQ and returns the contents of what is stored, or the words of
// CLOSED.
func (p *peer) ask(sub string, filters ...string) (contents []string, closed string) {
	p.t.Helper()
	p.raw(`["REQ","` + sub + `",` + strings.Join(filters, ",") + `]`)
	for {
		switch label, rest := p.next(); label {
		case "EVENT":
			ev, err := nip.ParseEvent([]byte(rest[1]))
			if err != nil {
				p.t.Fatal(err)
			}
			contents = append(contents, ev.Content)
		case "EOSE":
			return contents, ""
		case "CLOSED":
			return contents, rest[1]
		}
	}
}

func has(t testing.TB, what, words, prefix string) {
	t.Helper()
	if !strings.HasPrefix(words, prefix) {
		t.Fatalf("%s: the relay said %q, want %q", what, words, prefix)
	}
}

func event(t testing.TB, from nip.SecretKey, to nip.PubKey, content string) *nip.Event {
	t.Helper()
	return relaytest.Event(t, from, to, relaytest.Mailbox('a'), time.Now().Unix(), content)
}

func dial(t testing.TB, url nip.RelayURL, k nip.SecretKey) relay.Link {
	l := relay.Dial(relay.Options{URL: url, Key: k, Log: zerolog.Nop()})
	t.Cleanup(func() { l.Close() })
	return l
}

func get(t testing.TB, url string, change func(*http.Request)) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	change(req)
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}
