package nip

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"math"
	"strconv"

	json "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The ceilings of NIP-HOST, strict JSON.
const (
	maxJSON  = 1 << 20 // any document
	maxBody  = 1 << 17 // an inline object, canonical
	maxDepth = 64      // nested objects and arrays
	maxInt   = 1<<53 - 1
)

// Canonical decodes one JSON value strictly and returns its RFC 8785 form. It
// refuses what NIP-HOST calls malformed JSON: a byte order mark, invalid UTF-8
// and lone surrogates, repeated member names, anything after the value,
// integers beyond 2^53-1 and every number with a fraction or an exponent; and,
// with code bounds, nesting deeper than 64 and more than 1 MiB.
func Canonical(b []byte) ([]byte, error) {
	return canonical(b, maxJSON, false)
}

// DigestOf names bytes by their SHA-256, in the form "sha256:" and 64 hex.
func DigestOf(b []byte) Digest {
	h := sha256.Sum256(b)
	return Digest("sha256:" + hex.EncodeToString(h[:]))
}

// canonical is Canonical with a ceiling. floats admits finite numbers with a
// fraction or an exponent: transcript steps and telemetry of other writers hold
// them, and the digest over a body must be computable whatever it carries.
func canonical(b []byte, limit int, floats bool) ([]byte, error) {
	if err := checkJSON(b, limit, floats); err != nil {
		return nil, err
	}
	v := jsontext.Value(bytes.Clone(b))
	if err := v.Canonicalize(); err != nil {
		return nil, fault(Malformed, layerJSON, "no canonical form")
	}
	if len(v) > limit {
		return nil, fault(Bounds, layerJSON, "canonical form too large")
	}
	return v, nil
}

// checkJSON makes one pass over the tokens. The size is looked at first, so the
// work and the memory of a hostile document are bounded by limit.
func checkJSON(b []byte, limit int, floats bool) error {
	if len(b) > limit {
		return fault(Bounds, layerJSON, "document too large")
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(b))
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return fault(Malformed, layerJSON, "not one strict JSON value")
		}
		switch tok.Kind() {
		case '{', '[':
			if dec.StackDepth() > maxDepth {
				return fault(Bounds, layerJSON, "nested too deep")
			}
		case '0':
			if err := checkNumber(tok.String(), floats); err != nil {
				return err
			}
		}
		if dec.StackDepth() == 0 {
			break
		}
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return fault(Malformed, layerJSON, "data after the value")
	}
	return nil
}

func checkNumber(s string, floats bool) error {
	if isInteger(s) {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n > maxInt || n < -maxInt {
			return fault(Malformed, layerJSON, "integer beyond 2^53-1")
		}
		return nil
	}
	if !floats {
		return fault(Malformed, layerJSON, "number with a fraction or an exponent")
	}
	f, err := strconv.ParseFloat(s, 64)
	// From 2^53 to 1e21 the canonical form of a float is an integer token that
	// would itself be refused, so it has no stable canonical form.
	if a := math.Abs(f); err != nil || math.IsInf(f, 0) || a > maxInt && a < 1e21 {
		return fault(Malformed, layerJSON, "number out of range")
	}
	return nil
}

func isInteger(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && !(i == 0 && c == '-') {
			return false
		}
	}
	return s != ""
}

// members is an object on its way out. Named strings, int64, bool, nil, slices
// and members are what it holds; a nil slice is written as [], []byte as
// standard base64, a jsontext.Value as it stands.
type members map[string]any

// encode writes m canonically, bounded as an inline object.
func encode(m members) ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fault(Malformed, layerJSON, "a string that is not UTF-8, or a value without a JSON form")
	}
	return canonical(b, maxBody, true)
}
