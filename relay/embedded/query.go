package embedded

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"runtime/debug"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// hit is one event that a query found: the newest come first, and of one
// second the lower ID (NIP-01).
type hit struct {
	created uint64
	id      [32]byte
}

func newestFirst(a, b hit) int {
	return cmp.Or(cmp.Compare(b.created, a.created), bytes.Compare(a.id[:], b.id[:]))
}

// find returns what key may see and one of the filters asks for. It reads
// indexes only, in one transaction that is over before anything is sent: a slow
// reader never holds one open.
func (st *store) find(key nip.PubKey, filters []nip.Filter, now time.Time) (hits []hit, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err, func() {})
	self, ok := raw(string(key))
	if !ok {
		return nil, nil
	}
	err = st.db.View(func(tx *bbolt.Tx) error {
		for i := range filters {
			q := newQuery(&filters[i], self, now)
			if q.limit == 0 || q.empty {
				continue
			}
			if err := q.run(tx); err != nil {
				return err
			}
			hits = append(hits, q.hits...)
		}
		return nil
	})
	slices.SortFunc(hits, newestFirst)
	hits = slices.Compact(hits)
	return hits[:min(len(hits), maxLimit)], err
}

// load reads one event; nil when it has left, or ended, since it was found.
func (st *store) load(id [32]byte, now time.Time) (r *record, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer guard(&err, func() {})
	err = st.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(bEvents).Get(id[:])
		if v == nil {
			return nil
		}
		r, err = decodeRecord(id[:], v)
		return err
	})
	if r != nil && ended(r.ends, now) {
		return nil, err
	}
	return r, err
}

// stored is load for who is shown it. A stranger sees its exchange as a stranger
// and nothing else: a key that was paired once has lost what it was sent then.
func (r *Relay) stored(key nip.PubKey, id [32]byte) (*record, error) {
	rec, err := r.store.load(id, r.o.Now())
	if rec != nil && !rec.stranger && r.o.Class(key) != Member {
		return nil, err
	}
	return rec, err
}

// query is one filter over the two indexes of one key.
type query struct {
	self         [32]byte
	ids          map[[32]byte]struct{} // nil: any
	authors      map[[32]byte]struct{}
	recipients   map[[32]byte]struct{}
	mailboxes    map[[32]byte]struct{}
	since, until uint64
	now          uint64
	limit        int
	empty        bool // nothing can match
	hits         []hit
}

func newQuery(f *nip.Filter, self [32]byte, now time.Time) *query {
	q := &query{self: self, until: math.MaxInt64, now: uint64(max(now.Unix(), 0)), limit: min(f.Limit, maxLimit)}
	q.ids, q.authors = rawSet(f.IDs), rawSet(f.Authors)
	if p, ok := f.Tags["p"]; ok {
		q.recipients = rawSet(p)
	}
	if h, ok := f.Tags["h"]; ok {
		q.mailboxes = rawSet(h)
	}
	if t, ok := f.Tags["t"]; ok && !slices.Contains(t, artifactTag) {
		q.empty = true // every private artifact has this one t tag
	}
	if f.Kinds != nil && !slices.Contains(f.Kinds, nip.KindArtifact) {
		q.empty = true
	}
	if f.Since != nil {
		q.since = uint64(max(*f.Since, 0))
	}
	if f.Until != nil {
		q.until = uint64(max(*f.Until, 0))
	}
	return q
}

const artifactTag = "oa:artifact:v1"

// rawSet keeps a nil list nil: no condition. What is no ID matches nothing.
func rawSet(list []string) map[[32]byte]struct{} {
	if list == nil {
		return nil
	}
	set := make(map[[32]byte]struct{}, len(list))
	for _, s := range list {
		if b, ok := raw(s); ok {
			set[b] = struct{}{}
		}
	}
	return set
}

func in(set map[[32]byte]struct{}, b [32]byte) bool {
	if set == nil {
		return true
	}
	_, ok := set[b]
	return ok
}

func (q *query) run(tx *bbolt.Tx) error {
	if q.ids != nil {
		if err := q.byID(tx); err != nil {
			return err
		}
	} else {
		// As the recipient, then as the author; each may fill the limit,
		// the newest of both together are kept.
		if in(q.recipients, q.self) {
			if err := q.scan(tx.Bucket(bRecipient), q.authors); err != nil {
				return err
			}
		}
		if in(q.authors, q.self) {
			if err := q.scan(tx.Bucket(bAuthor), q.recipients); err != nil {
				return err
			}
		}
	}
	slices.SortFunc(q.hits, newestFirst)
	q.hits = slices.Compact(q.hits)
	q.hits = q.hits[:min(len(q.hits), q.limit)]
	return nil
}

// byID looks each ID up and shows it only to its author and its recipient.
func (q *query) byID(tx *bbolt.Tx) error {
	for id := range q.ids {
		v := tx.Bucket(bEvents).Get(id[:])
		if v == nil {
			continue
		}
		r, err := decodeRecord(id[:], v)
		if err != nil {
			return err
		}
		if r.author != q.self && r.recipient != q.self {
			continue
		}
		if in(q.authors, r.author) && in(q.recipients, r.recipient) && in(q.mailboxes, r.mailbox) &&
			r.created >= q.since && r.created <= q.until && r.ends > q.now {
			q.hits = append(q.hits, hit{r.created, id})
		}
	}
	return nil
}

// scan walks self's part of an index from the newest, until the limit.
func (q *query) scan(b *bbolt.Bucket, peers map[[32]byte]struct{}) error {
	from := binary.BigEndian.AppendUint64(bytes.Clone(q.self[:]), q.until)
	from = append(from, bytes.Repeat([]byte{0xff}, 32)...)
	c := b.Cursor()
	k, v := c.Seek(from)
	if !bytes.Equal(k, from) { // it stands behind the place, or at the end
		if k == nil {
			k, v = c.Last()
		} else {
			k, v = c.Prev()
		}
	}
	found := 0
	for ; found < q.limit && bytes.HasPrefix(k, q.self[:]); k, v = c.Prev() {
		if len(k) != 72 || len(v) != 72 {
			return ErrCorrupt
		}
		created := binary.BigEndian.Uint64(k[32:])
		if created < q.since {
			return nil
		}
		if !in(peers, [32]byte(v)) || !in(q.mailboxes, [32]byte(v[32:])) || binary.BigEndian.Uint64(v[64:]) <= q.now {
			continue
		}
		q.hits = append(q.hits, hit{created, [32]byte(k[40:])})
		found++
	}
	return nil
}
