package nip

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"

	"github.com/btcsuite/btcd/btcec/v2"
	"golang.org/x/crypto/chacha20"
)

// The bounds of NIP-44 version 2.
const (
	minPayload    = 132     // base64 characters
	maxShortPlain = 65_535  // bytes with the 2-byte length
	maxLongPlain  = 262_144 // bytes with the extended length, read only
	frameBytes    = 1 + 32 + 32
)

// conversationKey is what both ends of a conversation compute alike: HKDF
// extract over the x coordinate of the shared point.
func conversationKey(key SecretKey, peer PubKey) ([]byte, error) {
	pub, err := curvePoint(string(peer))
	if err != nil {
		return nil, err
	}
	if !key.valid() {
		return nil, fault(Malformed, layerEnvelope, "the secret key is not set")
	}
	priv := key.scalar()
	defer priv.Zero()
	shared := btcec.GenerateSharedSecret(priv, pub)
	defer clear(shared)
	return hkdf.Extract(sha256.New, shared, []byte("nip44-v2"))
}

type messageKeys struct{ cipher, nonce, mac []byte }

func deriveKeys(conversation, nonce []byte) (messageKeys, error) {
	b, err := hkdf.Expand(sha256.New, conversation, string(nonce), 76)
	if err != nil {
		return messageKeys{}, fmt.Errorf("derive message keys: %w", err)
	}
	return messageKeys{cipher: b[:32], nonce: b[32:44], mac: b[44:]}, nil
}

// encrypt44 makes a payload of 1 to 65,535 bytes of plaintext. nonce is 32
// bytes, nil for random ones; a nonce must never serve two messages.
func encrypt44(conversation, plain, nonce []byte) (string, error) {
	if len(plain) == 0 || len(plain) > maxShortPlain {
		return "", fault(Bounds, layerEnvelope, "plaintext is empty or over 65,535 bytes")
	}
	if nonce == nil {
		nonce = make([]byte, 32)
		if _, err := rand.Read(nonce); err != nil {
			return "", fmt.Errorf("read random bytes for a nonce: %w", err)
		}
	}
	if len(nonce) != 32 {
		return "", fault(Malformed, layerEnvelope, "a nonce has 32 bytes")
	}
	padded := make([]byte, 2+paddedLen(len(plain)))
	binary.BigEndian.PutUint16(padded, uint16(len(plain)))
	copy(padded[2:], plain)
	return seal44(conversation, nonce, padded)
}

func seal44(conversation, nonce, padded []byte) (string, error) {
	keys, err := deriveKeys(conversation, nonce)
	if err != nil {
		return "", err
	}
	out := make([]byte, frameBytes+len(padded))
	out[0] = 2
	copy(out[1:], nonce)
	stream, err := chacha20.NewUnauthenticatedCipher(keys.cipher, keys.nonce)
	if err != nil {
		return "", fmt.Errorf("open the cipher: %w", err)
	}
	body := out[33 : len(out)-32]
	stream.XORKeyStream(body, padded)
	copy(out[len(out)-32:], mac44(keys.mac, nonce, body))
	return base64.StdEncoding.EncodeToString(out), nil
}

// checkPayload is everything that can be said of a payload without a key. The
// standard decoder skips line ends, so the alphabet is checked before it.
func checkPayload(payload string) error {
	if len(payload) < minPayload || len(payload)%4 != 0 {
		return fault(Malformed, layerEnvelope, "content is not a NIP-44 payload")
	}
	if len(payload) > maxContent {
		return fault(Bounds, layerEnvelope, "content is too long")
	}
	digits := strings.TrimSuffix(strings.TrimSuffix(payload, "="), "=")
	for i := range len(digits) {
		if !base64Digit[digits[i]] {
			return fault(Malformed, layerEnvelope, "content is not base64")
		}
	}
	return nil
}

// base64Digit is the standard alphabet.
var base64Digit = func() (ok [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") {
		ok[c] = true
	}
	return ok
}()

// decrypt44 opens a payload. The MAC is compared in constant time and before
// anything decrypted is looked at.
func decrypt44(conversation []byte, payload string) ([]byte, error) {
	if err := checkPayload(payload); err != nil {
		return nil, err
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(payload)
	if err != nil || len(raw) < frameBytes+2+32 {
		return nil, fault(Malformed, layerEnvelope, "content is not canonical base64")
	}
	if raw[0] != 2 {
		return nil, fault(Unsupported, layerEnvelope, "content has another NIP-44 version")
	}
	nonce, body, mac := raw[1:33], raw[33:len(raw)-32], raw[len(raw)-32:]
	keys, err := deriveKeys(conversation, nonce)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(mac, mac44(keys.mac, nonce, body)) {
		return nil, fault(Malformed, layerEnvelope, "content fails authentication")
	}
	stream, err := chacha20.NewUnauthenticatedCipher(keys.cipher, keys.nonce)
	if err != nil {
		return nil, fmt.Errorf("open the cipher: %w", err)
	}
	stream.XORKeyStream(body, body)
	return unpad44(body)
}

func unpad44(padded []byte) ([]byte, error) {
	bad := fault(Malformed, layerEnvelope, "padding is wrong")
	if len(padded) < 2+32 {
		return nil, bad
	}
	n, rest := int(binary.BigEndian.Uint16(padded)), padded[2:]
	if n == 0 {
		// The extended form: two zero bytes, then four bytes of length, which
		// must be one that the short form cannot say.
		long := binary.BigEndian.Uint32(rest)
		if long <= maxShortPlain || long > maxLongPlain {
			return nil, bad
		}
		n, rest = int(long), rest[4:]
	}
	if len(rest) != paddedLen(n) {
		return nil, bad
	}
	return rest[:n], nil
}

func mac44(key, nonce, body []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(nonce)
	h.Write(body)
	return h.Sum(nil)
}

// paddedLen rounds a length from 1 up to a chunk: 32 bytes below 256, an eighth
// of the next power of two above.
func paddedLen(n int) int {
	if n <= 32 {
		return 32
	}
	chunk := 32
	if next := 1 << bits.Len(uint(n-1)); next > 256 {
		chunk = next / 8
	}
	return chunk * ((n-1)/chunk + 1)
}
