package nip

import "slices"

var phases = []Phase{
	PhaseQueued, PhaseRunning, PhaseWaiting, PhaseCompleted, PhaseFailed, PhaseCancelled, PhaseUnknown,
}

func (o object) listing() TaskListing {
	t := TaskListing{Workspace: Label(o.text("workspace")), SnapshotDigest: Digest(o.text("snapshot_digest"))}
	for _, v := range o.list("rows", maxRows) {
		row := o.r.object(o.path+".rows", v)
		t.Rows = append(t.Rows, TaskRow{
			Task: row.text("task"), Revision: row.int("revision"), Title: row.text("title"),
			Phase: oneOf(row, "phase", phases...), Attempt: row.attempt(),
		})
		row.end()
	}
	t.Next, t.MoreAvailable = o.listCursor("next"), o.bool("more_available")
	o.end()
	return t
}

func (v *validator) title(s string) {
	v.must(s == "" || validText(s, maxTitle), Bounds, "title is too long or has control characters")
}

func (v *validator) phase(p Phase) {
	v.must(slices.Contains(phases, p), Malformed, "phase is not known")
}

// listing holds a page of a listing to its rules: distinct tasks, and a cursor
// of this very snapshot wherever more is promised.
func (v *validator) listing(t TaskListing) {
	v.label(t.Workspace)
	v.digest(t.SnapshotDigest, "snapshot_digest")
	v.must(len(t.Rows) <= maxRows, Bounds, "too many rows")
	seen := make(map[string]bool)
	for _, row := range t.Rows {
		v.studioID(row.Task)
		v.must(!seen[row.Task], Malformed, "a task stands twice")
		seen[row.Task] = true
		v.int(row.Revision, "row revision")
		v.title(row.Title)
		v.phase(row.Phase)
		v.must(row.Attempt == nil || *row.Attempt >= 1 && int64(*row.Attempt) <= maxInt, Malformed, "row attempt is out of range")
	}
	if t.Next != nil {
		v.listCursor(*t.Next, t.Workspace)
		v.must(t.Next.SnapshotDigest == t.SnapshotDigest, Malformed, "next is of another snapshot")
	}
	v.must(t.Next != nil || !t.MoreAvailable, Malformed, "more is available without a cursor")
}

func listingMembers(t TaskListing) members {
	rows := make([]members, 0, len(t.Rows))
	for _, r := range t.Rows {
		rows = append(rows, members{
			"task": r.Task, "revision": r.Revision, "title": r.Title, "phase": r.Phase, "attempt": r.Attempt,
		})
	}
	return members{
		"workspace": t.Workspace, "snapshot_digest": t.SnapshotDigest, "rows": rows,
		"next": orNull(t.Next, listCursorMembers), "more_available": t.MoreAvailable,
	}
}
