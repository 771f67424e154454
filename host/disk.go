package host

import (
	"context"
	"path/filepath"
	"time"

	"holdfast/owner"
)

// Disk is what the home takes, in bytes, by kind.
type Disk struct {
	Journal   int64 `json:"journal"` // host.db
	Tasks     int64 `json:"tasks"`   // logs, transcripts, identities
	Worktrees int64 `json:"worktrees"`
	Blobs     int64 `json:"blobs"`
	Relay     int64 `json:"relay"`
	Uploads   int64 `json:"uploads"`
	AtLeast   bool  `json:"at_least"` // a kind has more than was counted
}

const (
	diskEntries = 50_000 // of one kind, that are looked at
	diskTime    = 300 * time.Millisecond
)

// disk counts what is quick to count: status must answer beside a home of any size.
func (c *Core) disk(ctx context.Context) (d Disk) {
	for _, kind := range []struct {
		folder string
		bytes  *int64
	}{
		{"host.db", &d.Journal}, {"relay", &d.Relay}, {uploadFolder, &d.Uploads},
		{"identities", &d.Tasks}, {"tasks", &d.Tasks}, {"blobs", &d.Blobs}, {"worktrees", &d.Worktrees},
	} {
		ctx, cancel := context.WithTimeout(ctx, diskTime)
		n, whole := owner.Usage(ctx, filepath.Join(c.home, kind.folder), diskEntries)
		cancel()
		*kind.bytes += n
		d.AtLeast = d.AtLeast || !whole
	}
	return d
}
