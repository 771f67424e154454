package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/host/client/remote/remotetest"
	"holdfast/internal/leaks"
	"holdfast/nip"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func newKey(t testing.TB) nip.SecretKey {
	t.Helper()
	k, err := nip.GenerateSecretKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func connect(t *testing.T, s *remotetest.Signer, o Options) *Bunker {
	t.Helper()
	o.Loopback = true
	b, err := Connect(t.Context(), s.URL(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func someEvent() *nip.Event {
	return &nip.Event{Kind: nip.KindArtifact, CreatedAt: 1_790_000_000, Content: "words \"quoted\" <&> \u00e9", Tags: nostr.Tags{{"p", "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"}, {"h", strings.Repeat("0a", 32)}, {"t", "oa:artifact:v1"}}}
}

// Both signers do the same with the same key.
func TestSigners(t *testing.T) {
	s := remotetest.New(t)
	peer := newKey(t)
	for name, k := range map[string]nip.Keeper{"local": nip.Keep(s.User), "bunker": connect(t, s, Options{})} {
		t.Run(name, func(t *testing.T) {
			if k.Public() != s.User.Public() {
				t.Fatalf("public key %s", k.Public())
			}
			for _, ev := range []*nip.Event{someEvent(), {Kind: 1, CreatedAt: 5}} {
				if err := k.Sign(t.Context(), ev); err != nil {
					t.Fatal(err)
				}
				if _, err := nip.VerifyEvent(ev); err != nil || ev.PubKey != string(s.User.Public()) {
					t.Errorf("signed event: %v", err)
				}
			}
			payload, err := k.Encrypt(t.Context(), peer.Public(), "to the peer")
			if err != nil {
				t.Fatal(err)
			}
			if got, err := nip.Keep(peer).Decrypt(t.Context(), s.User.Public(), payload); err != nil || got != "to the peer" {
				t.Errorf("peer reads %q, %v", got, err)
			}
			back, err := nip.Keep(peer).Encrypt(t.Context(), s.User.Public(), "to the signer")
			if err != nil {
				t.Fatal(err)
			}
			if got, err := k.Decrypt(t.Context(), peer.Public(), back); err != nil || got != "to the signer" {
				t.Errorf("signer reads %q, %v", got, err)
			}
			if _, err := k.Decrypt(t.Context(), newKey(t).Public(), back); err == nil {
				t.Error("a payload of another conversation was read")
			}
		})
	}
}

// What a bunker signs must be what it was given.
func TestSignaturesNotBelieved(t *testing.T) {
	s := remotetest.New(t)
	b := connect(t, s, Options{})
	sign := func(key nip.SecretKey, change func(ev *nip.Event)) string {
		ev := someEvent()
		change(ev)
		if err := key.Sign(ev); err != nil {
			t.Fatal(err)
		}
		return string(nip.EncodeEvent(ev))
	}
	broken := strings.Replace(sign(s.User, func(*nip.Event) {}), `"sig":"`, `"sig":"0`, 1)
	for name, result := range map[string]string{
		"another key":      sign(newKey(t), func(*nip.Event) {}),
		"another kind":     sign(s.User, func(ev *nip.Event) { ev.Kind = 1 }),
		"another time":     sign(s.User, func(ev *nip.Event) { ev.CreatedAt++ }),
		"other words":      sign(s.User, func(ev *nip.Event) { ev.Content += "." }),
		"tags in disorder": sign(s.User, func(ev *nip.Event) { ev.Tags[0], ev.Tags[1] = ev.Tags[1], ev.Tags[0] }),
		"other tag words":  sign(s.User, func(ev *nip.Event) { ev.Tags[1][1] = strings.Repeat("0b", 32) }),
		"no signature":     broken,
		"no event":         "{}",
		"nothing":          "",
	} {
		s.Set(func(r remotetest.Request, _ remotetest.Response) []remotetest.Response {
			return []remotetest.Response{{ID: r.ID, Result: result}}
		})
		ev := someEvent()
		if err := b.Sign(t.Context(), ev); err == nil || ev.Sig != "" || ev.PubKey != "" {
			t.Errorf("%s: err = %v, event %v", name, err, ev)
		}
	}
}

// Answers to somebody else or from somebody else are passed over.
func TestForeignAnswers(t *testing.T) {
	s := remotetest.New(t)
	b := connect(t, s, Options{})
	s.Set(func(r remotetest.Request, honest remotetest.Response) []remotetest.Response {
		return []remotetest.Response{{ID: "other", Result: "lie"}, honest}
	})
	if got, err := b.call(t.Context(), "get_public_key"); err != nil || got != string(s.User.Public()) {
		t.Errorf("%q, %v", got, err)
	}
	resp := remotetest.Response{ID: "x", Result: "lie"}
	for name, ev := range map[string]*nip.Event{
		"a stranger":     s.Seal(newKey(t), b.key.Public(), resp),
		"another client": s.Seal(s.Key, newKey(t).Public(), resp),
	} {
		if _, ok := b.open(t.Context(), nip.EncodeEvent(ev)); ok {
			t.Errorf("%s is believed", name)
		}
	}
	changed := s.Seal(s.Key, b.key.Public(), resp)
	changed.CreatedAt++
	if _, ok := b.open(t.Context(), nip.EncodeEvent(changed)); ok {
		t.Error("a changed event is believed")
	}
	if _, ok := b.open(t.Context(), nip.EncodeEvent(s.Seal(s.Key, b.key.Public(), resp))); !ok {
		t.Error("the bunker's own is not believed")
	}
}

// A bunker may want its person first; its no is a no; a wrong secret connects
// nobody.
func TestBunkerRefuses(t *testing.T) {
	s := remotetest.New(t)
	var asked []string
	b := connect(t, s, Options{Ask: func(a string) { asked = append(asked, a) }})
	s.Set(func(r remotetest.Request, honest remotetest.Response) []remotetest.Response {
		return []remotetest.Response{{ID: r.ID, Result: "auth_url", Error: "https://bunker.example.com/ok"}, honest}
	})
	if err := b.Sign(t.Context(), someEvent()); err != nil || len(asked) != 1 || asked[0] != "https://bunker.example.com/ok" {
		t.Errorf("asked %q, %v", asked, err)
	}
	s.Set(func(r remotetest.Request, _ remotetest.Response) []remotetest.Response {
		return []remotetest.Response{{ID: r.ID, Error: "not \x1b[31m today"}}
	})
	var refused *RefusedError
	if err := b.Sign(t.Context(), someEvent()); !errors.As(err, &refused) || refused.Words != "not ?[31m today" || refused.Method != "sign_event" {
		t.Errorf("err = %v", err)
	}
	s.Set(nil)
	if err := b.Sign(t.Context(), someEvent()); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
	s.Secret = "another"
	if _, err := Connect(t.Context(), s.URL(), Options{Loopback: true}); !errors.As(err, &refused) || strings.Contains(err.Error(), "only once") {
		t.Errorf("wrong secret: %v", err)
	}
	s.Set(func(r remotetest.Request, honest remotetest.Response) []remotetest.Response {
		return []remotetest.Response{{ID: r.ID, Result: "welcome"}}
	})
	if _, err := Connect(t.Context(), s.URL(), Options{Loopback: true}); err == nil {
		t.Error("connected to a bunker that does not know its own secret")
	}
}

// A silent bunker costs as long as ctx lasts; the next call dials anew, as it
// does after a drop, and the same client key is kept.
func TestBunkerLoss(t *testing.T) {
	s := remotetest.New(t)
	key := newKey(t)
	b := connect(t, s, Options{Key: key})
	if b.Key().Public() != key.Public() {
		t.Error("another client key")
	}
	s.Set(func(remotetest.Request, remotetest.Response) []remotetest.Response { return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := b.Sign(ctx, someEvent()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silence: %v", err)
	}
	s.Set(nil)
	s.SetRelay(true, 1)
	if err := b.Sign(t.Context(), someEvent()); !errors.Is(err, errLost) {
		t.Errorf("a drop: %v", err)
	}
	s.SetRelay(true, 0)
	if err := b.Sign(t.Context(), someEvent()); err != nil {
		t.Errorf("after it: %v", err)
	}
	if n := s.Relay.Conns(); n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
}

func TestParseURL(t *testing.T) {
	key := string(newKey(t).Public())
	for _, tt := range []struct {
		name, url string
		ok        bool
	}{
		{"one relay", "bunker://" + key + "?relay=wss://relay.example.com/", true},
		{"two and a secret", "bunker://" + key + "?relay=wss%3A%2F%2Frelay.example.com%2F&relay=wss://b.example.com/&secret=x", true},
		{"no relay", "bunker://" + key + "?secret=x", false},
		{"nine relays", "bunker://" + key + "?" + strings.Repeat("relay=wss://r.example.com/&", 9), false},
		{"a plain relay", "bunker://" + key + "?relay=ws://127.0.0.1:7447/", false},
		{"no key", "bunker://?relay=wss://relay.example.com/", false},
		{"a short key", "bunker://" + key[:62] + "?relay=wss://relay.example.com/", false},
		{"another scheme", "nostrconnect://" + key + "?relay=wss://relay.example.com/", false},
		{"a path", "bunker://" + key + "/x?relay=wss://relay.example.com/", false},
		{"too long", "bunker://" + key + "?relay=wss://relay.example.com/&x=" + strings.Repeat("y", 2048), false},
		{"long secret", "bunker://" + key + "?relay=wss://relay.example.com/&secret=" + strings.Repeat("y", 257), false},
	} {
		if _, err := parseURL(tt.url, false); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// FuzzFrame: whatever a relay sends, it is a frame or a fault.
func FuzzFrame(f *testing.F) {
	for _, s := range []string{`["EVENT","bunker",{}]`, `["OK","` + strings.Repeat("0", 64) + `",true,""]`, `["EOSE","bunker"]`,
		`["CLOSED","bunker","auth-required: x"]`, `["AUTH","c"]`, `["NOTICE","x"]`, `[]`, `{`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := parseFrame(b)
		if err == nil && fr.label == "EVENT" && len(fr.event) == 0 {
			t.Fatal("an event message without an event")
		}
	})
}
