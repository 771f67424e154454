package embedded

import (
	"errors"
	"math"
	"sync"
	"time"

	"holdfast/nip"
)

const (
	futureMost       = 900 // seconds that created_at may lie ahead
	strangersAMinute = 64  // events from one address
	maxAddresses     = 1024
)

// What a publisher is told.
const (
	authRequired refusal = "auth-required: authenticate first (NIP-42)"
	revokedKey   refusal = "restricted: this key is revoked"
	otherKind    refusal = "blocked: this relay keeps kind 3188 only"
	otherAuthor  refusal = "restricted: publish your own events only"
	notServed    refusal = "restricted: write to a host that this relay serves"
	tooLarge     refusal = "invalid: event too large for a key that is not paired"
	tooFast      refusal = "rate-limited: too many events from keys that are not paired; wait a minute"
	future       refusal = "invalid: created_at lies too far in the future"
	expired      refusal = "invalid: the event has expired"
	notVerified  refusal = "invalid: the event's id, signature or tags do not hold"
)

var (
	errBroken  = refusal("error: the relay's store failed; nothing is taken until it is opened again")
	errClosing = errors.New("relay closing")
)

// accept decides whether key may publish ev and verifies it. Cheap questions
// come first, the signature last.
func (r *Relay) accept(key nip.PubKey, address string, via nip.RelayURL, ev *nip.Event) (*record, nip.Verified, error) {
	var none nip.Verified
	if err := r.allow(key, address, ev); err != nil {
		return nil, none, err
	}
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		return nil, none, notVerified
	}
	rec, err := r.file(key, via, v)
	return rec, v, err
}

// allow is every question but whether ev verifies.
func (r *Relay) allow(key nip.PubKey, address string, ev *nip.Event) error {
	if key == "" {
		return authRequired
	}
	class := r.o.Class(key)
	switch {
	case class != Stranger && class != Member:
		return revokedKey
	case ev.Kind != nip.KindArtifact:
		return otherKind
	case ev.PubKey != string(key):
		return otherAuthor
	case int64(ev.CreatedAt) > r.o.Now().Unix()+futureMost:
		return future
	case ended(expiration(ev), r.o.Now()):
		return expired
	case !r.mayWrite(key, class, nip.PubKey(recipientOf(ev))):
		return notServed
	case class == Stranger && len(ev.Content) > strangerEvent:
		return tooLarge
	case class == Stranger && !r.rates.allow(address, r.o.Now()):
		return tooFast
	}
	return nil
}

// mayWrite reports whether key may leave something for to.
func (r *Relay) mayWrite(key nip.PubKey, class Class, to nip.PubKey) bool {
	if r.o.Served == nil {
		return class == Member
	}
	return r.o.Served(to) || class == Member && r.o.Served(key)
}

// file makes the record of what key publishes.
func (r *Relay) file(key nip.PubKey, via nip.RelayURL, v nip.Verified) (*record, error) {
	rec, ok := newRecord(v, via)
	if !ok {
		return nil, notVerified
	}
	// An answer to a stranger is part of the stranger's exchange.
	rec.stranger = r.o.Class(key) == Stranger || r.o.Class(nip.PubKey(recipientOf(v.Event()))) == Stranger
	return rec, nil
}

// newRecord reads off a verified artifact what the indexes need. The bytes
// stored are our own encoding of the verified event, never what came in.
func newRecord(v nip.Verified, via nip.RelayURL) (*record, bool) {
	ev := v.Event()
	rec := &record{created: uint64(ev.CreatedAt), expires: expiration(ev), via: via, json: nip.EncodeEvent(ev)}
	var ok [4]bool
	rec.id, ok[0] = raw(ev.ID)
	rec.author, ok[1] = raw(ev.PubKey)
	rec.recipient, ok[2] = raw(recipientOf(ev))
	for _, t := range ev.Tags {
		if len(t) == 2 && t[0] == "h" {
			rec.mailbox, ok[3] = raw(t[1])
		}
	}
	return rec, ok == [4]bool{true, true, true, true} && rec.json != nil
}

// never is the end of what has none.
const never = math.MaxUint64

// expiration is when the publisher wants ev to be gone (NIP-40).
func expiration(ev *nip.Event) uint64 {
	if at, ok := nip.Expiration(ev); ok {
		return uint64(at)
	}
	return never
}

// ended reports whether something with that end is shown to nobody any more.
func ended(ends uint64, now time.Time) bool { return ends <= uint64(max(now.Unix(), 0)) }

// rates counts strangers' events by address and minute.
type rates struct {
	mu     sync.Mutex // guards both
	minute int64
	counts map[string]int
}

func newRates() *rates { return &rates{counts: map[string]int{}} }

// allow counts one event. More addresses than fit share one count: memory
// stays bounded and the limit holds.
func (r *rates) allow(address string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := now.Unix() / 60; m != r.minute {
		r.minute, r.counts = m, map[string]int{}
	}
	if _, known := r.counts[address]; !known && len(r.counts) >= maxAddresses {
		address = ""
	}
	r.counts[address]++
	return r.counts[address] <= strangersAMinute
}
