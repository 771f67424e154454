package host

import (
	"context"
	"testing"
	"time"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/sandbox"
)

// checkable makes the task's turn one that finished and whose grant asked for checks.
func (r *rig) checkable(t *testing.T, id nip.TaskID) {
	t.Helper()
	tid, task, digest := owner.TaskID(id), r.task(id), owner.DigestOf(nil)
	zero := 0
	for _, ev := range []owner.Event{
		{Admitted: &owner.Admission{GrantDigest: digest, Adapter: task.Intent.Configuration.Adapter, Workspace: "/w", Program: "/bin/sh",
			ProgramDigest: digest, Network: []byte(`"none"`), Prompt: owner.DigestOf([]byte(task.EffectivePrompt())),
			ReadRevision: task.Revision, TraceFile: owner.TraceName(task.Turn()), Owner: sandbox.Identity{PID: 1, BootID: "b"},
			Checks: &owner.CheckPlan{Requirements: digest, Seconds: 1, Suites: []owner.Suite{{Check: "c", Manifest: "/m", ManifestDigest: digest,
				Program: "/p", ProgramDigest: digest, Seconds: 1, OutputBytes: 1}}}}},
		{EffectIntent: new(owner.EffectID(tid, task.Turn()))},
		{Spawned: &sandbox.Identity{PID: 1, BootID: "b"}},
		{Result: &owner.Result{Ending: "exit 0", ExitCode: &zero, GroupClear: true, TraceDigest: digest, Candidate: digest, CostStatus: "unknown"}},
	} {
		r.append(tid, ev)
	}
}

// What cannot be checked is refused before any process is started, and checks whose process is gone are ended first.
func TestTaskCheck(t *testing.T) {
	r := newRig(t)
	r.policy()
	d := r.pair(nip.PairingRights())
	task := r.create(d, "words")
	check := func() error { return r.operate("task.check", TaskArgs{Task: owner.TaskID(task)}) }
	if err := check(); !refusedAs(err, "invalid_transition") {
		t.Fatalf("a task that never ran: %v", err)
	}
	r.checkable(t, task)
	if err := check(); err != nil {
		t.Fatal(err)
	}
	now := r.task(task)
	if _, err := r.c.store.Append(context.Background(), now.ID, now.NextEpoch(), owner.Event{CheckIntent: &owner.CheckIntent{
		Attempt: 1, Candidate: now.Run.Result.Candidate}}); err != nil {
		t.Fatal(err)
	}
	if err := check(); err != nil {
		t.Fatal(err)
	}
	if now = r.task(task); now.Checks != owner.ChecksUnavailable || now.Run.RecoveryReason != "checker_owner_lost" {
		t.Fatalf("checks %s", now.Checks)
	}
}

// While the checks of an ended turn run, the task takes no continuation. A message that may wait waits for them, and
// is the next turn when they have come to something; it is not refused because it came at that moment.
func TestMessagesWaitForChecks(t *testing.T) {
	r := newRig(t)
	r.policy()
	d := r.pair(nip.PairingRights())
	task := r.create(d, "words")
	r.checkable(t, task)
	now, ctx := r.task(task), context.Background()
	own, err := r.c.store.Own(ctx, now.ID, time.Minute) // as the process that checks does
	if err != nil {
		t.Fatal(err)
	}
	epoch := now.NextEpoch()
	add := func(ev owner.Event) {
		t.Helper()
		if _, err := r.c.store.Append(ctx, now.ID, epoch, ev); err != nil {
			t.Fatal(err)
		}
	}
	add(owner.Event{CheckIntent: &owner.CheckIntent{Attempt: 1, Candidate: now.Run.Result.Candidate}})
	queued, steered := r.command(task, nip.Queue, "queued"), r.command(task, nip.Steer, "steered")
	for _, c := range []nip.Command{queued, steered} {
		r.wantCode(r.ask(d, nip.TaskCommand{Command: c}), "")
		if e := r.entry(d.pub(), c.ID); e.State != commands.StateHeld {
			t.Fatalf("%s: %+v", c.Action, e)
		}
	}
	r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(task, nip.Send, "sent")}), nip.Conflict)
	r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(task, nip.Interrupt, "stop")}), nip.Stale)

	add(owner.Event{Checked: &owner.CheckReport{Attempt: 1, Verdict: owner.ChecksUnavailable, Reason: "nothing was run", At: 1}})
	own.Release()
	if err := r.c.eval.Evaluate(ctx, task); err != nil {
		t.Fatal(err)
	}
	if e := r.entry(d.pub(), steered.ID); e.Outcome != commands.OutcomeApplied {
		t.Fatalf("after the checks: %+v", e)
	}
	if after := r.task(task); after.Status != owner.Queued || after.EffectivePrompt() != "steered" {
		t.Fatalf("%s, %q", after.Status, after.EffectivePrompt())
	}
	if e := r.entry(d.pub(), queued.ID); e.State != commands.StateHeld {
		t.Fatalf("the queued one: %+v", e)
	}
}
