package embedded

import (
	"net"
	"net/netip"
	"sync"
)

const (
	maxSockets      = 512 // open at once, websocket or not yet
	maxSocketsOfOne = 128 // of one network address
)

// network is the address whose events and connections are counted together:
// an IPv4 address, or the /64 of an IPv6 one, which one customer has whole.
func network(hostport string) string {
	a, err := netip.ParseAddrPort(hostport)
	if err != nil {
		return hostport
	}
	ip := a.Addr().Unmap().WithZone("")
	if ip.Is4() || ip.IsLoopback() {
		return ip.String()
	}
	p, err := ip.Prefix(64)
	if err != nil {
		return ip.String()
	}
	return p.String()
}

// gate is a listener with a bound on open sockets, in all and from one address.
// It counts before TLS and HTTP, which cost more than a socket. One too many is
// closed without a word.
type gate struct {
	net.Listener
	mu    sync.Mutex // guards both
	all   int
	count map[string]int
}

func newGate(ln net.Listener) *gate { return &gate{Listener: ln, count: map[string]int{}} }

// Accept returns the next socket that fits.
func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := network(c.RemoteAddr().String())
		if g.enter(from) {
			return &gated{Conn: c, leave: sync.OnceFunc(func() { g.leave(from) })}, nil
		}
		c.Close()
	}
}

func (g *gate) enter(from string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all >= maxSockets || g.count[from] >= maxSocketsOfOne {
		return false
	}
	g.all++
	g.count[from]++
	return true
}

func (g *gate) leave(from string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.count[from]--; g.count[from] <= 0 {
		delete(g.count, from)
	}
}

// gated is a socket that counts itself out.
type gated struct {
	net.Conn
	leave func()
}

func (c *gated) Close() error {
	c.leave()
	return c.Conn.Close()
}
