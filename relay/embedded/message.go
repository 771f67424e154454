package embedded

import (
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/nip"
	"holdfast/relay"
)

const (
	maxFrame = 128 << 10 // bytes a client may send in one message
	maxSubID = 64        // NIP-01
)

var errMessage = errors.New("malformed client message")

// message is one decoded message of a client. Only the members that its label
// names are set.
type message struct {
	label   string // EVENT REQ CLOSE AUTH COUNT; "" is a well-formed message of another kind
	sub     string
	filters []jsontext.Value // not yet parsed
	event   *nip.Event       // nil where it does not parse
	id      string           // of an event that does not parse, where that is readable
}

// parseMessage decodes one message of a client (NIP-01, from client to relay).
func parseMessage(b []byte) (message, error) {
	if len(b) > maxFrame {
		return message{}, errMessage
	}
	parts, err := relay.SplitFrame(b, 2+4*maxFilters)
	if err != nil || len(parts) < 2 {
		return message{}, errMessage
	}
	label, ok := text(parts[0], 16)
	if !ok {
		return message{}, errMessage
	}
	m := message{label: label}
	switch label {
	case "EVENT", "AUTH":
		if len(parts) != 2 || parts[1].Kind() != '{' {
			return message{}, errMessage
		}
		if m.event, err = nip.ParseEvent(parts[1]); err != nil {
			m.event, m.id = nil, idOf(parts[1])
		}
		return m, nil
	case "REQ", "COUNT":
		m.sub, ok = text(parts[1], maxSubID)
		m.filters = parts[2:]
	case "CLOSE":
		m.sub, ok = text(parts[1], maxSubID)
	default:
		return message{}, nil
	}
	if !ok || m.sub == "" {
		return message{}, errMessage
	}
	return m, nil
}

func text(v jsontext.Value, max int) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	var s string
	if json.Unmarshal(v, &s) != nil || len(s) > max {
		return "", false
	}
	return s, true
}

// idOf reads the ID of an event that is otherwise malformed, so that its sender
// gets the OK it waits for.
func idOf(v jsontext.Value) string {
	var members map[string]jsontext.Value
	if json.Unmarshal(v, &members) != nil {
		return ""
	}
	if s, ok := text(members["id"], 64); ok && nip.ValidID(s) {
		return s
	}
	return ""
}

func encodeText(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic("embedded: a decoded string did not encode: " + err.Error())
	}
	return b
}
