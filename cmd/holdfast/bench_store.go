package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"holdfast/host/client"
	"holdfast/nip"
	"holdfast/owner"
)

// benchHolding is how many turns hold a workspace in a filled store.
const benchHolding = 8

// fullStore is a home with so many tasks, and what was measured in it.
type fullStore struct {
	h     *benchHost
	tasks int
	serve time.Duration // from the host's start to its first request
	phone *client.Device

	open, submit, identity, overlap samples
	first, middle, last, status     samples
}

// fullStore measures a store of many tasks and one of few by turns: each sample
// is taken in both before the next.
func (b *bench) fullStore(ctx context.Context) (rows []benchRow, err error) {
	var stores []*fullStore
	defer func() {
		for _, f := range stores {
			err = errors.Join(err, f.close())
		}
	}()
	for _, n := range []int{1000, b.size(100_000, 3000)} {
		f, err := b.newFullStore(ctx, n)
		if f != nil {
			stores = append(stores, f)
		}
		if err != nil {
			return nil, err
		}
	}
	rounds := b.size(60, 8)
	for i := range rounds {
		for _, f := range stores {
			if err := f.storeRound(ctx, i); err != nil {
				return nil, err
			}
		}
	}
	for _, f := range stores {
		if err := f.begin(ctx); err != nil {
			return nil, err
		}
	}
	for range rounds {
		for _, f := range stores {
			if err := f.hostRound(ctx); err != nil {
				return nil, err
			}
		}
	}
	few, many := stores[0], stores[1]
	row := func(name, aim, what string, of func(*fullStore) *samples) benchRow {
		return benchRow{
			Name: name, Value: of(many).ms(0.5), Unit: "ms", Floor: of(few).ms(0.5), Aim: aim,
			Detail: fmt.Sprintf("median of %d, %s, with %d tasks; floor: the same by turns with %d (p99: %.3g and %.3g ms)",
				rounds, what, many.tasks, few.tasks, of(many).ms(0.99), of(few).ms(0.99)),
		}
	}
	const flat = "<= 1.5"
	rows = []benchRow{
		row("store-open-100000", flat, "opening the task store", func(f *fullStore) *samples { return &f.open }),
		row("store-submit-100000", flat, "opening the store and submitting one task", func(f *fullStore) *samples { return &f.submit }),
		row("store-identity-100000", flat, "a command ID that another task has, refused by the shards", func(f *fullStore) *samples { return &f.identity }),
		row("store-overlap-100000", flat, fmt.Sprintf("whether a folder four deep can be had, while %d turns hold others beside it", benchHolding), func(f *fullStore) *samples { return &f.overlap }),
		row("list-100000-first", flat, "task.list of 20 over the relay, the first page", func(f *fullStore) *samples { return &f.first }),
		row("list-100000-middle", flat, "the same, the page in the middle", func(f *fullStore) *samples { return &f.middle }),
		row("list-100000-last", flat, "the same, the last page", func(f *fullStore) *samples { return &f.last }),
		row("status-100000", flat, "status of the serving host", func(f *fullStore) *samples { return &f.status }),
	}
	return append(rows, benchRow{
		Name: "host-start-100000", Value: millis(many.serve), Unit: "ms", Floor: millis(few.serve), Aim: "<= 2",
		Detail: fmt.Sprintf("from the host's start until it takes requests, once, with %d tasks of which it reads the %d that are live; floor: with %d", many.tasks, benchHolding+rounds, few.tasks),
	}), nil
}

func (b *bench) newFullStore(ctx context.Context, tasks int) (*fullStore, error) {
	h, err := b.newHome(false)
	if err != nil {
		return nil, err
	}
	f := &fullStore{h: h, tasks: tasks}
	s, err := owner.Open(h.home, owner.Options{})
	if err != nil {
		return f, err
	}
	began := time.Now()
	err = s.Fill(ctx, owner.Filling{Tasks: tasks, Path: filepath.Join(h.dir, "work"), At: time.Now().Unix() - int64(tasks), Holding: benchHolding})
	b.say("%d tasks written in %.1f s", tasks, time.Since(began).Seconds())
	return f, errors.Join(err, s.Close())
}

// storeRound is one sample of everything that needs no host, each in a store
// that was just opened, as a verb has it.
func (f *fullStore) storeRound(ctx context.Context, i int) error {
	began := time.Now()
	s, err := owner.Open(f.h.home, owner.Options{})
	if err != nil {
		return err
	}
	f.open = append(f.open, time.Since(began))
	err = f.inStore(ctx, s, i, began)
	return errors.Join(err, s.Close())
}

func (f *fullStore) inStore(ctx context.Context, s *owner.Store, i int, began time.Time) error {
	submit := func(task owner.TaskID, command string) error {
		b, err := owner.EncodeCommand(owner.Command{CommandID: command, TaskID: task, Action: owner.Action{Submit: &owner.Intent{
			Title: "one more", Prompt: "nothing to do", Workspace: owner.Workspace{Path: filepath.Join(f.h.dir, "work")},
			Configuration: owner.Configuration{Adapter: owner.PromptCommand}}}})
		if err != nil {
			return err
		}
		_, err = s.Apply(ctx, b)
		return err
	}
	if err := submit(owner.TaskID(fmt.Sprint("more-", i)), fmt.Sprint("bench-", i)); err != nil {
		return err
	}
	f.submit = append(f.submit, time.Since(began))
	began = time.Now()
	var refused *owner.Error
	if err := submit("never", owner.FilledCommand(i)); !errors.As(err, &refused) || refused.Code != "command_conflict" {
		return fmt.Errorf("a command ID that is taken: %w", err)
	}
	f.identity = append(f.identity, time.Since(began))
	began = time.Now()
	holder, err := s.WorkspaceHolder(filepath.Join(f.h.dir, "work", "a", "b", "c", "d"), "never", true)
	if err != nil || holder != "" {
		return errors.Join(err, fmt.Errorf("a free folder is held by %q", holder))
	}
	f.overlap = append(f.overlap, time.Since(began))
	return nil
}

// begin serves the home and pairs a device.
func (f *fullStore) begin(ctx context.Context) error {
	began := time.Now()
	if err := f.h.start(ctx); err != nil {
		return err
	}
	// Its answer waits until the index is there, as requests do.
	if err := f.h.parts.core.Operate(ctx, "status", nil, func(any) error { return nil }); err != nil {
		return err
	}
	f.serve = time.Since(began)
	d, _, err := f.h.phone(ctx)
	f.phone = d
	return err
}

// hostRound asks for three pages over the relay, and for the status.
func (f *fullStore) hostRound(ctx context.Context) error {
	const limit = 20
	list := func(cursor *nip.ListCursor) (nip.TaskListing, time.Duration, error) {
		x, err := f.phone.Exchange(ctx, nip.TaskList{Query: nip.ListQuery{Workspace: benchLabel, Limit: limit, Cursor: cursor}})
		if err != nil {
			return nip.TaskListing{}, 0, err
		}
		out, ok := x.Reply.Outcome.(nip.Tasks)
		if !ok {
			return nip.TaskListing{}, 0, fmt.Errorf("a page was answered with %+v", x.Reply)
		}
		return out.Tasks, x.Took, nil
	}
	first, took, err := list(nil)
	if err != nil {
		return err
	}
	f.first = append(f.first, took)
	for _, p := range []struct {
		at   int
		into *samples
	}{{f.tasks / 2, &f.middle}, {f.tasks - limit/2, &f.last}} {
		page, took, err := list(&nip.ListCursor{Workspace: benchLabel, SnapshotDigest: first.SnapshotDigest, Next: p.at})
		if err != nil {
			return err
		}
		if len(page.Rows) == 0 {
			return fmt.Errorf("the page at %d is empty", p.at)
		}
		*p.into = append(*p.into, took)
	}
	began := time.Now()
	err = f.h.parts.core.Operate(ctx, "status", nil, func(any) error { return nil })
	f.status = append(f.status, time.Since(began))
	return err
}

// close removes the home. No policy was set, so there are no owners to stop, and
// asking every task for one would take longer than the measurement.
func (f *fullStore) close() error {
	var err error
	if f.phone != nil {
		err = f.phone.Close()
	}
	return errors.Join(err, f.h.stop(), os.RemoveAll(f.h.dir))
}

// longTask appends an event to a task that has many and to one that has few, by
// turns.
func (b *bench) longTask(ctx context.Context) (rows []benchRow, err error) {
	dir := filepath.Join(b.dir, "long-task")
	s, err := owner.Open(dir, owner.Options{Create: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close(), os.RemoveAll(dir)) }()
	events := b.size(10_000, 300)
	for _, id := range []owner.TaskID{"long", "short"} {
		if err := endedLocal(ctx, s, id); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	// As many corrections as a task takes, and the rest of what moves a task that has ended.
	for i := range events / 5 {
		t, err := s.Get("long")
		if err != nil {
			return nil, err
		}
		c, err := owner.EncodeCommand(owner.Command{CommandID: fmt.Sprint("correct-", i), TaskID: "long", Expected: &t.Revision,
			Action: owner.Action{Correct: &owner.CorrectAction{Prompt: "rather so", Reason: "better"}}})
		if err == nil {
			_, err = s.Apply(ctx, c)
		}
		if err != nil {
			return nil, err
		}
	}
	const rounds = 40
	for i := range events*4/5 - 2*rounds {
		if err := toggle(ctx, s, "long", i); err != nil {
			return nil, err
		}
	}
	b.say("%d events written in %.1f s", events-2*rounds, time.Since(began).Seconds())
	var few, many samples
	for i := range 2 * rounds {
		for id, into := range map[owner.TaskID]*samples{"long": &many, "short": &few} {
			began := time.Now()
			if err := toggle(ctx, s, id, i); err != nil {
				return nil, err
			}
			*into = append(*into, time.Since(began))
		}
	}
	return []benchRow{{
		Name: "append-10000", Value: many.ms(0.5), Unit: "ms", Floor: few.ms(0.5), Aim: "<= 1.5",
		Detail: fmt.Sprintf("median of %d events appended, each synced, to a task with %d; floor: the same by turns to a task with 2 to %d (p99: %.3g and %.3g ms)",
			len(many), events, 2+len(few), many.ms(0.99), few.ms(0.99)),
	}}, nil
}

// endedLocal submits a task and cancels it.
func endedLocal(ctx context.Context, s *owner.Store, id owner.TaskID) error {
	one := int64(1)
	for _, c := range []owner.Command{
		{CommandID: "submit-" + string(id), TaskID: id, Action: owner.Action{Submit: &owner.Intent{Title: "t", Prompt: "p",
			Workspace: owner.Workspace{Path: "/"}, Configuration: owner.Configuration{Adapter: owner.PromptCommand}}}},
		{CommandID: "cancel-" + string(id), TaskID: id, Expected: &one, Action: owner.Action{Cancel: &owner.CancelAction{Reason: "enough"}}},
	} {
		b, err := owner.EncodeCommand(c)
		if err == nil {
			_, err = s.Apply(ctx, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// toggle archives an ended task, or brings it back: the events that cost least.
func toggle(ctx context.Context, s *owner.Store, id owner.TaskID, i int) error {
	ev := owner.Event{Restored: true}
	if i%2 == 0 {
		ev = owner.Event{Archived: &owner.Archived{Reason: "not needed", By: "owner"}}
	}
	_, err := s.Append(ctx, id, 0, ev)
	return err
}
