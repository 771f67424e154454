package sandbox

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// upLinks lists the network links of this namespace that are up. Some kernels
// put fallback devices of tunnels into every namespace; down, they carry nothing.
func upLinks() ([]string, error) {
	b, err := readKernel("/proc/self/net/dev")
	if err != nil {
		return nil, fmt.Errorf("list network links: %w", err)
	}
	up := []string{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 0; lines.Scan(); n++ {
		name, _, ok := strings.Cut(strings.TrimSpace(lines.Text()), ":")
		if n < 2 || !ok { // two lines of titles
			continue
		}
		err := onLink(name, func(_ int, r *unix.Ifreq) error {
			if r.Uint16()&unix.IFF_UP != 0 {
				up = append(up, name)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("look at network link %s: %w", name, err)
		}
	}
	return up, lines.Err()
}

// networkOf names the network that was achieved: what init saw up in a namespace
// of the turn's own, or the host's.
func networkOf(s Spec, seen posture) (string, error) {
	want, name := []string{}, "netns-no-lo"
	switch {
	case s.Network == NetworkHost:
		return "host", nil
	case s.Network == NetworkAllow:
		want, name = []string{"lo"}, "netns-lo-proxy"
	}
	if !slices.Equal(seen.UpLinks, want) && on(layerNet) {
		return "", notEnforceable("the network namespace is not as asked; up are: "+strings.Join(seen.UpLinks, ", "), nil)
	}
	return name, nil
}
