// Package commit owns host.db and the one goroutine that commits to it.
package commit

import (
	"context"
	"errors"

	"go.etcd.io/bbolt"
)

var (
	// ErrLocked is returned when another process holds the file.
	ErrLocked = errors.New("store is open in another process")
	// ErrNewer is returned for a file made by a newer holdfast.
	ErrNewer = errors.New("made by a newer holdfast")
	// ErrCorrupt is returned for a file that is not what it says.
	ErrCorrupt = errors.New("store is damaged; run holdfast check")
	// ErrPoisoned is returned after a failed commit: whether it landed is unknown until the store is reopened.
	ErrPoisoned = errors.New("a commit failed; the store must be reopened")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("store is closed")
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
