package remote

import (
	"context"
	"errors"
	"fmt"

	"github.com/nbd-wtf/go-nostr/nip44"

	"holdfast/nip"
)

// Signer is one key. Its secret stays where it is.
type Signer interface {
	// Public is the key's public half.
	Public() nip.PubKey
	// Sign sets PubKey, ID and Sig of ev from its other members. On an error
	// ev is as it was.
	Sign(ctx context.Context, ev *nip.Event) error
	// Encrypt makes the NIP-44 payload of 1 to 65,535 bytes of text for peer.
	Encrypt(ctx context.Context, peer nip.PubKey, text string) (string, error)
	// Decrypt opens a NIP-44 payload between the key and peer.
	Decrypt(ctx context.Context, peer nip.PubKey, payload string) (string, error)
}

// Local is the Signer of a key in this process.
type Local struct{ Key nip.SecretKey }

// Public is the key's public half.
func (l Local) Public() nip.PubKey { return l.Key.Public() }

// Sign signs at once.
func (l Local) Sign(_ context.Context, ev *nip.Event) error { return l.Key.Sign(ev) }

// Encrypt makes the payload at once.
func (l Local) Encrypt(_ context.Context, peer nip.PubKey, text string) (string, error) {
	return encrypt(l.Key, peer, text)
}

// Decrypt opens the payload at once.
func (l Local) Decrypt(_ context.Context, peer nip.PubKey, payload string) (string, error) {
	return decrypt(l.Key, peer, payload)
}

// maxPayload bounds a NIP-44 payload, in base64 characters.
const maxPayload = 409_600

func encrypt(key nip.SecretKey, peer nip.PubKey, text string) (string, error) {
	c, err := conversation(key, peer)
	if err != nil {
		return "", err
	}
	payload, err := nip44.Encrypt(text, c)
	if err != nil {
		return "", fmt.Errorf("encrypt: %w", err)
	}
	return payload, nil
}

// decrypt does not pass the codec's words on: they may quote the payload.
func decrypt(key nip.SecretKey, peer nip.PubKey, payload string) (string, error) {
	if len(payload) > maxPayload {
		return "", errors.New("the payload is too long")
	}
	c, err := conversation(key, peer)
	if err != nil {
		return "", err
	}
	text, err := nip44.Decrypt(payload, c)
	if err != nil {
		return "", errors.New("the payload does not decrypt")
	}
	return text, nil
}

func conversation(key nip.SecretKey, peer nip.PubKey) ([32]byte, error) {
	if key.Public() == "" {
		return [32]byte{}, errors.New("the key is not set")
	}
	if _, err := nip.ParsePubKey(string(peer)); err != nil {
		return [32]byte{}, err
	}
	c, err := nip44.GenerateConversationKey(string(peer), key.Hex())
	if err != nil {
		return [32]byte{}, errors.New("the two keys have no conversation")
	}
	return c, nil
}
