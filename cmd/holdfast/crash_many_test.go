package main

import (
	"encoding/json"
	"sync"
	"testing"

	"holdfast/host"
	"holdfast/nip"
	"holdfast/owner"
)

// TestManyStarts: a host that was started often in five minutes has as many
// open invitations as it may, and serves all the same.
func TestManyStarts(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	if err := host.Init(s.home, "", s.g.coreOptions()); err != nil {
		t.Fatal(err)
	}
	c, err := host.OpenCore(s.home, s.g.coreOptions())
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, _, err = c.NewInvitation(ctx, nip.StandardRights(), 1, "ws://127.0.0.1:1/")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := s.spawn("up", "--json", "--home", s.home, "--listen", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	if _, _, err := p.await(ctx, 0, "why there is no code", isEvent("no_invitation")); err != nil {
		t.Fatal(err)
	}
	var st host.Status
	if err := s.operator(ctx, &st, "status"); err != nil || !st.Serving {
		t.Errorf("serving %v, %v", st.Serving, err)
	}
}

// TestLongJournal: the list is whole, however many pages it takes.
func TestLongJournal(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	if err := s.stepHome(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := host.OpenCore(s.home, s.g.coreOptions())
	if err != nil {
		t.Fatal(err)
	}
	var task owner.Task
	operate := func(verb string, args host.TaskArgs, into any) {
		raw, err := json.Marshal(args)
		if err == nil {
			err = c.Operate(ctx, verb, raw, func(v any) error {
				if t, ok := v.(owner.Task); ok && into != nil {
					*into.(*owner.Task) = t
				}
				return nil
			})
		}
		if err != nil {
			t.Error(err)
		}
	}
	operate("task.new", host.TaskArgs{Workspace: tourLabel, Prompt: "hello"}, &task)
	const stops = 1100
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			for range stops / 100 {
				operate("task.stop", host.TaskArgs{Task: task.ID}, nil)
			}
		})
	}
	all.Wait()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	var out struct{ Entries []host.EntryView }
	if err := s.operator(ctx, &out, "journal", "list"); err != nil {
		t.Fatal(err)
	}
	const before = 2 // the label and the policy of a new home
	if len(out.Entries) != before+1+stops {
		t.Fatalf("%d entries of %d", len(out.Entries), before+1+stops)
	}
	for i := 1; i < len(out.Entries); i++ {
		if out.Entries[i].Seq <= out.Entries[i-1].Seq {
			t.Fatalf("entry %d is out of order", i)
		}
	}
}
