package relaytest_test

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"

	"holdfast/internal/leaks"
	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// open starts an embedded relay on a real socket.
func open(t *testing.T) (*embedded.Relay, nip.RelayURL) {
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
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return r, url
}

func closing(t *testing.T, l relay.Link) relay.Link {
	t.Cleanup(func() { l.Close() })
	return l
}

func TestWebsocket(t *testing.T) {
	relaytest.Suite(t, func(t *testing.T) relaytest.World {
		_, url := open(t)
		return relaytest.World{Link: func(k nip.SecretKey) relay.Link {
			return closing(t, relay.Dial(relay.Options{URL: url, Key: k, Log: zerolog.Nop()}))
		}}
	})
}

func TestLocal(t *testing.T) {
	relaytest.Suite(t, func(t *testing.T) relaytest.World {
		r, _ := open(t)
		return relaytest.World{Link: func(k nip.SecretKey) relay.Link { return closing(t, r.Local(k.Public())) }}
	})
}

func TestMemory(t *testing.T) {
	relaytest.Suite(t, func(t *testing.T) relaytest.World {
		m := relaytest.NewMemory("ws://127.0.0.1:7447/")
		return relaytest.World{Link: func(k nip.SecretKey) relay.Link { return closing(t, m.Link(k.Public())) }}
	})
}
