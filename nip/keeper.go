package nip

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nbd-wtf/go-nostr"
)

// Keeper signs, encrypts and decrypts for one key whose secret it keeps. The key
// may be held in another process or on another machine, so a call lasts as long
// as its context and may wait for a person. Methods may be called from any
// goroutine. Here a Keeper is only called: how it reaches the secret is its own
// affair.
//
// A Keeper does not give out a conversation key, so nobody derives the stream
// mailboxes (DeriveMailbox) of its key from it.
type Keeper interface {
	// Public is the key's public half, always the same, without waiting.
	Public() PubKey
	// Sign sets PubKey, ID and Sig of ev from its other members. On an error
	// ev is as it was.
	Sign(ctx context.Context, ev *Event) error
	// Encrypt makes the NIP-44 payload of 1 to 65,535 bytes of text for peer.
	Encrypt(ctx context.Context, peer PubKey, text string) (string, error)
	// Decrypt opens a NIP-44 payload between the key and peer.
	Decrypt(ctx context.Context, peer PubKey, payload string) (string, error)
}

// KeeperError is what SealBy and OpenBy return where a Keeper did not do its
// part, or did another thing than it was asked. An error of the artifact itself
// is an *Error as ever.
type KeeperError struct {
	Part string // "encrypt", "sign" or "decrypt"
	Err  error
}

func (e *KeeperError) Error() string {
	return "the signer did not " + e.Part + ": " + e.Err.Error()
}

func (e *KeeperError) Unwrap() error { return e.Err }

// Keep is the Keeper of a secret in this process. It answers at once and looks
// at no context. The zero key makes one that refuses everything.
func Keep(key SecretKey) Keeper { return ownKey{key: key} }

// ownKey is a secret with what makes its output a function of its arguments.
type ownKey struct {
	key   SecretKey
	nonce []byte    // of NIP-44; nil means crypto/rand
	aux   *[32]byte // of BIP-340; nil means crypto/rand
}

func (k ownKey) Public() PubKey { return k.key.Public() }

func (k ownKey) Sign(_ context.Context, ev *Event) error {
	if k.aux != nil {
		return k.key.sign(ev, *k.aux)
	}
	return k.key.Sign(ev)
}

func (k ownKey) Encrypt(_ context.Context, peer PubKey, text string) (string, error) {
	conversation, err := conversationKey(k.key, peer)
	if err != nil {
		return "", err
	}
	defer clear(conversation)
	return encrypt44(conversation, []byte(text), k.nonce)
}

func (k ownKey) Decrypt(_ context.Context, peer PubKey, payload string) (string, error) {
	conversation, err := conversationKey(k.key, peer)
	if err != nil {
		return "", withLayer(err, layerEnvelope, "conversation key")
	}
	defer clear(conversation)
	plain, err := decrypt44(conversation, payload)
	return string(plain), err
}

// ours reports whether k is of this package: its secret is in this process, and
// what it does is done by the code beside it.
func ours(k Keeper) bool {
	switch k.(type) {
	case ownKey, *Keyring:
		return true
	}
	return false
}

// keeperFault names the part that failed; what a secret of this process fails
// at is the artifact's fault and stays as it is.
func keeperFault(k Keeper, part string, err error) error {
	var already *KeeperError // of a Keeper around another
	if ours(k) || errors.As(err, &already) {
		return err
	}
	return &KeeperError{Part: part, Err: err}
}

// SignBy has k sign a copy of ev and returns it. What another process returns is
// believed only when it is this event, of this key, and verifies.
func SignBy(ctx context.Context, k Keeper, ev *Event) (*Event, error) {
	signed := cloneEvent(ev)
	if err := k.Sign(ctx, signed); err != nil {
		return nil, keeperFault(k, "sign", err)
	}
	if ours(k) {
		return signed, nil
	}
	_, err := VerifyEvent(signed)
	same := signed.PubKey == string(k.Public()) && signed.Kind == ev.Kind && signed.CreatedAt == ev.CreatedAt &&
		signed.Content == ev.Content && slices.EqualFunc(signed.Tags, ev.Tags, slices.Equal[nostr.Tag])
	switch {
	case err != nil:
		return nil, &KeeperError{Part: "sign", Err: fmt.Errorf("its signature does not hold: %w", err)}
	case !same:
		return nil, &KeeperError{Part: "sign", Err: errors.New("it signed another event, or with another key")}
	}
	return signed, nil
}
