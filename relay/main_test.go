package relay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/leaks"
	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// dial links a fresh key to h until the test ends, by one connection unless the
// test says how long one lives.
func dial(t *testing.T, h *relaytest.Hostile, change ...func(*relay.Options)) (relay.Link, nip.SecretKey) {
	t.Helper()
	o := relay.Options{URL: h.URL, Key: relaytest.Key(t), Log: zerolog.Nop(), Life: 24 * time.Hour, DialContext: h.DialContext}
	for _, c := range change {
		c(&o)
	}
	l := relay.Dial(o)
	t.Cleanup(func() { l.Close() })
	return l, o.Key
}

// to makes a signed event from a fresh key to key.
func to(t *testing.T, key nip.PubKey, content string) *nip.Event {
	t.Helper()
	return relaytest.Event(t, relaytest.Key(t), key, relaytest.Mailbox('a'), time.Now().Unix(), content)
}

func publish(t *testing.T, l relay.Link, ev *nip.Event, wait time.Duration) error {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), wait)
	defer stop()
	return l.Publish(ctx, ev)
}

func own(t *testing.T, k nip.SecretKey, size int) *nip.Event {
	t.Helper()
	b := make([]byte, size)
	for i := range b {
		b[i] = 'x'
	}
	return relaytest.Event(t, k, relaytest.Key(t).Public(), relaytest.Mailbox('a'), time.Now().Unix(), string(b))
}

func wantRefusal(t *testing.T, err error, prefix string) {
	t.Helper()
	var r *relay.RefusedError
	if !errors.As(err, &r) || r.Prefix != prefix {
		t.Fatalf("got %v, want a refusal with prefix %q", err, prefix)
	}
}
