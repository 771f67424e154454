package nip

import "errors"

// The layers an Error names.
const (
	layerJSON      = "json"
	layerEvent     = "event"
	layerEnvelope  = "envelope"
	layerSchema    = "schema"
	layerRequest   = "request"
	layerOperation = "operation"
	layerPolicy    = "policy"
)

// Error is what every parser and verifier here returns: the wire code that the
// fault has and the layer that found it ("json", "event", "envelope", "schema",
// "request", "operation", "policy"). Its text names the member, never its value.
type Error struct {
	Code   Code
	Layer  string
	Detail string
}

func (e *Error) Error() string {
	return "nip: " + e.Layer + ": " + string(e.Code) + ": " + e.Detail
}

func fault(code Code, layer, detail string) *Error {
	return &Error{Code: code, Layer: layer, Detail: detail}
}

// asError brings a nil *Error back to a nil error; a typed nil in an interface
// would read as a failure.
func asError(e *Error) error {
	if e == nil {
		return nil
	}
	return e
}

// withLayer gives an error of this package another layer and leaves its code.
func withLayer(err error, layer, prefix string) *Error {
	var e *Error
	if !errors.As(err, &e) {
		return fault(Malformed, layer, prefix)
	}
	return fault(e.Code, layer, prefix+": "+e.Detail)
}
