package owner

import (
	"fmt"
	"slices"
)

// supersededReason is the cancellation reason that a correction of a running turn leaves.
const supersededReason = "a correction replaced the instructions of this turn"

// NextCommand applies a task command to t, nil before submit, at Unix second
// at. It is pure: t is not changed, and the value returned shares nothing that
// either would write to. Its error is an *Error: not_found, revision_mismatch,
// invalid_transition, invalid_command or limit_exceeded.
func NextCommand(t *Task, c Command, at int64) (Task, error) {
	if err := c.validate(); err != nil {
		return Task{}, err
	}
	if in := c.Action.Submit; in != nil {
		if t != nil {
			return Task{}, refuse("invalid_transition", "task %s exists already", c.TaskID)
		}
		intent := *in
		if in.Configuration.Model != nil {
			m := *in.Configuration.Model
			intent.Configuration.Model = &m
		}
		return Task{ID: c.TaskID, Revision: 1, Intent: intent, IntentDigest: intentDigest(intent),
			Status: Queued, Execution: NotStarted, Checks: NotRun,
			Corrections: []Correction{}, FollowUps: []FollowUp{}, Earlier: []Run{},
			CreatedAt: at, UpdatedAt: at}, nil
	}
	if t == nil {
		return Task{}, refuse("not_found", "there is no task %s", c.TaskID)
	}
	if t.ID != c.TaskID {
		return Task{}, refuse("invalid_command", "the command is for another task")
	}
	if *c.Expected != t.Revision {
		return Task{}, refuse("revision_mismatch", "the task is at revision %d; read it again", t.Revision)
	}
	n := t.fork()
	n.Revision++
	n.UpdatedAt = at
	switch a := c.Action; {
	case a.Cancel != nil:
		switch t.Status {
		case Queued:
			n.Status = Cancelled
		case Running:
			n.Status = CancelRequested // execution stays running: asking is not stopping
		default:
			return Task{}, refuse("invalid_transition", "a task that is %s cannot be cancelled", t.Status)
		}
		n.CancelReason = a.Cancel.Reason
	case a.Correct != nil:
		n.Corrections = append(n.Corrections, Correction{Revision: n.Revision, Prompt: a.Correct.Prompt, Reason: a.Correct.Reason})
		if t.Status == Running {
			n.Status = CancelRequested
			n.CancelReason = supersededReason
		}
		if t.Run != nil && t.Run.Admission.Checks != nil && t.Checks != ChecksRunning {
			n.Checks = ChecksDisputed // what was or would be checked is not what is asked for now
		}
	case a.Continue != nil:
		if t.Status != Finished && t.Status != Cancelled {
			return Task{}, refuse("invalid_transition", "a task that is %s cannot be continued; wait until its turn has ended", t.Status)
		}
		if t.Checks == ChecksRunning {
			return Task{}, refuse("invalid_transition", "the checks of the last turn run; wait until they have ended")
		}
		if t.Archived != nil {
			return Task{}, refuse("invalid_transition", "the task is archived; restore it first")
		}
		// A turn that was never admitted has no run: the new one keeps its number.
		if t.Run != nil {
			if t.Turn() >= MaxTurns {
				return Task{}, refuse("limit_exceeded", "a task has at most %d turns; make a new task", MaxTurns)
			}
			n.Earlier = append(n.Earlier, *n.Run)
			n.Run = nil
		}
		n.Status, n.Execution, n.Checks = Queued, NotStarted, NotRun
		n.CancelReason, n.NotStarted = "", ""
		n.FollowUps = append(n.FollowUps, FollowUp{Revision: n.Revision, Prompt: a.Continue.Prompt, CommandID: c.CommandID})
	}
	return n, nil
}

// NextEvent applies an owner event to t at Unix second at; it is pure as
// NextCommand is. epoch is the run's own; whoever takes a run over, to
// admit it (Admitted) check it (CheckIntent), or after its owner's death (OwnerLost, Cleared, CheckLost, a Result
// of EndingOwnerEnded), writes at the next one, and is the only one who can
// write from then on. Events about no run (NotStarted, Worktree, Archived,
// Restored, Applied, WorktreeGone) do not look at it. Its error is an *Error,
// invalid_transition for an event that is not legal here, invalid_command for
// one that is malformed.
func NextEvent(t *Task, epoch Epoch, ev Event, at int64) (Task, error) {
	if t == nil {
		return Task{}, refuse("not_found", "there is no such task")
	}
	if n := ev.members(); n != 1 {
		return Task{}, refuse("invalid_command", "an event has exactly one member, not %d", n)
	}
	n := t.fork()
	n.Revision++
	n.UpdatedAt = at
	var err error
	switch {
	case ev.Admitted != nil:
		err = admitted(&n, t, epoch, *ev.Admitted)
	case ev.EffectIntent != nil:
		err = effectIntent(&n, epoch, *ev.EffectIntent)
	case ev.Spawned != nil:
		if err = inRun(&n, epoch); err == nil {
			switch {
			case n.Run.EffectID == "" || n.Run.Process != nil || n.Run.Result != nil:
				err = illegal("a spawned process follows its effect intent, once")
			case n.Status != Running && n.Status != CancelRequested:
				err = illegal("the turn is %s", n.Status)
			case ev.Spawned.PID <= 0:
				err = malformed("a process has a positive pid")
			}
			id := *ev.Spawned
			n.Run.Process = &id
		}
	case ev.Result != nil:
		err = result(&n, epoch, *ev.Result)
	case ev.OwnerLost:
		switch {
		case n.Run == nil || n.Run.Result != nil || n.Status != Running && n.Status != CancelRequested:
			err = illegal("only a running turn can lose its owner")
		case epoch != n.Run.Epoch+1:
			err = illegal("the epoch is %d, not %d", n.Run.Epoch+1, epoch)
		default:
			n.Run.Epoch = epoch
			n.Run.RecoveryReason = "owner_lost_effects_not_replayed"
			n.Status, n.Execution = StatusUnknown, ExecutionUnknown
		}
	case ev.Cleared != nil:
		err = cleared(&n, epoch, *ev.Cleared)
	case ev.CheckIntent != nil:
		err = checkIntent(&n, epoch, *ev.CheckIntent)
	case ev.Checked != nil:
		err = checked(&n, epoch, *ev.Checked)
	case ev.CheckLost:
		err = checkOwnerLost(&n, epoch)
	case ev.NotStarted != nil:
		switch {
		case !line(*ev.NotStarted, maxArchive):
			err = malformed("the cause is one line of 1 to %d bytes", maxArchive)
		case n.Status != Queued || n.Run != nil:
			err = illegal("only a queued turn can end as not started")
		}
		n.Status, n.Execution, n.NotStarted = Cancelled, NotStarted, *ev.NotStarted
	case ev.Worktree != nil:
		w := *ev.Worktree
		switch {
		case !plainPath(w.Path) || !plainPath(w.CommonDir) || !revisionName(w.Base):
			err = malformed("a worktree has absolute paths and a full commit name")
		case n.Status != Queued || n.Run != nil:
			err = illegal("a worktree is made before its turn is admitted")
		}
		n.Worktree, n.WorktreeGone = &w, 0
		n.Revision, n.UpdatedAt = t.Revision, t.UpdatedAt // pins and clients' revisions stay good
	case ev.Archived != nil:
		a := *ev.Archived
		switch {
		case !line(a.Reason, maxArchive) || a.By != "owner" && !lowerHex(a.By, 64):
			err = malformed("an archive entry has a one-line reason of at most %d bytes, and the owner or a device's key", maxArchive)
		case n.Archived != nil:
			err = illegal("the task is archived already; the first entry stays")
		case !n.Ended():
			err = illegal("only an ended task can be archived")
		}
		n.Archived = &a
	case ev.Restored:
		if n.Archived == nil {
			err = illegal("the task is not archived")
		}
		n.Archived = nil
	case ev.WorktreeGone:
		if !n.Ended() || n.Worktree == nil || n.WorktreeGone != 0 {
			err = illegal("only the worktree of an ended task can be let go, once")
		}
		n.WorktreeGone = at
		n.Revision, n.UpdatedAt = t.Revision, t.UpdatedAt // nothing that a client waits for happened
	case ev.Applied != nil:
		if err = appliable(&n, ev.Applied); err == nil {
			a := *ev.Applied
			n.Applied = &a
		}
	}
	if err != nil {
		return Task{}, err
	}
	return n, nil
}

func illegal(format string, args ...any) error {
	return refuse("invalid_transition", format, args...)
}

func malformed(format string, args ...any) error { return refuse("invalid_command", format, args...) }

func (e Event) members() int {
	n := 0
	for _, set := range []bool{e.Admitted != nil, e.EffectIntent != nil, e.Spawned != nil, e.Result != nil,
		e.OwnerLost, e.Cleared != nil, e.CheckIntent != nil, e.Checked != nil, e.CheckLost, e.NotStarted != nil,
		e.Worktree != nil, e.Archived != nil, e.Restored, e.Applied != nil, e.WorktreeGone} {
		if set {
			n++
		}
	}
	return n
}

// inRun is the fence of everything that a turn's own owner says.
func inRun(n *Task, epoch Epoch) error {
	if n.Run == nil {
		return illegal("the turn was never admitted")
	}
	if epoch != n.Run.Epoch {
		return illegal("the run is at epoch %d, not %d: another process took it over", n.Run.Epoch, epoch)
	}
	return nil
}

func admitted(n, t *Task, epoch Epoch, a Admission) error {
	switch {
	case t.Status != Queued || t.Run != nil:
		return illegal("only a queued turn without a run can be admitted; this one is %s", t.Status)
	case epoch != t.NextEpoch() && epoch != 1: // earlier versions began each turn at 1
		return illegal("admission opens epoch %d", t.NextEpoch())
	case a.ReadRevision != t.Revision:
		return refuse("revision_mismatch", "the context was read at revision %d, the task is at %d", a.ReadRevision, t.Revision)
	case a.Prompt != DigestOf([]byte(t.EffectivePrompt())):
		return refuse("revision_mismatch", "the prompt is not the task's newest instruction")
	case a.Adapter != t.Intent.Configuration.Adapter:
		return malformed("the task asks for adapter %s", t.Intent.Configuration.Adapter)
	case a.TraceFile != TraceName(t.Turn()):
		return malformed("the transcript of this turn is %s", TraceName(t.Turn()))
	case !a.GrantDigest.valid() || !a.ProgramDigest.valid():
		return malformed("grant and program digest are sha256: and 64 lowercase hex characters")
	case !plainPath(a.Workspace) || !plainPath(a.Program):
		return malformed("workspace and program are absolute paths")
	case a.SourceRevision != "" && !revisionName(a.SourceRevision):
		return malformed("source_revision is a full Git object name")
	case a.SourceSnapshot != "" && !a.SourceSnapshot.valid():
		return malformed("source_snapshot is sha256: and 64 lowercase hex characters")
	case !document(a.Network, true):
		return malformed("network is a JSON value of at most %d bytes", maxDocument)
	case a.Checks != nil && !a.Checks.valid():
		return malformed("the frozen checks are out of bounds")
	case a.Context != "" && (!a.Context.valid() || a.Checks == nil || a.SourceSnapshot == ""):
		return malformed("a frozen context is sha256: and 64 lowercase hex characters, of a turn with checks and a snapshot")
	case a.Owner.PID <= 0:
		return malformed("the owner process has a positive pid")
	}
	a.Network = slices.Clone(a.Network)
	n.Run = &Run{Turn: t.Turn(), Epoch: epoch, Admission: a}
	n.Status, n.Execution = Running, ExecRunning
	return nil
}

func effectIntent(n *Task, epoch Epoch, id string) error {
	if err := inRun(n, epoch); err != nil {
		return err
	}
	switch {
	case n.Run.EffectID != "" || n.Run.Result != nil:
		return illegal("the turn has its effect intent already")
	case n.Status != Running:
		// After an acknowledged cancel nothing is dispatched.
		return illegal("the turn is %s", n.Status)
	case id != EffectID(n.ID, n.Turn()):
		return malformed("the effect of this turn is %s", EffectID(n.ID, n.Turn()))
	}
	n.Run.EffectID = id
	return nil
}

func result(n *Task, epoch Epoch, r Result) error {
	if n.Run != nil && r.Ending == EndingOwnerEnded && epoch == n.Run.Epoch+1 {
		// Written by who found the owner gone: were it not, what it writes from now on is refused. Earlier versions
		// wrote this at the run's own epoch.
		n.Run.Epoch = epoch
	}
	if err := inRun(n, epoch); err != nil {
		return err
	}
	lost := n.Status == StatusUnknown && r.Ending == EndingOwnerEnded
	if n.Run.Result != nil || n.Status != Running && n.Status != CancelRequested && !lost {
		return illegal("the turn is %s and takes no result", n.Status)
	}
	if err := checkResult(n.Run, r); err != nil {
		return err
	}
	stopped := r.StopRequested || n.Status == CancelRequested
	n.Run.Result = r.clone()
	if !r.GroupClear {
		// Something may still be running: how it ends is not known.
		n.Status, n.Execution = StatusUnknown, ExecutionUnknown
		return nil
	}
	n.Status, n.Execution = Finished, r.execution(stopped)
	return nil
}

// execution is what a result says of the process, once nothing of it is left.
func (r *Result) execution(stopped bool) Execution {
	switch {
	case stopped:
		return ExecStopped
	case r.ExitCode != nil && *r.ExitCode == 0:
		return ExecFinished
	}
	return ExecFailed
}

// cleared frees a task whose own result could not prove its group gone. The result stays as it was recorded.
func cleared(n *Task, epoch Epoch, c Cleared) error {
	switch {
	case n.Run == nil || n.Run.Result == nil || n.Run.Result.GroupClear || n.Run.Cleared != nil || n.Status != StatusUnknown:
		return illegal("only a run with a result, of which something may still run, can be cleared")
	case c.Proof != ProofBoot && c.Proof != ProofEmpty:
		return malformed("the proof is %q or %q", ProofBoot, ProofEmpty)
	case epoch != n.Run.Epoch+1:
		return illegal("the epoch is %d, not %d", n.Run.Epoch+1, epoch)
	}
	n.Run.Epoch, n.Run.Cleared = epoch, &c
	// A reason is there if a cancel or correction of this turn came before its result.
	n.Status, n.Execution = Finished, n.Run.Result.execution(n.Run.Result.StopRequested || n.CancelReason != "")
	return nil
}

// checkResult holds the rules of a result that look at nothing but its run.
func checkResult(run *Run, r Result) error {
	exited := func(code int) bool { return r.ExitCode != nil && *r.ExitCode == code }
	switch {
	case !line(r.Ending, maxEnding):
		return malformed("an ending is one line of at most %d bytes", maxEnding)
	case !r.TraceDigest.valid():
		return malformed("the transcript digest is sha256: and 64 lowercase hex characters")
	case r.Candidate != "" && (!r.Candidate.valid() || !r.GroupClear || run.Process == nil):
		return malformed("a candidate is the snapshot that a program left of which nothing runs any more")
	case r.Artifacts != "" && (!r.Artifacts.valid() || r.Candidate == ""):
		return malformed("retained changes lead to a candidate")
	case r.ElapsedMS < 0:
		return malformed("the elapsed time is not negative")
	case r.ExitCode != nil && r.Ending != fmt.Sprintf("exit %d", *r.ExitCode) && r.Ending != EndingAskedQuestion && r.Ending != EndingAskedApproval:
		return malformed("ending %q does not go with an exit code", r.Ending)
	case r.Ending == EndingOwnerEnded && (!r.GroupClear || r.ExitCode != nil):
		return malformed("%s needs proof that nothing is left, and knows no exit code", EndingOwnerEnded)
	case (r.Ending == EndingCancelledBefore || r.Ending == EndingRefusedBefore) && run.Process != nil:
		return malformed("%s, but a process was recorded", r.Ending)
	case r.Ask != "" && r.Ask != "question" && r.Ask != "approval":
		return malformed("an ask is a question or an approval")
	case r.Ending == EndingAskedQuestion && (r.Ask != "question" || !exited(0)),
		r.Ending == EndingAskedApproval && (r.Ask != "approval" || !exited(0)):
		return malformed("%s needs its ask, and exit code 0", r.Ending)
	case r.Reply != "" && !replyText(r.Reply):
		return malformed("a reply is UTF-8 of at most %d bytes", maxReply)
	case r.CostStatus != "unknown" && r.CostStatus != "partial" && r.CostStatus != "priced":
		return malformed("cost is unknown unless reported")
	case !document(r.Confinement, false) || !document(r.Cleanup, false) || !document(r.Egress, false):
		return malformed("confinement, cleanup and egress are JSON values of at most %d bytes", maxDocument)
	}
	return nil
}
