package host

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"holdfast/nip"
	"holdfast/owner"
)

// The listing is at every moment what sorting all rows would give, and its
// digest depends on what is in it and on nothing else.
func TestListing(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	x := newTaskIndex()
	tasks := map[owner.TaskID]*owner.Task{}
	digests := map[string]nip.Digest{}
	for step := range 3000 {
		id := owner.TaskID(fmt.Sprint("t", rng.IntN(60)))
		task := tasks[id]
		if task == nil {
			task = &owner.Task{ID: id, Status: owner.Queued, CreatedAt: int64(rng.IntN(20))}
			task.Intent.Workspace.Path = []string{"/a", "/b"}[rng.IntN(2)]
			tasks[id] = task
		}
		switch {
		case rng.IntN(8) == 0:
			if task.Archived == nil {
				task.Archived = &owner.Archived{}
			} else {
				task.Archived = nil
			}
			task.Status = owner.Cancelled
		default:
			task.Status = []owner.Status{owner.Queued, owner.Running, owner.Cancelled}[rng.IntN(3)]
		}
		task.Revision++
		x.note(task)
		if step%10 == 0 {
			old := *task
			old.Revision--
			x.note(&old) // a read that came late
		}
		for _, path := range []string{"/a", "/b"} {
			var want []taskRow
			for _, task := range tasks {
				if task.Intent.Workspace.Path == path && task.Archived == nil {
					want = append(want, rowOf(task))
				}
			}
			slices.SortFunc(want, func(a, b taskRow) int {
				if a.CreatedAt != b.CreatedAt {
					return int(b.CreatedAt - a.CreatedAt)
				}
				return strings.Compare(string(a.ID), string(b.ID))
			})
			start := rng.IntN(len(want) + 2)
			got, total, digest := x.page(path, start, 7)
			if total != len(want) {
				t.Fatalf("step %d: %d tasks, want %d", step, total, len(want))
			}
			want = want[min(start, len(want)):]
			want = want[:min(7, len(want))]
			if !slices.Equal(got, want) {
				t.Fatalf("step %d: from %d: %v, want %v", step, start, got, want)
			}
			all, _, _ := x.page(path, 0, 1000)
			var content strings.Builder
			for _, r := range all {
				fmt.Fprintln(&content, path, r.ID, r.Revision)
			}
			if have, ok := digests[content.String()]; ok && have != digest {
				t.Fatalf("step %d: one listing with two digests", step)
			}
			digests[content.String()] = digest
		}
		phases := map[string]int{}
		for _, task := range tasks {
			phase, _, _ := task.Summary()
			phases[phase]++
		}
		if got := x.counts(); fmt.Sprint(got) != fmt.Sprint(phases) {
			t.Fatalf("step %d: %v, want %v", step, got, phases)
		}
	}
	seen := map[nip.Digest]bool{}
	for _, d := range digests {
		seen[d] = true
	}
	if len(seen) != len(digests) {
		t.Fatalf("%d listings have %d digests", len(digests), len(seen))
	}
	newest := x.newest(5, func(*taskRow) bool { return true })
	for i := 1; i < len(newest); i++ {
		if newest[i-1].UpdatedAt < newest[i].UpdatedAt {
			t.Fatal("not the newest")
		}
	}
}

// A page of a listing that gained a task meanwhile is stale, and what cannot be
// read is counted until it can.
func TestListStale(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	for range 5 {
		r.create(d, "p")
	}
	list := func(c *nip.ListCursor) nip.Reply {
		return r.ask(d, nip.TaskList{Query: nip.ListQuery{Workspace: "demo", Limit: 2, Cursor: c}})
	}
	first := list(nil).Outcome.(nip.Tasks).Tasks
	if len(first.Rows) != 2 || !first.MoreAvailable {
		t.Fatalf("%+v", first)
	}
	second := list(first.Next)
	if out, ok := second.Outcome.(nip.Tasks); !ok || len(out.Tasks.Rows) != 2 || out.Tasks.SnapshotDigest != first.SnapshotDigest {
		t.Fatalf("%+v", second)
	}
	r.create(d, "p")
	if p := list(first.Next); p.Refusal == nil || p.Refusal.Code != nip.Stale {
		t.Fatalf("%+v", p)
	}
	past := *first.Next
	past.SnapshotDigest, past.Next = list(nil).Outcome.(nip.Tasks).Tasks.SnapshotDigest, 7
	if p := list(&past); p.Refusal == nil || p.Refusal.Code != nip.Stale {
		t.Fatalf("past the end: %+v", p)
	}
}

// An inert task is looked at once and then rests, until its log grows or
// somebody's word stands behind it.
func TestInertRests(t *testing.T) {
	r := newRig(t)
	t.Cleanup(func() { close(r.h.stopped) })
	r.policy()
	raw, err := owner.EncodeCommand(owner.Command{CommandID: "c", TaskID: "by-hand", Action: owner.Action{Submit: &owner.Intent{
		Title: "t", Prompt: "p", Workspace: owner.Workspace{Path: r.repo}, Configuration: owner.Configuration{Adapter: owner.PromptCommand}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.c.Operate(t.Context(), "task.apply", mustRaw(t, TaskArgs{Request: raw, Verb: "submit"}), func(any) error { return nil }); err != nil {
		t.Fatal(err)
	}
	r.sweep()
	if due, open := r.h.index.due(), r.h.index.open(); len(due) != 0 || len(open) != 1 {
		t.Fatalf("due %v, open %v", due, open)
	}
	d := r.pair(nip.PairingRights())
	r.wantCode(r.ask(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}), "")
	r.sweep()
	if r.launches.Load() != 1 {
		t.Fatal("a turn beside it was not started")
	}
	r.h.taskChanged("by-hand")
	if due := r.h.index.due(); len(due) != 2 {
		t.Fatalf("due %v", due)
	}
}
