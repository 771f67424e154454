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
	// mu guards all but what filling guards.
	mu         sync.Mutex
	rows       map[owner.TaskID]taskRow
	opened     map[owner.TaskID]bool // the rows that are open, so that ended tasks cost a sweep nothing
	resting    map[owner.TaskID]bool // of those, the queued ones that nothing starts by itself
	listings   map[string]*listing   // by the workspace's root
	phases     map[string]int        // how many rows have each
	unreadable map[owner.TaskID]bool

	filling sync.Mutex // guards filled, and is held while the store is read for the first time
	filled  bool       // every task that was there then has its row
}

func newTaskIndex() *taskIndex {
	return &taskIndex{
		rows: map[owner.TaskID]taskRow{}, opened: map[owner.TaskID]bool{}, resting: map[owner.TaskID]bool{}, listings: map[string]*listing{},
		phases: map[string]int{}, unreadable: map[owner.TaskID]bool{},
	}
}

// note takes a task as it was read, and reports whether that is news. Reads of
// two goroutines may come in either order: the higher revision stays.
func (x *taskIndex) note(t *owner.Task) (news bool) {
	r := rowOf(t)
	x.mu.Lock()
	defer x.mu.Unlock()
	old, known := x.rows[r.ID]
	switch {
	case known && old.Revision > r.Revision:
		return false
	case known:
		x.relist(&old, &r)
	default:
		x.relist(nil, &r)
	}
	delete(x.unreadable, r.ID)
	x.rows[r.ID] = r
	if !known || old.Revision != r.Revision {
		delete(x.resting, r.ID)
	}
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

// rest takes a queued task out of the sweeps: at this revision nobody's word is
// behind its turn. A new revision, or stir, brings it back.
func (x *taskIndex) rest(id owner.TaskID, revision int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.opened[id] && x.rows[id].Revision == revision {
		x.resting[id] = true
	}
}

func (x *taskIndex) stir(id owner.TaskID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.resting, id)
}

// due lists the open tasks that a sweep looks at, sorted.
func (x *taskIndex) due() []owner.TaskID {
	return x.listOpen(func(id owner.TaskID) bool { return !x.resting[id] })
}

// open lists the tasks that may still run or start, sorted.
func (x *taskIndex) open() []owner.TaskID {
	return x.listOpen(func(owner.TaskID) bool { return true })
}

func (x *taskIndex) listOpen(keep func(owner.TaskID) bool) []owner.TaskID {
	x.mu.Lock()
	defer x.mu.Unlock()
	var ids []owner.TaskID
	for id := range x.opened {
		if keep(id) {
			ids = append(ids, id)
		}
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids
}

// taskRows reads every task into its row, and counts those that cannot be read:
// for a verb while no host serves.
func (c *Core) taskRows() (rows []taskRow, unreadable int, err error) {
	ids, err := c.store.List()
	if err != nil {
		return nil, 0, err
	}
	for _, id := range ids {
		t, err := c.store.Get(id)
		if err != nil {
			unreadable++
			continue
		}
		rows = append(rows, rowOf(&t))
	}
	return rows, unreadable, nil
}

// taskCounts is how many tasks are in each phase.
func (c *Core) taskCounts() (map[string]int, error) {
	if h := c.serving; h != nil {
		if err := h.fill(); err != nil {
			return nil, err
		}
		return h.index.counts(), nil
	}
	rows, unreadable, err := c.taskRows()
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, r := range rows {
		out[r.Phase]++
	}
	if unreadable > 0 {
		out["unreadable"] = unreadable
	}
	return out, nil
}

// openTasks lists the tasks that may still run or start.
func (c *Core) openTasks() ([]owner.TaskID, error) {
	if h := c.serving; h != nil {
		return h.index.open(), nil
	}
	rows, _, err := c.taskRows()
	ids := []owner.TaskID{}
	for _, r := range rows {
		if r.open() {
			ids = append(ids, r.ID)
		}
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids, err
}

func (r *taskRow) onWire() nip.TaskRow {
	return nip.TaskRow{Task: string(r.ID), Revision: r.Revision, Title: r.Title, Phase: nip.Phase(r.Phase), Attempt: r.Attempt}
}
