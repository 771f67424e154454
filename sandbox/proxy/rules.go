package proxy

import "net/netip"

// Verdict is what became of one attempt. Its text goes into evidence and to the
// program. Values are not stored: the text is.
type Verdict uint8

const (
	Allowed          Verdict = iota + 1 // a connection was made
	NotListed                           // the list does not hold that host and port
	LiteralAddress                      // an address, in whatever spelling, that the list does not hold
	ForbiddenAddress                    // the name leads to an address that is not reached by name, or the machine itself
	Malformed                           // no request of the one form that is understood
	PlainRequest                        // a request to pass on plain HTTP
	Unresolved                          // the list holds it, but it has no address
	Unreachable                         // the list holds it, but no connection could be made
)

var verdictTexts = map[Verdict]string{
	Allowed:          "allowed",
	NotListed:        "refused: not on the allow list",
	LiteralAddress:   "refused: an address that is not on the allow list",
	ForbiddenAddress: "refused: it leads to an address that is not reached",
	Malformed:        "refused: not a well-formed CONNECT request",
	PlainRequest:     "refused: only CONNECT is served; use https",
	Unresolved:       "failed: the name has no address",
	Unreachable:      "failed: no connection could be made",
}

// String is the verdict in plain words, "" for the zero value.
func (v Verdict) String() string { return verdictTexts[v] }

// MarshalText is String.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// status is the HTTP answer that goes with a verdict.
func (v Verdict) status() string {
	switch v {
	case Allowed:
		return "200 Connection established"
	case Malformed:
		return "400 Bad Request"
	case Unresolved, Unreachable:
		return "502 Bad Gateway"
	}
	return "403 Forbidden"
}

// Rules decide. They are pure, and asked from many goroutines.
type Rules interface {
	// Target says whether a host and port may be asked for at all: Allowed or
	// a refusal. Only then is its name resolved.
	Target(Endpoint) Verdict
	// Address says whether one address that the target leads to may be dialled;
	// own are the addresses of this machine.
	Address(target Endpoint, a netip.Addr, own []netip.Addr) Verdict
}

// list is an allow list as Rules.
type list map[Endpoint]bool

// Allow are the rules of an allow list. Each entry is exact. A name is reached
// only at public addresses; an address of the list is reached as such, except
// where it is this machine's own.
func Allow(entries []Endpoint) Rules {
	l := list{}
	for _, e := range entries {
		l[e] = true
	}
	return l
}

func (l list) Target(e Endpoint) Verdict {
	switch {
	case l[e]:
		return Allowed
	case e.Addr.IsValid():
		return LiteralAddress
	}
	return NotListed
}

func (l list) Address(target Endpoint, a netip.Addr, own []netip.Addr) Verdict {
	a = a.Unmap()
	kind := classify(a)
	if kind == never || kind == private && target.Addr != a {
		return ForbiddenAddress
	}
	v4 := embedded(a)
	for _, o := range own {
		if o = o.Unmap().WithZone(""); o == a || o == v4 {
			return ForbiddenAddress
		}
	}
	return Allowed
}
