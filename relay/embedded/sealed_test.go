package embedded_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// What a publisher in this process sealed itself is not verified again, and
// passes every other rule: its author, its class.
func TestPublishVerified(t *testing.T) {
	r, url := open(t)
	host, device, other := relaytest.Key(t), relaytest.Key(t), relaytest.Key(t)
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a, err := nip.EncodeRequest(nip.Request{ID: nip.RequestID(id), Host: device.Public(), Epoch: -1, Relay: "wss://relay.example.com/",
		IssuedAt: 1_790_000_000, ExpiresAt: 1_790_000_060, Op: nip.WorkspaceList{}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := nip.NewKeyring(host, 1).Seal(device.Public(), nip.Mailbox(id), a)
	if err != nil {
		t.Fatal(err)
	}
	publish := func(l relay.Link, v nip.Verified) error {
		return l.(interface {
			PublishVerified(ctx context.Context, v nip.Verified) error
		}).PublishVerified(t.Context(), v)
	}
	var refused *relay.RefusedError
	if err := publish(r.Local(other.Public()), v); !errors.As(err, &refused) || !strings.Contains(err.Error(), "your own events") {
		t.Fatalf("another author's event: %v", err)
	}
	if err := publish(r.Local(host.Public()), nip.Verified{}); !errors.As(err, &refused) {
		t.Fatalf("no event: %v", err)
	}
	sub := dial(t, url, device).Subscribe("s", relaytest.To(device.Public()))
	relaytest.AwaitEOSE(t, sub)
	l := r.Local(host.Public())
	for range 2 { // a duplicate is OK
		if err := publish(l, v); err != nil {
			t.Fatal(err)
		}
	}
	if got := relaytest.Next(t, sub).Event.Event(); got.ID != v.Event().ID || got.Sig != v.Event().Sig {
		t.Fatal("another event came")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := publish(l, v); !errors.Is(err, relay.ErrClosed) {
		t.Fatalf("after close: %v", err)
	}
}
