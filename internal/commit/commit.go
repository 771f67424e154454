// Package commit owns host.db and the one goroutine that commits to it.
//
// Its nouns are the DB, one open bbolt file, and the group: the closures that
// share one transaction and so one pair of fsyncs. Callers on any goroutine
// hand Update a closure over *bbolt.Tx; the committer takes the first one that
// waits, adds whatever else waits at that moment, commits them together and
// answers each. Nothing is delayed when the store is idle; under load the next
// group gathers while the disk works on this one.
//
// What is durable and when: Update returns nil only after the transaction's
// meta page was synced. A crash before that leaves the store as it was, a crash
// after it leaves every closure of the group in place, and nothing in between
// exists. View never shows what is not on disk yet: bbolt publishes a commit to
// readers before its last sync, so View waits for that sync when it read such
// a state.
//
// A closure's own error rolls back that closure alone: the group is run again
// without it, and it is run once more by itself. So a closure may run more than
// once, must start from its arguments each time, and must not keep slices of
// the transaction. A closure's panic is handed to its caller.
//
// After a failed commit nobody knows whether it landed. The DB is then
// poisoned: Update and View fail, Poisoned is closed, and the process reopens
// the file, which says what happened. Nothing is repaired here.
//
// A file carries a header with its kind, its format version and a checksum. It
// comes into being under another name and is renamed when complete, because
// bbolt cannot survive a power cut in its very first write. This package does
// not compact, does not back up, and knows nothing of what the buckets mean.
package commit

import (
	"context"

	"go.etcd.io/bbolt"
)

// Updater is what packages need of the store; DB and the in-memory twin of
// tests are Updaters.
type Updater interface {
	// Update runs fn in a read-write transaction shared with concurrent
	// callers and returns nil only after the fsync. fn may run more than once
	// (alone, after a neighbour failed) and must not keep slices of tx.
	// fn's own error rolls back fn alone and is returned as it is.
	Update(ctx context.Context, fn func(tx *bbolt.Tx) error) error
	View(fn func(tx *bbolt.Tx) error) error
}
