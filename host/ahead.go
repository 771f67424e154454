package host

import "holdfast/nip"

// aheadReply is the reply that a request will most likely have, sealed on a
// goroutine of its own while the request waits for the disk. Sealed inside the
// commit that makes it true it would hold up everybody's: there is one
// committer. It says nothing to anybody: the commit keeps it, for exact retries,
// only where it came to the very same answer, and only then may it leave.
type aheadReply struct {
	outcome nip.Dispatched
	done    chan struct{}
	v       nip.Verified // once done is closed; zero where it could not be sealed
}

// sealAhead begins to seal the reply with this outcome. The caller waits for its
// end before it lets go of k.
func (h *Host) sealAhead(k *call, outcome nip.Dispatched) *aheadReply {
	a := &aheadReply{outcome: outcome, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		// Whatever is wrong here is wrong again in the commit, which seals the
		// reply itself then and says so.
		defer func() { _ = recover() }()
		if v, err := h.sealAt(k, nip.Reply{Outcome: outcome}, h.now()); err == nil {
			a.v = v
		}
	}()
	return a
}

// take is what was sealed, once it is, where r says the same.
func (a *aheadReply) take(r nip.Reply) (v nip.Verified, ok bool) {
	if a == nil || r.Refusal != nil || r.Outcome != nip.Outcome(a.outcome) {
		return v, false
	}
	<-a.done
	return a.v, a.v.Event() != nil
}
