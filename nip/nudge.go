package nip

const (
	nudgeLife  = 86_400 // seconds, exactly
	nudgeAhead = 300    // seconds that a device's clock may be ahead
)

// Nudge asks a host that was away to show itself (NIP-HOST, nudge). It lies in
// the nudges mailbox until the host comes back; it grants and changes nothing.
type Nudge struct {
	Host      PubKey
	Device    PubKey // the signer
	IssuedAt  int64
	ExpiresAt int64 // exactly IssuedAt+86,400
}

// Current reports whether a host that reads the nudge at now heeds it.
func (n Nudge) Current(now int64) bool {
	return n.IssuedAt <= now+nudgeAhead && now < n.ExpiresAt
}

// ParseNudge decodes the canonical body of a nudge. That its device signed it is
// for the caller.
func ParseNudge(inline []byte) (Nudge, error) {
	r := &reader{layer: layerSchema}
	o := r.document("nudge", inline, maxBody)
	v, requires := o.header()
	n := Nudge{
		Host: PubKey(o.text("host")), Device: PubKey(o.text("device")),
		IssuedAt: o.int("issued_at"), ExpiresAt: o.int("expires_at"),
	}
	o.end()
	r.checkHeader(v, requires, SchemaNudge)
	if r.err == nil {
		r.err = checkNudge(n)
	}
	if r.err != nil {
		return Nudge{}, r.err
	}
	return n, nil
}

func checkNudge(n Nudge) *Error {
	v := &validator{layer: layerSchema}
	v.key(n.Host, "host")
	v.key(n.Device, "device")
	v.must(n.Host != n.Device, Forbidden, "host and device are one key")
	v.int(n.IssuedAt, "issued_at")
	v.int(n.ExpiresAt, "expires_at")
	v.must(n.ExpiresAt-n.IssuedAt == nudgeLife, Malformed, "the nudge does not live exactly 86,400 seconds")
	return v.err
}

// EncodeNudge writes a nudge under the rules of ParseNudge.
func EncodeNudge(n Nudge) (Artifact, error) {
	if err := checkNudge(n); err != nil {
		return Artifact{}, err
	}
	return artifact(SchemaNudge, members{
		"host": n.Host, "device": n.Device, "issued_at": n.IssuedAt, "expires_at": n.ExpiresAt,
	}, n.IssuedAt, n.ExpiresAt)
}
