package host

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"runtime"
	"sort"

	"golang.org/x/sync/errgroup"

	"holdfast/nip"
	"holdfast/owner"
)

// listing is the tasks of one workspace that are not archived, in the order in
// which they were made, so that a page costs what it shows and a change costs a
// binary search, however many tasks there are. The index's lock guards it.
type listing struct {
	order []listed // oldest first, and of one second the highest ID first: the newest come from the end
	sum   [4]uint64
}

type listed struct {
	created int64
	id      owner.TaskID
}

// before is the order of a listing.
func (a listed) before(b listed) bool {
	if a.created != b.created {
		return a.created < b.created
	}
	return a.id > b.id
}

// place is where a task stands, or would.
func (l *listing) place(t listed) (int, bool) {
	i := sort.Search(len(l.order), func(i int) bool { return !l.order[i].before(t) })
	return i, i < len(l.order) && l.order[i] == t
}

// put enters a row, or takes it out. A new task goes to the end, which moves
// nothing.
func (l *listing) put(r *taskRow, in bool) {
	t := listed{r.CreatedAt, r.ID}
	i, there := l.place(t)
	switch {
	case in && !there:
		l.order = append(l.order, listed{})
		copy(l.order[i+1:], l.order[i:])
		l.order[i] = t
	case !in && there:
		l.order = append(l.order[:i], l.order[i+1:]...)
	}
}

// count adds a row's revision to what the listing says, or takes it out. The
// sum of the rows' hashes is the same in whichever order they came.
func (l *listing) count(r *taskRow, in bool) {
	h := sha256.Sum256(fmt.Appendf(nil, "%s %d", r.ID, r.Revision))
	var carry uint64
	for i := range l.sum {
		v := binary.BigEndian.Uint64(h[i*8:])
		if in {
			l.sum[i], carry = bits.Add64(l.sum[i], v, carry)
		} else {
			l.sum[i], carry = bits.Sub64(l.sum[i], v, carry)
		}
	}
}

// digest names the listing: another task or another revision is another digest.
func (l *listing) digest(path string) nip.Digest {
	b := fmt.Appendf(nil, "holdfast.task-listing.v1\x00%s\x00%d\x00", path, len(l.order))
	for _, v := range l.sum {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	h := sha256.Sum256(b)
	return nip.Digest("sha256:" + hex.EncodeToString(h[:]))
}

// relist moves a task from its old row, nil without one, to its new one. The
// caller holds x.mu.
func (x *taskIndex) relist(old, row *taskRow) {
	if old != nil {
		x.phases[old.Phase]--
		if !old.Archived {
			x.listing(old.Path).count(old, false)
		}
	}
	x.phases[row.Phase]++
	l := x.listing(row.Path)
	l.put(row, !row.Archived)
	if !row.Archived {
		l.count(row, true)
	}
}

func (x *taskIndex) listing(path string) *listing {
	l := x.listings[path]
	if l == nil {
		l = &listing{}
		x.listings[path] = l
	}
	return l
}

// page is at most limit rows of a workspace, the newest first, from start on,
// with how many there are and what names them all.
func (x *taskIndex) page(path string, start, limit int) (rows []taskRow, total int, digest nip.Digest) {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.listings[path]
	if l == nil {
		l = &listing{} // a question makes nothing
	}
	total = len(l.order)
	for i := start; i < min(start+limit, total); i++ {
		rows = append(rows, x.rows[l.order[total-1-i].id])
	}
	return rows, total, l.digest(path)
}

// counts is how many tasks are in each phase, and how many cannot be read.
func (x *taskIndex) counts() map[string]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[string]int{}
	for phase, n := range x.phases {
		if n > 0 {
			out[phase] = n
		}
	}
	if n := len(x.unreadable); n > 0 {
		out["unreadable"] = n
	}
	return out
}

// newest is the most tasks that keep wants by their last change. It looks at
// every row: at a start, and when a device was paired.
func (x *taskIndex) newest(most int, keep func(*taskRow) bool) []taskRow {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []taskRow
	later := func(a, b *taskRow) bool {
		if a.UpdatedAt != b.UpdatedAt {
			return a.UpdatedAt > b.UpdatedAt
		}
		return a.ID < b.ID
	}
	for _, r := range x.rows {
		if !keep(&r) || len(out) == most && !later(&r, &out[most-1]) {
			continue
		}
		i := sort.Search(len(out), func(i int) bool { return !later(&out[i], &r) })
		out = append(out, taskRow{})
		copy(out[i+1:], out[i:])
		out[i] = r
		out = out[:min(len(out), most)]
	}
	return out
}

// cannotRead remembers that a task could not be read, until it can.
func (x *taskIndex) cannotRead(id owner.TaskID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.unreadable[id] = true
}

// readAll settles every run of which nothing is left and fills the index. It reads the tasks that are live, and takes
// the others' rows as the store has them; of a store without an index that counts it reads every task, once, and makes
// it. Who asks meanwhile for what the index answers waits for it.
func (h *Host) readAll(ctx context.Context) error {
	h.index.filling.Lock()
	defer h.index.filling.Unlock()
	x, whole, err := h.store.Index()
	if err != nil {
		return err
	}
	if !whole {
		if err := h.store.Reindex(ctx, h.readIn); err != nil {
			return err
		}
		h.index.filled = true
		return nil
	}
	h.index.load(x.Rows)
	g, group := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, id := range x.Live {
		if group.Err() != nil {
			break
		}
		g.Go(func() error { _, err := h.readIn(group, id); return err })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	h.index.filled = true
	return nil
}

// readIn settles and indexes one task; nil where it cannot be read.
func (h *Host) readIn(ctx context.Context, id owner.TaskID) (*owner.Task, error) {
	t, err := h.settled(ctx, id)
	if err == nil {
		h.index.note(&t)
		return &t, nil
	}
	if fatal(err) || ctx.Err() != nil {
		return nil, err
	}
	h.log.Error().Err(err).Str("task", string(id)).Msg("task cannot be read")
	h.index.cannotRead(id)
	return nil, nil
}

// fill is for whoever needs the index of a host that was not started.
func (h *Host) fill() error {
	h.index.filling.Lock()
	defer h.index.filling.Unlock()
	if h.index.filled {
		return nil
	}
	x, whole, err := h.store.Index()
	if err != nil {
		return err
	}
	h.index.load(x.Rows)
	ids := x.Live
	if !whole {
		if ids, err = h.store.List(); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if _, known := h.index.get(id); !known {
			h.taskChanged(id)
		}
	}
	h.index.filled = true
	return nil
}

// putAwayMost is how many tasks one round puts away: none of it is urgent.
const putAwayMost = 1024

// putAway takes the tasks that have ended out of those that a start reads.
func (h *Host) putAway(ctx context.Context) error {
	ids := h.index.settling(putAwayMost)
	if len(ids) == 0 {
		return nil
	}
	if _, err := h.store.PutAway(ctx, ids); err != nil {
		if fatal(err) || ctx.Err() != nil {
			return err
		}
		// They stay live, which costs the next start a look at each.
		h.log.Error().Err(err).Msg("tasks that have ended could not be put away")
	}
	return nil
}
