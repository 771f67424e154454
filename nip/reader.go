package nip

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

const maxRequires = 64 // names, read before any of them refuses

// reader takes closed objects apart. It keeps the first fault and gives zero
// values after it; a parser asks once, at the end, and then drops the value, so
// a half-filled one never leaves this package.
type reader struct {
	layer string
	err   *Error
}

// object holds the members of one object that were not taken yet.
type object struct {
	r    *reader
	path string
	m    map[string]jsontext.Value
}

func (r *reader) fail(code Code, detail string) {
	if r.err == nil {
		r.err = fault(code, r.layer, detail)
	}
}

// document checks b strictly as one document and opens its object.
func (r *reader) document(path string, b []byte, limit int) object {
	if err := checkJSON(b, limit, true); err != nil && r.err == nil {
		r.err = err.(*Error)
	}
	return r.object(path, b)
}

// object opens v, which was checked before as part of a document.
func (r *reader) object(path string, v jsontext.Value) object {
	o := object{r: r, path: path}
	if r.err != nil {
		return o
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(v))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		r.fail(Malformed, path+" is not an object")
		return o
	}
	o.m = make(map[string]jsontext.Value)
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken()
		if err != nil {
			break
		}
		key := name.String() // the token dies with the next read
		val, err := dec.ReadValue()
		if err != nil {
			break
		}
		end := dec.InputOffset()
		o.m[key] = v[end-int64(len(val)) : end]
	}
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '}' {
		r.fail(Malformed, path+" is not an object")
	}
	return o
}

// end refuses the members that nobody took.
func (o object) end() {
	if len(o.m) > 0 {
		o.r.fail(Malformed, "unknown member in "+o.path)
	}
}

func (o object) has(name string) bool {
	_, ok := o.m[name]
	return ok
}

// raw takes a member that must be there.
func (o object) raw(name string) jsontext.Value {
	v, ok := o.m[name]
	if !ok {
		o.r.fail(Malformed, o.path+"."+name+" is missing")
		return nil
	}
	delete(o.m, name)
	return v
}

// null reports whether a nullable member is null, and takes it then. Absence
// counts as null: the draft's own reader takes it so, and nothing is decided by
// the difference. We always write the null.
func (o object) null(name string) bool {
	v, ok := o.m[name]
	if ok && v.Kind() != 'n' {
		return false
	}
	delete(o.m, name)
	return true
}

func (o object) text(name string) string {
	s, ok := unquote(o.raw(name))
	if !ok {
		o.r.fail(Malformed, o.path+"."+name+" is not a string")
	}
	return s
}

func unquote(v jsontext.Value) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	b, err := jsontext.AppendUnquote(nil, v)
	return string(b), err == nil
}

// int takes an integer from 0 to 2^53-1; no wire integer is negative.
func (o object) int(name string) int64 {
	v := o.raw(name)
	if o.r.err != nil {
		return 0
	}
	if v.Kind() == '0' && isInteger(string(v)) {
		if n, err := strconv.ParseInt(string(v), 10, 64); err == nil && n >= 0 && n <= maxInt {
			return n
		}
	}
	o.r.fail(Malformed, o.path+"."+name+" is not an integer from 0 to 2^53-1")
	return 0
}

func (o object) intOrNull(name string) *int64 {
	if o.null(name) {
		return nil
	}
	n := o.int(name)
	return &n
}

func (o object) bool(name string) bool {
	v := o.raw(name)
	if o.r.err != nil {
		return false
	}
	if k := v.Kind(); k != 't' && k != 'f' {
		o.r.fail(Malformed, o.path+"."+name+" is not a boolean")
	}
	return v.Kind() == 't'
}

func (o object) object(name string) object {
	return o.r.object(o.path+"."+name, o.raw(name))
}

// list takes an array of at most limit values; more is bounds.
func (o object) list(name string, limit int) []jsontext.Value {
	v := o.raw(name)
	if o.r.err != nil {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(v))
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '[' {
		o.r.fail(Malformed, o.path+"."+name+" is not an array")
		return nil
	}
	var out []jsontext.Value
	for dec.PeekKind() != ']' {
		val, err := dec.ReadValue()
		if err != nil {
			o.r.fail(Malformed, o.path+"."+name+" is not an array")
			return nil
		}
		if len(out) == limit {
			o.r.fail(Bounds, o.path+"."+name+" has too many elements")
			return nil
		}
		end := dec.InputOffset()
		out = append(out, v[end-int64(len(val)):end])
	}
	return out
}

func (o object) texts(name string, limit int) []string {
	var out []string
	for _, v := range o.list(name, limit) {
		s, ok := unquote(v)
		if !ok {
			o.r.fail(Malformed, o.path+"."+name+" has an element that is not a string")
			return nil
		}
		out = append(out, s)
	}
	return out
}

// oneOf takes a string of a closed set.
func oneOf[T ~string](o object, name string, set ...T) T {
	s := T(o.text(name))
	if !slices.Contains(set, s) {
		o.r.fail(Malformed, o.path+"."+name+" has an unknown value")
	}
	return s
}

// header takes `v` and `requires`, the first members of every HOST body. Their
// shape is part of decoding; what they say is judged by checkHeader after it.
func (o object) header() (v string, requires []string) {
	return o.text("v"), o.texts("requires", maxRequires)
}

func (r *reader) checkHeader(v string, requires []string, schema string) {
	if v != schema {
		r.fail(Unsupported, "v is not "+schema)
	}
	if len(requires) > 0 {
		r.fail(Unsupported, "requires names a feature")
	}
}
