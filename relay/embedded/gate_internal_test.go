package embedded

import (
	"fmt"
	"testing"
	"time"
)

func TestNetworkOfAnAddress(t *testing.T) {
	for _, row := range []struct{ name, in, want string }{
		{"IPv4", "203.0.113.7:4444", "203.0.113.7"},
		{"IPv4 in IPv6", "[::ffff:203.0.113.7]:4444", "203.0.113.7"},
		{"IPv6", "[2001:db8:1:2:3:4:5:6]:4444", "2001:db8:1:2::/64"},
		{"the same /64", "[2001:db8:1:2:ffff::1]:1", "2001:db8:1:2::/64"},
		{"with a zone", "[fe80::1%eth0]:1", "fe80::/64"},
		{"loopback", "[::1]:1", "::1"},
		{"no address", "pipe", "pipe"},
	} {
		if got := network(row.in); got != row.want {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}

// TestGate: one address has a share of the sockets, all have a bound, and a
// socket that closes makes room once.
func TestGate(t *testing.T) {
	g := newGate(nil)
	enter := func(from string, n int) (in int) {
		for range n {
			if g.enter(from) {
				in++
			}
		}
		return in
	}
	if n := enter("one", 1000); n != maxSocketsOfOne {
		t.Errorf("one address has %d sockets", n)
	}
	for i := range 1000 {
		g.enter(fmt.Sprint(i))
	}
	if g.all != maxSockets || enter("two", 1) != 0 {
		t.Errorf("%d sockets", g.all)
	}
	g.leave("one")
	if enter("two", 2) != 1 {
		t.Error("a socket that closed made no room, or too much")
	}
	for range maxSocketsOfOne {
		g.leave("one")
	}
	if _, kept := g.count["one"]; kept {
		t.Error("an address without sockets is remembered")
	}
}

// TestStrangersOfOneAddress: what is too much from one address costs that
// address its oldest connection, and never a member's or another's.
func TestStrangersOfOneAddress(t *testing.T) {
	g := newRegistry(time.Now)
	began := time.Now()
	add := func(address string, class Class, n int) (gone []string) {
		for range n {
			began = began.Add(time.Second)
			name := fmt.Sprint(address, " ", len(g.conns))
			c := &conn{r: &Relay{}, address: address, class: class, began: began, cancel: func() { gone = append(gone, name) }}
			if class == Member {
				c.key = "member"
			}
			if !g.enter(c) {
				t.Fatal("refused")
			}
		}
		return gone
	}
	before := add("a", Member, 10)
	before = append(before, add("b", Stranger, 5)...)
	before = append(before, add("a", Stranger, maxStrangers)...)
	if len(before) != 0 {
		t.Fatalf("gone: %v", before)
	}
	add("a", Stranger, 20)
	count := map[string]int{}
	for c := range g.conns {
		count[fmt.Sprint(c.address, c.class)]++
	}
	if count["amember"] != 10 || count["bstranger"] != 5 || count["astranger"] != maxStrangers {
		t.Errorf("left: %v", count)
	}
}
