package proxy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Bounds of a host name, as DNS has them.
const (
	maxName  = 253
	maxLabel = 63
)

// Endpoint is one host and port. Exactly one of Name and Addr is set.
type Endpoint struct {
	Name string     // lower-case ASCII, without a trailing dot
	Addr netip.Addr // of an entry that is an address; never IPv4 in IPv6, never with a zone
	Port uint16
}

// String is the one spelling that an allow list takes.
func (e Endpoint) String() string {
	if e.Addr.IsValid() {
		return netip.AddrPortFrom(e.Addr, e.Port).String()
	}
	return e.Name + ":" + strconv.Itoa(int(e.Port))
}

// ParseEndpoint reads one entry of an allow list: name:port, address:port or
// [address]:port in its one canonical spelling. A name is exact, without
// wildcards, and in ASCII (xn-- where it has other letters). An address
// is an explicit permission, and the only way to a private network; what no
// turn may ever reach (loopback, link-local and metadata addresses among it) is
// refused here, with the name localhost. The error says why, and may
// quote the entry.
func ParseEndpoint(s string) (Endpoint, error) {
	e, verdict := parseTarget(s)
	switch {
	case verdict == LiteralAddress:
		return Endpoint{}, fmt.Errorf("%q is an address in a spelling that is not taken", s)
	case verdict != 0:
		return Endpoint{}, fmt.Errorf("%q is no name:port", s)
	case e.String() != s:
		return Endpoint{}, fmt.Errorf("%q is not spelled as it must be: %s", s, e)
	case e.Addr.IsValid() && classify(e.Addr) == never:
		return Endpoint{}, fmt.Errorf("%q is reached by no turn: loopback, link-local, metadata and other special addresses never are", s)
	case e.Name == "localhost" || strings.HasSuffix(e.Name, ".localhost"):
		return Endpoint{}, fmt.Errorf("%q is reached by no turn: this machine's loopback never is", s)
	}
	return e, nil
}

// parseTarget reads what a program asks for: as an entry of a list, but letters
// of either case and one trailing dot of a name are taken. The verdict is 0,
// Malformed, or LiteralAddress for a spelling of an address that no list holds.
func parseTarget(s string) (Endpoint, Verdict) {
	if len(s) > maxName+len(".:65535") {
		return Endpoint{}, Malformed
	}
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return Endpoint{}, Malformed
	}
	host := s[:i]
	port, ok := parsePort(s[i+1:])
	if !ok {
		return Endpoint{}, Malformed
	}
	if strings.HasPrefix(host, "[") {
		inner, closed := strings.CutSuffix(host[1:], "]")
		a, err := netip.ParseAddr(inner)
		switch {
		case !closed || err != nil || a.Is4():
			return Endpoint{}, Malformed
		case a.Zone() != "" || a.Is4In6():
			return Endpoint{}, LiteralAddress
		}
		return Endpoint{Addr: a, Port: port}, 0
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if !a.Is4() { // without its brackets
			return Endpoint{}, Malformed
		}
		return Endpoint{Addr: a, Port: port}, 0
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	switch {
	case !hostName(name):
		return Endpoint{}, Malformed
	case numeric(name):
		return Endpoint{}, LiteralAddress
	}
	return Endpoint{Name: name, Port: port}, 0
}

// parsePort takes 1 to 65535 in decimal without leading zeros.
func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0 && strconv.FormatUint(n, 10) == s
}

// hostName accepts a lower-case DNS name of letters, digits and inner hyphens.
func hostName(s string) bool {
	if len(s) > maxName {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
				return false
			}
		}
	}
	return true
}

// numeric reports whether some resolver or library would take the name for an
// IPv4 address: its last label is a decimal, octal or hexadecimal number, as in
// 2130706433, 0177.0.0.1 or 0x7f.1. No name in use ends so.
func numeric(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	digits := "0123456789"
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		last, digits = hex, "0123456789abcdef"
	}
	return strings.Trim(last, digits) == ""
}
