package nip

const maxGrantLife = 2_592_000 // seconds, 30 days

// ParseGrant decodes the canonical body of a host-signed grant (NIP-HOST,
// grant). Whether it is current, and who signed it, is for the caller.
func ParseGrant(inline []byte, p Profile) (Grant, error) {
	r := &reader{layer: layerSchema}
	o := r.document("grant", inline, maxBody)
	v, requires := o.header()
	g := Grant{ID: GrantID(o.text("grant"))}
	origin := o.object("origin")
	g.Origin = Origin{
		Kind: oneOf(origin, "kind", "invitation", "approval"),
		ID:   origin.text("id"), Issuer: PubKey(origin.text("issuer")),
	}
	origin.end()
	g.Host, g.Owner, g.Device = PubKey(o.text("host")), PubKey(o.text("owner")), PubKey(o.text("device"))
	g.Relay, g.Epoch = RelayURL(o.text("relay")), o.int("epoch")
	g.IssuedAt, g.ExpiresAt = o.int("issued_at"), o.int("expires_at")
	g.Rights = o.rights("rights")
	o.end()
	r.checkHeader(v, requires, SchemaGrant)
	if r.err == nil {
		r.err = checkGrant(g, p)
	}
	if r.err != nil {
		return Grant{}, r.err
	}
	return g, nil
}

func checkGrant(g Grant, p Profile) *Error {
	v := &validator{layer: layerSchema}
	v.id(string(g.ID), "grant")
	v.must(g.Origin.Kind == "invitation" || g.Origin.Kind == "approval", Malformed, "origin.kind has an unknown value")
	v.id(g.Origin.ID, "origin.id")
	v.key(g.Origin.Issuer, "origin.issuer")
	v.key(g.Host, "host")
	v.key(g.Owner, "owner")
	v.key(g.Device, "device")
	v.must(g.Host != g.Owner && g.Host != g.Device && g.Owner != g.Device, Forbidden,
		"host, owner and device are not three keys")
	v.relay(g.Relay, p)
	v.int(g.Epoch, "epoch")
	v.int(g.IssuedAt, "issued_at")
	v.int(g.ExpiresAt, "expires_at")
	v.must(g.ExpiresAt > g.IssuedAt && g.ExpiresAt-g.IssuedAt <= maxGrantLife, Malformed,
		"the grant lives not at all or over 30 days")
	v.must(g.Rights.valid(), Malformed, "rights are not a nonempty list in canonical order")
	return v.err
}

// EncodeGrant writes a grant under the rules of ParseGrant. A loopback relay
// passes: the relay of a grant is the host operator's own word.
func EncodeGrant(g Grant) (Artifact, error) {
	if err := checkGrant(g, Profile{Loopback: true}); err != nil {
		return Artifact{}, err
	}
	return artifact(SchemaGrant, members{
		"grant": g.ID, "host": g.Host, "owner": g.Owner, "device": g.Device,
		"origin": members{"kind": g.Origin.Kind, "id": g.Origin.ID, "issuer": g.Origin.Issuer},
		"relay":  g.Relay, "epoch": g.Epoch, "rights": g.Rights,
		"issued_at": g.IssuedAt, "expires_at": g.ExpiresAt,
	}, g.IssuedAt, g.ExpiresAt)
}
