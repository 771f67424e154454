package remote

import (
	"errors"
	"fmt"
	"net/url"

	"holdfast/nip"
)

const (
	maxURL    = 2048
	maxRelays = 8
	maxSecret = 256
)

// bunkerURL is a parsed bunker:// URL. The secret admits a client once and must
// never be logged.
type bunkerURL struct {
	key    nip.PubKey // the bunker's own; the key it keeps may be another
	relays []nip.RelayURL
	secret string
}

// parseURL takes bunker://KEY?relay=URL&relay=URL&secret=TEXT. Its error never
// holds the input. Members that are not known are passed over.
func parseURL(s string, loopback bool) (bunkerURL, error) {
	if len(s) > maxURL {
		return bunkerURL{}, errors.New("the bunker URL is too long")
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "bunker" || u.User != nil || u.Path != "" && u.Path != "/" || u.Fragment != "" {
		return bunkerURL{}, errors.New("not a bunker URL of the form bunker://KEY?relay=URL")
	}
	key, err := nip.ParsePubKey(u.Host)
	if err != nil {
		return bunkerURL{}, errors.New("the bunker URL does not name a key of 64 hex characters")
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bunkerURL{}, errors.New("the bunker URL's query does not parse")
	}
	b := bunkerURL{key: key, secret: q.Get("secret")}
	if len(b.secret) > maxSecret {
		return bunkerURL{}, errors.New("the bunker URL's secret is too long")
	}
	if n := len(q["relay"]); n == 0 || n > maxRelays {
		return bunkerURL{}, fmt.Errorf("the bunker URL names %d relays; one to %d are good", n, maxRelays)
	}
	for _, r := range q["relay"] {
		if err := nip.CheckRelay(nip.RelayURL(r), loopback); err != nil {
			return bunkerURL{}, fmt.Errorf("a relay of the bunker URL is not allowed: %w", err)
		}
		b.relays = append(b.relays, nip.RelayURL(r))
	}
	return b, nil
}
