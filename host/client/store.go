package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/internal/commit"
	"holdfast/nip"
)

// The buckets of outbox.db.
var (
	bucketOutbox = []byte("outbox") // 8-byte big-endian sequence -> row
	bucketSeen   = []byte("seen")   // host, task -> highest summary
	bucketPages  = []byte("pages")  // host, task -> last published page
	bucketSent   = []byte("sent")   // host, command -> what the host said to it
	bucketMeta   = []byte("meta")
)

var (
	metaClock    = "clock/"    // + host -> clock
	metaLoopback = "loopback/" // + host -> 1: a person's word
	metaPresence = "presence/" // + host -> floor
	metaNudge    = "nudge/"    // + host -> local time of the last one
	metaHints    = "hints/"    // + host -> the last ones
	// The names of a profile that knew one host only.
	oldMetaClock    = []byte("clock")
	oldMetaLoopback = []byte("loopback")
)

// lockWait is how long a transaction waits for another process.
const lockWait = 2 * time.Second

// store is outbox.db. It is opened for one transaction at a time, so that a
// watching process does not shut a sending one out.
type store struct {
	path string
	mu   sync.Mutex // the file's lock does not keep goroutines of one process apart in order
}

func newStore(dir string) *store { return &store{path: filepath.Join(dir, storeFile)} }

// update runs fn in one durable transaction: nil means that it is on disk.
func (s *store) update(fn func(tx *bbolt.Tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open(false, func(db *commit.DB) error {
		return db.Update(context.Background(), func(tx *bbolt.Tx) error {
			for _, name := range [][]byte{bucketOutbox, bucketSeen, bucketPages, bucketSent, bucketMeta} {
				if _, err := tx.CreateBucketIfNotExists(name); err != nil {
					return err
				}
			}
			return fn(tx)
		})
	})
}

// view runs fn over what is there; over nothing where there is no file yet. The
// buckets of pages and of commands are missing in a profile of an older version.
func (s *store) view(fn func(tx *bbolt.Tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.open(true, func(db *commit.DB) error {
		return db.View(func(tx *bbolt.Tx) error {
			if tx.Bucket(bucketMeta) == nil {
				return nil // made, and nothing committed yet
			}
			return fn(tx)
		})
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// exclusive runs fn while no other process uses the profile's store.
func (s *store) exclusive(fn func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open(false, func(*commit.DB) error { return fn() })
}

func (s *store) open(readOnly bool, fn func(db *commit.DB) error) error {
	db, err := commit.Open(s.path, commit.Options{Kind: "holdfast-device", Version: 1, Timeout: lockWait, ReadOnly: readOnly})
	if err != nil {
		return storeError(err)
	}
	return storeError(errors.Join(fn(db), db.Close()))
}

// storeError gives the store's faults the names that this package promises.
func storeError(err error) error {
	switch {
	case errors.Is(err, commit.ErrLocked):
		return ErrBusy
	case errors.Is(err, commit.ErrNewer):
		return fmt.Errorf("%w: %w", ErrNewer, err)
	case errors.Is(err, commit.ErrCorrupt):
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

func metaKey(name string, host nip.PubKey) []byte { return []byte(name + string(host)) }

// meta is what a device learnt of a host and was told about it.
type meta struct {
	Clock    clock
	Loopback bool
}

func (s *store) readMeta(host nip.PubKey) (meta, error) {
	var m meta
	err := s.view(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketMeta)
		m.Loopback = len(b.Get(metaKey(metaLoopback, host))) == 1
		if raw := b.Get(metaKey(metaClock, host)); raw != nil {
			if err := json.Unmarshal(raw, &m.Clock); err != nil {
				return fmt.Errorf("%w: clock offset", ErrDamaged)
			}
		}
		return nil
	})
	return m, err
}

func (s *store) putClock(host nip.PubKey, c clock) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return s.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(metaKey(metaClock, host), raw) })
}

// putLoopback keeps or withdraws a person's word that a host may be reached
// over a plain loopback relay.
func (s *store) putLoopback(host nip.PubKey, word bool) error {
	return s.update(func(tx *bbolt.Tx) error {
		if !word {
			return tx.Bucket(bucketMeta).Delete(metaKey(metaLoopback, host))
		}
		return tx.Bucket(bucketMeta).Put(metaKey(metaLoopback, host), []byte{1})
	})
}

// renameMeta gives what an older profile kept for its one host that host's name.
func (s *store) renameMeta(host nip.PubKey) error {
	return s.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketMeta)
		for _, m := range []struct{ old, name []byte }{
			{oldMetaClock, metaKey(metaClock, host)}, {oldMetaLoopback, metaKey(metaLoopback, host)},
		} {
			raw := bytes.Clone(b.Get(m.old))
			if raw == nil {
				continue
			}
			if err := errors.Join(b.Put(m.name, raw), b.Delete(m.old)); err != nil {
				return err
			}
		}
		return nil
	})
}

// floor is the newest presence of a host that this device has verified.
type floor struct {
	Generation int64 `json:"generation"`
	ObservedAt int64 `json:"observed_at"`
}

// before reports whether p is newer: its generation never goes backwards, and
// within a generation it was observed later.
func (f floor) before(p nip.Presence) bool {
	return p.Generation > f.Generation || p.Generation == f.Generation && p.ObservedAt > f.ObservedAt
}

// presence returns the newest presence of a host that was seen; false without.
func (s *store) presence(host nip.PubKey) (f floor, ok bool, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		raw := tx.Bucket(bucketMeta).Get(metaKey(metaPresence, host))
		if raw == nil {
			return nil
		}
		if err := json.Unmarshal(raw, &f); err != nil {
			return fmt.Errorf("%w: presence", ErrDamaged)
		}
		ok = true
		return nil
	})
	return f, ok, err
}

// raiseFloor keeps p as the host's newest presence; false if it is not newer.
func (s *store) raiseFloor(p nip.Presence) (bool, error) {
	key := metaKey(metaPresence, p.Host)
	var newer bool
	err := s.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketMeta)
		f := floor{Generation: -1}
		if raw := b.Get(key); raw != nil {
			if err := json.Unmarshal(raw, &f); err != nil {
				return fmt.Errorf("%w: presence", ErrDamaged)
			}
		}
		if newer = f.before(p); !newer {
			return nil
		}
		raw, err := json.Marshal(floor{p.Generation, p.ObservedAt})
		if err != nil {
			return err
		}
		return b.Put(key, raw)
	})
	return newer, err
}
