package nip

import (
	"net/url"
	"slices"
	"strconv"
)

// The bounds of hints (NIP-HOST, companion records).
const (
	maxHints     = 16
	maxHintsLife = 86_400 // seconds
	maxAddress   = 2_048
)

// Hints says on which ways a host may be reached. They are advice: a device
// believes nobody for having come by one of them, and a host that is reached by
// relays only sends relay hints only.
type Hints struct {
	Host       PubKey
	Generation int64
	IssuedAt   int64
	ExpiresAt  int64  // at most 86,400 s after IssuedAt
	Hints      []Hint // at most 16, distinct by transport and address
}

// Hint is one way.
type Hint struct {
	Class      string // loopback, lan, tailnet, public, relay
	Transport  string // tcp (host:port), websocket (URL), nostr (relay URL, with class relay only)
	Address    string
	Status     string // reachable, unreachable, unknown
	ObservedAt int64  // not after IssuedAt
}

var (
	hintClasses    = []string{"loopback", "lan", "tailnet", "public", "relay"}
	hintTransports = []string{"tcp", "websocket", "nostr"}
	hintStatuses   = []string{"reachable", "unreachable", "unknown"}
)

// ParseHints decodes the canonical body of hints. A later version of the record
// is unsupported: a reader skips it. That the pinned host signed it is for the
// caller.
func ParseHints(inline []byte, p Profile) (Hints, error) {
	r := &reader{layer: layerSchema}
	o := r.document("hints", inline, maxBody)
	v, requires := o.header()
	h := Hints{
		Host: PubKey(o.text("host")), Generation: o.int("generation"),
		IssuedAt: o.int("issued_at"), ExpiresAt: o.int("expires_at"),
	}
	for _, v := range o.list("hints", maxHints) {
		i := r.object("hints.hints", v)
		h.Hints = append(h.Hints, Hint{
			Class: oneOf(i, "class", hintClasses...), Transport: oneOf(i, "transport", hintTransports...),
			Address: i.text("address"), Status: oneOf(i, "status", hintStatuses...), ObservedAt: i.int("observed_at"),
		})
		i.end()
	}
	o.end()
	r.checkHeader(v, requires, SchemaHints)
	if r.err == nil {
		r.err = checkHints(h, p)
	}
	if r.err != nil {
		return Hints{}, r.err
	}
	return h, nil
}

func checkHints(h Hints, p Profile) *Error {
	v := &validator{layer: layerSchema}
	v.key(h.Host, "host")
	v.int(h.Generation, "generation")
	v.int(h.IssuedAt, "issued_at")
	v.int(h.ExpiresAt, "expires_at")
	v.must(h.ExpiresAt > h.IssuedAt && h.ExpiresAt-h.IssuedAt <= maxHintsLife, Malformed,
		"the hints live not at all or over 24 hours")
	v.must(len(h.Hints) <= maxHints, Bounds, "too many hints")
	seen := make(map[[2]string]bool)
	for _, i := range h.Hints {
		v.must(slices.Contains(hintClasses, i.Class), Malformed, "class is not known")
		v.must(slices.Contains(hintStatuses, i.Status), Malformed, "status is not known")
		v.must(len(i.Address) <= maxAddress, Bounds, "address is too long")
		v.hintAddress(i, p)
		v.int(i.ObservedAt, "observed_at")
		v.must(i.ObservedAt <= h.IssuedAt, Malformed, "a hint was observed after the hints were issued")
		id := [2]string{i.Transport, i.Address}
		v.must(!seen[id], Malformed, "a hint stands twice")
		seen[id] = true
	}
	return v.err
}

// hintAddress holds an address to its transport. Only a relay's is under the
// relay policy: on the other ways the host proves itself again.
func (v *validator) hintAddress(i Hint, p Profile) {
	switch i.Transport {
	case "nostr":
		v.must(i.Class == "relay", Malformed, "a nostr hint of another class than relay")
		v.relay(RelayURL(i.Address), p)
	case "tcp":
		u, err := url.Parse("tcp://" + i.Address)
		v.must(err == nil && isASCII(i.Address) && u.Host == i.Address && validPort(u), Malformed, "address is not host:port")
	case "websocket":
		u, err := url.Parse(i.Address)
		v.must(err == nil && isASCII(i.Address) && (u.Scheme == "ws" || u.Scheme == "wss") && u.Hostname() != "" &&
			u.User == nil && u.Fragment == "", Malformed, "address is not a websocket URL")
	default:
		v.must(false, Malformed, "transport is not known")
	}
}

func validPort(u *url.URL) bool {
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && n > 0 && u.Hostname() != ""
}

// EncodeHints writes hints under the rules of ParseHints. A loopback relay
// passes: which ways there are is the host operator's own word.
func EncodeHints(h Hints) (Artifact, error) {
	if err := checkHints(h, Profile{Loopback: true}); err != nil {
		return Artifact{}, err
	}
	rows := make([]members, 0, len(h.Hints))
	for _, i := range h.Hints {
		rows = append(rows, members{
			"class": i.Class, "transport": i.Transport, "address": i.Address,
			"status": i.Status, "observed_at": i.ObservedAt,
		})
	}
	return artifact(SchemaHints, members{
		"host": h.Host, "generation": h.Generation, "issued_at": h.IssuedAt, "expires_at": h.ExpiresAt, "hints": rows,
	}, h.IssuedAt, h.ExpiresAt)
}
