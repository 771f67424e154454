package nip

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// ValidID reports whether s is 64 lowercase hex characters, the form of every
// 32-byte identifier of the wire.
func ValidID(s string) bool { return isHex(s, 64) }

func isHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func validDigest(d Digest) bool {
	s, ok := strings.CutPrefix(string(d), "sha256:")
	return ok && ValidID(s)
}

// validText is the rule of labels and titles: not empty, at most limit bytes,
// UTF-8 without control characters.
func validText(s string, limit int) bool {
	return s != "" && len(s) <= limit && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// validProse is the rule of prompts and messages: not blank, at most limit bytes.
func validProse(s string, limit int) bool {
	return len(s) <= limit && utf8.ValidString(s) && strings.TrimSpace(s) != ""
}

// validLabel is the rule of a workspace label in task reads, beyond validText:
// one path element, so that no label can ever name a folder elsewhere.
func validLabel(s string) bool {
	return s != "." && s != ".." && !strings.ContainsAny(s, `/\`)
}

// validStudioID is the rule of task IDs in task reads; 64 hex qualifies.
func validStudioID(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !alnum && (i == 0 || c != '.' && c != '-' && c != '_') {
			return false
		}
	}
	return true
}

// validator collects the first broken rule of a decoded value. Rules are stated
// in the order in which the wire checks them.
type validator struct {
	layer string
	err   *Error
}

func (v *validator) must(ok bool, code Code, detail string) {
	if v.err == nil && !ok {
		v.err = fault(code, v.layer, detail)
	}
}

func (v *validator) id(s, name string) {
	v.must(ValidID(s), Malformed, name+" is not 64 lowercase hex")
}

func (v *validator) key(k PubKey, name string) {
	if v.err == nil {
		_, err := ParsePubKey(string(k))
		v.must(err == nil, Malformed, name+" is not a public key")
	}
}

func (v *validator) digest(d Digest, name string) {
	v.must(validDigest(d), Malformed, name+" is not a sha256 digest")
}

func (v *validator) int(n int64, name string) {
	v.must(n >= 0 && n <= maxInt, Malformed, name+" is out of range")
}

func (v *validator) text(s string, limit int, name string) {
	v.must(validText(s, limit), Bounds, name+" is empty, too long or has control characters")
}

func (v *validator) prose(s string, limit int, name string) {
	v.must(validProse(s, limit), Bounds, name+" is blank or too long")
}

func (v *validator) relay(u RelayURL, p Profile) {
	if v.err == nil {
		if err := CheckRelay(u, p.Loopback); err != nil {
			v.err = err.(*Error)
		}
	}
}
