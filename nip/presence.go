package nip

// The bounds of a presence (NIP-HOST, companion records).
const (
	maxCapabilities = 64
	maxCapability   = 64
	maxProcessors   = 4_096
)

// ParsePresence decodes the canonical body of a presence. Telemetry and meta are
// checked and dropped; capabilities that nobody knows pass, since they grant
// nothing. That the host signed it and is not too old is for the caller.
func ParsePresence(inline []byte) (Presence, error) {
	r := &reader{layer: layerSchema}
	o := r.document("presence", inline, maxBody)
	v, requires := o.header()
	p := Presence{
		Host: PubKey(o.text("host")), Owner: PubKey(o.text("owner")),
		Generation: o.int("generation"), Protocol: o.int("protocol"),
	}
	compat := o.object("compatibility")
	p.Min, p.Max = compat.int("min"), compat.int("max")
	compat.end()
	p.Capabilities = o.texts("capabilities", maxCapabilities)
	p.ObservedAt = o.int("observed_at")
	if !o.null("telemetry") {
		o.object("telemetry").telemetry()
	}
	if o.has("meta") {
		o.object("meta")
	}
	o.end()
	r.checkHeader(v, requires, SchemaPresence)
	if r.err == nil {
		r.err = checkPresence(p)
	}
	if r.err != nil {
		return Presence{}, r.err
	}
	return p, nil
}

func (o object) telemetry() {
	cpus, used, free := o.int("cpu_count"), o.int("cpu_utilization_pct"), o.int("memory_available_pct")
	o.end()
	if cpus < 1 || cpus > maxProcessors || used > 100 || free > 100 {
		o.r.fail(Bounds, "telemetry is out of range")
	}
}

func checkPresence(p Presence) *Error {
	v := &validator{layer: layerSchema}
	v.key(p.Host, "host")
	v.key(p.Owner, "owner")
	v.must(p.Host != p.Owner, Forbidden, "host and owner are one key")
	v.int(p.Generation, "generation")
	v.int(p.Protocol, "protocol")
	v.int(p.Min, "compatibility.min")
	v.int(p.Max, "compatibility.max")
	v.must(p.Protocol >= 1 && p.Min >= 1 && p.Max >= p.Min, Malformed, "protocol or compatibility is impossible")
	v.int(p.ObservedAt, "observed_at")
	v.must(len(p.Capabilities) <= maxCapabilities, Bounds, "too many capabilities")
	seen := make(map[string]bool)
	for _, c := range p.Capabilities {
		v.must(validSlug(c), Malformed, "a capability is not a slug")
		v.must(!seen[c], Malformed, "a capability stands twice")
		seen[c] = true
	}
	return v.err
}

func validSlug(s string) bool {
	if s == "" || len(s) > maxCapability {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (i == 0 || c != '_' && c != '-') {
			return false
		}
	}
	return true
}

// EncodePresence writes a presence under the rules of ParsePresence, without
// telemetry. retain is the Unix second until which relays keep it.
func EncodePresence(p Presence, retain int64) (Artifact, error) {
	if err := checkPresence(p); err != nil {
		return Artifact{}, err
	}
	if retain <= p.ObservedAt {
		return Artifact{}, fault(Malformed, layerSchema, "retain_until is not after observed_at")
	}
	return artifact(SchemaPresence, members{
		"host": p.Host, "owner": p.Owner, "generation": p.Generation, "protocol": p.Protocol,
		"compatibility": members{"min": p.Min, "max": p.Max}, "capabilities": p.Capabilities,
		"observed_at": p.ObservedAt, "telemetry": nil,
	}, p.ObservedAt, retain)
}
