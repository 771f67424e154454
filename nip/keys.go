package nip

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/btcsuite/btcd/btcec/v2"
	"github.com/btcsuite/btcd/btcec/v2/schnorr"
	"github.com/nbd-wtf/go-nostr/nip19"
)

const redacted = "secret key (redacted)"

// SecretKey is a secp256k1 secret. Every way of printing it, text and JSON
// included, gives a fixed word; only Hex gives the secret. The zero value is no
// key and refuses to sign. Copies share one secret: compare keys by Public.
//
// The bytes lie behind two pointers because fmt does not call the methods of an
// unexported field: a key inside somebody's struct then prints as an address.
// One pointer would not do, fmt follows it under a verb that does not fit.
type SecretKey struct{ p **[32]byte }

func newSecret() (SecretKey, *[32]byte) {
	b := new([32]byte)
	return SecretKey{&b}, b
}

// secret is the bytes themselves, nil for the zero key.
func (k SecretKey) secret() *[32]byte {
	if k.p == nil {
		return nil
	}
	return *k.p
}

// GenerateSecretKey reads 32 bytes from r, which must be crypto/rand or as good.
// The few values that are no scalar of the curve are read over.
func GenerateSecretKey(r io.Reader) (SecretKey, error) {
	for range 8 {
		k, b := newSecret()
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return SecretKey{}, fmt.Errorf("read random bytes for a key: %w", err)
		}
		if k.valid() {
			return k, nil
		}
	}
	return SecretKey{}, errors.New("the random source gives no usable key")
}

// ParseSecretKey takes 64 lowercase hex of a scalar from 1 to the curve's order
// less one. Its error never holds the input.
func ParseSecretKey(s string) (SecretKey, error) {
	if !ValidID(s) {
		return SecretKey{}, errors.New("a secret key is 64 lowercase hex characters")
	}
	k, b := newSecret()
	if _, err := hex.Decode(b[:], []byte(s)); err != nil || !k.valid() {
		return SecretKey{}, errors.New("not a secret key of the curve")
	}
	return k, nil
}

func (k SecretKey) valid() bool {
	b := k.secret()
	if b == nil {
		return false
	}
	var s btcec.ModNScalar
	overflow := s.SetBytes(b)
	ok := overflow == 0 && !s.IsZero()
	s.Zero()
	return ok
}

// scalar is a valid key as btcec wants it, without the point that btcec's own
// constructor computes beside it. The caller zeroes it.
func (k SecretKey) scalar() *btcec.PrivateKey {
	priv := new(btcec.PrivateKey)
	priv.Key.SetBytes(k.secret())
	return priv
}

// Hex gives the secret itself, for the key file. The zero key gives "".
func (k SecretKey) Hex() string {
	b := k.secret()
	if b == nil {
		return ""
	}
	return hex.EncodeToString(b[:])
}

// Wipe overwrites the secret, of every copy of k; nobody may be using it. Text
// that Hex gave out stays.
func (k SecretKey) Wipe() {
	if b := k.secret(); b != nil {
		clear(b[:])
	}
}

func (k SecretKey) String() string { return redacted }

// Format keeps the secret out of every verb, %x and %#v too.
func (k SecretKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText keeps the secret out of JSON and of structured logs.
func (k SecretKey) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Public is the x-only public key. The zero key has none: "".
func (k SecretKey) Public() PubKey {
	if !k.valid() {
		return ""
	}
	priv := k.scalar()
	defer priv.Zero()
	return PubKey(hex.EncodeToString(schnorr.SerializePubKey(priv.PubKey())))
}

// Sign sets PubKey, ID and Sig of ev from its other members, which must be in
// the bounds that VerifyEvent demands.
func (k SecretKey) Sign(ev *Event) error {
	var aux [32]byte
	if _, err := rand.Read(aux[:]); err != nil {
		return fmt.Errorf("read random bytes for a signature: %w", err)
	}
	return k.sign(ev, aux)
}

// sign is Sign with the auxiliary bytes of BIP-340 given, which makes the
// signature a function of its arguments.
func (k SecretKey) sign(ev *Event, aux [32]byte) error {
	return k.signAs(k.Public(), ev, aux)
}

// signAs is sign with the key's public half given, which costs a multiplication
// on the curve to find.
func (k SecretKey) signAs(public PubKey, ev *Event, aux [32]byte) error {
	if !k.valid() {
		return errors.New("sign with a key that is not set")
	}
	signed := *ev
	signed.PubKey = string(public)
	if err := checkShape(&signed); err != nil {
		return err
	}
	id := eventHash(&signed)
	priv := k.scalar()
	defer priv.Zero()
	sig, err := schnorr.Sign(priv, id[:], schnorr.CustomNonce(aux))
	if err != nil {
		return fmt.Errorf("sign an event: %w", err)
	}
	ev.PubKey = signed.PubKey
	ev.ID = hex.EncodeToString(id[:])
	ev.Sig = hex.EncodeToString(sig.Serialize())
	return nil
}

// ParsePubKey takes 64 lowercase hex that is the x coordinate of a point of the
// curve, and nothing else.
func ParsePubKey(s string) (PubKey, error) {
	if _, err := curvePoint(s); err != nil {
		return "", err
	}
	return PubKey(s), nil
}

func curvePoint(s string) (*btcec.PublicKey, error) {
	if !ValidID(s) {
		return nil, fault(Malformed, layerSchema, "a public key is 64 lowercase hex characters")
	}
	b, err := hex.DecodeString(s)
	if err == nil {
		var pub *btcec.PublicKey
		if pub, err = schnorr.ParsePubKey(b); err == nil {
			return pub, nil
		}
	}
	return nil, fault(Malformed, layerSchema, "not a public key of the curve")
}

// ParseAnyPubKey takes what a person may paste: 64 hex or npub1 and so on. It
// never accepts a secret (nsec1) as a key.
func ParseAnyPubKey(s string) (PubKey, error) {
	if len(s) == 63 && s[:5] == "npub1" {
		prefix, v, err := nip19.Decode(s)
		if key, ok := v.(string); err == nil && prefix == "npub" && ok {
			return ParsePubKey(key)
		}
		return "", fault(Malformed, layerSchema, "a damaged npub key; copy it again")
	}
	return ParsePubKey(s)
}

// NewID reads 32 bytes from r, which must be crypto/rand or as good, and gives
// them as 64 hex.
func NewID(r io.Reader) (string, error) {
	var b [32]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return "", fmt.Errorf("read random bytes for an identifier: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}
