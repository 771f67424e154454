package sandbox

import (
	"strconv"

	"holdfast/sandbox/proxy"
)

// proxyPort is where the proxy of a NetworkAllow turn listens, on 127.0.0.1 of
// the turn's own network namespace, in which nothing else has been yet. It lies
// above the ports that the kernel gives out by itself.
const proxyPort = 61_888

// maxAllow is how many entries an allow list has at most.
const maxAllow = 64

// proxyVariables lead clients to the proxy. Without NO_PROXY they would look
// there for the turn's own servers on loopback.
func proxyVariables() []string {
	at := "http://127.0.0.1:" + strconv.Itoa(proxyPort)
	const own = "localhost,127.0.0.1,::1"
	return []string{
		"HTTP_PROXY=" + at, "HTTPS_PROXY=" + at, "http_proxy=" + at, "https_proxy=" + at,
		"NO_PROXY=" + own, "no_proxy=" + own,
		"NODE_USE_ENV_PROXY=1", // Node.js looks at the others only when it is told to
	}
}

// proxyNames may not be given where the sandbox sets them, or where a client
// would prefer them.
var proxyNames = map[string]bool{
	"HTTP_PROXY": true, "HTTPS_PROXY": true, "http_proxy": true, "https_proxy": true, "NO_PROXY": true, "no_proxy": true,
	"NODE_USE_ENV_PROXY": true, "ALL_PROXY": true, "all_proxy": true,
}

// allowList reads Allow; it is there with NetworkAllow and only then.
func (s Spec) allowList() ([]proxy.Endpoint, error) {
	if (len(s.Allow) > 0) != (s.Network == NetworkAllow) {
		return nil, refuse("an allow list goes with NetworkAllow, and is not empty there")
	}
	if len(s.Allow) > maxAllow {
		return nil, refuse("%d entries in the allow list, at most %d", len(s.Allow), maxAllow)
	}
	var list []proxy.Endpoint
	for _, a := range s.Allow {
		e, err := proxy.ParseEndpoint(a)
		if err != nil {
			return nil, refuse("allow list: %s", err)
		}
		list = append(list, e)
	}
	return list, nil
}
