package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

func TestRecord(t *testing.T) {
	r := newRig(t)
	first := entryFor(sender(0), command(1, nip.Queue, 1))
	rows := []struct {
		name string
		edit func(e *Entry)
		want error
	}{
		{"the same again", func(*Entry) {}, nil},
		{"under a renewed grant and epoch", func(e *Entry) { e.Sender.Grant, e.Sender.Epoch = "grant-new", 2 }, nil},
		{"another text", func(e *Entry) { e.Command.Text = "other" }, ErrConflict},
		{"another action", func(e *Entry) { e.Command.Action = nip.Send }, ErrConflict},
		{"another base", func(e *Entry) { e.Command.BasedOn = 2 }, ErrConflict},
		{"another issue time", func(e *Entry) { e.Command.IssuedAt++ }, ErrConflict},
		{"another emulate", func(e *Entry) { e.Command.Emulate = true }, ErrConflict},
		{"another task", func(e *Entry) { e.Command.Task, e.Task = task(1), task(1) }, ErrConflict},
		{"the exact-revision variant", func(e *Entry) { e.Exact = true }, ErrConflict},
	}
	r.update(func(tx *bbolt.Tx) error {
		_, err := r.Journal.Record(tx, first, start)
		return err
	})
	for _, row := range rows {
		e := first
		row.edit(&e)
		r.update(func(tx *bbolt.Tx) error {
			got, err := r.Journal.Record(tx, e, start+10)
			if !errors.Is(err, row.want) || err == nil && (got.Sender != first.Sender || got.ReceivedAt != start || got.Seq != 1) {
				t.Errorf("%s: %v, %+v", row.name, err, got)
			}
			return nil
		})
	}
	other := entryFor(sender(1), first.Command) // the same ID of another device is another command
	r.update(func(tx *bbolt.Tx) error {
		got, err := r.Journal.Record(tx, other, start)
		if err != nil || got.Seq != 2 {
			t.Errorf("another device: %v, %+v", err, got)
		}
		return nil
	})
	r.check()
}

func TestFull(t *testing.T) {
	r := newRig(t)
	n := 0
	add := func(tx *bbolt.Tx, s Sender, on nip.TaskID) error {
		n++
		c := command(n, nip.Queue, 1)
		c.Task = on
		_, err := r.Journal.Record(tx, entryFor(s, c), start)
		return err
	}
	r.update(func(tx *bbolt.Tx) error {
		for d := range 4 {
			for i := range MaxUndecidedDevice {
				if err := add(tx, sender(d), task(0)); err != nil {
					return fmt.Errorf("device %d, command %d: %w", d, i, err)
				}
			}
			if err := add(tx, sender(d), task(1)); !errors.Is(err, ErrFull) {
				t.Errorf("device %d over its limit: %v", d, err)
			}
		}
		if err := add(tx, sender(9), task(0)); !errors.Is(err, ErrFull) {
			t.Errorf("task over its limit: %v", err)
		}
		for i := range InterruptReserve + 1 { // a full queue can be stopped
			n++
			_, err := r.Journal.Record(tx, entryFor(sender(0), command(n, nip.Interrupt, 1)), start)
			if want := i == InterruptReserve; errors.Is(err, ErrFull) != want {
				t.Errorf("interrupt %d of a full queue: %v", i, err)
			}
		}
		return add(tx, sender(9), task(1))
	})
	r.check()
	// Decided entries make room.
	r.update(func(tx *bbolt.Tx) error {
		all, err := r.Journal.Undecided(tx, task(0))
		if err != nil {
			return err
		}
		for _, e := range all[:InterruptReserve+1] { // all are of the first device
			e.State, e.Outcome = StateDone, OutcomeRemoved
			if _, err := r.Journal.Change(tx, e, "removed", start); err != nil {
				return err
			}
		}
		return add(tx, sender(0), task(0))
	})
	r.check()
}

func TestNote(t *testing.T) {
	r := newRig(t)
	k := Key{Principal: device(0), Kind: "task.create", ID: string(id(1))}
	note := func(tx *bbolt.Tx, said string) error {
		return r.Journal.Note(tx, k, sender(0), task(0), said, OutcomeApplied, "", 1, start)
	}
	r.update(func(tx *bbolt.Tx) error { return note(tx, "create in main") })
	r.update(func(tx *bbolt.Tx) error { return note(tx, "create in main") })
	r.update(func(tx *bbolt.Tx) error {
		if err := note(tx, "create elsewhere"); !errors.Is(err, ErrConflict) {
			t.Errorf("other content: %v", err)
		}
		return nil
	})
	r.view(func(tx *bbolt.Tx) error {
		e, known, err := r.Journal.Get(tx, k)
		if !known || e.State != StateDone || e.Outcome != OutcomeApplied || e.Note != "create in main" || len(e.History) != 1 {
			t.Errorf("%v %+v", known, e)
		}
		entries, open, _ := r.Journal.Counts(tx)
		if entries != 1 || open != 0 {
			t.Errorf("counts %d, %d", entries, open)
		}
		return err
	})
	r.check()
}

func TestIllegalEdgesPanic(t *testing.T) {
	states := []State{StateNone, StateReceived, StateHeld, StateDispatching, StateDone}
	allowed := map[[2]State]bool{
		{StateReceived, StateHeld}: true, {StateReceived, StateDispatching}: true, {StateReceived, StateDone}: true,
		{StateHeld, StateHeld}: true, {StateHeld, StateReceived}: true, {StateHeld, StateDispatching}: true, {StateHeld, StateDone}: true,
		{StateDispatching, StateReceived}: true, {StateDispatching, StateHeld}: true, {StateDispatching, StateDone}: true,
	}
	for _, from := range states {
		for _, to := range states {
			if legal(from, to) != allowed[[2]State{from, to}] {
				t.Errorf("from %v to %v: %v", from, to, legal(from, to))
			}
		}
	}
	r := newRig(t)
	e := entryFor(sender(0), command(1, nip.Queue, 1))
	r.update(func(tx *bbolt.Tx) (err error) { e, err = r.Journal.Record(tx, e, start); return err })
	bad := map[string]func(e *Entry){
		"illegal edge":         func(e *Entry) { e.State = StateReceived },
		"stale copy":           func(e *Entry) { e.State, e.History = StateHeld, nil },
		"original overwritten": func(e *Entry) { e.State, e.Command.Text = StateHeld, "other" },
		"another sender":       func(e *Entry) { e.State, e.Sender.Epoch = StateHeld, 7 },
		"no bytes":             func(e *Entry) { e.State = StateDispatching },
		"no outcome":           func(e *Entry) { e.State = StateDone },
		"unknown entry":        func(e *Entry) { e.State, e.Key.ID = StateHeld, "x" },
	}
	for name, edit := range bad {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			c := e
			edit(&c)
			r.store.db.Update(func(tx *bbolt.Tx) error { _, err := r.Journal.Change(tx, c, "x", start); return err })
		})
	}
	r.check()
}

func TestTimeNeverRunsBack(t *testing.T) {
	r := newRig(t)
	r.tasks.add(task(0), TaskView{Phase: PhaseRunning, Revision: 1})
	r.submit(sender(0), command(1, nip.Queue, 1))
	r.advance(-3600)
	r.submit(sender(0), command(2, nip.Queue, 1))
	if e := r.entry(sender(0), command(2, nip.Queue, 1)); e.ReceivedAt != start {
		t.Errorf("received at %d, an hour before what came before it", e.ReceivedAt)
	}
	r.check()
}

func TestLeases(t *testing.T) {
	r := newRig(t)
	r.update(func(tx *bbolt.Tx) error {
		j := r.Journal
		for i := range 4 {
			if err := j.SetLease(tx, task(i), &Lease{Device: device(i % 2), ExpiresAt: start + 60}); err != nil {
				return err
			}
		}
		if err := j.DropLeases(tx, device(0)); err != nil {
			return err
		}
		for i := range 4 {
			l, ok, err := j.Lease(tx, task(i))
			if err != nil || ok != (i%2 == 1) || ok && l != (Lease{Device: device(1), ExpiresAt: start + 60}) {
				t.Errorf("task %d: %v %v %v", i, l, ok, err)
			}
		}
		return nil
	})
}

func TestNextDeadline(t *testing.T) {
	r := newRig(t)
	deadline := func() int64 {
		var at int64
		r.view(func(tx *bbolt.Tx) error {
			got, ok, err := r.Journal.NextDeadline(tx, task(0))
			if ok {
				at = got
			}
			return err
		})
		return at
	}
	r.tasks.add(task(0), TaskView{Phase: PhaseRunning, Revision: 1})
	if at := deadline(); at != 0 {
		t.Errorf("an empty task has a deadline at %d", at)
	}
	r.submit(sender(0), command(1, nip.Queue, 1))
	if at := deadline(); at != start+CommandLife+1 {
		t.Errorf("a held command: %d", at-start)
	}
	r.update(func(tx *bbolt.Tx) error {
		return r.Journal.SetLease(tx, task(0), &Lease{Device: device(1), ExpiresAt: start + 60})
	})
	if at := deadline(); at != start+60 {
		t.Errorf("a lease: %d", at-start)
	}
	r.advance(60)
	r.evaluate()
	if at := deadline(); at != start+CommandLife+1 {
		t.Errorf("after the lease: %d", at-start)
	}
	r.advance(CommandLife)
	r.evaluate()
	if at := deadline(); at != 0 {
		t.Errorf("after its life: %d", at-start)
	}
	if got := short(r.entry(sender(0), command(1, nip.Queue, 1))); got != "expired expired" {
		t.Error(got)
	}
}

func TestListAndTransitions(t *testing.T) {
	r := newRig(t)
	r.tasks.add(task(0), TaskView{Phase: PhaseRunning, Revision: 1})
	r.tasks.add(task(1), TaskView{Phase: PhaseRunning, Revision: 1})
	for i := range 12 {
		c := command(i, nip.Queue, 1)
		c.Task = task(i % 2)
		if i%3 == 0 {
			c.Action = nip.Send // refused at once
		}
		r.submit(sender(i%4), c)
		r.advance(10)
	}
	rows := []struct {
		name string
		f    Filter
		want []int
	}{
		{"all", Filter{}, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		{"a task", Filter{Task: task(1)}, []int{1, 3, 5, 7, 9, 11}},
		{"a device", Filter{Device: device(2)}, []int{2, 6, 10}},
		{"held", Filter{State: StateHeld}, []int{1, 2, 4, 5, 7, 8, 10, 11}},
		{"done of a task", Filter{State: StateDone, Task: task(1)}, []int{3, 9}},
		{"since", Filter{Since: start + 95}, []int{10, 11}},
		{"since, a task", Filter{Since: start + 95, Task: task(0)}, []int{10}},
		{"limit", Filter{Limit: 2}, []int{0, 1}},
	}
	list := func(f Filter) (out []Entry) {
		r.view(func(tx *bbolt.Tx) (err error) { out, _, err = r.Journal.Page(tx, f); return err })
		return out
	}
	for _, row := range rows {
		var want, got []nip.CommandID
		for _, i := range row.want {
			want = append(want, id(i))
		}
		for _, e := range list(row.f) {
			got = append(got, e.Command.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d entries, want %v", row.name, len(got), row.want)
		}
	}
	// Pages join without a gap or a repeat, with and without a task.
	for _, f := range []Filter{{Limit: 5}, {Limit: 2, Task: task(1)}} {
		n := 0
		for {
			page := list(f)
			if len(page) == 0 {
				break
			}
			n += len(page)
			f.After = page[len(page)-1].Seq
		}
		if want := map[nip.TaskID]int{"": 12, task(1): 6}[f.Task]; n != want {
			t.Errorf("pages of %q hold %d, want %d", f.Task, n, want)
		}
	}
	r.view(func(tx *bbolt.Tx) error {
		steps, err := r.Journal.Transitions(tx, 0, 100)
		if len(steps) != 24 || steps[0].What != "received" || steps[1].What != "rejected" || steps[3].What != "held" {
			t.Errorf("%d steps: %+v", len(steps), steps[:4])
		}
		rest, err2 := r.Journal.Transitions(tx, 20, 100)
		if len(rest) != 4 || rest[0].Seq != 21 {
			t.Errorf("%d steps after 20", len(rest))
		}
		tasks, err3 := r.Journal.Tasks(tx)
		if len(tasks) != 2 {
			t.Errorf("tasks %v", tasks)
		}
		return errors.Join(err, err2, err3)
	})
}

func TestPrune(t *testing.T) {
	r := newRig(t)
	r.tasks.add(task(0), TaskView{Phase: PhaseRunning, Revision: 1})
	for i := range 10 {
		r.submit(sender(0), command(i, nip.Send, 1)) // refused at once
	}
	r.update(func(tx *bbolt.Tx) error {
		return r.Journal.Note(tx, Key{Principal: device(0), Kind: "task.queue", ID: "q"}, sender(0), task(0), "lease", OutcomeApplied, "", 1, start)
	})
	prune := func(limit int) (n int) {
		r.update(func(tx *bbolt.Tx) (err error) {
			n, err = r.Journal.Prune(tx, r.clock, limit)
			return err
		})
		r.check()
		return n
	}
	r.advance(Retention - 1)
	if n := prune(100); n != 0 {
		t.Fatalf("%d dropped within the retention", n)
	}
	fresh := command(20, nip.Queue, 1)
	fresh.IssuedAt = r.clock
	r.submit(sender(0), fresh)
	r.advance(1)
	if n := prune(7); n != 7 {
		t.Fatalf("%d dropped, limit 7", n)
	}
	for prune(7) == 7 {
	}
	r.view(func(tx *bbolt.Tx) error {
		entries, open, err := r.Journal.Counts(tx)
		if entries != 1 || open != 1 {
			t.Errorf("%d entries, %d undecided remain", entries, open)
		}
		return err
	})
	r.view(func(tx *bbolt.Tx) error {
		for i, want := range map[int]bool{3: true, 20: true, 99: false} { // pruned, there, never seen
			known, err := r.Journal.Known(tx, commandKey(sender(0), command(i, nip.Queue, 1)))
			if err != nil || known != want {
				t.Errorf("command %d: known %v, %v", i, known, err)
			}
		}
		return nil
	})
	// A pruned command never runs again, whatever it asks now.
	replay := command(3, nip.Queue, 1)
	replay.IssuedAt = r.clock
	if _, err := r.Submit(context.Background(), sender(0), replay, Hooks{}); !errors.Is(err, ErrPruned) {
		t.Errorf("a pruned command again: %v", err)
	}
	r.submit(sender(1), replay) // another device's is another command
	r.check()
}

// TestPruneBehindAStuckEntry: bytes that can never be applied must not keep the
// history for ever.
func TestPruneBehindAStuckEntry(t *testing.T) {
	r := newRig(t)
	r.tasks.add(task(0), TaskView{Phase: PhaseEnded, Revision: 1})
	r.tasks.applyErr = errors.New("the task's disk is gone")
	if _, err := r.Submit(context.Background(), sender(0), command(0, nip.Send, 1), Hooks{}); !errors.Is(err, ErrUnsettled) {
		t.Fatal(err)
	}
	c := command(1, nip.Send, 1)
	c.Task = task(1)
	r.submit(sender(1), c) // forbidden at once: no such task
	r.advance(2 * Retention)
	r.update(func(tx *bbolt.Tx) error {
		n, err := r.Journal.Prune(tx, r.clock, 100)
		if n != 4 {
			t.Errorf("%d dropped", n)
		}
		return err
	})
	r.check()
	r.view(func(tx *bbolt.Tx) error {
		all, _, err := r.Journal.Page(tx, Filter{})
		if len(all) != 1 || all[0].State != StateDispatching || len(all[0].Dispatch) == 0 {
			t.Errorf("%+v", all)
		}
		return err
	})
	r.tasks.applyErr = nil
	r.evaluate()
	if got := short(r.entry(sender(0), command(0, nip.Send, 1))); got != "applied" {
		t.Error(got)
	}
	r.check()
}

// TestCheckFindsTampering changes one thing in the file, each time another.
func TestCheckFindsTampering(t *testing.T) {
	put := func(bucket, key []byte, edit func(v []byte) []byte) func(tx *bbolt.Tx) error {
		return func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucket)
			v := edit(append([]byte(nil), b.Get(key)...))
			if v == nil {
				return b.Delete(key)
			}
			return b.Put(key, v)
		}
	}
	flip := func(at int) func(v []byte) []byte {
		return func(v []byte) []byte { v[(len(v)+at)%len(v)] ^= 1; return v }
	}
	gone := func([]byte) []byte { return nil }
	entryKey, _ := storedKey(commandKey(sender(0), command(4, nip.Queue, 1)))
	rows := map[string]func(tx *bbolt.Tx) error{
		"transition changed":       put(bucketHistory, sequence(5), flip(12)),
		"transition's entry hash":  put(bucketHistory, sequence(5), flip(-40)),
		"transition removed":       put(bucketHistory, sequence(5), gone),
		"last transition removed":  put(bucketHistory, sequence(20), gone),
		"first transition removed": put(bucketHistory, sequence(1), gone),
		"transition added":         put(bucketHistory, sequence(21), func([]byte) []byte { return []byte{1} }),
		"entry text changed":       put(bucketEntry, entryKey, func(v []byte) []byte { v[len(v)/3] ^= 1; return v }),
		"entry cut short":          put(bucketEntry, entryKey, func(v []byte) []byte { return v[:len(v)-1] }),
		"entry removed":            put(bucketEntry, entryKey, gone),
		"head changed":             put(bucketMeta, keyHead, flip(-1)),
		"head removed":             put(bucketMeta, keyHead, gone),
		"checkpoint invented":      put(bucketMeta, keyCheckpoint, func([]byte) []byte { return make([]byte, 49) }),
		"count changed":            put(bucketCount, append([]byte{'t'}, task(0)...), flip(-1)),
		"count removed":            put(bucketCount, append([]byte{'t'}, task(0)...), gone),
		"listing removed":          put(bucketOf, ofKey(task(0), 3), gone),
		"listing added":            put(bucketOf, ofKey(task(1), 3), func([]byte) []byte { return entryKey }),
		"two transitions exchanged": func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucketHistory)
			a, c := append([]byte(nil), b.Get(sequence(3))...), append([]byte(nil), b.Get(sequence(5))...)
			return errors.Join(b.Put(sequence(3), c), b.Put(sequence(5), a))
		},
		"arrival order removed": func(tx *bbolt.Tx) error {
			return tx.Bucket(bucketTask).Bucket([]byte(task(0))).Delete(sequence(3))
		},
		"arrival order changed": func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucketTask).Bucket([]byte(task(0)))
			return b.Put(sequence(3), flip(-1)(append([]byte(nil), b.Get(sequence(3))...)))
		},
	}
	for name, tamper := range rows {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.tasks.add(task(0), TaskView{Phase: PhaseRunning, Revision: 1})
			for i := range 10 {
				r.submit(sender(0), command(i, nip.Queue, 1))
			}
			r.check()
			r.update(tamper)
			err := r.store.db.View(func(tx *bbolt.Tx) error { _, err := r.Journal.Check(tx); return err })
			if !errors.Is(err, ErrChain) {
				t.Errorf("not found: %v", err)
			}
		})
	}
}
