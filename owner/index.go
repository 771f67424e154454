package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

// Index is what the store says of its tasks without reading their logs.
type Index struct {
	Rows []Row    // of the tasks that are not live; all of them have ended
	Live []TaskID // whose logs are to be read, sorted by folder: each that has not ended, and some that have
}

// Index reads the index. whole is false where it is of an older version or another build, was lost, or is not as it was
// written: then it says nothing, and every task is to be read (List). It takes no lock.
func (s *Store) Index() (x Index, whole bool, err error) {
	if version, err := s.markerNow(); err != nil || version < liveVersion {
		return x, false, err
	}
	d, err := s.liveDir(false)
	if errors.Is(err, fs.ErrNotExist) {
		return x, false, nil
	}
	if err != nil {
		return x, false, err
	}
	// The live first: a task that is put away between the two is in both.
	dirs, err := liveNames(d)
	if err != nil {
		return x, false, err
	}
	rows, _, err := latestRows(d)
	if noRows(err) {
		return x, false, nil
	}
	if err != nil {
		return x, false, err
	}
	s.mu.Lock()
	for dir, r := range rows {
		s.names[dir] = r.ID // a row is of a log that was there
	}
	s.mu.Unlock()
	if x.Live, err = s.namesOf(dirs); err != nil {
		return x, false, err
	}
	for _, dir := range dirs {
		delete(rows, dir)
	}
	x.Rows = make([]Row, 0, len(rows))
	for _, r := range rows {
		x.Rows = append(x.Rows, r)
	}
	return x, true, nil
}

// Rows is every task's row, sorted by ID: as the index has it, of what is live as its log says, and all as the logs say
// where there is no index. fault is called for each that cannot be read; its error ends it.
func (s *Store) Rows(fault func(TaskID, error) error) ([]Row, error) {
	x, whole, err := s.Index()
	if err != nil {
		return nil, err
	}
	rows, ids := x.Rows, x.Live
	if !whole {
		if ids, err = s.List(); err != nil {
			return nil, err
		}
	}
	for _, id := range ids {
		err := s.read(id, func(st *state) error {
			rows = append(rows, RowOf(st.task))
			return nil
		})
		if err != nil {
			if err := fault(id, err); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(rows, func(a, b Row) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return rows, nil
}

// rowsPlace is where the rows end, as this process left them.
type rowsPlace struct {
	stamp saferead.Stamp
	end   int64
	more  int // records that were added since the file was read, less how many tasks it had then
}

// latestRows is each task's last row, by folder.
func latestRows(d *saferead.Dir) (rows map[string]Row, at rowsPlace, err error) {
	rows = map[string]Row{}
	records := 0
	at.end, err = readRows(d, func(r Row) {
		rows[dirName(r.ID)] = r
		records++
	})
	at.more = records - 2*len(rows)
	return rows, at, err
}

// rowsSlack is how many records the file may have beyond two for each task before it is written anew.
const rowsSlack = 4096

// indexing takes the lock of those who write rows or take tasks out of live, of whom there is one at a time. done
// gives it up, and closes the folder.
func (s *Store) indexing(ctx context.Context) (d *saferead.Dir, done func(), err error) {
	if err := s.usable(ctx); err != nil {
		return nil, nil, err
	}
	if _, err := s.liveDir(true); err != nil {
		return nil, nil, err
	}
	s.rowing.Lock()
	if d, err = s.lockLive(ctx); err != nil {
		s.rowing.Unlock()
		return nil, nil, err
	}
	return d, func() { d.Close(); s.rowing.Unlock() }, nil
}

func (s *Store) lockLive(ctx context.Context) (*saferead.Dir, error) {
	root, err := saferead.OpenDir(s.home)
	if err != nil {
		return nil, classify(err)
	}
	defer root.Close()
	return lockFolder(ctx, root, liveFolder)
}

// lockFolder opens a folder of the home, locked until it is closed.
func lockFolder(ctx context.Context, root *saferead.Dir, name string) (*saferead.Dir, error) {
	d, err := root.OpenDir(name)
	if err != nil {
		return nil, classify(err)
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for until := time.Now().Add(readWait); ; {
		ok, err := d.TryLock(true)
		if ok {
			return d, nil
		}
		if err == nil && time.Now().After(until) {
			err = refuse("store_busy", "%s is locked by another process", d.Path())
		}
		if err != nil {
			d.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			d.Close()
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// Reindex makes the index anew of what all logs say: of a store that had none, and of one that was found wrong. look
// reads one task, and is called from several goroutines; nil of a task that cannot be read, which stays live. An error of it ends all.
func (s *Store) Reindex(ctx context.Context, look func(context.Context, TaskID) (*Task, error)) error {
	d, done, err := s.indexing(ctx)
	if err != nil {
		return fmt.Errorf("index the tasks: %w", err)
	}
	// From before the first log is read: a row that another process wrote meanwhile may be newer than what was read.
	defer done()
	ids, err := s.List()
	if err != nil {
		return fmt.Errorf("index the tasks: %w", err)
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var mu sync.Mutex // guards rows and live
	var rows []Row
	var live []string
	var wg sync.WaitGroup
	next := make(chan TaskID)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for id := range next {
				if ctx.Err() != nil {
					continue
				}
				t, err := look(ctx, id)
				if err != nil {
					stop(err)
					continue
				}
				mu.Lock()
				if t != nil && t.Ended() {
					rows = append(rows, RowOf(t))
				} else {
					live = append(live, dirName(id))
				}
				mu.Unlock()
			}
		})
	}
	for _, id := range ids {
		next <- id
	}
	close(next)
	wg.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("index the tasks: %w", context.Cause(ctx))
	}
	if err := s.writeIndex(d, rows, live); err != nil {
		return fmt.Errorf("index the tasks: %w", err)
	}
	return nil
}

// writeIndex enters the live and then writes the rows, whole. The caller has the lock of d. The rename of the rows is
// the commit point: before it there are the rows of before, or none, and files of live too many.
func (s *Store) writeIndex(d *saferead.Dir, rows []Row, live []string) error {
	b := rowsHeader()
	for i := range rows {
		var ok bool
		if b, ok = appendRow(b, &rows[i]); !ok {
			live = append(live, dirName(rows[i].ID))
		}
	}
	have, err := liveNames(d)
	if err != nil {
		return err
	}
	for _, dir := range live {
		if _, there := slices.BinarySearch(have, dir); there {
			continue
		}
		f, err := s.fs.Open(d, dir, os.O_RDWR|os.O_CREATE)
		if err != nil {
			return classify(err)
		}
		f.Close()
	}
	if err := s.fs.SyncDir(d); err != nil {
		return err
	}
	s.rows = rowsPlace{}
	return atomicfile.WriteIn(s.fs, d, rowsName, b)
}

// PutAway writes the rows of those tasks that have ended, and takes them out of live. What has not ended, changes just
// now or cannot be read stays for another time; put is how many went. Without an index it does nothing. After an error there may be no
// index any more, which costs the next start that all logs are read.
func (s *Store) PutAway(ctx context.Context, ids []TaskID) (put int, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("put tasks away: %w", err)
		}
	}()
	d, done, err := s.indexing(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	at, err := s.rowsNow(d)
	if noRows(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var b []byte
	var rows []Row
	for _, id := range ids {
		t, err := s.Get(id)
		if err != nil || !t.Ended() {
			continue
		}
		r, ok := RowOf(&t), false
		if b, ok = appendRow(b, &r); ok {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return 0, nil
	}
	if err := s.addRows(d, at, b, len(rows)); err != nil {
		return 0, err
	}
	for i := range rows {
		gone, err := s.rest(ctx, d, &rows[i])
		if err != nil {
			return put, err
		}
		if gone {
			put++
		}
	}
	return put, nil
}

// rowsNow is where the rows end, which are read where this process does not know it, and written anew where most of
// them are of the past. The caller has the lock of d.
func (s *Store) rowsNow(d *saferead.Dir) (rowsPlace, error) {
	stamp, err := d.Peek("", rowsName)
	if err != nil {
		return rowsPlace{}, classify(err)
	}
	if s.rows.end > 0 && s.rows.stamp == stamp && s.rows.more < rowsSlack {
		return s.rows, nil
	}
	rows, at, err := latestRows(d)
	if err != nil || at.more < rowsSlack {
		return at, err
	}
	list := make([]Row, 0, len(rows))
	for _, r := range rows {
		list = append(list, r)
	}
	if err := s.writeIndex(d, list, nil); err != nil {
		return at, err
	}
	_, at, err = latestRows(d)
	return at, err
}

// addRows appends records. The sync is the commit point of the rows; what a crash leaves of them before it belongs to
// tasks that are still live. A file of which that is not certain is removed: it is a hint, and the logs are whole.
func (s *Store) addRows(d *saferead.Dir, at rowsPlace, b []byte, n int) error {
	s.rows = rowsPlace{}
	f, err := s.fs.Open(d, rowsName, os.O_RDWR)
	if err != nil {
		return classify(err)
	}
	defer f.Close()
	err = f.Truncate(at.end)
	if err == nil {
		_, err = f.WriteAt(b, at.end)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return errors.Join(err, s.fs.Remove(d, rowsName))
	}
	at.end, at.more = at.end+int64(len(b)), at.more+n
	if at.stamp, err = stampOfFile(f); err == nil {
		s.rows = at
	}
	return nil
}

// rest takes a task out of live that is still as its row says. Not synced: a removal that a power cut undoes leaves a
// file too many.
func (s *Store) rest(ctx context.Context, d *saferead.Dir, r *Row) (gone bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	l, err := s.Lock(ctx, r.ID)
	if err != nil {
		if errors.Is(err, ErrReopen) {
			return false, err
		}
		return false, nil // somebody is at it, or it cannot be read: it stays
	}
	defer l.Unlock()
	if !l.task.Ended() || RowOf(l.task) != *r {
		return false, nil
	}
	if err := s.fs.Remove(d, dirName(r.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	l.e.mu.Lock()
	l.e.stirred = liveMark{}
	l.e.mu.Unlock()
	return true, nil
}
