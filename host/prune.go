package host

import (
	"bytes"
	"context"
	"encoding/binary"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/owner"
)

// pruneLook is how many rows of a bucket one round looks at, so that a round
// costs the same however many there are.
const pruneLook = 1024

// pruner walks the buckets whose rows outlive their use. It is the janitor's
// own. A row leaves only when nothing can ask for it any more:
//
//   - turns, launches: of a turn that cannot start. Revisions of a task only
//     rise, and a start looks at those of the turn that waits alone. So what is
//     below an open task's turn, and all of an ended task, is behind it for good.
//   - published, pages: of a task that has not changed for a week, of which no
//     summary and no page is made any more. Its next change is a higher revision.
//   - last_seen: of a device without a grant. It is for display.
type pruner struct {
	h  *Host
	at map[string][]byte // bucket -> the key behind which the next round goes on
}

// dead says whether a row is one of those.
type dead func(key, value []byte) (bool, error)

func (p *pruner) run(ctx context.Context) error {
	if err := p.h.pruneSeen(ctx); err != nil {
		return err
	}
	for _, b := range []struct {
		bucket []byte
		dead   dead
	}{
		{bucketTurns, p.turnOver}, {bucketLaunches, p.turnOver}, {bucketPublished, p.settled}, {bucketPages, p.settled},
	} {
		if err := p.round(ctx, b.bucket, b.dead); err != nil {
			return err
		}
	}
	return nil
}

// round looks at the next rows and drops the dead ones among them in a commit of
// their own. One that was written anew meanwhile stays.
func (p *pruner) round(ctx context.Context, bucket []byte, dead dead) error {
	type row struct{ key, value []byte }
	var rows []row
	if err := p.h.db.View(func(tx *bbolt.Tx) error {
		rows = nil
		b := tx.Bucket(bucket)
		if b == nil {
			return nil
		}
		c := b.Cursor()
		k, v := c.Seek(p.at[string(bucket)])
		for ; k != nil && len(rows) < pruneLook; k, v = c.Next() {
			rows = append(rows, row{bytes.Clone(k), bytes.Clone(v)})
		}
		p.at[string(bucket)] = bytes.Clone(k) // nil at the end: from the first again
		return nil
	}); err != nil {
		return err
	}
	var gone []row
	for _, r := range rows {
		is, err := dead(r.key, r.value)
		if err != nil {
			return err
		}
		if is {
			gone = append(gone, r)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return p.h.db.Update(ctx, func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucket)
		for _, r := range gone {
			if !bytes.Equal(b.Get(r.key), r.value) {
				continue
			}
			if err := b.Delete(r.key); err != nil {
				return err
			}
		}
		return nil
	})
}

// turnOver judges a row of turnKey. A task that is not known, or cannot be read,
// keeps its rows.
func (p *pruner) turnOver(key, _ []byte) (bool, error) {
	i := len(key) - 9
	if i <= 0 || key[i] != 0 {
		return false, nil
	}
	id, revision := owner.TaskID(key[:i]), int64(binary.BigEndian.Uint64(key[i+1:]))
	r, known := p.h.index.get(id)
	switch {
	case !known:
		return false, nil
	case !r.open():
		return revision <= r.Revision, nil
	case revision >= r.Revision:
		return false, nil
	}
	t, err := p.h.store.Get(id)
	if err != nil {
		if fatal(err) {
			return false, err
		}
		return false, nil
	}
	return revision < t.TurnStart(), nil
}

// settled judges a row of DEVICE/TASK.
func (p *pruner) settled(key, _ []byte) (bool, error) {
	const device = 64
	if len(key) <= device || key[device] != '/' {
		return false, nil
	}
	r, known := p.h.index.get(owner.TaskID(key[device+1:]))
	return known && p.h.now() >= r.UpdatedAt+summaryKeptMost, nil
}

// pruneSeen drops when devices were last heard of which no grant is kept.
func (h *Host) pruneSeen(ctx context.Context) error {
	var gone []nip.PubKey
	if err := h.db.View(func(tx *bbolt.Tx) error {
		gone = nil
		kept := map[nip.PubKey]bool{}
		if err := tx.Bucket(bucketGrants).ForEach(func(key, raw []byte) error {
			terms, err := h.grants.terms(key, raw)
			kept[terms.Grant.Device] = true
			return err
		}); err != nil {
			return err
		}
		return tx.Bucket(bucketSeen).ForEach(func(k, _ []byte) error {
			if !kept[nip.PubKey(k)] {
				gone = append(gone, nip.PubKey(k))
			}
			return nil
		})
	}); err != nil || len(gone) == 0 {
		return err
	}
	return h.db.Update(ctx, func(tx *bbolt.Tx) error {
		for _, d := range gone {
			if err := tx.Bucket(bucketSeen).Delete([]byte(d)); err != nil {
				return err
			}
		}
		return nil
	})
}
