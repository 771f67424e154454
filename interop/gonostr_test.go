package interop

import (
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/relay/relaytest"
)

func TestGoNostrClientWithOurRelay(t *testing.T) {
	t.Parallel()
	url := embeddedRelay(t)
	host, device := relaytest.Key(t), relaytest.Key(t)
	requests := answering(t, url, host)
	ctx := patience(t)
	r, err := nostr.RelayConnect(ctx, string(url), nostr.WithNoticeHandler(func(n string) { t.Log("notice:", n) }))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ev := relaytest.Event(t, device, host.Public(), relaytest.Mailbox('a'), time.Now().Unix(), "request")
	if err := r.Publish(ctx, *ev); err == nil {
		t.Fatal("published without authentication")
	}
	// The refusal came after a challenge, so that one is there to be signed.
	if err := r.Auth(ctx, func(a *nostr.Event) error { return device.Sign(a) }); err != nil {
		t.Fatal(err)
	}
	sub, err := r.Subscribe(ctx, nostr.Filters{{
		Kinds: []int{3188}, Authors: []string{string(host.Public())}, Tags: nostr.TagMap{"p": {string(device.Public())}}, LimitZero: true,
	}})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-sub.EndOfStoredEvents:
	case <-ctx.Done():
		t.Fatal("limit zero brought no EOSE")
	}
	if err := r.Publish(ctx, *ev); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-sub.Events:
		if ok, err := got.CheckSignature(); got.Content != "reply" || !ok || err != nil || !got.CheckID() {
			t.Fatalf("got %v", got)
		}
	case <-ctx.Done():
		t.Fatal("no reply")
	}
	next(t, requests, "the request")
	if err := r.Publish(ctx, *ev); err != nil {
		t.Error("a duplicate:", err)
	}
	time.Sleep(11 * time.Second) // real time: the relay tells a retry from an echo after 5 to 10 s
	if err := r.Publish(ctx, *ev); err != nil {
		t.Error("a retry:", err)
	}
	if id := next(t, requests, "the retry"); id != ev.ID {
		t.Error("another request")
	}
	stored, err := r.QuerySync(ctx, nostr.Filter{Kinds: []int{3188}, Tags: nostr.TagMap{"p": {string(device.Public())}}, Limit: 4})
	if err != nil || len(stored) != 1 || stored[0].Content != "reply" {
		t.Errorf("stored: %v, %v", stored, err)
	}
}
