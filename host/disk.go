package host

import (
	"context"
	"path/filepath"
	"sync"
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
	AsOf      int64 `json:"as_of"`    // Unix seconds: when it was counted
}

const (
	// What status itself looks at, of each kind: it must answer beside a home of any size. The time is for a disk that
	// hangs.
	diskGlance     = 2_000 // entries
	diskGlanceTime = time.Second
	// What a serving host counts beside it, for the next status.
	diskCount     = 5_000_000
	diskCountTime = time.Minute
	// A count is not repeated before this time, nor before 20 times as long as it took.
	diskEvery = time.Minute
)

// diskBook is a serving host's last figure.
type diskBook struct {
	mu       sync.Mutex // guards all below
	last     Disk
	known    bool
	counting bool
	next     time.Time
}

// disk is the figure for status: at a first look what is quick to count, and from a serving host then the last whole
// count, with its age. A look that finds it old has it counted anew, and does not wait.
func (c *Core) disk(ctx context.Context) Disk {
	h := c.serving
	if h == nil {
		return c.countDisk(ctx, diskGlance, diskGlanceTime)
	}
	b := &h.diskBook
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.known {
		b.last, b.known = c.countDisk(ctx, diskGlance, diskGlanceTime), true
		if !b.last.AtLeast {
			b.next = time.Now().Add(diskEvery)
		}
	}
	if !b.counting && !time.Now().Before(b.next) {
		b.counting = true
		h.background(h.recountDisk)
	}
	return b.last
}

// recountDisk ends when the host does.
func (h *Host) recountDisk() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-h.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	began := time.Now()
	d := h.countDisk(ctx, diskCount, diskCountTime)
	b := &h.diskBook
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counting, b.next = false, time.Now().Add(max(diskEvery, 20*time.Since(began)))
	if ctx.Err() == nil {
		b.last = d
	}
}

// countDisk looks at so many entries of each kind, for so long.
func (c *Core) countDisk(ctx context.Context, entries int, limit time.Duration) (d Disk) {
	d.AsOf = c.now()
	for _, kind := range []struct {
		folder string
		bytes  *int64
	}{
		{"host.db", &d.Journal}, {"relay", &d.Relay}, {uploadFolder, &d.Uploads},
		{"identities", &d.Tasks}, {"tasks", &d.Tasks}, {"blobs", &d.Blobs}, {"worktrees", &d.Worktrees},
	} {
		ctx, cancel := context.WithTimeout(ctx, limit)
		n, whole := owner.Usage(ctx, filepath.Join(c.home, kind.folder), entries)
		cancel()
		*kind.bytes += n
		d.AtLeast = d.AtLeast || !whole
	}
	return d
}
