package embedded_test

import (
	"context"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

// piped serves a relay over pipes, for virtual time.
func piped(t *testing.T, change ...func(*embedded.Options)) (r *embedded.Relay, dial func() *peer) {
	t.Helper()
	o := embedded.Options{Path: filepath.Join(t.TempDir(), "relay.db"), Name: name, Log: zerolog.Nop()}
	for _, c := range change {
		c(&o)
	}
	r, err := embedded.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	ln, reach := relaytest.Pipe()
	s := &http.Server{Handler: r.Handler()}
	served := make(chan struct{})
	go func() { defer close(served); s.Serve(ln) }()
	t.Cleanup(func() {
		r.Close()
		s.Close()
		<-served
	})
	return r, func() *peer {
		tr := &http.Transport{DialContext: reach}
		ctx, stop := context.WithCancel(context.Background())
		ws, _, err := websocket.Dial(ctx, string(name), &websocket.DialOptions{HTTPClient: &http.Client{Transport: tr}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ws.CloseNow(); stop(); tr.CloseIdleConnections() })
		return &peer{t: t, url: name, ws: ws, ctx: ctx}
	}
}

func TestSilentConnectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, dial := piped(t)
		p, q := dial(), dial()
		q.login(relaytest.Key(t))
		began := time.Now()
		p.gone()
		if d := time.Since(began); d != 30*time.Second {
			t.Fatalf("ended after %v", d)
		}
		if _, closed := q.ask("s", `{}`); closed != "" {
			t.Fatal("one that did authenticate:", closed)
		}
	})
}

// TestClientThatIsGone: a peer that neither reads nor answers pings is dropped.
func TestClientThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, dial := piped(t)
		p := dial()
		p.login(relaytest.Key(t))
		began := time.Now()
		for embedded.Connections(r) > 0 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if d := time.Since(began); d > 70*time.Second {
			t.Fatalf("dropped after %v", d)
		}
	})
}

// TestWriteDeadline: a peer that does not read one frame is dropped after the
// deadline of a write, and the publisher knows nothing of it.
func TestWriteDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, dial := piped(t)
		victim, author := relaytest.Key(t), relaytest.Key(t)
		p := dial()
		p.login(victim)
		p.ask("s", `{"limit":0}`)
		began := time.Now()
		relaytest.Publish(t, r.Local(author.Public()), event(t, author, victim.Public(), "x"))
		if d := time.Since(began); d > 0 {
			t.Fatalf("the publisher waited %v", d)
		}
		for embedded.Connections(r) > 0 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if d := time.Since(began); d > 11*time.Second {
			t.Fatalf("dropped after %v", d)
		}
	})
}
