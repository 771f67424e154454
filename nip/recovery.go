package nip

import "github.com/go-json-experiment/json/jsontext"

type (
	// RequestOperation asks what came of an earlier request of the same signer
	// (NIP-HOST, request.operation), when its reply was lost for good.
	RequestOperation struct {
		Request      RequestID
		RequestEvent EventID
	}
	// RecordedOperation is the outcome "request_operation".
	RecordedOperation struct {
		Request      RequestID
		RequestEvent EventID
		Result       *Result // nil: unknown or not decided
	}
	// Result is the result of a reply. Exactly one of Outcome and Refusal is set.
	Result struct {
		Outcome Outcome
		Refusal *Refusal
	}
)

func (RequestOperation) Kind() string { return "request.operation" }

// Right is what the question itself needs; the host asks for the right of the
// original as well.
func (RequestOperation) Right() Right { return Observe }

func (RecordedOperation) OutcomeKind() string { return "request_operation" }

// result takes a result object, of a reply or of a recorded operation.
func (o object) result() Result {
	var out Result
	switch oneOf(o, "status", "ok", "refused") {
	case "ok":
		raw := o.raw("outcome")
		if len(raw) > maxOutcome+outcomeSlack {
			o.r.fail(Bounds, "the outcome is over 48 KiB")
		}
		out.Outcome = o.r.outcome(o.r.object("outcome", raw))
	case "refused":
		f := &Refusal{Code: oneOf(o, "code", codes...)}
		if !o.null("missing") {
			f.Missing = oneOf(o, "missing", allRights...)
		}
		out.Refusal = f
	}
	o.end()
	return out
}

func (o object) recorded() RecordedOperation {
	out := RecordedOperation{Request: RequestID(o.text("request")), RequestEvent: EventID(o.text("request_event"))}
	if !o.null("result") {
		res := o.object("result").result()
		out.Result = &res
	}
	return out
}

func (v *validator) result(res Result) {
	v.must((res.Outcome == nil) != (res.Refusal == nil), Malformed, "there is not exactly one of outcome and refusal")
	if v.err != nil {
		return
	}
	if f := res.Refusal; f != nil {
		v.refusal(*f)
		return
	}
	v.outcome(res.Outcome)
}

// recorded refuses a record of a record: a question is never retained, so no
// host has such a thing, and one level is all that a reader goes down.
func (v *validator) recorded(out RecordedOperation) {
	v.id(string(out.Request), "request")
	v.id(string(out.RequestEvent), "request_event")
	if out.Result == nil {
		return
	}
	_, nested := out.Result.Outcome.(RecordedOperation)
	v.must(!nested, Malformed, "a recorded operation inside another")
	v.result(*out.Result)
}

// resultMembers writes a result that was validated.
func resultMembers(res Result) (members, error) {
	if f := res.Refusal; f != nil {
		m := members{"status": "refused", "code": f.Code, "missing": nil}
		if f.Missing != "" {
			m["missing"] = f.Missing
		}
		return m, nil
	}
	outcome, err := EncodeOutcome(res.Outcome)
	if err != nil {
		return nil, err
	}
	return members{"status": "ok", "outcome": jsontext.Value(outcome)}, nil
}

// EncodeResult writes a result object alone, canonically: what a host keeps so
// that it can answer request.operation later. More than 49,152 bytes of outcome
// is bounds.
func EncodeResult(res Result) ([]byte, error) {
	v := &validator{layer: layerSchema}
	v.result(res)
	if v.err != nil {
		return nil, v.err
	}
	m, err := resultMembers(res)
	if err != nil {
		return nil, err
	}
	return encode(m)
}

// ParseResult reads what EncodeResult wrote, under the rules of a reply's result.
func ParseResult(raw []byte) (Result, error) {
	r := &reader{layer: layerSchema}
	res := r.document("result", raw, maxBody).result()
	if r.err == nil {
		v := &validator{layer: layerSchema}
		v.result(res)
		r.err = v.err
	}
	if r.err != nil {
		return Result{}, r.err
	}
	return res, nil
}

func recordedMembers(m members, out RecordedOperation) error {
	m["request"], m["request_event"], m["result"] = out.Request, out.RequestEvent, nil
	if out.Result == nil {
		return nil
	}
	res, err := resultMembers(*out.Result)
	m["result"] = res
	return err
}
