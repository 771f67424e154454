package host

import (
	"sort"
	"sync"

	"holdfast/nip"
	"holdfast/owner"
)

// taskRow is what listings and counts need of a task, so that they never read
// the tasks themselves.
type taskRow struct {
	ID        owner.TaskID
	Path      string // of the workspace's root
	Title     string
	Revision  int64
	Phase     string
	Attempt   *int
	Status    owner.Status
	Archived  bool
	CreatedAt int64
	UpdatedAt int64
}

// rowOf reads a task into its row.
func rowOf(t *owner.Task) taskRow {
	phase, _, _ := t.Summary()
	return taskRow{
		ID: t.ID, Path: t.Intent.Workspace.Path, Title: cut(t.Intent.Title, 200), Revision: t.Revision,
		Phase: phase, Attempt: attempt(t), Status: t.Status, Archived: t.Archived != nil,
		CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt,
	}
}

// open reports whether something of the task can still run or start.
func (r *taskRow) open() bool { return r.Status != owner.Finished && r.Status != owner.Cancelled }

// taskIndex holds a row a task in memory. A serving host fills it once at start
// and keeps it by the store's watch and by its own writes; it decides nothing,
// whoever acts on a task reads the task.
type taskIndex struct {
	// mu guards rows and opened.
	mu     sync.Mutex
	rows   map[owner.TaskID]taskRow
	opened map[owner.TaskID]bool // the rows that are open, so that ended tasks cost a sweep nothing
}

func newTaskIndex() *taskIndex {
	return &taskIndex{rows: map[owner.TaskID]taskRow{}, opened: map[owner.TaskID]bool{}}
}

// note takes a task as it was read, and reports whether that is news. Reads of
// two goroutines may come in either order: the higher revision stays.
func (x *taskIndex) note(t *owner.Task) (news bool) {
	r := rowOf(t)
	x.mu.Lock()
	defer x.mu.Unlock()
	old, known := x.rows[r.ID]
	if known && old.Revision > r.Revision {
		return false
	}
	x.rows[r.ID] = r
	if r.open() {
		x.opened[r.ID] = true
	} else {
		delete(x.opened, r.ID)
	}
	return !known || old.Revision < r.Revision
}

func (x *taskIndex) get(id owner.TaskID) (taskRow, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r, ok := x.rows[id]
	return r, ok
}

// open lists the tasks that may still run or start, sorted.
func (x *taskIndex) open() []owner.TaskID {
	x.mu.Lock()
	defer x.mu.Unlock()
	ids := make([]owner.TaskID, 0, len(x.opened))
	for id := range x.opened {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids
}

// all copies the rows that keep wants.
func (x *taskIndex) all(keep func(*taskRow) bool) []taskRow {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []taskRow
	for _, r := range x.rows {
		if keep(&r) {
			out = append(out, r)
		}
	}
	return out
}

// taskRows lists the tasks that keep wants and counts those that cannot be
// read. Where a host serves nothing is read; a verb without a host reads every
// task once.
func (c *Core) taskRows(keep func(*taskRow) bool) (rows []taskRow, unreadable int, err error) {
	ids, err := c.store.List()
	if err != nil {
		return nil, 0, err
	}
	if h := c.serving; h != nil {
		for _, id := range ids {
			if _, known := h.index.get(id); known {
				continue
			}
			h.taskChanged(id)
			if _, known := h.index.get(id); !known {
				unreadable++
			}
		}
		return h.index.all(keep), unreadable, nil
	}
	for _, id := range ids {
		t, err := c.store.Get(id)
		if err != nil {
			unreadable++
			continue
		}
		if r := rowOf(&t); keep(&r) {
			rows = append(rows, r)
		}
	}
	return rows, unreadable, nil
}

// openTasks lists the tasks that may still run or start.
func (c *Core) openTasks() ([]owner.TaskID, error) {
	if h := c.serving; h != nil {
		return h.index.open(), nil
	}
	rows, _, err := c.taskRows((*taskRow).open)
	ids := make([]owner.TaskID, 0, len(rows))
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids, err
}

// newestFirst orders rows as people look for them.
func newestFirst(rows []taskRow, when func(*taskRow) int64) {
	sort.Slice(rows, func(i, j int) bool {
		if a, b := when(&rows[i]), when(&rows[j]); a != b {
			return a > b
		}
		return rows[i].ID < rows[j].ID
	})
}

func (r *taskRow) onWire() nip.TaskRow {
	return nip.TaskRow{Task: string(r.ID), Revision: r.Revision, Title: r.Title, Phase: nip.Phase(r.Phase), Attempt: r.Attempt}
}
