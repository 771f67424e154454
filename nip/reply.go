package nip

import "slices"

// The ceiling of an encoded outcome, and what a reader grants beyond it.
const (
	maxOutcome   = 49_152
	outcomeSlack = 1_024
)

var codes = []Code{
	Malformed, Unsupported, Forbidden, MissingRight, Expired, Revoked, Stale, Conflict,
	Bounds, Unavailable, RateLimited, WrongCode, Denied,
}

// ParseReply decodes the canonical body of a reply (NIP-HOST, reply). It says
// unsupported for an outcome of a kind that has no shape here. Whether it answers
// the request that was sent is for the caller: compare the IDs, the host and the
// times, then ask Answers.
func ParseReply(inline []byte) (Reply, error) {
	r := &reader{layer: layerSchema}
	o := r.document("reply", inline, maxBody)
	v, requires := o.header()
	p := Reply{
		Request: RequestID(o.text("request")), RequestEvent: EventID(o.text("request_event")),
		Host: PubKey(o.text("host")), IssuedAt: o.int("issued_at"), ExpiresAt: o.int("expires_at"),
	}
	result := o.object("result").result()
	p.Outcome, p.Refusal = result.Outcome, result.Refusal
	o.end()
	r.checkHeader(v, requires, SchemaReply)
	if r.err == nil {
		r.err = checkReply(p)
	}
	if r.err != nil {
		return Reply{}, r.err
	}
	return p, nil
}

func checkReply(p Reply) *Error {
	v := &validator{layer: layerSchema}
	v.id(string(p.Request), "request")
	v.id(string(p.RequestEvent), "request_event")
	v.key(p.Host, "host")
	v.int(p.IssuedAt, "issued_at")
	v.int(p.ExpiresAt, "expires_at")
	v.must(p.ExpiresAt > p.IssuedAt, Malformed, "the reply was issued at or after its end")
	v.result(Result{p.Outcome, p.Refusal})
	return v.err
}

func (v *validator) refusal(f Refusal) {
	v.must(slices.Contains(codes, f.Code), Malformed, "code is not known")
	v.must((f.Code == MissingRight) == (f.Missing != ""), Malformed, "missing does not agree with code")
	v.must(f.Missing == "" || slices.Contains(allRights, f.Missing), Malformed, "missing is not a right")
}

// EncodeReply writes a reply under the rules of ParseReply. Code bounds says that
// the outcome is over 49,152 bytes or the envelope's plaintext over 40,960: the
// host then signs a refusal with that code.
func EncodeReply(p Reply) (Artifact, error) {
	if err := checkReply(p); err != nil {
		return Artifact{}, err
	}
	result, err := resultMembers(Result{p.Outcome, p.Refusal})
	if err != nil {
		return Artifact{}, err
	}
	return artifact(SchemaReply, members{
		"request": p.Request, "request_event": p.RequestEvent, "host": p.Host,
		"issued_at": p.IssuedAt, "expires_at": p.ExpiresAt, "result": result,
	}, p.IssuedAt, p.ExpiresAt)
}
