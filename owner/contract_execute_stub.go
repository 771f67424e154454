package owner

import (
	"context"
	"io"
)

func ParseGrant(b []byte) (Grant, error)  { panic("stub") } // either schema, strict, closed, 64 KiB
func EncodeGrant(g Grant) ([]byte, error) { panic("stub") } // holdfast.execution-grant.v1, canonical

// Steering is what an adapter offers for steering.
type Steering struct{ MidTurn, Emulate bool }

// SteeringOf answers for an adapter.
func SteeringOf(adapter string) Steering { panic("stub") }

// Launched is a detached owner process that was started.
type Launched struct {
	PID        int
	Diagnostic string          // path of its diagnostics
	Done       <-chan struct{} // closed when this process has reaped it
}

// Launch re-executes this binary (/proc/self/exe) as the owner of one turn, in a session of its own with a
// cleared environment, stdin null, all other descriptors closed. grant is the digest of a blob.
func Launch(s *Store, id TaskID, grant Digest) (*Launched, error) { panic("stub") }

// OwnerArg is argv[1] of the hidden verb; RunOwner is its body and returns the exit code.
const OwnerArg = "owner-of-turn"

func RunOwner(args []string, stderr io.Writer) int { panic("stub") }

// Execute owns one turn in this process (task execute, and RunOwner's core). See the order of dispatch in doc.go.
func Execute(ctx context.Context, s *Store, id TaskID, grantBytes []byte) (Task, error) {
	panic("stub")
}

// Settle ends a run of which nothing is left: no owner, and the recorded process group proven gone. It kills,
// reruns and deletes nothing. changed says whether it wrote.
func (s *Store) Settle(ctx context.Context, id TaskID) (t Task, changed bool, err error) {
	panic("stub")
}

// Recover settles, else fences a lost owner (unknown).
func (s *Store) Recover(ctx context.Context, id TaskID) (Task, error) { panic("stub") }

// OwnerAlive reports whether some process holds the task's owner.lock.
func (s *Store) OwnerAlive(id TaskID) (bool, error) { panic("stub") }

// StopOwners asks every running turn of the store to stop and waits for the owners to leave (tour, tests).
func StopOwners(ctx context.Context, s *Store, reason string) error { panic("stub") }

// Secrets reads the operator's secrets file: name -> value. Missing file: empty.
func ReadSecrets(home string) (map[string]string, error) { panic("stub") }
