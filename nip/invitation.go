package nip

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// The invitation string (NIP-HOST, invitations).
const (
	invitationPrefix  = "coder-host:"
	maxInvitation     = 640 // characters, prefix included
	invitationLife    = 300 // seconds, exactly
	maxInvitedRelay   = 256
	invitationHeader  = 115 // bytes before the relay URL
	invitationVersion = 1
	clockSkew         = 60 // seconds
)

// ParseInvitation decodes a scanned or pasted invitation and says expired when
// now is not inside its 300 seconds; a host whose clock is up to 60 s ahead is
// borne. The result holds the capability and must never be logged.
func ParseInvitation(s string, p Profile, now int64) (Invitation, error) {
	i, err := decodeInvitation(s, p)
	if err != nil {
		return Invitation{}, err
	}
	if now >= i.ExpiresAt || now < i.IssuedAt-clockSkew {
		return Invitation{}, fault(Expired, layerSchema, "the invitation is not current; ask for a new one")
	}
	return i, nil
}

// decodeInvitation is ParseInvitation without a clock.
func decodeInvitation(s string, p Profile) (Invitation, error) {
	if len(s) > maxInvitation {
		return Invitation{}, fault(Bounds, layerSchema, "the invitation is too long")
	}
	text, ok := strings.CutPrefix(s, invitationPrefix)
	if !ok {
		return Invitation{}, fault(Malformed, layerSchema, "not a coder-host invitation")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	// The decoder skips line ends, so a second spelling shows only in the re-encoding.
	if err != nil || base64.RawURLEncoding.EncodeToString(b) != text {
		return Invitation{}, fault(Malformed, layerSchema, "the invitation is not canonical base64url")
	}
	if len(b) < invitationHeader || b[0] != invitationVersion {
		return Invitation{}, fault(Malformed, layerSchema, "the invitation is too short or of another version")
	}
	issued, expires := binary.BigEndian.Uint64(b[97:]), binary.BigEndian.Uint64(b[105:])
	n := int(binary.BigEndian.Uint16(b[113:]))
	if n < 1 || n > maxInvitedRelay {
		return Invitation{}, fault(Bounds, layerSchema, "the relay's length is not 1 to 256")
	}
	if len(b) != invitationHeader+n || issued > maxInt || expires > maxInt {
		return Invitation{}, fault(Malformed, layerSchema, "the invitation has another length than it says, or impossible times")
	}
	i := Invitation{
		Host:       PubKey(hex.EncodeToString(b[1:33])),
		ID:         InvitationID(hex.EncodeToString(b[33:65])),
		Capability: hex.EncodeToString(b[65:97]),
		IssuedAt:   int64(issued),
		ExpiresAt:  int64(expires),
		Relay:      RelayURL(b[invitationHeader:]),
	}
	if err := checkInvitation(i, p); err != nil {
		return Invitation{}, err
	}
	return i, nil
}

func checkInvitation(i Invitation, p Profile) *Error {
	v := &validator{layer: layerSchema}
	v.key(i.Host, "host")
	v.id(string(i.ID), "invitation")
	v.id(i.Capability, "capability")
	v.int(i.IssuedAt, "issued_at")
	v.int(i.ExpiresAt, "expires_at")
	v.must(len(i.Relay) >= 1 && len(i.Relay) <= maxInvitedRelay, Bounds, "the relay's length is not 1 to 256")
	v.relay(i.Relay, p)
	v.must(i.ExpiresAt-i.IssuedAt == invitationLife, Malformed, "the invitation does not live exactly 300 seconds")
	return v.err
}

// EncodeInvitation writes the string that a device scans. It holds the
// capability: print it for the person, never into a log.
func EncodeInvitation(i Invitation, p Profile) (string, error) {
	if err := checkInvitation(i, p); err != nil {
		return "", err
	}
	b := []byte{invitationVersion}
	for _, s := range []string{string(i.Host), string(i.ID), i.Capability} {
		b = append(b, mustHex(s)...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(i.IssuedAt))
	b = binary.BigEndian.AppendUint64(b, uint64(i.ExpiresAt))
	b = binary.BigEndian.AppendUint16(b, uint16(len(i.Relay)))
	b = append(b, i.Relay...)
	return invitationPrefix + base64.RawURLEncoding.EncodeToString(b), nil
}

// mustHex decodes what was checked to be hex.
func mustHex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic("nip: hex that was checked is not hex")
	}
	return b
}
