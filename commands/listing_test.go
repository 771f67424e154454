package commands

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// TestListShowsWhatIsStuck: an entry whose first transitions were pruned, because
// its bytes cannot be applied, is in every listing, once, whether it was carried
// already or not, and pages join around it.
func TestListShowsWhatIsStuck(t *testing.T) {
	r := newRig(t)
	r.tasks.add(task(0), TaskView{Phase: PhaseEnded, Revision: 1})
	r.tasks.add(task(1), TaskView{Phase: PhaseRunning, Revision: 1})
	r.tasks.applyErr = errors.New("the task's disk is gone")
	if _, err := r.Submit(context.Background(), sender(0), command(0, nip.Send, 1), Hooks{}); !errors.Is(err, ErrUnsettled) {
		t.Fatal(err)
	}
	want := []nip.CommandID{id(0)}
	said := 0
	say := func(n int) {
		for range n {
			said++
			c := command(said, nip.Queue, 1)
			c.Task, c.IssuedAt = task(1), r.clock
			r.submit(sender(1), c)
			want = append(want, c.ID)
		}
	}
	listed := func(when string) {
		t.Helper()
		for _, limit := range []int{1, 2, 3, 100} {
			f := Filter{Limit: limit}
			var got []nip.CommandID
			for range 2 * len(want) {
				var page []Entry
				r.view(func(tx *bbolt.Tx) (err error) { page, f.After, err = r.Journal.Page(tx, f); return err })
				for _, e := range page {
					got = append(got, e.Command.ID)
				}
				if f.After == 0 {
					break
				}
			}
			sorted := slices.Sorted(slices.Values(got))
			if !slices.Equal(sorted, slices.Sorted(slices.Values(want))) {
				t.Errorf("%s, pages of %d: %d entries, want %d", when, limit, len(got), len(want))
			}
		}
	}
	prune := func() {
		r.update(func(tx *bbolt.Tx) error { _, err := r.Journal.Prune(tx, r.clock, 1); return err })
		r.check()
	}
	listed("at first")
	r.advance(Retention)
	say(3)
	prune() // its received is gone, its dispatching holds it
	listed("without its first transition")
	r.advance(Retention)
	prune() // and is carried behind the others
	listed("carried")
	say(3)
	listed("carried in the middle")
}
