package proxy

import (
	"net/netip"
	"slices"
)

// class says what an address leads to.
type class uint8

const (
	never   class = iota // special: this machine, this link, metadata, nothing
	private              // somebody's own network
	public
)

// specialPrefixes are dialled for nobody, whatever a list says. What is neither
// here nor private nor outside IPv6's global unicast is public.
var specialPrefixes = prefixes(
	"0.0.0.0/8",                       // this network; Linux takes 0.0.0.0 for loopback
	"127.0.0.0/8", "::1/128", "::/96", // loopback, unspecified, IPv4-compatible
	"169.254.0.0/16", "fe80::/10", // link-local, and with it most clouds' metadata
	"192.0.0.0/24", "192.88.99.0/24", // protocol assignments (Oracle's metadata), 6to4 relays
	"192.0.2.0/24", "198.51.100.0/24", // documentation
	"203.0.113.0/24", "2001:db8::/32", // documentation
	"3fff::/20", "198.18.0.0/15", // documentation, benchmarks
	"224.0.0.0/4", "ff00::/8", // multicast
	"240.0.0.0/4",                       // reserved, broadcast
	"2001::/23",                         // protocol assignments, Teredo among them
	"100.100.100.200/32",                // metadata of Alibaba Cloud
	"168.63.129.16/32",                  // the platform's own address inside Azure
	"fd00:ec2::/32", "fd20:ce::254/128", // metadata of Amazon and Google over IPv6
)

// privatePrefixes are reached only where a list holds the very address.
var privatePrefixes = prefixes(
	"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16",
	"100.64.0.0/10", // carriers' and overlay networks
	"fc00::/7",
)

var (
	globalUnicast = netip.MustParsePrefix("2000::/3")
	nat64         = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour     = netip.MustParsePrefix("2002::/16")
)

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// classify looks at what an address means. One with an IPv4 address in it is no
// better than that, and only as good where that is public.
func classify(a netip.Addr) class {
	a = a.Unmap()
	if !a.IsValid() || a.Zone() != "" || holds(specialPrefixes, a) {
		return never
	}
	if v4 := embedded(a); v4.IsValid() {
		if classify(v4) != public {
			return never
		}
		return public
	}
	if holds(privatePrefixes, a) {
		return private
	}
	if a.Is6() && !globalUnicast.Contains(a) {
		return never
	}
	return public
}

// embedded is the IPv4 address that a translator would reach for a, if any.
func embedded(a netip.Addr) netip.Addr {
	b := a.As16()
	switch {
	case nat64.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:]))
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:]))
	}
	return netip.Addr{}
}

func holds(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}
