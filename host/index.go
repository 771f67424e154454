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
	r := owner.RowOf(t)
	return rowFrom(&r)
}

// rowFrom is the row of a task that need not be read.
func rowFrom(r *owner.Row) taskRow {
	row := taskRow{
		ID: r.ID, Path: r.Path, Title: cut(r.Title, 200), Revision: r.Revision, Phase: r.Phase, Status: r.Status,
		Archived: r.Archived, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
	}
	if r.Turn > 0 {
		row.Attempt = &r.Turn
	}
	return row
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
	stirred    map[owner.TaskID]bool // the tasks that were read, and were not put away since
	unreadable map[owner.TaskID]bool

	filling sync.Mutex // guards filled, and is held while the store is read for the first time
	filled  bool       // every task that was there then has its row
}

func newTaskIndex() *taskIndex {
	return &taskIndex{
		rows: map[owner.TaskID]taskRow{}, opened: map[owner.TaskID]bool{}, resting: map[owner.TaskID]bool{}, listings: map[string]*listing{},
		phases: map[string]int{}, unreadable: map[owner.TaskID]bool{}, stirred: map[owner.TaskID]bool{},
	}
}

// note takes a task as it was read, and reports whether that is news. Reads of
// two goroutines may come in either order: the higher revision stays.
func (x *taskIndex) note(t *owner.Task) (news bool) {
	r := rowOf(t)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stirred[r.ID] = true
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

// load takes the rows of tasks that need not be read, many at once. Of those that were read meanwhile the row stays.
func (x *taskIndex) load(rows []owner.Row) {
	x.mu.Lock()
	defer x.mu.Unlock()
	touched := map[*listing]bool{}
	for i := range rows {
		r := rowFrom(&rows[i])
		if _, known := x.rows[r.ID]; known {
			continue
		}
		x.rows[r.ID] = r
		x.phases[r.Phase]++
		if r.open() {
			x.opened[r.ID] = true
		}
		if !r.Archived {
			l := x.listing(r.Path)
			l.order = append(l.order, listed{r.CreatedAt, r.ID})
			l.count(&r, true)
			touched[l] = true
		}
	}
	for l := range touched {
		sort.Slice(l.order, func(i, j int) bool { return l.order[i].before(l.order[j]) })
	}
}

// settling lists at most so many tasks that were read and have ended, and forgets that they were.
func (x *taskIndex) settling(most int) (ids []owner.TaskID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id := range x.stirred {
		if x.opened[id] {
			continue
		}
		delete(x.stirred, id)
		if ids = append(ids, id); len(ids) == most {
			break
		}
	}
	return ids
}

// taskCounts is how many tasks are in each phase.
func (c *Core) taskCounts() (map[string]int, error) {
	if h := c.serving; h != nil {
		if err := h.fill(); err != nil {
			return nil, err
		}
		return h.index.counts(), nil
	}
	unreadable := 0
	rows, err := c.store.Rows(func(owner.TaskID, error) error { unreadable++; return nil })
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
	awake, err := c.store.Awake()
	ids := []owner.TaskID{}
	for _, id := range awake {
		// One that cannot be read stops nobody else.
		if t, err := c.store.Get(id); err == nil {
			if r := rowOf(&t); r.open() {
				ids = append(ids, id)
			}
		}
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i] < ids[j] })
	return ids, err
}

func (r *taskRow) onWire() nip.TaskRow {
	return nip.TaskRow{Task: string(r.ID), Revision: r.Revision, Title: r.Title, Phase: nip.Phase(r.Phase), Attempt: r.Attempt}
}
