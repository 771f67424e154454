package commit

import "errors"

// Returned by Open.
var (
	// ErrLocked is returned when another process holds the file.
	ErrLocked = errors.New("store is open in another process")
	// ErrNewer is returned for a file made by a newer holdfast.
	ErrNewer = errors.New("made by a newer holdfast")
	// ErrCorrupt is returned for a file that is not what it says. Update and
	// View return it too when they meet the damage first.
	ErrCorrupt = errors.New("store is damaged; run holdfast check")
)

// Returned by Update and View.
var (
	// ErrPoisoned is returned after a failed commit: whether it landed is unknown until the store is reopened.
	ErrPoisoned = errors.New("a commit failed; the store must be reopened")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("store is closed")
)
