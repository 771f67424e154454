package nip

import (
	"fmt"
	"io"
	"strings"
)

// The short code of reverse enrollment (NIP-HOST, invitations): 40 random bits
// that a person reads from one screen and types at another.
const (
	codeAlphabet  = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	codeSymbols   = 8
	maxTypedCode  = 32 // bytes
	codeDigestTag = "openagents.host-enrollment-code.v1:"
)

// NewEnrollmentCode reads 5 bytes from r, which must be crypto/rand or as good,
// and gives a code as it is shown: XXXX-XXXX. It is for the person at the host,
// never for a log; the host keeps its digest only.
func NewEnrollmentCode(r io.Reader) (string, error) {
	var b [codeSymbols * 5 / 8]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return "", fmt.Errorf("read random bytes for a code: %w", err)
	}
	var bits uint64
	for _, c := range b {
		bits = bits<<8 | uint64(c)
	}
	var out strings.Builder
	for i := range codeSymbols {
		if i == codeSymbols/2 {
			out.WriteByte('-')
		}
		out.WriteByte(codeAlphabet[bits>>(5*(codeSymbols-1-i))&31])
	}
	return out.String(), nil
}

// NormalizeEnrollmentCode gives the 8 symbols of what a person typed: hyphens
// and spaces are dropped, letters raised, O read as 0, I and L as 1. More than
// 32 bytes or anything else is wrong_code. Its error never holds the input.
func NormalizeEnrollmentCode(typed string) (string, error) {
	wrong := fault(WrongCode, layerOperation, "not a code of 8 symbols; compare it with the host's screen")
	if len(typed) > maxTypedCode {
		return "", wrong
	}
	out := make([]byte, 0, codeSymbols)
	for i := range len(typed) {
		c := typed[i]
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		switch c {
		case '-', ' ':
			continue
		case 'O':
			c = '0'
		case 'I', 'L':
			c = '1'
		}
		if strings.IndexByte(codeAlphabet, c) < 0 {
			return "", wrong
		}
		out = append(out, c)
	}
	if len(out) != codeSymbols {
		return "", wrong
	}
	return string(out), nil
}

// EnrollmentCodeDigest is what a host keeps of a code, and what it compares with
// the digest of what was typed. It is bound to the enrollment, so equal codes of
// two enrollments have different digests. 40 bits can be tried out by whoever
// reads the digest: it is worth nothing once the enrollment has ended.
func EnrollmentCodeDigest(e EnrollmentID, typed string) (Digest, error) {
	if !ValidID(string(e)) {
		return "", fault(Malformed, layerOperation, "enrollment is not 64 lowercase hex")
	}
	code, err := NormalizeEnrollmentCode(typed)
	if err != nil {
		return "", err
	}
	return DigestOf([]byte(codeDigestTag + string(e) + ":" + code)), nil
}
