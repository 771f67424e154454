// Package interop holds the tests that hold this project's wire against other
// people's software: our client against khatru, and a go-nostr client and a
// JavaScript one against our embedded relay, each also under faults of its own.
//
// It is a module of its own, so that the weight and the data races of the peers
// stay out of the product's build and tests. It has no code that anything may
// import. The JavaScript client runs where node and npm are; elsewhere its test
// is skipped and says so.
package interop

import (
	"context"
	"errors"
	"flag"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

// TestMain runs more tests at once than there are processors: they wait for
// real time most of the time.
func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8")
	m.Run()
}

// embeddedRelay runs our relay on a real socket until the test ends. also are
// further names of it.
func embeddedRelay(t *testing.T, also ...nip.RelayURL) nip.RelayURL {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := nip.RelayURL("ws://" + ln.Addr().String() + "/")
	r, err := embedded.Open(embedded.Options{Path: filepath.Join(t.TempDir(), "relay.db"), Name: url, Also: also, Log: zerolog.Nop()})
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

func link(t *testing.T, url nip.RelayURL, k nip.SecretKey, life time.Duration) relay.Link {
	t.Helper()
	l := relay.Dial(relay.Options{URL: url, Key: k, Log: zerolog.Nop(), Life: life})
	t.Cleanup(func() { l.Close() })
	return l
}

// answering is a host that answers each request it is shown with "reply", in a
// mailbox of the request's own so that no two replies are one event, and counts
// the requests.
func answering(t *testing.T, url nip.RelayURL, k nip.SecretKey) (requests chan string) {
	t.Helper()
	l := link(t, url, k, 0)
	s := l.Subscribe("requests", relaytest.To(k.Public()))
	relaytest.AwaitEOSE(t, s)
	requests = make(chan string, 64)
	replies := map[string]*nip.Event{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for d := range s.C() {
			ev := d.Event.Event()
			if replies[ev.ID] == nil {
				replies[ev.ID] = relaytest.Event(t, k, nip.PubKey(ev.PubKey), nip.Mailbox(ev.ID), time.Now().Unix(), "reply")
				ctx, stop := context.WithTimeout(context.Background(), relaytest.Patience)
				// That the test has ended before the OK is no fault.
				if err := l.Publish(ctx, replies[ev.ID]); err != nil && !errors.Is(err, relay.ErrUnconfirmed) && !errors.Is(err, relay.ErrClosed) {
					t.Errorf("publish a reply: %v", err)
				}
				stop()
			}
			requests <- ev.ID
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return requests
}

func next(t *testing.T, requests chan string, what string) string {
	t.Helper()
	select {
	case id := <-requests:
		return id
	case <-time.After(relaytest.Patience):
		t.Fatal("not in time: " + what)
	}
	return ""
}
