package nip

const maxEnrollmentLife = 300 // seconds

// Enrollment is the request by which a host without a screen asks to be reached
// (NIP-HOST, enrollment request). The host seals the same body to its owner and
// its administrators, in the mailbox that is the enrollment's ID; the digest of
// the body is what they approve. The short code is not in it.
type Enrollment struct {
	ID        EnrollmentID
	Host      PubKey
	Owner     PubKey
	Relay     RelayURL
	Rights    Rights // the most that may be granted
	IssuedAt  int64
	ExpiresAt int64 // at most 300 s after IssuedAt
}

// ParseEnrollment decodes the canonical body of an enrollment request. That its
// host signed it, and which host that is, is for the caller.
func ParseEnrollment(inline []byte, p Profile) (Enrollment, error) {
	r := &reader{layer: layerSchema}
	o := r.document("enrollment", inline, maxBody)
	v, requires := o.header()
	e := Enrollment{
		ID: EnrollmentID(o.text("enrollment")), Host: PubKey(o.text("host")), Owner: PubKey(o.text("owner")),
		Relay: RelayURL(o.text("relay")), Rights: o.rights("rights"),
		IssuedAt: o.int("issued_at"), ExpiresAt: o.int("expires_at"),
	}
	o.end()
	r.checkHeader(v, requires, SchemaEnrollment)
	if r.err == nil {
		r.err = checkEnrollment(e, p)
	}
	if r.err != nil {
		return Enrollment{}, r.err
	}
	return e, nil
}

func checkEnrollment(e Enrollment, p Profile) *Error {
	v := &validator{layer: layerSchema}
	v.id(string(e.ID), "enrollment")
	v.key(e.Host, "host")
	v.key(e.Owner, "owner")
	v.must(e.Host != e.Owner, Forbidden, "host and owner are one key")
	v.relay(e.Relay, p)
	v.must(e.Rights.valid(), Malformed, "rights are not a nonempty list in canonical order")
	v.int(e.IssuedAt, "issued_at")
	v.int(e.ExpiresAt, "expires_at")
	v.must(e.ExpiresAt > e.IssuedAt && e.ExpiresAt-e.IssuedAt <= maxEnrollmentLife, Malformed,
		"the enrollment lives not at all or over 300 seconds")
	return v.err
}

// EncodeEnrollment writes an enrollment request under the rules of
// ParseEnrollment. A loopback relay passes: it is the host operator's own word.
// DigestOf its Inline is the request digest that an approval names.
func EncodeEnrollment(e Enrollment) (Artifact, error) {
	if err := checkEnrollment(e, Profile{Loopback: true}); err != nil {
		return Artifact{}, err
	}
	return artifact(SchemaEnrollment, members{
		"enrollment": e.ID, "host": e.Host, "owner": e.Owner, "relay": e.Relay, "rights": e.Rights,
		"issued_at": e.IssuedAt, "expires_at": e.ExpiresAt,
	}, e.IssuedAt, e.ExpiresAt)
}
