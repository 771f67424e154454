package owner

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"holdfast/sandbox"
)

// runChecks owns one attempt at the checks of a finished turn in this process: owner.lock, the workspace reserved from
// all who would write to it (*Error workspace_busy names the task that does), `check_intent` durable, each
// suite in a sandbox of its own that may read the candidate and nothing else of the user's, `checked` durable. A suite
// has no effect that could happen twice, so it is not recorded before it runs: a checker that dies leaves `running`,
// which Settle turns into unavailable, and its sandbox dies with it.
//
// *Error where no attempt can begin; then nothing was written. A report is always recorded once one has begun, the end
// of ctx included. The error beside a task whose report was recorded is the detail that the report has no room for: it
// may name paths, and is for whoever reads this process's diagnostics.
func runChecks(ctx context.Context, s *Store, id TaskID, p parts) (Task, error) {
	own, err := s.Own(ctx, id, ownerWait)
	if err != nil {
		return Task{}, err
	}
	defer own.Release()
	t, err := s.Get(id)
	if err != nil {
		return Task{}, err
	}
	if err := Checkable(&t); err != nil {
		return t, err
	}
	keep := context.WithoutCancel(ctx)
	e := &execution{parts: p, store: s, id: id, epoch: t.NextEpoch(), turn: t.Turn()}
	defer e.letGo()
	c := claim{task: id, path: t.Run.Admission.Workspace}
	// Nobody may write to the candidate while it is judged: its digest before and after would not see what was changed
	// and changed back.
	t, err = e.reserved(ctx, c, Event{CheckIntent: &CheckIntent{Attempt: t.Run.Attempts + 1, Candidate: t.Run.Result.Candidate}})
	if err != nil {
		return t, err
	}
	defer func() { _ = s.release(keep, c) }() // an entry that stays counts for nothing
	e.fault("check-intent")
	r := CheckReport{Attempt: t.Run.Attempts, Context: t.Run.Admission.Context, Verdict: ChecksUnavailable}
	var detail error
	r.Evidence, r.Reason, detail = e.checkAll(ctx, keep, &t)
	if r.Evidence != nil && !r.Evidence.sound(t.Run.Admission.Checks, t.Run.Result.Candidate) {
		// Looking at a large workspace may take minutes, a machine may sleep. Such evidence is refused where it is
		// recorded, and the attempt would end as one whose process died.
		r.Evidence, r.Reason = nil, "the checks and the looks at the workspace took a minute longer than was planned, or more"
	}
	if r.Evidence != nil {
		r.Verdict = r.Evidence.verdict(t.Run.Admission.Checks, t.Run.Result.Candidate)
	}
	r.At = e.now().UnixMilli()
	e.fault("check-before")
	if t, err = e.append(keep, Event{Checked: &r}); err != nil {
		return t, err
	}
	return t, detail
}

// checkAll runs the plan. Without evidence it says why, on a line that names no path.
func (e *execution) checkAll(ctx, keep context.Context, t *Task) (*CheckEvidence, string, error) {
	plan, workspace, candidate := t.Run.Admission.Checks, t.Run.Admission.Workspace, t.Run.Result.Candidate
	if t.Run.Admission.Context != "" {
		if _, err := e.store.contextWhole(t.ID, t.Run); err != nil {
			// A verdict would be about a task of which nobody can say any more what it was given to read.
			return nil, "the frozen context of the turn cannot be read whole; run holdfast check", err
		}
	}
	for i := range plan.Suites {
		if why := plan.Suites[i].holds(workspace); why != "" {
			return nil, why, nil
		}
	}
	if err := e.hold(workspace); err != nil {
		return nil, "the workspace is gone, or cannot be seen whole any more", nil
	}
	began := e.now()
	ev := &CheckEvidence{Before: e.seen(ctx, workspace), Suites: []SuiteRun{}}
	if ctx.Err() != nil {
		return nil, "the checks were stopped", nil
	}
	switch ev.Before {
	case candidate:
	case "":
		return nil, "the workspace is gone, or cannot be seen whole any more", nil
	default:
		return nil, "the workspace is no longer as the turn left it", nil
	}
	// The plan's time is the suites': what the look at a large workspace took is not taken from them.
	until := e.now().Add(time.Duration(plan.Seconds) * time.Second)
	for _, s := range plan.Suites {
		left := until.Sub(e.now())
		if left <= 0 {
			break // the plan's time is over: what is left of it was not run
		}
		// A second at least, which is the least that a sandbox takes, and all that the shortest plan has.
		run, why, err := e.checkOne(ctx, t, s, max(time.Second, min(left, time.Duration(s.Seconds)*time.Second)))
		if why == "" {
			// Looked at again: what ran must have been what was pinned.
			why = s.holds(workspace)
		}
		if why != "" {
			return nil, why, err
		}
		ev.Suites = append(ev.Suites, run)
		if run.verdict(s, candidate) != ChecksPassed {
			break
		}
	}
	ev.After = e.seen(keep, workspace)
	ev.ElapsedMS = e.now().Sub(began).Milliseconds()
	return ev, "", nil
}

// seen is the workspace's digest now; "" where not all of it can be seen.
func (e *execution) seen(ctx context.Context, workspace string) Digest {
	t, err := e.takeSnapshot(ctx, workspace, e.store.snapshotCache(e.id))
	if err != nil {
		return ""
	}
	return treeDigest(t)
}

// checkOne runs a suite. why is set where its run cannot count at all.
func (e *execution) checkOne(ctx context.Context, t *Task, s Suite, wall time.Duration) (run SuiteRun, why string, detail error) {
	home, err := filepath.EvalSymlinks(e.store.Home())
	if err != nil {
		return run, "the home cannot be found", err
	}
	other := "the suite of check " + s.Check + " is not the one that was pinned"
	exe, err := pinProgram(s.Program)
	if err != nil {
		return run, other, err
	}
	defer exe.file.Close()
	if exe.digest != s.ProgramDigest {
		return run, other, nil
	}
	spec := sandbox.Spec{
		Program: s.Program, Arguments: []string{string(t.Run.Result.Candidate)},
		Workspace: t.Run.Admission.Workspace, Git: sandbox.GitHidden, Protected: []string{home},
		Network: sandbox.NetworkNone, Wall: wall, StreamBytes: maxCheckOutput, OutputLimit: maxCheckOutput + 1,
		MemoryBytes: checkMemory, Slot: slot(e.id),
		ProgramFile: exe.file, WorkspaceFile: e.folder,
	}
	if w := t.Worktree; w != nil {
		spec.GitDir, spec.Git = w.CommonDir, sandbox.GitRead
	}
	began := e.now()
	p, err := sandbox.Start(spec)
	if err != nil {
		return run, "check " + s.Check + " could not be run", err
	}
	p.Release() // a refusal shows in the result
	e.fault("check-released")
	halt := context.AfterFunc(ctx, p.Stop)
	defer halt()
	var out bytes.Buffer
	truncated := false
	for c := range p.Chunks() {
		if c.Stream == sandbox.Stdout {
			out.Write(c.Bytes)
			truncated = truncated || len(c.Gaps) > 0
		}
	}
	got := p.Wait()
	switch {
	case !got.Cleanup.Confirmed:
		return run, "something of check " + s.Check + " may still run", nil
	case ctx.Err() != nil:
		return run, "the checks were stopped", nil
	}
	if int64(out.Len()) > s.OutputBytes || got.Ending == sandbox.EndingOutput {
		out.Truncate(min(out.Len(), int(s.OutputBytes)))
		truncated = true
	}
	run = SuiteRun{Check: s.Check, Ending: resultFrom(observed{sandbox: got}).Ending, Truncated: truncated,
		StdoutDigest: DigestOf(out.Bytes()), ElapsedMS: e.now().Sub(began).Milliseconds()}
	var said SuiteSays
	if !truncated && closed(out.Bytes(), &said) == nil && len(said.Schema)+len(said.Verdict) < maxEnding &&
		said.SuiteDigest.valid() && said.InputDigest.valid() {
		run.Said = &said
	}
	return run, "", nil
}

// checkMemory is what a suite may use; the public plan does not say.
const checkMemory = 2 << 30

// checkerLost ends an attempt whose checker is gone. The caller holds owner.lock, which proves just that.
func (s *Store) checkerLost(ctx context.Context, t *Task) (Task, error) {
	after, err := s.Append(ctx, t.ID, t.NextEpoch(), Event{CheckLost: true})
	if err != nil {
		return *t, fmt.Errorf("end lost checks: %w", err)
	}
	return after, nil
}
