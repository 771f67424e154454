package embedded

import (
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
)

const (
	maxFilters    = 10
	maxListed     = 512 // values in one list of a filter
	maxLimit      = 5000
	defaultLimit  = 500
	maxFilterSize = 64 << 10
)

// refusal is what a client is told, with its NIP-01 prefix.
type refusal string

func (r refusal) Error() string { return string(r) }

const (
	badFilter     refusal = "invalid: a filter is not as NIP-01 says"
	unknownFilter refusal = "unsupported: filters know ids, authors, kinds, #p, #h, #t, since, until and limit"
)

// parseFilter decodes one filter of a REQ. A member it does not know refuses
// the REQ: ignoring a condition would answer another question.
func parseFilter(v jsontext.Value) (nip.Filter, error) {
	var f nip.Filter
	if v.Kind() != '{' || len(v) > maxFilterSize {
		return f, badFilter
	}
	var members map[string]jsontext.Value
	if json.Unmarshal(v, &members) != nil {
		return f, badFilter
	}
	var err error
	for name, v := range members {
		switch name {
		case "ids":
			f.IDs, err = texts(v, true)
		case "authors":
			f.Authors, err = texts(v, true)
		case "kinds":
			f.Kinds, err = kinds(v)
		case "#p", "#h", "#t":
			var list []string
			if list, err = texts(v, name == "#p"); err == nil {
				if f.Tags == nil {
					f.Tags = nostr.TagMap{}
				}
				f.Tags[name[1:]] = list
			}
		case "since":
			f.Since, err = stamp(v)
		case "until":
			f.Until, err = stamp(v)
		case "limit":
			var n int64
			if n, err = whole(v); err == nil {
				f.Limit, f.LimitZero = int(min(n, maxLimit)), n == 0
			}
		default:
			err = unknownFilter
		}
		if err != nil {
			return nip.Filter{}, err
		}
	}
	if _, said := members["limit"]; !said {
		f.Limit = defaultLimit
	}
	return f, nil
}

func texts(v jsontext.Value, hex bool) ([]string, error) {
	list := []string{}
	if v.Kind() != '[' || json.Unmarshal(v, &list) != nil || len(list) > maxListed {
		return nil, badFilter
	}
	for _, s := range list {
		if hex && !nip.ValidID(s) || len(s) > 256 {
			return nil, badFilter
		}
	}
	return list, nil
}

func kinds(v jsontext.Value) ([]int, error) {
	list := []int{}
	if v.Kind() != '[' || json.Unmarshal(v, &list) != nil || len(list) > maxListed {
		return nil, badFilter
	}
	return list, nil
}

func stamp(v jsontext.Value) (*nostr.Timestamp, error) {
	n, err := whole(v)
	if err != nil {
		return nil, err
	}
	t := nostr.Timestamp(n)
	return &t, nil
}

func whole(v jsontext.Value) (int64, error) {
	if v.Kind() != '0' {
		return 0, badFilter
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < 0 {
		return 0, badFilter
	}
	return n, nil
}
