package bpf

import (
	"fmt"
	"slices"
)

// Compile makes the program that enforces the policy on an architecture. It
// fails only for an architecture that there is no policy for.
func Compile(arch Arch, granted Grant) (Program, error) {
	if unused[arch] == nil {
		return nil, fmt.Errorf("no system call filter for this processor: only amd64 and arm64 have one")
	}
	a := &assembler{}
	a.load(offsetArch)
	a.compare(opEqual, uint32(arch), "native", "")
	a.ret(uint32(Kill))
	a.label("native")
	a.load(offsetNumber)
	if arch == AMD64 {
		a.compare(opGreater, x32-1, "", "not x32")
		a.ret(uint32(ENOSYS))
		a.label("not x32")
	}
	a.compare(opGreater, newest, "", "known")
	a.ret(uint32(ENOSYS))
	a.label("known")
	for _, s := range unused[arch] {
		a.compare(opGreater, s.from-1, "", "used")
		a.compare(opGreater, s.to, "used", "")
		a.ret(uint32(ENOSYS))
		a.label("used")
	}
	find(a, calls(arch, granted))
	return a.finish()
}

// few is how many calls are compared with one after the other.
const few = 3

// find adds a search by halves for the number of a call, and a verdict at each
// end of it. The kernel walks the whole program once for every number there is
// when it takes the filter, to remember which are always allowed; in a list that
// costs more than all the rest of the start of a filter.
func find(a *assembler, ordered []call) {
	if len(ordered) <= few {
		for _, c := range ordered {
			c.compile(a)
		}
		a.ret(uint32(Allow))
		return
	}
	half := len(ordered) / 2
	above := fmt.Sprint("above ", ordered[half-1].number)
	a.compare(opGreater, ordered[half-1].number, above, "")
	find(a, ordered[:half])
	a.label(above)
	find(a, ordered[half:])
}

// call is what the policy says about one number, in the policy's order.
type call struct {
	number uint32
	rows   []Row
}

// calls groups the rows that stand by the number of their call, in order.
func calls(arch Arch, granted Grant) []call {
	var all []call
	at := map[uint32]int{}
	for _, r := range policy {
		number := r.number(arch)
		if number == none || granted&r.With != r.With || granted&r.Without != 0 {
			continue
		}
		n := uint32(number)
		if _, ok := at[n]; !ok {
			at[n] = len(all)
			all = append(all, call{number: n})
		}
		all[at[n]].rows = append(all[at[n]].rows, r)
	}
	slices.SortFunc(all, func(x, y call) int { return int(x.number) - int(y.number) })
	return all
}

func (r Row) number(arch Arch) int {
	if arch == ARM64 {
		return r.ARM64
	}
	return r.AMD64
}

// compile adds a block that ends in a verdict, or that another call passes by.
func (c call) compile(a *assembler) {
	a.compare(opEqual, c.number, "", "next call")
	final := false
	for _, r := range c.rows {
		for _, w := range r.When {
			w.compile(a)
		}
		a.ret(uint32(r.Verdict))
		a.label("next row")
		final = final || len(r.When) == 0
	}
	if !final {
		a.ret(uint32(Allow))
	}
	a.label("next call")
}

// compile goes on where the condition holds, and to the next row where not.
func (w Condition) compile(a *assembler) {
	a.load(offsetArgs + 8*uint32(w.Arg)) // the low half of a little-endian word
	if w.Mask != ^uint32(0) {
		a.and(w.Mask)
	}
	for i, value := range w.In {
		switch last := i == len(w.In)-1; {
		case w.Not:
			a.compare(opEqual, value, "next row", "")
		case last:
			a.compare(opEqual, value, "", "next row")
		default:
			a.compare(opEqual, value, "holds", "")
		}
	}
	a.label("holds")
}
