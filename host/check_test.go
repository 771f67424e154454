package host

import (
	"context"
	"testing"

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
