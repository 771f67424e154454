package commands

import (
	"bytes"
	"encoding/hex"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// Find returns the principal's entry with this command or request ID, whatever
// its kind: a command first, then the others in the order of their names. It
// looks at one key for each kind that the principal ever used.
func (j Journal) Find(tx *bbolt.Tx, principal nip.PubKey, id string) (Entry, bool, error) {
	if e, found, err := j.Get(tx, Key{Principal: principal, Kind: KindCommand, ID: id}); err != nil || found {
		return e, found, err
	}
	prefix, err := hex.DecodeString(string(principal))
	if err != nil {
		return Entry{}, false, fmt.Errorf("principal: %w", err)
	}
	c := tx.Bucket(bucketEntry).Cursor()
	for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); {
		kind, _, ok := bytes.Cut(k[len(prefix):], []byte{0})
		if !ok {
			return Entry{}, false, fmt.Errorf("%w: entry %x has a strange key", ErrChain, k)
		}
		if e, found, err := j.Get(tx, Key{Principal: principal, Kind: string(kind), ID: id}); err != nil || found {
			return e, found, err
		}
		// The first key behind every entry of this kind.
		k, _ = c.Seek(append(append(append([]byte(nil), prefix...), kind...), 1))
	}
	return Entry{}, false, nil
}

// End is one end of the chain: a transition and its hash.
type End struct {
	Seq   uint64
	Hash  [32]byte
	Count uint64 // at the old end: transitions that were pruned
}

// Ends are the transition from which the chain verifies, 0 where nothing was
// pruned, and the last one.
func (Journal) Ends(tx *bbolt.Tx) (from, to End, err error) {
	cp, err := readCheckpoint(tx)
	if err != nil {
		return from, to, err
	}
	h, err := readHead(tx)
	return End{cp.seq, cp.hash, cp.count}, End{Seq: h.seq, Hash: h.hash}, err
}
