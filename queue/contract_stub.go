// Package queue holds the rules of editing held messages under a lease.
package queue

import (
	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// LeaseSeconds is how long a lease lasts unless renewed.
const LeaseSeconds = 60

// Apply carries out one edit of asker in the journal's transaction and returns the queue as asker
// may see it. A non-empty code means nothing was changed. Call it inside Evaluator.Edit.
func Apply(tx *bbolt.Tx, j commands.Journal, asker nip.PubKey, task nip.TaskID, edit nip.QueueEdit, view commands.TaskView, now int64) (nip.QueueState, nip.Code, error) {
	panic("stub")
}
