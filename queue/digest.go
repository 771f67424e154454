package queue

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// Digest names the queue as it stands now (NIP-HOST, task.queue at a revision),
// and counts what is held. It covers the task, its revision, the current lease
// and every held message in run order. A message counts by its device, its ID
// and its latest transition in the journal: every edit makes one, so the digest
// moves with each, and it says nothing of a text that the asker may not read.
//
// Beyond ListLimit messages only the first are covered: the caller refuses such
// a queue.
func Digest(tx *bbolt.Tx, j commands.Journal, task nip.TaskID, view commands.TaskView, now int64) (nip.Digest, int, error) {
	q := queue{tx: tx, journal: j, task: task, view: view, now: now}
	if err := q.readLease(); err != nil {
		return "", 0, err
	}
	held, total, err := j.Held(tx, task, ListLimit)
	if err != nil {
		return "", 0, err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "holdfast.queue.v1 %s %d\n", task, view.Revision)
	if q.lease != nil {
		fmt.Fprintf(sum, "lease %s %d\n", q.lease.Device, q.lease.ExpiresAt)
	}
	for _, e := range held {
		fmt.Fprintf(sum, "%s %s %d\n", e.Key.Principal, e.Key.ID, e.History[len(e.History)-1])
	}
	return nip.Digest("sha256:" + hex.EncodeToString(sum.Sum(nil))), total, nil
}
