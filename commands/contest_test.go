package commands

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/internal/commit"
	"holdfast/nip"
)

// memoryRig is a rig over a store in memory with the real committer.
func memoryRig(t testing.TB) *rig {
	m, err := commit.NewMemory(commit.Options{Kind: "holdfast-host", Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	db, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close(); m.Close() })
	s := &store{db: committed{db}}
	if err := s.db.Update(Journal{}.Setup); err != nil {
		t.Fatal(err)
	}
	return newRigOver(t, s)
}

// nextTurn ends the turn: of the messages that wait, the one that arrived first
// makes the next turn, and no other does.
func (r *rig) nextTurn(on nip.TaskID, ft *fakeTask) {
	r.t.Helper()
	var held []Entry
	r.view(func(tx *bbolt.Tx) (err error) {
		held, _, err = r.Journal.Held(tx, on, 2)
		return err
	})
	if len(held) == 0 {
		return
	}
	before := len(ft.effects)
	ft.finish(false)
	if err := r.Evaluate(context.Background(), on); err != nil {
		r.t.Fatal(err)
	}
	first := slices.MinFunc(held, func(a, b Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	if got, want := ft.effects[before:], fmt.Sprint(first.Command.ID, " continue"); len(got) != 1 || got[0] != want {
		r.t.Fatalf("the next turn is %v, want %s", got, want)
	}
}

// TestOneWinner: two devices speak at the same instant, a thousand times where
// both answer, steer or interrupt, 250 times else, 50 under the race detector.
// One of them moves the task, and the other is told why it did not.
func TestOneWinner(t *testing.T) {
	t.Parallel()
	asked := TaskView{Phase: PhaseEnded, Revision: 5, TurnStart: 3, Question: true}
	over := TaskView{Phase: PhaseEnded, Revision: 5, TurnStart: 3}
	runs := TaskView{Phase: PhaseRunning, Revision: 5, TurnStart: 5, Steering: Steering{MidTurn: true, Emulate: true}}
	emulated := nip.Action("emulated steer")
	rows := []struct {
		name   string
		view   TaskView
		say    [2]nip.Action
		exact  bool
		ends   []string // of the first and the second device, and the effects: any of these, also the other way round where both say the same
		winner string   // what exactly one device must be; "" where ends say it all
	}{
		{"two answers", asked, [2]nip.Action{nip.Answer, nip.Answer}, false, []string{"applied, rejected conflict: continue"}, "applied"},
		{"two answers, exact", asked, [2]nip.Action{nip.Answer, nip.Answer}, true, []string{"applied, rejected stale: continue"}, "applied"},
		{"two sends", over, [2]nip.Action{nip.Send, nip.Send}, false, []string{"applied, rejected conflict: continue"}, "applied"},
		{"two interrupts", runs, [2]nip.Action{nip.Interrupt, nip.Interrupt}, false, []string{"applied, superseded stale: cancel"}, "applied"},
		{"two interrupts, exact", runs, [2]nip.Action{nip.Interrupt, nip.Interrupt}, true, []string{"applied, rejected stale: cancel"}, "applied"},
		{"two steers, exact", runs, [2]nip.Action{nip.Steer, nip.Steer}, true, []string{"applied, rejected stale: deliver"}, "applied"},
		{"two steers that stop", runs, [2]nip.Action{emulated, emulated}, false, []string{"held priority, held priority: cancel"}, ""},
		{"two steers that stop, exact", runs, [2]nip.Action{emulated, emulated}, true, []string{"held priority, rejected stale: cancel"}, "held priority"},
		{"two steers of an ended task", over, [2]nip.Action{nip.Steer, nip.Steer}, false, []string{"applied, applied: continue correct"}, ""}, // the second corrects the first
		{"a steer that stops, and an interrupt", runs, [2]nip.Action{emulated, nip.Interrupt}, false,
			[]string{"held priority, applied: cancel", "held priority, superseded stale: cancel"}, ""},
		{"an answer and a steer", asked, [2]nip.Action{nip.Answer, nip.Steer}, false,
			[]string{"applied, applied: continue correct", "rejected conflict, applied: continue"}, ""},
		{"an answer and an interrupt", asked, [2]nip.Action{nip.Answer, nip.Interrupt}, true,
			[]string{"applied, rejected stale: continue", "applied, superseded stale: continue"}, "applied"},
	}
	for _, row := range rows {
		rounds := 250
		switch {
		case Race:
			rounds = 50
		case slices.Contains([]string{"two answers", "two interrupts", "two steers that stop"}, row.name):
			rounds = 1000
		}
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := memoryRig(t)
			first := [2]int{}
			for round := range rounds {
				on := nip.TaskID(fmt.Sprintf("%064x", round+1))
				r.tasks.mu.Lock()
				ft := r.tasks.add(on, row.view)
				r.tasks.mu.Unlock()
				var all sync.WaitGroup
				var got [2]string
				begin := make(chan struct{})
				for _, d := range []int{round % 2, 1 - round%2} { // the one that is started last often comes first
					c := command(2*round+d, row.say[d], 5)
					c.Task = on
					if c.Emulate = c.Action == emulated; c.Emulate {
						c.Action = nip.Steer
					}
					all.Go(func() {
						<-begin
						e, err := r.Submit(context.Background(), sender(d), c, Hooks{Exact: row.exact})
						if err != nil {
							t.Error(err)
						}
						got[d] = short(e)
					})
				}
				close(begin)
				all.Wait()
				var effects []string
				for _, e := range ft.effects {
					effects = append(effects, strings.Fields(e)[1])
				}
				end := func(a, b string) string { return fmt.Sprintf("%s, %s: %s", a, b, strings.Join(effects, " ")) }
				ok := slices.Contains(row.ends, end(got[0], got[1])) ||
					row.say[0] == row.say[1] && slices.Contains(row.ends, end(got[1], got[0]))
				if one := (got[0] == row.winner) != (got[1] == row.winner); !ok || row.winner != "" && !one {
					t.Fatalf("round %d: %s", round, end(got[0], got[1]))
				}
				if strings.HasPrefix(ft.effects[0], string(id(2*round))) {
					first[0]++
				} else {
					first[1]++
				}
				r.nextTurn(on, ft)
			}
			r.check()
			if n := len(r.locks.tasks); n != 0 {
				t.Errorf("%d task locks remain", n)
			}
			t.Logf("the first device came first %d times, the second %d", first[0], first[1])
		})
	}
}
