package owner

import "context"

// Watch sends the ID of each task whose log grew (inotify, with a 1 s poll as fallback); "" means "look at all".
func (s *Store) Watch(ctx context.Context) <-chan TaskID { panic("stub") }

// WatchTask signals when this task's log grew.
func (s *Store) WatchTask(ctx context.Context, id TaskID) <-chan struct{} { panic("stub") }

// View reads lock-free. *Error revision_mismatch ("stale cursor") when the delivered prefix changed.
func (s *Store) View(id TaskID, limit int, stepLimit int, c *ViewCursor) (View, error) { panic("stub") }

// Original reads bytes of "task" (the whole prompt of the current turn) or "trace:<turn>".
func (s *Store) Original(id TaskID, source string, offset int64, limit int) (data []byte, total int64, digest Digest, err error) {
	panic("stub")
}

// Check verifies every durable file, read-only, calling report for each.
func (s *Store) Check(report func(path string, ok bool, detail string)) error { panic("stub") }

type traceKey struct{}

type traceScan struct{}
