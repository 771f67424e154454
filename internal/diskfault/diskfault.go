// Package diskfault makes the disk of this very process fail, for tests of what
// is left behind.
//
// Its nouns are the Disk, which sees every call that writes, sizes or syncs a
// file, and the Plan: which of those calls fails, and how. bbolt offers no seam
// for this, so the calls are caught below it: a seccomp filter hands pwrite64,
// ftruncate, fsync and fdatasync to a goroutine of the same process, which lets
// them pass, answers them itself, or undoes what was written. The filter cannot
// be taken off again, so a test does this in a child process that runs nothing
// else.
//
// A sync below the watched folder is answered without being carried out: what
// was written before it counts as durable from then on, and the kernel keeps it
// anyway. What was written since is what a power cut takes back, by file and
// whatever its name or its descriptor has become. Names are durable at once, but
// for Nameless, which holds every folder to its last sync; of renames within one
// folder and removals alone what they replace comes back. Both fail once the
// process is gone, and are no calls of a plan.
//
// What is written by another call would neither fail nor be taken back, and a
// test would pass because it saw nothing. So while nothing is to fail each file
// is held against the calls that were seen of it (Unseen).
//
// Begin and End may be called from one goroutine at a time; the watched calls
// may come from any. Linux 5.9 or later, on amd64 and arm64; Install says so
// elsewhere. Nothing of the product imports this package.
package diskfault

// Kind is how a call fails.
type Kind uint8

const (
	None  Kind = iota
	Error      // the call does nothing and answers EIO; the disk works again at once
	// NoRoom is Error with ENOSPC: a full disk that has room again at once.
	NoRoom
	// Short writes the first half; what wants to write the rest gets ENOSPC.
	// Another call answers EIO.
	Short
	// Kill does nothing and answers EIO, as does everything after it: the
	// process is gone, and the kernel keeps what was written.
	Kill
	// PowerCut is Kill, and what was not synced is lost when the next process
	// comes (Revive).
	PowerCut
	// Torn is PowerCut of a disk that had written some of it, out of order: the
	// first half of the call itself and every second one before it stay.
	Torn
	// Nameless is PowerCut, and a folder has the names again that it had at its own
	// last sync: what was made in it since is gone, however well it was synced
	// itself, what was removed is back, and what was renamed has its old name.
	Nameless
)

// Kinds are all ways to fail.
var Kinds = []Kind{Error, NoRoom, Short, Kill, PowerCut, Torn, Nameless}

func (k Kind) String() string {
	return [...]string{"none", "error", "no room", "short write", "kill", "power cut", "torn power cut", "nameless power cut"}[k]
}

// Plan is one failure: the At-th call from Begin, counted from 1, fails.
type Plan struct {
	Kind Kind
	At   int
}
