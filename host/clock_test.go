package host

import (
	"testing"

	"holdfast/nip"
	"holdfast/owner"
)

// A clock that was two days ahead for a moment leaves its mark: what is older
// than a day before that expires, status says why, and the device is told by a
// record of now, which it believes.
func TestClockWasAhead(t *testing.T) {
	r, a, b, task, end := served(t)
	defer end(owner.Result{})
	status := func(want int64) {
		t.Helper()
		err := r.c.Operate(t.Context(), "status", nil, func(v any) error {
			if got := v.(Status).Journal.Ahead; got != want {
				t.Errorf("the journal is %d s ahead, want %d", got, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	status(0)
	r.clock.add(2 * 86_400)
	early := r.command(task, nip.Queue, "words")
	r.wantCode(r.overWire(a, nip.TaskCommand{Command: early}), "")
	r.clock.add(-2 * 86_400)
	status(2 * 86_400)
	late := r.command(task, nip.Queue, "words")
	r.wantCode(r.overWire(b, nip.TaskCommand{Command: late}), nip.Expired)
	r.untilTold(b, task, map[nip.CommandID]string{late.ID: "late"}, "late expired")
	for _, s := range r.toldTo(b, r.paper.all()) {
		if s.IssuedAt > r.clock.now()+clockSkew {
			t.Errorf("told by a record of %d s from now", s.IssuedAt-r.clock.now())
		}
	}
}
