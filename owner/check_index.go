package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"holdfast/internal/saferead"
)

// index holds live and its rows against the logs: a task that has not ended is live, and of each other that is not
// live the row says what the log gives. A row whose task has no log says that the log was lost.
func (c *checker) index() {
	if version, err := c.s.markerNow(); err != nil || version < liveVersion {
		return // nobody reads it
	}
	d, err := c.s.liveDir(false)
	if errors.Is(err, fs.ErrNotExist) {
		return // every log is read, and it is made anew
	}
	if err != nil {
		root, rerr := saferead.OpenDir(c.s.home)
		if rerr == nil {
			c.file(root, liveFolder, func() error { return err })
			root.Close()
		}
		return
	}
	if names, err := d.Names(); err == nil && !slices.Contains(names, rowsName) {
		return
	}
	c.file(d, rowsName, func() error {
		wrong, err := c.indexAgain(d)
		if err == nil && len(wrong) > 0 {
			// Beside writers: what was replayed before they wrote is replayed again.
			wrong, err = c.indexAgain(d)
		}
		if errors.Is(err, ErrCorrupt) {
			return fmt.Errorf("remove the folder while nothing of this home runs, the next start makes it anew: %w", err)
		}
		if errors.Is(err, errOtherRows) {
			c.detail = "of another build of holdfast, whose next start makes it anew"
			return nil
		}
		if err == nil && len(wrong) > 0 {
			err = corrupt("%s", wrong[0])
		}
		return err
	})
}

// indexAgain says what is wrong, after it has replayed what looked wrong once more.
func (c *checker) indexAgain(d *saferead.Dir) (wrong []string, err error) {
	live, err := liveNames(d)
	if err != nil {
		return nil, err
	}
	rows, _, err := latestRows(d)
	if err != nil {
		return nil, err
	}
	c.detail = fmt.Sprintf("%d tasks at rest, %d live", len(rows), len(live))
	say := func(dir, format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf(format, args...)+"; holdfast gc makes the index anew")
		c.replayQuietly(dir)
	}
	isLive := func(dir string) bool { _, ok := slices.BinarySearch(live, dir); return ok }
	for dir, r := range c.rows {
		row, has := rows[dir]
		switch {
		case isLive(dir):
		case c.opened[dir]:
			say(dir, "task %s has not ended, and is not among the live", r.ID)
		case !has:
			say(dir, "task %s has no row, and is not among the live", r.ID)
		case row != r:
			say(dir, "the row of task %s is not what its log gives", r.ID)
		}
	}
	for dir, r := range rows {
		if _, there := c.rows[dir]; !there && c.lost(r.ID) {
			wrong = append(wrong, fmt.Sprintf("task %s has a row, and its log is missing; put %s back from a copy of this home", r.ID, c.s.TaskDir(r.ID)))
		}
	}
	return wrong, nil
}

// lost reports whether a task has no log, which it had if anything but its own folder and its reservations name it.
func (c *checker) lost(id TaskID) bool {
	_, err := os.Lstat(filepath.Join(c.s.TaskDir(id), logName))
	return errors.Is(err, fs.ErrNotExist)
}

// replayQuietly replays a task under its lock, so that no writer is half way.
func (c *checker) replayQuietly(dir string) {
	d, err := c.s.tasks.OpenDir(dir)
	if err != nil {
		return
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), readWait)
	defer cancel()
	lock, err := c.s.flock(ctx, d, lockName, shared)
	if err != nil {
		return
	}
	defer lock.Close()
	f, err := c.s.openLog(d, os.O_RDONLY)
	if err != nil {
		return
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil {
		if st, err := start(f, fi.Size()); err == nil && st.catchUp(f, fi.Size()) == nil {
			c.rows[dir], c.opened[dir] = RowOf(st.task), !st.task.Ended()
		}
	}
}
