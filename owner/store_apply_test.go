package owner

import (
	"context"
	"testing"
)

func TestTaskThroughOneTurn(t *testing.T) {
	s := newStore(t)
	r := mustApply(t, s, submitOf(deviceTask, "c1"))
	if r.Sequence != 1 || r.Revision != 1 || r.Status != Queued || r.Execution != NotStarted || r.Checks != NotRun {
		t.Fatalf("receipt %+v", r)
	}
	task, err := s.Get(deviceTask)
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, s, deviceTask, 1, Event{Admitted: admission(&task)})
	mustAppend(t, s, deviceTask, 1, Event{EffectIntent: ptr(EffectID(deviceTask, 1))})
	task, _ = s.Get(deviceTask)
	mustApply(t, s, cancelOf(deviceTask, "c2", task.Revision))
	after := mustAppend(t, s, deviceTask, 1, Event{Result: exited(0)})
	if after.Status != Finished || after.Execution != ExecStopped || after.Revision != 5 {
		t.Fatalf("after the result: %+v", after)
	}
	// Another store, from nothing, derives the same.
	other := openStore(t, s.Home(), false)
	got, err := other.Get(deviceTask)
	if err != nil || string(mustJSON(got)) != string(mustJSON(after)) {
		t.Fatalf("%v\n%s\n%s", err, mustJSON(got), mustJSON(after))
	}
	if again := mustApply(t, other, submitOf(deviceTask, "c1")); again != r {
		t.Fatalf("retry gives %+v, first %+v", again, r)
	}
	_, err = other.Apply(context.Background(), append(encoded(t, submitOf(deviceTask, "c1")), ' '))
	wantCode(t, err, "command_conflict")
	if ids, err := other.List(); err != nil || len(ids) != 1 || ids[0] != deviceTask {
		t.Fatalf("list %v %v", ids, err)
	}
}
