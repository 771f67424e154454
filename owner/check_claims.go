package owner

import (
	"fmt"

	"go.etcd.io/bbolt"
)

// claims verifies the index of workspaces: every entry names a task, and every
// turn that holds a workspace has one. A store without an index gets it with
// its next turn.
func (c *checker) claims() {
	db, err := c.s.openClaims(readWait, false)
	if db == nil && err == nil {
		return
	}
	path := claimsPath(c.s.home)
	fail := func(err error) {
		c.bad = true
		c.report(path, false, err.Error())
	}
	if err != nil {
		fail(err)
		return
	}
	defer db.Close()
	entries := 0
	err = db.View(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketAlone, bucketRead} {
			b := tx.Bucket(name)
			if b == nil {
				continue
			}
			if err := b.ForEach(func(k, v []byte) error {
				entries++
				id, err := taskOf(k, v)
				if err == nil && c.lost(id) {
					err = corrupt("the turn of task %s had an entry, and its log is missing; put %s back from a copy of this home", id, c.s.TaskDir(id))
				}
				return err
			}); err != nil {
				return err
			}
		}
		if tx.Bucket(bucketWhole) == nil {
			return nil // it is filled by the first turn that uses it
		}
		for _, id := range c.hold {
			// Read again: a turn may have ended since its log was checked.
			t, err := c.s.Get(id)
			if err != nil {
				return err
			}
			if path, holds := t.Holds(); holds && !entered(tx, claim{task: id, path: path}) {
				return corrupt("the turn of task %s holds its workspace without an entry", id)
			}
		}
		return nil
	})
	if err != nil {
		fail(err)
		return
	}
	c.report(path, true, fmt.Sprintf("%d entries", entries))
}

// entered reports whether the index has the entry of c, of either kind.
func entered(tx *bbolt.Tx, c claim) bool {
	for _, name := range [][]byte{bucketAlone, bucketRead} {
		if b := tx.Bucket(name); b != nil && b.Get(c.key()) != nil {
			return true
		}
	}
	return false
}
