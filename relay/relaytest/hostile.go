package relaytest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/nip"
	"holdfast/relay"
)

// Hostile is a relay that does to each connection what its script says.
type Hostile struct {
	URL nip.RelayURL
	// DialContext reaches a relay made by NewHostilePipe; nil otherwise.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex // guards what follows
	conns int
	over  bool // the test ended: who connects now is not waited for, and not served
}

// HostileConn is one connection. Its methods end the script when the client is
// gone; after the script returns, the connection is dropped without a close
// frame.
type HostileConn struct {
	N    int // 1 for the first connection of this relay
	ws   *websocket.Conn
	ctx  context.Context
	drop func()
}

// Message is one client message: its label and its other elements.
type Message struct {
	Label    string
	Elements []jsontext.Value
}

// Text is the string at i, "" where there is none.
func (m Message) Text(i int) string {
	var s string
	if i < len(m.Elements) {
		json.Unmarshal(m.Elements[i], &s)
	}
	return s
}

// Event is the event at 0; nil where there is none.
func (m Message) Event() *nip.Event {
	if len(m.Elements) == 0 {
		return nil
	}
	ev, err := nip.ParseEvent(m.Elements[0])
	if err != nil {
		return nil
	}
	return ev
}

var errGone = errors.New("client gone")

// NewHostile starts a hostile relay on a loopback socket for the length of t.
func NewHostile(t testing.TB, script func(c *HostileConn)) *Hostile {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &Hostile{URL: nip.RelayURL("ws://" + ln.Addr().String() + "/")}
	h.serve(t, ln, script)
	return h
}

// NewHostilePipe starts one that is reached only by its DialContext, over
// net.Pipe: for tests in virtual time.
func NewHostilePipe(t testing.TB, script func(c *HostileConn)) *Hostile {
	t.Helper()
	ln, dial := Pipe()
	h := &Hostile{URL: "ws://127.0.0.1:7447/", DialContext: dial}
	h.serve(t, ln, script)
	return h
}

// Conns is how many connections came so far.
func (h *Hostile) Conns() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conns
}

func (h *Hostile) serve(t testing.TB, ln net.Listener, script func(c *HostileConn)) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		if h.over {
			h.mu.Unlock()
			return
		}
		all.Add(1)
		h.mu.Unlock()
		defer all.Done()
		ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
		if err != nil {
			return
		}
		ws.SetReadLimit(4 << 20)
		h.mu.Lock()
		h.conns++
		n := h.conns
		h.mu.Unlock()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		c := &HostileConn{N: n, ws: ws, ctx: ctx, drop: func() { ws.CloseNow() }}
		defer c.drop()
		defer func() {
			if p := recover(); p != nil && p != errGone {
				panic(p)
			}
		}()
		script(c)
	})}
	all.Go(func() { s.Serve(ln) })
	t.Cleanup(func() {
		cancel()
		h.mu.Lock()
		h.over = true
		h.mu.Unlock()
		s.Close()
		all.Wait()
	})
}

// Next reads one message of the client.
func (c *HostileConn) Next() Message {
	_, b, err := c.ws.Read(c.ctx)
	if err != nil {
		panic(errGone)
	}
	parts, err := relay.SplitFrame(b, 64)
	if err != nil || len(parts) == 0 {
		return Message{Label: "?"}
	}
	m := Message{Elements: parts[1:]}
	json.Unmarshal(parts[0], &m.Label)
	return m
}

// Await reads messages until one has this label.
func (c *HostileConn) Await(label string) Message {
	for {
		if m := c.Next(); m.Label == label {
			return m
		}
	}
}

// Raw sends bytes as one text message.
func (c *HostileConn) Raw(b []byte) {
	if c.ws.Write(c.ctx, websocket.MessageText, b) != nil {
		panic(errGone)
	}
}

// Binary sends bytes as one binary message.
func (c *HostileConn) Binary(b []byte) {
	if c.ws.Write(c.ctx, websocket.MessageBinary, b) != nil {
		panic(errGone)
	}
}

// Send sends one message; elements as relay.EncodeFrame takes them.
func (c *HostileConn) Send(label string, elements ...any) {
	c.Raw(relay.EncodeFrame(label, elements...))
}

// Event sends an event to a subscription.
func (c *HostileConn) Event(sub string, ev *nip.Event) { c.Send("EVENT", sub, nip.EncodeEvent(ev)) }

// Login sends a challenge, awaits AUTH, and answers OK true.
func (c *HostileConn) Login() *nip.Event {
	c.Send("AUTH", strings.Repeat("c", 64))
	ev := c.Await("AUTH").Event()
	if ev == nil {
		panic(errGone)
	}
	c.Send("OK", ev.ID, true, "")
	return ev
}

// Close ends the connection with a close frame.
func (c *HostileConn) Close(code int, reason string) {
	c.ws.Close(websocket.StatusCode(code), reason)
	panic(errGone)
}

// Hang neither reads nor writes until the test ends.
func (c *HostileConn) Hang() { <-c.ctx.Done() }

// Drop ends the connection without a close frame, from any goroutine.
func (c *HostileConn) Drop() { c.drop() }

// Done is closed when the client is gone, or the script returned.
func (c *HostileConn) Done() <-chan struct{} { return c.ctx.Done() }

// Drain reads and ignores until the client is gone.
func (c *HostileConn) Drain() {
	for {
		c.Next()
	}
}

// Beside runs a part of the script that only sends, beside the one that reads:
// over a pipe, who does not read blocks the client's pings. It ends when the
// client is gone.
func (c *HostileConn) Beside(send func()) {
	go func() {
		defer func() {
			if p := recover(); p != nil && p != errGone {
				panic(p)
			}
		}()
		send()
	}()
}

// Pause waits, or ends the script when the client is gone.
func (c *HostileConn) Pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.ctx.Done():
		panic(errGone)
	}
}

// Serve answers as an honest relay without storage would: EOSE to REQ, OK true
// to EVENT, for as long as the client stays. seen may be nil.
func (c *HostileConn) Serve(seen func(m Message)) {
	for {
		m := c.Next()
		switch m.Label {
		case "REQ":
			c.Send("EOSE", m.Text(0))
		case "EVENT", "AUTH":
			if ev := m.Event(); ev != nil {
				c.Send("OK", ev.ID, true, "")
			}
		}
		if seen != nil {
			seen(m)
		}
	}
}
