package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"holdfast/nip"
	"holdfast/relay/embedded"
)

// liar is a relay that lies: a proxy before a real relay, which does to each
// message what its script says. Clients authenticate with its own name.
type liar struct {
	t    *testing.T
	name nip.RelayURL

	// mu guards the rest.
	mu     sync.Mutex
	script *script // nil: honest
	legs   map[*leg]bool
	over   bool // the test ended: who connects now is hung up on
}

// script is what a liar does. A nil half passes everything on.
type script struct {
	// up and down see a message of a client, or one for it, and say what goes
	// on instead. They run in the leg's two goroutines, one call at a time.
	up, down func(l *leg, m message) []string
	// dial is asked before a connection is passed on; false hangs up.
	dial func() bool

	mu     sync.Mutex     // held during each call
	counts map[string]int // for the script's own use
	kept   []string
}

// times counts a word and reports whether it came at most n times by now.
func (s *script) times(word string, n int) bool {
	if s.counts == nil {
		s.counts = map[string]int{}
	}
	s.counts[word]++
	return s.counts[word] <= n
}

// message is one NIP-01 message, read as far as a script needs.
type message struct {
	raw   string
	label string
	sub   string    // of REQ, CLOSE, EOSE, CLOSED, EVENT to a client
	event nip.Event // of EVENT
	id    string    // of OK
}

func read(raw []byte) message {
	m := message{raw: string(raw)}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil || len(parts) < 2 {
		return m
	}
	_ = json.Unmarshal(parts[0], &m.label)
	switch m.label {
	case "EVENT":
		_ = json.Unmarshal(parts[len(parts)-1], &m.event)
		if len(parts) == 3 {
			_ = json.Unmarshal(parts[1], &m.sub)
		}
	case "OK":
		_ = json.Unmarshal(parts[1], &m.id)
	default:
		_ = json.Unmarshal(parts[1], &m.sub)
	}
	return m
}

// leg is one client's connection and the one to the real relay behind it.
type leg struct {
	liar     *liar
	down, up *websocket.Conn
	ctx      context.Context
	cut      context.CancelFunc
	once     sync.Map // words this leg said
}

// say writes a message to the client out of turn.
func (l *leg) say(frame string) { _ = l.down.Write(l.ctx, websocket.MessageText, []byte(frame)) }

// newLiar starts the proxy with a real relay of its own behind it.
func newLiar(t *testing.T) *liar {
	t.Helper()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	behind, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{t: t, name: nip.RelayURL("ws://" + front.Addr().String() + "/"), legs: map[*leg]bool{}}
	honest, err := embedded.Open(embedded.Options{Path: filepath.Join(t.TempDir(), "relay.db"), Name: l.name, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- honest.Serve(behind) }()
	var legs sync.WaitGroup
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		if l.over {
			l.mu.Unlock()
			return
		}
		legs.Add(1)
		l.mu.Unlock()
		defer legs.Done()
		l.serve(w, r, "ws://"+behind.Addr().String()+"/")
	})}
	go server.Serve(front)
	t.Cleanup(func() {
		l.mu.Lock()
		l.over = true
		l.mu.Unlock()
		server.Close()
		l.hangUp()
		legs.Wait()
		honest.Close()
		<-served
	})
	return l
}

func (l *liar) now() *script {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.script
}

// lie begins a script on connections as they are.
func (l *liar) lie(s *script) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.script = s
}

// hangUp ends every connection.
func (l *liar) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for g := range l.legs {
		g.cut()
	}
}

func (l *liar) serve(w http.ResponseWriter, r *http.Request, behind string) {
	if s := l.now(); s != nil && s.dial != nil {
		s.mu.Lock()
		ok := s.dial()
		s.mu.Unlock()
		if !ok {
			http.Error(w, "not today", http.StatusServiceUnavailable)
			return
		}
	}
	ctx, cut := context.WithCancel(r.Context())
	defer cut()
	up, _, err := websocket.Dial(ctx, behind, nil)
	if err != nil {
		return
	}
	defer up.CloseNow()
	down, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer down.CloseNow()
	up.SetReadLimit(1 << 20)
	down.SetReadLimit(1 << 20)
	g := &leg{liar: l, down: down, up: up, ctx: ctx, cut: cut}
	l.mu.Lock()
	l.legs[g] = true
	if l.over {
		cut()
	}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.legs, g)
		l.mu.Unlock()
	}()
	var both sync.WaitGroup
	both.Go(func() { g.pump(down, up, func(s *script) func(*leg, message) []string { return s.up }) })
	both.Go(func() { g.pump(up, down, func(s *script) func(*leg, message) []string { return s.down }) })
	both.Wait()
}

func (g *leg) pump(from, to *websocket.Conn, half func(*script) func(*leg, message) []string) {
	defer g.cut()
	for {
		_, b, err := from.Read(g.ctx)
		if err != nil {
			return
		}
		out := []string{string(b)}
		if s := g.liar.now(); s != nil && half(s) != nil {
			s.mu.Lock()
			out = half(s)(g, read(b))
			s.mu.Unlock()
		}
		for _, frame := range out {
			if strings.HasPrefix(frame, "wait ") {
				d, _ := time.ParseDuration(frame[5:])
				select {
				case <-time.After(d): // the lie itself: a slow relay
				case <-g.ctx.Done():
				}
				continue
			}
			if err := to.Write(g.ctx, websocket.MessageText, []byte(frame)); err != nil {
				return
			}
		}
	}
}
