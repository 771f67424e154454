package sandbox

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"holdfast/sandbox/proxy"
)

// WithOutside gives the proxy of a turn another world to find.
func WithOutside(s Spec, o proxy.Outside) Spec {
	s.outside = &o
	return s
}

func TestAllowListOfASpec(t *testing.T) {
	many := make([]string, maxAllow+1)
	for i := range many {
		many[i] = fmt.Sprintf("host-%d.example:443", i)
	}
	for name, row := range map[string]struct {
		network Network
		allow   []string
		ok      bool
	}{
		"names":               {NetworkAllow, many[:maxAllow], true},
		"a private address":   {NetworkAllow, []string{"10.1.2.3:8080"}, true},
		"none":                {NetworkAllow, nil, false},
		"too many":            {NetworkAllow, many, false},
		"a wildcard":          {NetworkAllow, []string{"*.example:443"}, false},
		"loopback":            {NetworkAllow, []string{"127.0.0.1:80"}, false},
		"without the network": {NetworkNone, many[:1], false},
		"with the host's":     {NetworkHost, many[:1], false},
	} {
		t.Run(name, func(t *testing.T) {
			s := goodSpec()
			s.Network, s.Allow = row.network, row.allow
			if err := s.check(); (err == nil) != row.ok || err != nil && !errors.Is(err, ErrSpec) {
				t.Errorf("check gave %v", err)
			}
		})
	}
}

func TestProxyVariables(t *testing.T) {
	s := goodSpec()
	s.Environment = []string{"ALL_PROXY=socks5://elsewhere"}
	if _, err := environ(s); err != nil {
		t.Errorf("without a proxy: %v", err)
	}
	s.Network, s.Allow = NetworkAllow, []string{"example.org:443"}
	for name := range proxyNames {
		s.Environment = []string{name + "=http://elsewhere"}
		if _, err := environ(s); !errors.Is(err, ErrSpec) {
			t.Errorf("%s gave %v", name, err)
		}
	}
	s.Environment = nil
	env, err := environ(s)
	if err != nil || !strings.Contains(strings.Join(env, "\n"), "HTTPS_PROXY=http://127.0.0.1:61888\n") {
		t.Errorf("%v, %v", env, err)
	}
}

func TestSocketsGoWithANetwork(t *testing.T) {
	for name, row := range map[string]struct {
		plan plan
		want bool
	}{"none": {plan{}, false}, "host": {plan{HostNet: true}, true}, "proxy": {plan{ProxyPort: proxyPort}, true}} {
		if row.plan.sockets() != row.want {
			t.Errorf("%s: %v", name, !row.want)
		}
	}
}
