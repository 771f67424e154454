package nip

import (
	"container/list"
	"context"
	"crypto/rand"
	"fmt"
	"sync"
)

// Keyring is the Keeper of a secret in this process that remembers its public
// half and the conversation keys of the peers it met last: both ends compute the
// same key each time, and that is most of what an envelope costs. It answers at
// once, looks at no context, and may be used from any goroutine. Whoever made it
// closes it.
type Keyring struct {
	key    SecretKey
	public PubKey
	most   int

	// mu guards met and order.
	mu    sync.Mutex
	met   map[PubKey]*list.Element // of order
	order *list.List               // of *acquaintance, the last used first
}

type acquaintance struct {
	peer         PubKey
	conversation [32]byte
}

// NewKeyring is a Keyring that remembers at most most peers; 0 is none.
func NewKeyring(key SecretKey, most int) *Keyring {
	return &Keyring{key: key, public: key.Public(), most: most, met: map[PubKey]*list.Element{}, order: list.New()}
}

// Close overwrites the conversation keys. The secret itself stays its owner's;
// a use after Close works and remembers anew.
func (r *Keyring) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.order.Len() > 0 {
		r.forget()
	}
}

// forget overwrites the key that was not used for longest; the caller holds mu.
func (r *Keyring) forget() {
	a := r.order.Remove(r.order.Back()).(*acquaintance)
	delete(r.met, a.peer)
	clear(a.conversation[:])
}

// conversation gives a copy, which the caller overwrites. Two who ask for a new
// peer at once may both compute it.
func (r *Keyring) conversation(peer PubKey) (c [32]byte, err error) {
	r.mu.Lock()
	if e := r.met[peer]; e != nil {
		r.order.MoveToFront(e)
		c = e.Value.(*acquaintance).conversation
		r.mu.Unlock()
		return c, nil
	}
	r.mu.Unlock()
	b, err := conversationKey(r.key, peer)
	if err != nil {
		return c, err
	}
	copy(c[:], b)
	clear(b)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.met[peer] == nil && r.most > 0 {
		for r.order.Len() >= r.most {
			r.forget()
		}
		r.met[peer] = r.order.PushFront(&acquaintance{peer, c})
	}
	return c, nil
}

// Public is the key's public half.
func (r *Keyring) Public() PubKey { return r.public }

// Sign is SecretKey.Sign.
func (r *Keyring) Sign(_ context.Context, ev *Event) error {
	var aux [32]byte
	if _, err := rand.Read(aux[:]); err != nil {
		return fmt.Errorf("read random bytes for a signature: %w", err)
	}
	return r.key.signAs(r.public, ev, aux)
}

// Encrypt makes a NIP-44 payload for peer.
func (r *Keyring) Encrypt(_ context.Context, peer PubKey, text string) (string, error) {
	c, err := r.conversation(peer)
	if err != nil {
		return "", err
	}
	defer clear(c[:])
	return encrypt44(c[:], []byte(text), nil)
}

// Decrypt opens a NIP-44 payload between the key and peer.
func (r *Keyring) Decrypt(_ context.Context, peer PubKey, payload string) (string, error) {
	c, err := r.conversation(peer)
	if err != nil {
		return "", withLayer(err, layerEnvelope, "conversation key")
	}
	defer clear(c[:])
	plain, err := decrypt44(c[:], payload)
	return string(plain), err
}

// Mailbox is DeriveMailbox.
func (r *Keyring) Mailbox(peer PubKey, s Stream) (Mailbox, error) {
	c, err := r.conversation(peer)
	if err != nil {
		return "", err
	}
	defer clear(c[:])
	return mailboxOf(c[:], s), nil
}

// Seal is the package's Seal by this key. The event is Verified because nothing
// of it came from elsewhere: its bounds were checked, its ID is the hash that was
// signed, its tags are the three of an artifact, and the last step of signing is
// to verify the new signature.
func (r *Keyring) Seal(to PubKey, mailbox Mailbox, a Artifact) (Verified, error) {
	ev, err := SealBy(context.Background(), r, to, mailbox, a)
	if err != nil {
		return Verified{}, err
	}
	return Verified{ev: ev}, nil
}
