package nip

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

const maxRelayURL = 2_048

// Profile says which relay URLs a parser accepts. Loopback is an operator's or
// a person's explicit word; nothing that was scanned or received sets it.
type Profile struct{ Loopback bool }

// CheckRelay applies the relay policy of NIP-HOST: a URL that cannot be parsed
// is malformed; one that is not plain wss with a host (a query, even an empty
// one, a fragment, credentials, non-ASCII, more than 2,048 bytes) is forbidden.
// loopback additionally allows ws to a literal loopback address, never to a
// name. The string is judged as it stands and never normalised.
func CheckRelay(u RelayURL, loopback bool) error {
	s := string(u)
	scheme, _, ok := strings.Cut(s, "://")
	if !ok || scheme == "" {
		return fault(Malformed, layerPolicy, "the relay is not a URL")
	}
	if len(s) > maxRelayURL {
		return fault(Forbidden, layerPolicy, "the relay URL is too long")
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '\\' {
			return fault(Forbidden, layerPolicy, "the relay URL has a character that is not allowed")
		}
	}
	if strings.ContainsAny(s, "?#") {
		return fault(Forbidden, layerPolicy, "the relay URL has a query or a fragment")
	}
	parsed, err := url.Parse(s)
	if err != nil {
		return fault(Malformed, layerPolicy, "the relay is not a URL")
	}
	if port := parsed.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return fault(Malformed, layerPolicy, "the relay URL has no such port")
		}
	}
	switch {
	case parsed.Hostname() == "":
		return fault(Forbidden, layerPolicy, "the relay URL has no host")
	case parsed.User != nil:
		return fault(Forbidden, layerPolicy, "the relay URL has credentials")
	case parsed.Scheme == "wss":
		return nil
	case parsed.Scheme == "ws" && loopback && isLoopback(parsed.Hostname()):
		return nil
	}
	return fault(Forbidden, layerPolicy, "the relay URL is not wss")
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	if err != nil || a.Zone() != "" {
		return false
	}
	return a == netip.IPv6Loopback() || a.Is4() && a.IsLoopback()
}
