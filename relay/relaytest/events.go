package relaytest

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay"
)

// Patience is how long a test waits for what must happen. Only a failing test
// waits so long; a machine that is busy elsewhere must not make one.
const Patience = 60 * time.Second

// Key makes a key.
func Key(t testing.TB) nip.SecretKey {
	t.Helper()
	k, err := nip.GenerateSecretKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Mailbox is a mailbox of one repeated hex digit.
func Mailbox(digit byte) nip.Mailbox { return nip.Mailbox(strings.Repeat(string(digit), 64)) }

// Event signs a private artifact's shape around content, which is not
// encrypted: relays cannot tell.
func Event(t testing.TB, from nip.SecretKey, to nip.PubKey, box nip.Mailbox, at int64, content string) *nip.Event {
	t.Helper()
	ev := &nip.Event{
		Kind: nip.KindArtifact, CreatedAt: nostr.Timestamp(at), Content: content,
		Tags: nostr.Tags{{"p", string(to)}, {"h", string(box)}, {"t", "oa:artifact:v1"}},
	}
	if err := from.Sign(ev); err != nil {
		t.Fatal(err)
	}
	return ev
}

// To is a filter function for everything to key.
func To(key nip.PubKey, change ...func(*nip.Filter)) func(time.Time) []nip.Filter {
	return func(time.Time) []nip.Filter {
		f := nip.Filter{Kinds: []int{nip.KindArtifact}, Tags: nostr.TagMap{"p": {string(key)}}}
		for _, c := range change {
			c(&f)
		}
		return []nip.Filter{f}
	}
}

// LiveOnly asks for no stored events.
func LiveOnly(f *nip.Filter) { f.Limit, f.LimitZero = 0, true }

// Limit asks for the newest n.
func Limit(n int) func(*nip.Filter) { return func(f *nip.Filter) { f.Limit = n } }

// Next waits for one delivery.
func Next(t testing.TB, s *relay.Subscription) relay.Delivery {
	t.Helper()
	select {
	case d, ok := <-s.C():
		if !ok {
			t.Fatal("the subscription closed")
		}
		return d
	case <-time.After(Patience):
		t.Fatal("no delivery in time")
	}
	panic("unreachable")
}

// AwaitEOSE waits for the end of stored events.
func AwaitEOSE(t testing.TB, s *relay.Subscription) {
	t.Helper()
	select {
	case <-s.EOSE():
	case <-time.After(Patience):
		t.Fatal("no EOSE in time")
	}
}

// Nothing reports deliveries that are there and should not be. It is exact
// only after something that the link delivers later in the same order.
func Nothing(t testing.TB, s *relay.Subscription) {
	t.Helper()
	select {
	case d, ok := <-s.C():
		if ok {
			t.Fatalf("unexpected delivery of %q", d.Event.Event().Content)
		}
	default:
	}
}

// Publish publishes and wants nil.
func Publish(t testing.TB, l relay.Link, ev *nip.Event) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), Patience)
	defer stop()
	if err := l.Publish(ctx, ev); err != nil {
		t.Fatalf("publish: %v (health %+v)", err, l.Health())
	}
}

// Eventually waits until f holds.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.After(Patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not in time: %s", what)
		}
	}
}
