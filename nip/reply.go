package nip

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

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
	result := o.object("result")
	switch oneOf(result, "status", "ok", "refused") {
	case "ok":
		raw := result.raw("outcome")
		if len(raw) > maxOutcome+outcomeSlack {
			r.fail(Bounds, "the outcome is over 48 KiB")
		}
		p.Outcome = r.outcome(r.object("outcome", raw))
	case "refused":
		f := &Refusal{Code: oneOf(result, "code", codes...)}
		if !result.null("missing") {
			f.Missing = oneOf(result, "missing", allRights...)
		}
		p.Refusal = f
	}
	result.end()
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
	v.must((p.Outcome == nil) != (p.Refusal == nil), Malformed, "there is not exactly one of outcome and refusal")
	if f := p.Refusal; f != nil {
		v.must(slices.Contains(codes, f.Code), Malformed, "code is not known")
		v.must((f.Code == MissingRight) == (f.Missing != ""), Malformed, "missing does not agree with code")
		v.must(f.Missing == "" || slices.Contains(allRights, f.Missing), Malformed, "missing is not a right")
	} else if v.err == nil {
		v.outcome(p.Outcome)
	}
	return v.err
}

// EncodeReply writes a reply under the rules of ParseReply. Code bounds says that
// the outcome is over 49,152 bytes or the envelope's plaintext over 40,960: the
// host then signs a refusal with that code.
func EncodeReply(p Reply) (Artifact, error) {
	if err := checkReply(p); err != nil {
		return Artifact{}, err
	}
	result := members{"status": "refused"}
	if f := p.Refusal; f != nil {
		result["code"], result["missing"] = f.Code, nil
		if f.Missing != "" {
			result["missing"] = f.Missing
		}
	} else {
		outcome, err := EncodeOutcome(p.Outcome)
		if err != nil {
			return Artifact{}, err
		}
		result = members{"status": "ok", "outcome": jsontext.Value(outcome)}
	}
	return artifact(SchemaReply, members{
		"request": p.Request, "request_event": p.RequestEvent, "host": p.Host,
		"issued_at": p.IssuedAt, "expires_at": p.ExpiresAt, "result": result,
	}, p.IssuedAt, p.ExpiresAt)
}
