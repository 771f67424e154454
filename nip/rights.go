package nip

import "slices"

// allRights stands in canonical order; a list of rights follows it.
var allRights = []Right{Observe, Operate, Terminal, Review, AccessRead, AccessAdmin}

// ParseRights takes a list that is nonempty, in canonical order and without
// repeats; anything else is malformed.
func ParseRights(list []string) (Rights, error) {
	out := make(Rights, len(list))
	for i, s := range list {
		out[i] = Right(s)
	}
	if !out.valid() {
		return nil, fault(Malformed, layerSchema, "rights are not a nonempty list in canonical order")
	}
	return out, nil
}

func (r Rights) valid() bool {
	last := -1
	for _, x := range r {
		i := slices.Index(allRights, x)
		if i <= last {
			return false
		}
		last = i
	}
	return len(r) > 0
}

// Has reports whether r names x itself; no right implies another.
func (r Rights) Has(x Right) bool { return slices.Contains(r, x) }

// Within reports whether ceiling has every right of r.
func (r Rights) Within(ceiling Rights) bool {
	for _, x := range r {
		if !ceiling.Has(x) {
			return false
		}
	}
	return true
}

// StandardRights is what an invitation gives unless told otherwise.
func StandardRights() Rights { return slices.Clone(Rights(allRights[:4])) }

// PairingRights is all six.
func PairingRights() Rights { return slices.Clone(Rights(allRights)) }

// rights takes a list of rights; its order is part of decoding.
func (o object) rights(name string) Rights {
	list := o.texts(name, maxBody)
	if o.r.err != nil {
		return nil
	}
	out, err := ParseRights(list)
	if err != nil {
		o.r.fail(Malformed, o.path+"."+name+" is not a nonempty list in canonical order")
	}
	return out
}
