package interop

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/fiatjaf/eventstore/slicestore"
	"github.com/fiatjaf/khatru"
	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// khatruRelay is a relay as a stranger would set it up: authentication is
// required to write and to read.
func khatruRelay(t *testing.T) nip.RelayURL {
	t.Helper()
	return startKhatru(t, "127.0.0.1:0", khatruStore(t), nil).url
}

// khatruRun is one run of khatru.
type khatruRun struct {
	url  nip.RelayURL
	addr string
	kill func() // ends it as the end of its process would: no close frame, no answer
}

func khatruStore(t *testing.T) *slicestore.SliceStore {
	t.Helper()
	store := &slicestore.SliceStore{}
	if err := store.Init(); err != nil {
		t.Fatal(err)
	}
	return store
}

// startKhatru runs khatru over store until kill or the end of the test; change,
// if not nil, changes its hooks first.
func startKhatru(t *testing.T, addr string, store *slicestore.SliceStore, change func(*khatru.Relay)) khatruRun {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	addr = ln.Addr().String()
	url := "ws://" + addr + "/"
	r := khatru.NewRelay()
	r.Log = log.New(io.Discard, "", 0)
	r.ServiceURL = url
	r.StoreEvent = append(r.StoreEvent, store.SaveEvent)
	r.QueryEvents = append(r.QueryEvents, store.QueryEvents)
	r.DeleteEvent = append(r.DeleteEvent, store.DeleteEvent)
	r.OnConnect = append(r.OnConnect, khatru.RequestAuth)
	r.RejectEvent = append(r.RejectEvent, func(ctx context.Context, ev *nostr.Event) (bool, string) {
		if khatru.GetAuthed(ctx) != ev.PubKey {
			return true, "auth-required: publish your own events"
		}
		return false, ""
	})
	r.RejectFilter = append(r.RejectFilter, func(ctx context.Context, _ nostr.Filter) (bool, string) {
		return khatru.GetAuthed(ctx) == "", "auth-required: authenticate to read"
	})
	if change != nil {
		change(r)
	}
	var mu sync.Mutex // guards conns
	var conns []net.Conn
	s := &http.Server{Handler: r, ConnState: func(c net.Conn, state http.ConnState) {
		if state == http.StateNew {
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
	}}
	served := make(chan struct{})
	go func() { defer close(served); s.Serve(ln) }()
	kill := func() {
		s.Close()
		<-served
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close() // the server no longer knows those that became websockets
		}
	}
	t.Cleanup(kill)
	return khatruRun{nip.RelayURL(url), addr, kill}
}

func TestOurClientWithKhatru(t *testing.T) {
	t.Parallel()
	url := khatruRelay(t)
	host, device := relaytest.Key(t), relaytest.Key(t)
	now := time.Now().Unix()
	d := link(t, url, device, 0)
	before := relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), now, "before")
	relaytest.Publish(t, d, before)
	relaytest.Publish(t, d, before) // a duplicate is OK

	// The host's connections live three seconds: several pass in this test.
	h := link(t, url, host, 3*time.Second)
	s := h.Subscribe("s", relaytest.To(host.Public()))
	if got := relaytest.Next(t, s); got.Event.Event().ID != before.ID || !got.Stored || got.Relay != url {
		t.Fatalf("stored: %+v", got)
	}
	relaytest.AwaitEOSE(t, s)
	if st := h.Health(); !st.Authenticated || st.State != relay.StateOpen {
		t.Errorf("health %+v", st)
	}
	for i := range 8 {
		ev := relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), now, string(rune('a'+i)))
		relaytest.Publish(t, d, ev)
		if got := relaytest.Next(t, s); got.Event.Event().ID != ev.ID {
			t.Fatalf("event %d: got %q", i, got.Event.Event().Content)
		}
		time.Sleep(800 * time.Millisecond) // real time: connections must end under it
	}
	relaytest.Nothing(t, s) // nothing twice, whichever connection brought it
	if g := h.Health().Gap; g > 2*time.Second {
		t.Errorf("a gap of %v", g)
	}

	live := h.Subscribe("live", relaytest.To(host.Public(), relaytest.LiveOnly))
	relaytest.AwaitEOSE(t, live)
	ev := relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), now, "live")
	relaytest.Publish(t, d, ev)
	if got := relaytest.Next(t, live); got.Event.Event().ID != ev.ID {
		t.Fatalf("limit zero brought %q first", got.Event.Event().Content)
	}
}
