package host

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"holdfast/nip"
	"holdfast/owner"
)

// A start reads the tasks that are live and no other, and knows all of them
// the same; what a task was put away for is undone by its next record.
func TestStartReadsWhatIsLive(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	first, second := r.create(d, "one"), r.create(d, "two")
	if _, err := r.c.StopTask(t.Context(), owner.TaskID(first), "enough"); err != nil {
		t.Fatal(err)
	}
	if err := r.h.readAll(t.Context()); err != nil { // there is no index yet: it reads every task, and makes it
		t.Fatal(err)
	}
	if err := r.h.putAway(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := r.h.index.counts()
	rows, total, digest := r.h.index.page(r.task(first).Intent.Workspace.Path, 0, 10)
	r.restart()
	x, whole, err := r.c.store.Index()
	if err != nil || !whole || len(x.Live) != 1 || x.Live[0] != owner.TaskID(second) || len(x.Rows) != 1 {
		t.Fatalf("%+v, %v, %v", x, whole, err)
	}
	// Its log is made unreadable to see that a start does not ask for it.
	log := filepath.Join(r.home, "tasks", string(first), "log")
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	r.write(filepath.Join("tasks", string(first), "log"), "spoiled")
	if err := r.h.readAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, n, same := r.h.index.page(rows[0].Path, 0, 10)
	if n != total || same != digest || len(again) != len(rows) || len(again) != 2 {
		t.Fatalf("%v\n%v", rows, again)
	}
	for phase, n := range r.h.index.counts() {
		if before[phase] != n {
			t.Fatalf("%s: %d, before %d", phase, n, before[phase])
		}
	}
	r.write(filepath.Join("tasks", string(first), "log"), string(b))
	if _, err := r.c.store.Append(context.Background(), owner.TaskID(first), 0, owner.Event{Archived: &owner.Archived{Reason: "done", By: "owner"}}); err != nil {
		t.Fatal(err)
	}
	if live, err := r.c.store.Live(); err != nil || len(live) != 2 {
		t.Fatal(live, err)
	}
	// A gc makes the index anew, whatever was wrong with it.
	if err := os.Remove(filepath.Join(r.home, "live", string(second))); err != nil {
		t.Fatal(err)
	}
	r.gc(false)
	if live, err := r.c.store.Live(); err != nil || len(live) != 2 {
		t.Fatal(live, err)
	}
}
