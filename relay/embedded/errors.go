package embedded

import "errors"

// Returned by Open.
var (
	// ErrLocked is returned when another process has the file open.
	ErrLocked = errors.New("relay store is in use by another process")
	// ErrNewer is returned for a file of a later version.
	ErrNewer = errors.New("relay store was made by a newer holdfast; use that version")
	// ErrCorrupt is returned for a file that is damaged or not a relay store.
	ErrCorrupt = errors.New("relay store is damaged or of another program; restore it or move it away")
)

// ErrNotLoopback is returned by Serve for a listener that other machines reach.
var ErrNotLoopback = errors.New("the embedded relay listens without TLS on a loopback address only; give it a certificate, put a TLS proxy before it, or allow plain connections and what they show to the network")

// ErrFailed is wrapped by Failure: whether the last commit landed is unknown until the store is opened again.
var ErrFailed = errors.New("a commit of the relay's store failed; it must be opened again")
