package owner

import (
	"encoding/json"

	"holdfast/sandbox"
	"holdfast/sandbox/proxy"
)

// networkOf is the sandbox's word for the grant's, and its allow list.
func networkOf(g *Grant) (sandbox.Network, []string, error) {
	switch string(g.Network) {
	case `"none"`:
		return sandbox.NetworkNone, nil, nil
	case `"host"`:
		return sandbox.NetworkHost, nil, nil
	}
	var list struct {
		Allow []string `json:"allow"`
	}
	if json.Unmarshal(g.Network, &list) != nil || len(list.Allow) == 0 {
		return 0, nil, &cannot{"invalid_command", "the network of the execution grant is not known", nil}
	}
	return sandbox.NetworkAllow, list.Allow, nil
}

// egressOf is what a turn with an allow list reached and tried to reach, in the JSON form that package proxy
// defines, cut to what an event holds: a program that asks for a thousand names must not make the ones that it reached
// disappear. nil where the turn had no proxy.
func egressOf(s *sandbox.Result) json.RawMessage {
	if s.Egress == nil {
		return nil
	}
	return jsonOf(s.Egress.Fit(maxDocument))
}

// Reached is what the turn reached through its allow list, nil where it had none or where the record of it is not
// readable. More counts the attempts that Rows does not name.
func (r *Result) Reached() *Reached {
	var d Reached
	if r.Egress == nil || json.Unmarshal(r.Egress, &d) != nil {
		return nil
	}
	return &d
}

// Reached is a proxy.Record as the log keeps it.
type Reached struct {
	Rows []ReachedRow `json:"attempts"`
	More int64        `json:"more"`
	Up   int64        `json:"up"` // bytes that the program sent, over all connections
	Down int64        `json:"down"`
}

// ReachedRow is what became of all attempts at one target that ended alike.
type ReachedRow struct {
	Target  string `json:"target"` // host:port; "" where none could be read
	Verdict string `json:"verdict"`
	Count   int64  `json:"count"`
	Up      int64  `json:"up"`
	Down    int64  `json:"down"`
}

// endpoint accepts what package proxy takes as an entry of an allow list; the text is why not.
func endpoint(s string) string {
	if _, err := proxy.ParseEndpoint(s); err != nil {
		return err.Error()
	}
	return ""
}
