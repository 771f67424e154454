package relay

import (
	"bytes"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/nip"
)

const (
	maxFrame     = 512 << 10 // bytes a relay may send in one message
	maxPublish   = 128 << 10 // bytes of one EVENT message that we send
	maxMessage   = 256       // bytes kept of a relay's own words
	maxChallenge = 1024      // bytes of an AUTH challenge
	maxSubID     = 64        // NIP-01's bound of a subscription ID
)

// frame is one decoded message of a relay. Only the members that its label
// names are set.
type frame struct {
	label   string // EVENT OK EOSE CLOSED NOTICE AUTH; "" is a well-formed message of another kind
	sub     string
	event   []byte // the event's JSON, not yet parsed
	id      nip.EventID
	ok      bool
	message string // CLOSED, NOTICE, OK: printable, at most maxMessage bytes; AUTH: the challenge as it came
}

var errFrame = errors.New("malformed relay message")

// parseFrame decodes one message of a relay (NIP-01, from relay to client).
// Extra elements and unknown labels are no fault: relays grow. Everything else
// that is not exactly the documented shape is errFrame.
func parseFrame(b []byte) (frame, error) {
	if len(b) > maxFrame {
		return frame{}, errFrame
	}
	parts, err := SplitFrame(b, 8)
	if err != nil || len(parts) == 0 {
		return frame{}, errFrame
	}
	label, ok := stringOf(parts[0], 16)
	if !ok {
		return frame{}, errFrame
	}
	f := frame{label: label}
	need := func(n int) bool { return len(parts) >= n }
	switch label {
	case "EVENT":
		if !need(3) || parts[2].Kind() != '{' {
			return frame{}, errFrame
		}
		f.sub, ok = stringOf(parts[1], maxSubID)
		f.event = parts[2]
	case "OK":
		if !need(3) {
			return frame{}, errFrame
		}
		var id string
		id, ok = stringOf(parts[1], 64)
		f.id = nip.EventID(id)
		switch parts[2].Kind() {
		case 't':
			f.ok = true
		case 'f':
		default:
			ok = false
		}
		if ok && need(4) {
			f.message, ok = stringOf(parts[3], maxFrame)
		}
		f.message = printable(f.message)
	case "EOSE":
		if !need(2) {
			return frame{}, errFrame
		}
		f.sub, ok = stringOf(parts[1], maxSubID)
	case "CLOSED":
		if !need(2) {
			return frame{}, errFrame
		}
		f.sub, ok = stringOf(parts[1], maxSubID)
		if ok && need(3) {
			f.message, ok = stringOf(parts[2], maxFrame)
		}
		f.message = printable(f.message)
	case "NOTICE":
		if !need(2) {
			return frame{}, errFrame
		}
		f.message, ok = stringOf(parts[1], maxFrame)
		f.message = printable(f.message)
	case "AUTH":
		if !need(2) {
			return frame{}, errFrame
		}
		f.message, ok = stringOf(parts[1], maxChallenge)
		ok = ok && f.message != ""
	default:
		f.label = ""
	}
	if !ok {
		return frame{}, errFrame
	}
	return f, nil
}

// SplitFrame cuts a JSON array of at most max elements into its elements,
// which alias b. Duplicate member names and bad UTF-8 at any depth refuse, as
// does anything after the array.
func SplitFrame(b []byte, max int) ([]jsontext.Value, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(b))
	t, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	if t.Kind() != '[' {
		return nil, errFrame
	}
	var parts []jsontext.Value
	for d.PeekKind() != ']' {
		if len(parts) == max {
			return nil, errFrame
		}
		v, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		end := d.InputOffset()
		parts = append(parts, jsontext.Value(b[end-int64(len(v)):end]))
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	if len(bytes.TrimLeft(b[d.InputOffset():], " \t\r\n")) > 0 {
		return nil, errFrame
	}
	return parts, nil
}

// EncodeFrame joins a label and its elements to one message. A string is
// encoded, a []byte is JSON already.
func EncodeFrame(label string, elements ...any) []byte {
	out := append([]byte{'['}, encodeString(label)...)
	for _, e := range elements {
		out = append(out, ',')
		switch e := e.(type) {
		case []byte:
			out = append(out, e...)
		case string:
			out = append(out, encodeString(e)...)
		case bool:
			if e {
				out = append(out, "true"...)
			} else {
				out = append(out, "false"...)
			}
		default:
			panic("relay: EncodeFrame takes strings, JSON bytes and booleans")
		}
	}
	return append(out, ']')
}

// encodeString never fails: bytes that are not UTF-8 become U+FFFD.
func encodeString(s string) []byte {
	b, err := json.Marshal(s, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		panic("relay: a string did not encode: " + err.Error())
	}
	return b
}

func stringOf(v jsontext.Value, max int) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	var s string
	if json.Unmarshal(v, &s) != nil || len(s) > max {
		return "", false
	}
	return s, true
}

// Prefix is the NIP-01 machine word of a relay's message: one lower-case word
// before the first colon, "" where there is none.
func Prefix(message string) string {
	word, _, found := strings.Cut(message, ":")
	if !found || word == "" || len(word) > 32 {
		return ""
	}
	for _, c := range word {
		if (c < 'a' || c > 'z') && c != '-' {
			return ""
		}
	}
	return word
}

// printable cuts a relay's words to what may stand in a log or a terminal.
func printable(s string) string {
	var out strings.Builder
	for _, c := range s {
		if !unicode.IsPrint(c) || c == utf8.RuneError {
			c = '?'
		}
		if out.Len()+utf8.RuneLen(c) > maxMessage {
			break
		}
		out.WriteRune(c)
	}
	return out.String()
}
