package embedded

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/bbolt"

	"holdfast/nip"
)

const (
	memberLife    = 30 * 24 * time.Hour
	strangerLife  = 10 * time.Minute
	memberRoom    = 64 << 20 // bytes of records a recipient
	strangerRoom  = 1000     // events of all strangers together
	strangerEvent = 16 << 10 // bytes of one stranger's event: redeeming an invitation takes 3 KiB
	groupMost     = 256      // events of one transaction
	sweepEvery    = 30 * time.Second
	sweepMost     = 1000 // events that one transaction may expire
)

// job is one verified event on its way into the store.
type job struct {
	rec *record
	v   nip.Verified
	// done is called once, by the committer, after the commit; it must not block.
	done func(err error)
}

// committer is the one goroutine that writes. While it syncs one group, the
// next one gathers in the channel.
type committer struct {
	store  *store
	now    func() time.Time
	fanout func(rec *record, v nip.Verified)
	log    zerolog.Logger
}

func (c *committer) run(ctx context.Context) {
	debug.SetPanicOnFault(true) // a file cut short under us is an error, not a crash
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		var group []*job
		select {
		case j := <-c.store.jobs:
			group = append(group, j)
		case <-sweep.C:
		case <-ctx.Done():
			c.refuseRest()
			return
		}
	gather:
		for len(group) < groupMost {
			select {
			case j := <-c.store.jobs:
				group = append(group, j)
			default:
				break gather
			}
		}
		c.commit(group)
	}
}

// refuseRest answers what still waits; the senders saw no OK and send again.
func (c *committer) refuseRest() {
	for {
		select {
		case j := <-c.store.jobs:
			j.done(errClosing)
		default:
			return
		}
	}
}

// commit stores a group in one transaction, then shows it to listeners, then
// answers. A crash before the commit returns leaves none of it and nobody was
// told; a crash after it leaves all of it, and who got no OK publishes again
// and is answered as a duplicate.
func (c *committer) commit(group []*job) {
	var err error = errBroken
	if !c.store.broken.Load() {
		if err = c.store.write(group, c.now()); err != nil {
			c.store.broken.Store(true)
			c.store.cause = err
			close(c.store.failed)
			c.log.Error().Err(err).Msg("relay store failed; it takes nothing more until it is opened again")
			err = errBroken
		}
	}
	for _, j := range group {
		if err == nil && !ended(j.rec.expires, c.now()) {
			c.fanout(j.rec, j.v)
		}
		j.done(err)
	}
}

// write is one durable transaction. With nothing new and nothing expired it
// writes nothing.
func (st *store) write(group []*job, now time.Time) (err error) {
	defer guard(&err, func() {})
	tx, err := st.db.Begin(true)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	changed, err := st.expire(tx, now, sweepMost)
	if err != nil {
		return err
	}
	for _, j := range group {
		fresh, err := st.put(tx, j.rec, now)
		if err != nil {
			return err
		}
		changed = changed || fresh
	}
	if !changed {
		return nil
	}
	return tx.Commit()
}

// put adds one event and makes room for it; false for a duplicate.
func (st *store) put(tx *bbolt.Tx, r *record, now time.Time) (bool, error) {
	events := tx.Bucket(bEvents)
	if events.Get(r.id[:]) != nil {
		return false, nil
	}
	life := memberLife
	if r.stranger {
		life = strangerLife
	}
	r.ends = min(uint64(now.Add(life).Unix()), r.expires)
	n, err := events.NextSequence()
	if err != nil {
		return false, err
	}
	r.arrival = n
	value := encodeRecord(r)
	puts := []struct{ bucket, key, value []byte }{
		{bEvents, r.id[:], value},
		{bRecipient, r.indexKey(r.recipient), r.indexValue(r.author)},
		{bAuthor, r.indexKey(r.author), r.indexValue(r.recipient)},
		{bEnds, r.endsKey(), nil},
	}
	if r.stranger {
		puts = append(puts, struct{ bucket, key, value []byte }{bStrangers, r.strangerKey(), nil})
	} else {
		size := binary.BigEndian.AppendUint32(nil, uint32(len(value)))
		puts = append(puts, struct{ bucket, key, value []byte }{bRoom, r.roomKey(), size})
	}
	for _, p := range puts {
		if err := tx.Bucket(p.bucket).Put(p.key, p.value); err != nil {
			return false, err
		}
	}
	if r.stranger {
		st.strangers++
	} else {
		st.used[r.recipient] += int64(len(value))
	}
	return true, st.evict(tx, r)
}

// evict takes the oldest arrivals out until r's recipient, or the strangers,
// are within their room again.
func (st *store) evict(tx *bbolt.Tx, r *record) error {
	for st.strangers > st.pool {
		k, _ := tx.Bucket(bStrangers).Cursor().First()
		if len(k) != 40 {
			return ErrCorrupt
		}
		if err := st.remove(tx, bytes.Clone(k[8:])); err != nil {
			return err
		}
	}
	for st.used[r.recipient] > st.room {
		k, _ := tx.Bucket(bRoom).Cursor().Seek(r.recipient[:])
		if len(k) != 72 || !bytes.HasPrefix(k, r.recipient[:]) {
			return ErrCorrupt
		}
		if err := st.remove(tx, bytes.Clone(k[40:])); err != nil {
			return err
		}
	}
	return nil
}

// expire removes at most most events whose end has come.
func (st *store) expire(tx *bbolt.Tx, now time.Time, most int) (changed bool, err error) {
	for range most {
		k, _ := tx.Bucket(bEnds).Cursor().First()
		if k == nil {
			return changed, nil
		}
		if len(k) != 40 {
			return changed, ErrCorrupt
		}
		if binary.BigEndian.Uint64(k) > uint64(max(now.Unix(), 0)) {
			return changed, nil
		}
		if err := st.remove(tx, bytes.Clone(k[8:])); err != nil {
			return changed, err
		}
		changed = true
	}
	return changed, nil
}

// remove takes one event out of every bucket.
func (st *store) remove(tx *bbolt.Tx, id []byte) error {
	value := tx.Bucket(bEvents).Get(id)
	if value == nil {
		return fmt.Errorf("%w: an index names event %s, which is not there", ErrCorrupt, hex.EncodeToString(id))
	}
	size := int64(len(value))
	r, err := decodeRecord(id, value)
	if err != nil {
		return err
	}
	deletes := []struct{ bucket, key []byte }{
		{bEvents, id},
		{bRecipient, r.indexKey(r.recipient)},
		{bAuthor, r.indexKey(r.author)},
		{bEnds, r.endsKey()},
	}
	if r.stranger {
		deletes = append(deletes, struct{ bucket, key []byte }{bStrangers, r.strangerKey()})
	} else {
		deletes = append(deletes, struct{ bucket, key []byte }{bRoom, r.roomKey()})
	}
	for _, d := range deletes {
		if err := tx.Bucket(d.bucket).Delete(d.key); err != nil {
			return err
		}
	}
	if r.stranger {
		st.strangers--
	} else if st.used[r.recipient] -= size; st.used[r.recipient] <= 0 {
		delete(st.used, r.recipient)
	}
	return nil
}

func (r *record) endsKey() []byte {
	return append(binary.BigEndian.AppendUint64(nil, r.ends), r.id[:]...)
}

func (r *record) strangerKey() []byte {
	return append(binary.BigEndian.AppendUint64(nil, r.arrival), r.id[:]...)
}

func (r *record) roomKey() []byte {
	return append(binary.BigEndian.AppendUint64(bytes.Clone(r.recipient[:]), r.arrival), r.id[:]...)
}
