package owner

// Row is what lists, counts and a start of the host need of a task, so that they need not read its log.
type Row struct {
	ID        TaskID
	Path      string // of the intent's workspace
	Title     string
	Revision  int64
	Phase     string
	Headline  string
	Turn      int // the current turn's number, 0 before it was admitted
	Status    Status
	Archived  bool
	CreatedAt int64
	UpdatedAt int64
}

// RowOf is the task's row.
func RowOf(t *Task) Row {
	r := Row{
		ID: t.ID, Path: t.Intent.Workspace.Path, Title: t.Intent.Title, Revision: t.Revision, Status: t.Status,
		Archived: t.Archived != nil, CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt,
	}
	r.Phase, r.Headline, _ = t.Summary()
	if t.Run != nil {
		r.Turn = t.Turn()
	}
	return r
}

// Open reports whether something of the task can still run or start.
func (r *Row) Open() bool { return r.Status != Finished && r.Status != Cancelled }
