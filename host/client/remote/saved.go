package remote

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"holdfast/nip"
)

const (
	savedVersion = "holdfast.device-bunker.v1"
	// MaxSaved bounds what Save writes and Resume reads, in bytes.
	MaxSaved = 8192
)

// ErrNewer is returned by Resume for what a later version saved.
var ErrNewer = errors.New("the bunker's record was made by a newer holdfast")

// saved is a bunker between two processes. It holds two secrets: this client's
// key, by which the bunker knows it, and that of the URL.
type saved struct {
	V        string     `json:"v"`
	URL      string     `json:"url"`
	Client   string     `json:"client"`
	Key      nip.PubKey `json:"key"` // that the bunker keeps
	Loopback bool       `json:"loopback"`
}

// Save is the bunker as Resume takes it. It holds secrets and belongs into a
// private file.
func (b *Bunker) Save() ([]byte, error) {
	raw, err := json.Marshal(saved{V: savedVersion, URL: b.text, Client: b.key.Hex(), Key: b.user, Loopback: b.near})
	if err != nil {
		return nil, fmt.Errorf("encode bunker: %w", err)
	}
	return append(raw, '\n'), nil
}

// Resume is the bunker that Save wrote, without asking it anything: it knows
// this client already, and many take the secret of their URL once only. The key
// and the loopback word of o are not looked at. The error never holds the input.
func Resume(raw []byte, o Options) (*Bunker, error) {
	if len(raw) > MaxSaved {
		return nil, errors.New("the bunker's record is too long")
	}
	var version struct {
		V string `json:"v"`
	}
	if err := json.Unmarshal(raw, &version); err != nil {
		return nil, errors.New("the bunker's record is no JSON object")
	}
	if version.V != savedVersion {
		return nil, ErrNewer
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	var s saved
	if err := dec.Decode(&s); err != nil {
		return nil, errors.New("the bunker's record has the wrong members")
	}
	key, err := nip.ParseSecretKey(s.Client)
	if err != nil {
		return nil, errors.New("the bunker's record holds no client key")
	}
	user, err := nip.ParsePubKey(string(s.Key))
	if err != nil {
		return nil, errors.New("the bunker's record does not name the key that it keeps")
	}
	o.Key, o.Loopback = key, s.Loopback
	b, err := newBunker(s.URL, o)
	if err != nil {
		return nil, err
	}
	b.user = user
	return b, nil
}
