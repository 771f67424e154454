package client

import (
	"bytes"
	"encoding/json"
	"fmt"

	"holdfast/nip"
)

// maxAccess bounds an access record: a grant and the event that carries it.
const maxAccess = 512 << 10

// recordName is what errors call an access record.
const recordName = "access record"

// access is the device's proof of its standing: the grant, and the host's
// signed envelope from which it was taken (NIP-HOST, access record).
//
// Of an owner it is a person's word alone: grant then says which host, over which
// relay, without an ID, and there is no event.
type access struct {
	grant nip.Grant
	event *nip.Event
	body  []byte // canonical bytes of the grant
	owner bool
}

// admit opens the envelope of a grant and checks everything that does not need
// an invitation: the signer is the granting host, it is sealed to this device
// and names it, and the mailbox is the grant's ID. Whether it is still current
// is asked at each use, because an expired record is not a damaged one.
func admit(ev *nip.Event, key nip.SecretKey, p nip.Profile) (access, error) {
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		return access{}, fmt.Errorf("grant event: %w", err)
	}
	return admitVerified(v, key, p)
}

func admitVerified(v nip.Verified, key nip.SecretKey, p nip.Profile) (access, error) {
	o, err := nip.Open(v, key)
	if err != nil {
		return access{}, fmt.Errorf("grant envelope: %w", err)
	}
	if o.Schema != nip.SchemaGrant {
		return access{}, fmt.Errorf("envelope holds %q, not a grant", o.Schema)
	}
	g, err := nip.ParseGrant(o.Inline, p)
	if err != nil {
		return access{}, fmt.Errorf("grant: %w", err)
	}
	self := key.Public()
	switch {
	case o.Signer != g.Host:
		return access{}, fmt.Errorf("grant is not signed by its host")
	case o.Recipient != self || g.Device != self:
		return access{}, fmt.Errorf("grant is for another device")
	case string(o.Mailbox) != string(g.ID):
		return access{}, fmt.Errorf("grant is in a foreign mailbox")
	case o.IssuedAt != g.IssuedAt || o.RetainUntil != g.ExpiresAt:
		return access{}, fmt.Errorf("grant and envelope disagree about time")
	}
	return access{grant: g, event: v.Event(), body: o.Inline}, nil
}

// encode is the record as it stands in its file.
func (a access) encode() ([]byte, error) {
	b, err := json.Marshal(map[string]any{
		"v":             nip.SchemaAccess,
		"requires":      []string{},
		"grant":         json.RawMessage(a.body),
		"authorization": json.RawMessage(nip.EncodeEvent(a.event)),
	})
	if err != nil {
		return nil, err
	}
	return nip.Canonical(b)
}

// parseAccess decodes and verifies an access record. Nothing in it is believed that
// the host's signed envelope does not repeat byte for byte.
func parseAccess(raw []byte, key nip.SecretKey, p nip.Profile) (access, error) {
	if len(raw) > maxAccess {
		return access{}, fmt.Errorf("%w: %s is too long", ErrDamaged, recordName)
	}
	canon, err := nip.Canonical(raw)
	if err != nil {
		return access{}, fmt.Errorf("%w: %s: %w", ErrDamaged, recordName, err)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(canon, &m); err != nil {
		return access{}, fmt.Errorf("%w: %s is not an object", ErrDamaged, recordName)
	}
	var v string
	if err := json.Unmarshal(m["v"], &v); err != nil {
		return access{}, fmt.Errorf("%w: %s has no version", ErrDamaged, recordName)
	}
	if v != nip.SchemaAccess {
		return access{}, fmt.Errorf("%w: %s has version %q", ErrNewer, recordName, bounded(v))
	}
	if requires := string(m["requires"]); requires != "[]" && len(m) == 4 {
		return access{}, fmt.Errorf("%w: %s requires features", ErrNewer, recordName)
	}
	if len(m) != 4 || m["grant"] == nil || m["authorization"] == nil {
		return access{}, fmt.Errorf("%w: %s has the wrong members", ErrDamaged, recordName)
	}
	ev, err := nip.ParseEvent(m["authorization"])
	if err != nil {
		return access{}, fmt.Errorf("%w: %s: %w", ErrDamaged, recordName, err)
	}
	a, err := admit(ev, key, p)
	if err != nil {
		return access{}, fmt.Errorf("%w: %s: %w", ErrDamaged, recordName, err)
	}
	if !bytes.Equal(m["grant"], a.body) {
		return access{}, fmt.Errorf("%w: %s shows another grant than the host signed", ErrDamaged, recordName)
	}
	return a, nil
}
