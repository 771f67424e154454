package nip_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"holdfast/nip"
)

// elsewhere is a key that another program holds: a set hook does the part.
type elsewhere struct {
	nip.Keeper
	sign             func(ev *nip.Event) error
	encrypt, decrypt func(text string) (string, error)
}

func (k elsewhere) Sign(ctx context.Context, ev *nip.Event) error {
	if k.sign != nil {
		return k.sign(ev)
	}
	return k.Keeper.Sign(ctx, ev)
}

func (k elsewhere) Encrypt(ctx context.Context, peer nip.PubKey, text string) (string, error) {
	if k.encrypt != nil {
		return k.encrypt(text)
	}
	return k.Keeper.Encrypt(ctx, peer, text)
}

func (k elsewhere) Decrypt(ctx context.Context, peer nip.PubKey, payload string) (string, error) {
	if k.decrypt != nil {
		return k.decrypt(payload)
	}
	return k.Keeper.Decrypt(ctx, peer, payload)
}

func keeperRequest(t *testing.T, host nip.PubKey) nip.Artifact {
	t.Helper()
	a, err := nip.EncodeRequest(nip.Request{ID: nip.RequestID(strings.Repeat("ab", 32)), Host: host, Epoch: -1,
		Relay: "wss://relay.example.com/", IssuedAt: 1_790_000_000, ExpiresAt: 1_790_000_060, Op: nip.WorkspaceList{}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func keeperKey(t *testing.T) nip.SecretKey {
	t.Helper()
	k, err := nip.GenerateSecretKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// What a key elsewhere seals, the recipient opens; what is sealed to it, it opens.
func TestKeeper(t *testing.T) {
	key, host := keeperKey(t), keeperKey(t)
	box := nip.Mailbox(strings.Repeat("ab", 32))
	for name, k := range map[string]nip.Keeper{"here": nip.Keep(key), "elsewhere": elsewhere{Keeper: nip.Keep(key)}} {
		t.Run(name, func(t *testing.T) {
			ev, err := nip.SealBy(t.Context(), k, host.Public(), box, keeperRequest(t, host.Public()))
			if err != nil {
				t.Fatal(err)
			}
			v, err := nip.VerifyEvent(ev)
			if err != nil {
				t.Fatal(err)
			}
			for who, open := range map[string]func() (nip.Opened, error){
				"recipient": func() (nip.Opened, error) { return nip.Open(v, host) },
				"author":    func() (nip.Opened, error) { return nip.OpenBy(t.Context(), v, k) },
			} {
				o, err := open()
				if err != nil || o.Signer != key.Public() || o.Recipient != host.Public() || o.Mailbox != box || o.Schema != nip.SchemaRequest {
					t.Errorf("%s opened %+v, %v", who, o, err)
				}
			}
			var fault *nip.Error
			if _, err := nip.OpenBy(t.Context(), v, nip.Keep(keeperKey(t))); !errors.As(err, &fault) || fault.Code != nip.Forbidden {
				t.Errorf("a stranger opened it: %v", err)
			}
		})
	}
}

// A Keeper is not believed: what it refuses or makes wrong is its own error, and
// nothing comes out.
func TestKeeperNotBelieved(t *testing.T) {
	key, host := keeperKey(t), keeperKey(t)
	no := errors.New("not today")
	for _, tt := range []struct {
		name, part, words string
		k                 elsewhere
	}{
		{"refuses to encrypt", "encrypt", "not today", elsewhere{encrypt: func(string) (string, error) { return "", no }}},
		{"encrypts to words", "encrypt", "payload", elsewhere{encrypt: func(string) (string, error) { return "hello", nil }}},
		{"encrypts to too much", "encrypt", "too long", elsewhere{encrypt: func(string) (string, error) { return strings.Repeat("A", 409_604), nil }}},
		{"refuses to sign", "sign", "not today", elsewhere{sign: func(*nip.Event) error { return no }}},
		{"signs nothing", "sign", "does not hold", elsewhere{sign: func(*nip.Event) error { return nil }}},
		{"signs with another key", "sign", "another key", elsewhere{sign: func(ev *nip.Event) error { return host.Sign(ev) }}},
		{"changes the time", "sign", "another event", elsewhere{sign: func(ev *nip.Event) error { ev.CreatedAt++; return key.Sign(ev) }}},
		{"changes the content", "sign", "another event", elsewhere{sign: func(ev *nip.Event) error {
			ev.Content = strings.Replace(ev.Content, "A", "B", 1)
			return key.Sign(ev)
		}}},
		{"changes a tag in place", "sign", "another event", elsewhere{sign: func(ev *nip.Event) error {
			ev.Tags[1][1] = strings.Repeat("0", 64)
			return key.Sign(ev)
		}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.k.Keeper = nip.Keep(key)
			ev, err := nip.SealBy(t.Context(), tt.k, host.Public(), nip.Mailbox(strings.Repeat("ab", 32)), keeperRequest(t, host.Public()))
			var fault *nip.KeeperError
			if ev != nil || !errors.As(err, &fault) || fault.Part != tt.part || !strings.Contains(err.Error(), tt.words) {
				t.Errorf("%v, %v", ev, err)
			}
		})
	}
	ev, err := nip.Seal(host, key.Public(), nip.Mailbox(strings.Repeat("ab", 32)), keeperRequest(t, host.Public()), nil)
	if err != nil {
		t.Fatal(err)
	}
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		t.Fatal(err)
	}
	var fault *nip.KeeperError
	k := elsewhere{Keeper: nip.Keep(key), decrypt: func(string) (string, error) { return "", no }}
	if _, err := nip.OpenBy(t.Context(), v, k); !errors.As(err, &fault) || fault.Part != "decrypt" || !errors.Is(err, no) {
		t.Errorf("a refusal to decrypt: %v", err)
	}
	// A text that is no envelope is the artifact's fault, whoever wrote it.
	k.decrypt = func(string) (string, error) { return "{}", nil }
	var bad *nip.Error
	if _, err := nip.OpenBy(t.Context(), v, k); !errors.As(err, &bad) {
		t.Errorf("a lie about the text: %v", err)
	}
}
