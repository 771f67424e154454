package owner

import (
	"context"
	"testing"
	"time"
)

// next receives until want comes, within a deadline that only a failure reaches.
func next[T comparable](t *testing.T, ch <-chan T, want T) {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case got, open := <-ch:
			if !open {
				t.Fatal("the channel was closed")
			}
			if got == want {
				return
			}
		case <-deadline:
			t.Fatalf("%v never came", want)
		}
	}
}

func TestWatch(t *testing.T) {
	s := newStore(t)
	mustApply(t, s, submitOf("a", "c1"))
	other := openStore(t, s.Home(), false) // as another process writes
	ctx, cancel := context.WithCancel(context.Background())
	all, one := s.Watch(ctx), s.WatchTask(ctx, "a")
	next(t, all, "") // the watches stand
	next(t, one, struct{}{})

	mustApply(t, other, correctOf("a", "c2", 1))
	next(t, all, "a")
	next(t, one, struct{}{})
	mustApply(t, other, submitOf("b", "c3"))
	next(t, all, "b")
	mustApply(t, other, cancelOf("b", "c4", 1))
	next(t, all, "b")
	mustApply(t, other, submitOf(deviceTask, "c5"))
	next(t, all, deviceTask)

	// Nobody receives: changes are merged, and the writer never waits.
	for i := range 50 {
		mustApply(t, other, correctOf("b", string(rune('A'+i/26))+string(rune('a'+i%26)), int64(2+i)))
	}
	next(t, all, "b")
	cancel()
	for range all {
	}
	for range one {
	}
}

// A task that does not exist yet is watched by looking.
func TestWatchATaskToCome(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(context.Background())
	ch := s.WatchTask(ctx, "later")
	next(t, ch, struct{}{})
	mustApply(t, s, submitOf("later", "c1"))
	next(t, ch, struct{}{})
	cancel()
	for range ch {
	}
}

func TestPendingChangesOverflowIntoLookAtAll(t *testing.T) {
	s := newStore(t)
	p := &pending{wake: make(chan struct{}, 1)}
	s.names["x"] = "x"
	p.add(s, "x")
	p.add(s, "x")
	if id, ok := p.take(); !ok || id != "x" {
		t.Fatal(id, ok)
	}
	if _, ok := p.take(); ok {
		t.Fatal("merged changes came twice")
	}
	p.ids = map[TaskID]struct{}{}
	for i := range maxUnsettled {
		p.ids[TaskID(rune(i+1))] = struct{}{}
	}
	p.add(s, "x")
	if id, ok := p.take(); !ok || id != "" {
		t.Fatal(id, ok)
	}
	if _, ok := p.take(); ok {
		t.Fatal("single changes after look at all")
	}
}
