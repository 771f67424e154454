package host

import (
	"testing"

	"holdfast/nip"
	"holdfast/owner"
)

// task.command.at_revision: the effects of task.command at the revision that the
// device read, stale at any other, and its own receipt.
func TestCommandAtRevision(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	at := func(cmd nip.Command) nip.Reply {
		return r.ask(d, nip.TaskCommandAt{Command: cmd, Revision: cmd.BasedOn})
	}
	r.begin(task)(owner.Result{})
	old := r.command(task, nip.Send, "go on")
	old.BasedOn--
	r.wantCode(at(old), nip.Stale)
	if got := r.task(task); got.Status != owner.Finished {
		t.Fatalf("the task is %s", got.Status)
	}
	cmd := r.command(task, nip.Send, "go on")
	for range 2 { // the replay has the recorded end, not a second effect
		p := at(cmd)
		if out, ok := p.Outcome.(nip.Dispatched); !ok || out.Operation != "task.command.at_revision" || out.Reference != string(task) {
			t.Fatalf("%+v %+v", p.Outcome, p.Refusal)
		}
		if got := r.task(task); got.Status != owner.Queued || got.Revision != cmd.BasedOn+1 {
			t.Fatalf("%s at %d", got.Status, got.Revision)
		}
	}
	r.wantCode(r.ask(d, nip.TaskCommand{Command: cmd}), nip.Conflict) // the other operation is other content
	r.wantCode(at(old), nip.Stale)
	missing := r.command(task, nip.Send, "x")
	missing.Task = nip.TaskID(newID(t))
	r.wantCode(at(missing), nip.Forbidden)
}

// The operator sees by what marks a command was judged.
func TestMarksOfAnEntry(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	exact, stop, plain := r.command(task, nip.Queue, "x"), r.command(task, nip.Steer, "y"), r.command(task, nip.Queue, "z")
	stop.Emulate = true
	defer r.begin(task)(owner.Result{})
	exact.BasedOn, stop.BasedOn = r.task(task).Revision, r.task(task).Revision
	r.wantCode(r.ask(d, nip.TaskCommandAt{Command: exact, Revision: exact.BasedOn}), "")
	for _, cmd := range []nip.Command{stop, plain} {
		r.wantCode(r.ask(d, nip.TaskCommand{Command: cmd}), "")
	}
	for id, want := range map[nip.CommandID][3]bool{exact.ID: {true, false, false}, stop.ID: {false, true, true}, plain.ID: {}} {
		v := entryView(r.entry(d.pub(), id), true)
		if got := [3]bool{v.Exact, v.Emulate, v.Priority}; got != want {
			t.Errorf("%s: exact, emulate, priority %v, want %v", v.Action, got, want)
		}
	}
}
