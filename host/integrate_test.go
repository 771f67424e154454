package host

import (
	"testing"

	"holdfast/nip"
	"holdfast/owner"
)

// TestIntegrationCutOff: an act that a stop left open is told at the next opening, and while the task is owned it waits.
func TestIntegrationCutOff(t *testing.T) {
	r := newRig(t)
	task := owner.TaskID(r.create(r.pair(nip.PairingRights()), "p"))
	if _, err := r.c.intend(t.Context(), act{Kind: "task.integrate", Task: task, Name: "made"}, "branch made", nil); err != nil {
		t.Fatal(err)
	}
	own, err := r.c.store.Own(t.Context(), task, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Release)
	if err := r.c.settleActs(t.Context()); err != nil || r.openActs() != 1 {
		t.Fatalf("%d acts are open, %v", r.openActs(), err)
	}
	own.Release()
	if err := r.c.settleActs(t.Context()); err != nil || r.openActs() != 0 {
		t.Fatalf("%d acts are open, %v", r.openActs(), err)
	}
}
