package client

import (
	"bytes"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// maxSeen bounds the tasks of one host whose highest summary is kept; beyond
// it the one that changed longest ago is forgotten.
const maxSeen = 4096

// verdict is what a summary means beside the highest one that was seen.
type verdict int

const (
	stale verdict = iota // lower
	again                // what is kept: news only to who has not been shown it
	newer                // higher: keep and show
	clash                // the same sequence with other content
)

// judge compares a verified summary with the highest one seen of its task. A
// host that publishes the same revision again after a restart may stamp it
// anew, so for an equal sequence a difference in time alone means nothing.
func judge(known *nip.Summary, s nip.Summary) verdict {
	switch {
	case known == nil || s.Sequence > known.Sequence:
		return newer
	case s.Sequence < known.Sequence:
		return stale
	}
	s.UpdatedAt = known.UpdatedAt
	if s != *known {
		return clash
	}
	return again
}

func seenPrefix(host nip.PubKey) []byte { return []byte(string(host) + "/") }

// keepSummaries judges each of sums against the kept ones in one transaction,
// so that two watching processes never lower them.
func (s *store) keepSummaries(sums []nip.Summary) ([]verdict, error) {
	verdicts := make([]verdict, len(sums))
	err := s.update(func(tx *bbolt.Tx) error {
		for i, sum := range sums {
			v, err := keepSummary(tx.Bucket(bucketSeen), sum)
			if err != nil {
				return err
			}
			verdicts[i] = v
		}
		return nil
	})
	return verdicts, err
}

func keepSummary(b *bbolt.Bucket, sum nip.Summary) (verdict, error) {
	prefix := seenPrefix(sum.Host)
	key := append(prefix[:len(prefix):len(prefix)], sum.Task...)
	var known *nip.Summary
	if raw := b.Get(key); raw != nil {
		known = new(nip.Summary)
		if err := json.Unmarshal(raw, known); err != nil {
			return stale, fmt.Errorf("%w: kept summary", ErrDamaged)
		}
	}
	v := judge(known, sum)
	if v != newer {
		return v, nil
	}
	raw, err := json.Marshal(sum)
	if err != nil {
		return v, err
	}
	if err := b.Put(key, raw); err != nil || known != nil {
		return v, err
	}
	return v, trim(b, prefix)
}

// trim forgets the oldest summary of a host that has more than maxSeen.
func trim(b *bbolt.Bucket, prefix []byte) error {
	return trimOldest(b, prefix, maxSeen, func(raw []byte) (int64, error) {
		var s nip.Summary
		if err := json.Unmarshal(raw, &s); err != nil {
			return 0, fmt.Errorf("%w: kept summary", ErrDamaged)
		}
		return s.UpdatedAt, nil
	})
}

func eachSummary(b *bbolt.Bucket, prefix []byte, fn func(k []byte, s nip.Summary)) error {
	c := b.Cursor()
	for k, raw := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, raw = c.Next() {
		var s nip.Summary
		if err := json.Unmarshal(raw, &s); err != nil {
			return fmt.Errorf("%w: kept summary", ErrDamaged)
		}
		fn(k, s)
	}
	return nil
}

// summaries returns the kept summaries of a host.
func (s *store) summaries(host nip.PubKey) ([]nip.Summary, error) {
	var list []nip.Summary
	err := s.view(func(tx *bbolt.Tx) error {
		return eachSummary(tx.Bucket(bucketSeen), seenPrefix(host), func(_ []byte, s nip.Summary) { list = append(list, s) })
	})
	return list, err
}
