package nip

import "github.com/go-json-experiment/json/jsontext"

const maxRequestLife = 60 // seconds

// ParseRequest decodes the canonical body of a request (NIP-HOST, request). It
// is hop 3 of the data path: before it Open (nip/envelope.go) made the body
// certain, after it admission (host/admit.go) asks whether this principal may
// ask this now.
//
// An error says that the outer members are bad: the host stays silent. Where
// only the operation is bad, the Request comes with Op nil and OpRefusal set, so
// that a current principal gets a signed answer.
func ParseRequest(inline []byte, p Profile) (Request, error) {
	r := &reader{layer: layerRequest}
	o := r.document("request", inline, maxBody)
	v, requires := o.header()
	q := Request{ID: RequestID(o.text("request")), Host: PubKey(o.text("host"))}
	noGrant, noEpoch := o.null("grant"), o.null("epoch")
	q.Epoch = -1
	if !noGrant {
		q.Grant = GrantID(o.text("grant"))
	}
	if !noEpoch {
		q.Epoch = o.int("epoch")
	}
	q.Relay = RelayURL(o.text("relay"))
	q.IssuedAt, q.ExpiresAt = o.int("issued_at"), o.int("expires_at")
	op := o.raw("op")
	o.end()
	r.checkHeader(v, requires, SchemaRequest)
	if noGrant != noEpoch {
		r.fail(Malformed, "grant and epoch are not both there or both null")
	}
	if r.err != nil {
		return Request{}, r.err
	}
	q.Kind, q.Op, q.OpRefusal = parseOperation(op)
	if err := checkRequest(q, p); err != nil {
		return Request{}, err
	}
	return q, nil
}

// checkRequest holds the outer members to their rules. That a redemption names
// no grant is one of them: its sender has none yet, so a grant in it is a lie.
func checkRequest(q Request, p Profile) *Error {
	v := &validator{layer: layerRequest}
	v.id(string(q.ID), "request")
	v.key(q.Host, "host")
	if q.Grant == "" {
		v.must(q.Epoch == -1, Malformed, "epoch stands without a grant")
	} else {
		v.id(string(q.Grant), "grant")
		v.int(q.Epoch, "epoch")
		v.must(q.Kind != EnrollRedeem{}.Kind(), Malformed, "a redemption names a grant")
	}
	v.relay(q.Relay, p)
	v.int(q.IssuedAt, "issued_at")
	v.int(q.ExpiresAt, "expires_at")
	v.must(q.ExpiresAt > q.IssuedAt && q.ExpiresAt-q.IssuedAt <= maxRequestLife, Malformed,
		"the request lives not at all or over 60 seconds")
	return v.err
}

// EncodeRequest writes a device's or an owner's request under the rules of
// ParseRequest. Its kind is that of Op; Kind and OpRefusal are not looked at. A
// loopback relay passes, since the relay comes from the sender's own grant.
func EncodeRequest(q Request) (Artifact, error) {
	op, err := EncodeOperation(q.Op)
	if err != nil {
		return Artifact{}, err
	}
	q.Kind = q.Op.Kind()
	if err := checkRequest(q, Profile{Loopback: true}); err != nil {
		return Artifact{}, err
	}
	m := members{
		"request": q.ID, "host": q.Host, "grant": nil, "epoch": nil, "relay": q.Relay,
		"issued_at": q.IssuedAt, "expires_at": q.ExpiresAt, "op": jsontext.Value(op),
	}
	if q.Grant != "" {
		m["grant"], m["epoch"] = q.Grant, q.Epoch
	}
	return artifact(SchemaRequest, m, q.IssuedAt, q.ExpiresAt)
}
