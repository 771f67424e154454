package commands

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/internal/commit"
	"holdfast/nip"
)

// given is a command and the device that gave it.
type given struct {
	device  int
	command nip.Command
}

// scene is one story of a task: commands, turns, edits. Each action is retried
// after a crash, as a device and a restarted host would.
type scene struct {
	r        *rig
	gave     []given
	answered map[nip.CommandID]string // what the last retained answer said
}

func (s *scene) try(what string, fn func() error) {
	s.r.t.Helper()
	err := fn()
	if errors.Is(err, errCrash) || errors.Is(err, commit.ErrPoisoned) {
		s.r.restart()
		// The host settles every task with undecided entries at its start.
		if err := s.r.Evaluate(context.Background(), task(0)); err != nil {
			s.r.t.Fatalf("%s, restart: %v", what, err)
		}
		s.r.check()
		err = fn()
	}
	if err != nil {
		s.r.t.Fatalf("%s: %v", what, err)
	}
}

func (s *scene) send(d int, c nip.Command) {
	s.r.t.Helper()
	s.gave = append(s.gave, given{d, c})
	s.try(fmt.Sprint(c.Action, " ", c.Text), func() error {
		var answer string
		_, err := s.r.Submit(context.Background(), sender(d), c, Hooks{
			Answer: func(_ *bbolt.Tx, e Entry, err error) error {
				answer = short(e)
				return err
			},
		})
		if err == nil {
			s.answered[c.ID] = answer // a receipt leaves only after the commit
		}
		return err
	})
}

// play is long enough to pass every kind of write: records, decisions, holds,
// effects, an emulated stop, an edit, an expiry of a lease.
func (s *scene) play() {
	ctx := context.Background()
	r := s.r
	ft := r.tasks.tasks[task(0)]
	s.send(0, command(1, nip.Queue, 5))
	s.send(1, command(2, nip.Queue, 5))
	s.send(0, command(3, nip.Send, 5)) // refused: it runs
	steer := command(4, nip.Steer, 5)
	steer.Emulate = true
	s.send(1, steer)
	s.try("edit", func() error {
		return r.Edit(ctx, task(0), func(tx *bbolt.Tx, _ TaskView, _ int64) error {
			e, _, err := r.Journal.Get(tx, commandKey(sender(0), command(1, nip.Queue, 5)))
			if err != nil || e.Text == "edited" {
				return err
			}
			e.Text = "edited"
			_, err = r.Journal.Change(tx, e, "edited", start)
			return err
		})
	})
	for range 4 {
		ft.finish(false)
		s.try("turn ended", func() error { return r.Evaluate(ctx, task(0)) })
		ft.begin()
		s.try("turn began", func() error { return r.Evaluate(ctx, task(0)) })
	}
	stop := command(5, nip.Interrupt, ft.Revision)
	if ft.Phase != PhaseRunning {
		stop.BasedOn = 1 << 40
	}
	s.send(0, stop)
}

// forget lets everything grow old and prunes it, a few transitions a commit.
// Every command comes once more then: none runs again, each is expired.
func (s *scene) forget() {
	s.r.t.Helper()
	ctx := context.Background()
	s.r.advance(Retention)
	s.try("expire", func() error { return s.r.Evaluate(ctx, task(0)) }) // what was still held
	s.r.advance(Retention)
	const step = 4
	for dropped := step; dropped == step; {
		s.try("prune", func() error {
			return s.r.DB.Update(ctx, func(tx *bbolt.Tx) (err error) {
				dropped, err = s.r.Journal.Prune(tx, s.r.clock, step)
				return err
			})
		})
		s.r.check()
	}
	effects := len(s.r.tasks.tasks[task(0)].effects)
	for _, g := range s.gave {
		s.try("replay", func() error {
			_, err := s.r.Submit(ctx, sender(g.device), g.command, Hooks{Answer: func(*bbolt.Tx, Entry, error) error { return nil }})
			if errors.Is(err, ErrPruned) {
				return nil
			}
			return fmt.Errorf("command %s is not known to be pruned: %w", g.command.Text, err)
		})
	}
	if n := len(s.r.tasks.tasks[task(0)].effects); n != effects {
		s.r.t.Errorf("%d effects after the replays, %d before", n, effects)
	}
}

func newScene(r *rig) *scene {
	r.tasks.add(task(0), TaskView{Phase: PhaseRunning, Revision: 5, TurnStart: 5, Steering: Steering{Emulate: true}})
	return &scene{r: r, answered: make(map[nip.CommandID]string)}
}

// told is the story's end: the task's effects in their order, and every command
// as it stands, each with a receipt, in a journal that verifies.
func (s *scene) told() string {
	s.r.t.Helper()
	s.r.check()
	out := ""
	for _, e := range s.r.tasks.tasks[task(0)].effects {
		out += e + "\n"
	}
	s.r.view(func(tx *bbolt.Tx) error {
		for i := 1; i <= 5; i++ {
			for d := range 2 {
				e, known, err := s.r.Journal.Get(tx, Key{Principal: device(d), Kind: KindCommand, ID: string(id(i))})
				if err != nil {
					return err
				}
				if known {
					out += fmt.Sprintf("%d: %s %q\n", i, short(e), e.Text)
					if s.answered[e.Command.ID] == "" {
						s.r.t.Errorf("command %d has no receipt", i)
					}
				}
			}
		}
		return nil
	})
	return out
}

// TestCrashLoop dies before and after the N-th transaction or apply, for every
// N, and compares the end with an undisturbed run: every command took effect at
// most once, in the same order, and every receipt still holds.
func TestCrashLoop(t *testing.T) {
	tell := func(at int, after bool) (string, int) {
		s := newScene(newRig(t))
		s.r.store.arm(at, after)
		s.play()
		told := s.told()
		s.forget()
		return told, s.r.store.steps
	}
	want, steps := tell(0, false)
	if steps < 15 {
		t.Fatalf("the story has only %d steps", steps)
	}
	for at := 1; at <= steps; at++ {
		for _, after := range []bool{false, true} {
			if got, _ := tell(at, after); got != want {
				t.Errorf("dead at step %d, after it: %v\n%s\nundisturbed\n%s", at, after, got, want)
			}
		}
	}
}
