package host

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// grantCache spares the decoding of grants that were decoded before. It is asked
// with the row as the transaction has it and answers only for exactly these
// bytes: it cannot be out of date, and what a revocation wrote counts from the
// transaction that wrote it.
type grantCache struct {
	// mu guards rows.
	mu   sync.Mutex
	rows map[string]cachedGrant // by the row's key
}

type cachedGrant struct {
	raw   []byte
	terms grantTerms
}

// terms is the decoded row; nobody may change what it points to.
func (c *grantCache) terms(key, raw []byte) (grantTerms, error) {
	c.mu.Lock()
	kept, ok := c.rows[string(key)]
	c.mu.Unlock()
	if ok && bytes.Equal(kept.raw, raw) {
		return kept.terms, nil
	}
	var t grantTerms
	if err := json.Unmarshal(raw, &t); err != nil {
		return t, fmt.Errorf("host.db %s row: %w", bucketGrants, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rows == nil || len(c.rows) >= 2*maxGrants { // what left the book leaves with the rest
		c.rows = map[string]cachedGrant{}
	}
	c.rows[string(key)] = cachedGrant{bytes.Clone(raw), t}
	return t, nil
}

// grant is one grant of the book as read for what it allows.
func (c *Core) grant(tx *bbolt.Tx, id nip.GrantID) (t grantTerms, found bool, err error) {
	raw := tx.Bucket(bucketGrants).Get([]byte(id))
	if raw == nil {
		return t, false, nil
	}
	t, err = c.grants.terms([]byte(id), raw)
	return t, true, err
}
