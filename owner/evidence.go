package owner

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"holdfast/sandbox"
)

// maxOutput is how much standard output a turn may deliver before it is stopped. Standard error is kept to the
// grant's stream_bytes and counted beyond.
const maxOutput = 2 << 20

// By how much a turn's workspace may grow; the grant does not say. What is left must fit into one snapshot.
const (
	maxGrowth      = 8 << 30
	maxGrowthFiles = 200_000
)

// collect is the evidence hop of the data path: sandbox/start.go has a running program; what it says goes into the
// transcript as it arrives, and how it ended becomes the turn's result, which host/publish.go takes from there.
//
// It returns when the program's group is proven gone or given up. A cancel of the task and the end of ctx stop the
// program; so does a transcript that can no longer be written, because effects without evidence must not go on.
func (e *execution) collect(ctx, keep context.Context, p *sandbox.Process, tr *transcript) observed {
	watcher := e.watchCancel(ctx, p)
	out := newOutput(e.grant.StreamBytes)
	broken := tr.step(keep, traceStep{source: "system", message: "dispatched", extra: map[string]any{
		"effect": EffectID(e.id, e.turn), "process": p.Identity(),
	}})
	record := func(write func() error) {
		if broken == nil {
			broken = write()
		}
		if broken != nil {
			p.Stop()
		}
	}
	tick := time.NewTicker(traceSync)
	defer tick.Stop()
	for chunks := p.Chunks(); chunks != nil; {
		select {
		case c, open := <-chunks:
			if !open {
				chunks = nil
				break
			}
			record(func() error { return out.add(keep, tr, c) })
		case <-tick.C:
			// What a quiet program said last must not wait for its next word.
			record(func() error { return tr.sync() })
		}
	}
	record(func() error { return out.flush(keep, tr) })
	r := p.Wait()
	asked := watcher.stop()
	return observed{sandbox: r, asked: asked, broken: broken,
		incomplete: out.incomplete || broken != nil || r.Ending == sandbox.EndingOutput}
}

// finish seals the transcript and records the result. The order is the promise: the result names a digest of bytes
// that are already durable. A crash before the result leaves a run that Settle ends; one after it changes nothing.
func (e *execution) finish(ctx context.Context, tr *transcript, a *admittedTurn, ev observed) (Task, error) {
	r := resultFrom(ev)
	left := e.lookAfter(ctx, a, &r)
	var reply string
	r.Reply, r.Ask, reply = replyOf(ev.sandbox)
	if r.Ask != "" {
		r.Ending = map[string]string{"question": EndingAskedQuestion, "approval": EndingAskedApproval}[r.Ask]
	}
	if ev.broken == nil && r.Egress != nil {
		ev.broken = tr.step(ctx, traceStep{source: "system", message: "egress", extra: map[string]any{"egress": r.Egress}})
	}
	if ev.broken == nil {
		ev.broken = tr.step(ctx, traceStep{source: "system", message: "result", extra: map[string]any{
			"ending": r.Ending, "exit_code": r.ExitCode, "signal": ev.sandbox.Signal, "fault": ev.sandbox.Fault,
			"elapsed_ms": r.ElapsedMS, "stdout_bytes": ev.sandbox.Stdout, "stderr_bytes": ev.sandbox.Stderr,
			"output_incomplete": r.OutputIncomplete, "stop_requested": r.StopRequested,
			"reply_file": reply, "ask": r.Ask, "candidate_snapshot": r.Candidate, "candidate": left, "confinement": jsonOf(ev.sandbox.Report), "cleanup": jsonOf(ev.sandbox.Cleanup),
		}})
	}
	return e.conclude(ctx, tr, r, ev.broken)
}

// refused ends an admitted turn whose program never ran because something no longer held.
func (e *execution) refused(ctx context.Context, tr *transcript, clear bool, why error) (Task, error) {
	r := Result{Ending: EndingRefusedBefore, GroupClear: clear}
	var broken error
	if tr != nil {
		broken = tr.step(ctx, traceStep{source: "system", message: r.Ending, extra: map[string]any{"reason": why.Error()}})
	}
	return e.conclude(ctx, tr, r, broken)
}

// cancelledBefore ends an admitted turn whose cancel came before its program ran.
func (e *execution) cancelledBefore(ctx context.Context, tr *transcript, clear bool) (Task, error) {
	r := Result{Ending: EndingCancelledBefore, GroupClear: clear, StopRequested: true}
	broken := tr.step(ctx, traceStep{source: "system", message: r.Ending})
	return e.conclude(ctx, tr, r, broken)
}

// conclude seals what there is of a transcript and appends the result. A transcript that broke is named by the digest
// of what is left of it, without an end record, and the result says that output is missing.
func (e *execution) conclude(ctx context.Context, tr *transcript, r Result, broken error) (Task, error) {
	var err error
	if tr != nil && broken == nil {
		r.TraceDigest, broken = tr.seal(ctx)
	}
	if tr == nil || broken != nil {
		if tr != nil {
			tr.close()
		}
		r.OutputIncomplete = true
		if r.TraceDigest, err = traceDigest(e.store.TaskDir(e.id), TraceName(e.turn)); err != nil {
			return Task{}, err
		}
	}
	r.CostStatus, r.At = "unknown", e.now().UnixMilli()
	e.fault("result-before")
	t, err := e.append(ctx, Event{Result: &r})
	if err != nil {
		return Task{}, err
	}
	e.fault("result-after")
	if broken != nil {
		return t, fmt.Errorf("the turn's result is recorded, but its transcript is not whole: %w", broken)
	}
	return t, nil
}

// openTranscript starts the evidence of an admitted turn: what it was asked, what it is the first to read, and what
// was pinned.
func (e *execution) openTranscript(ctx context.Context, a *admittedTurn) (*transcript, error) {
	t, run := &a.task, a.task.Run
	tr, err := newTranscript(ctx, e.store.TaskDir(e.id), run.Turn, session{
		ID: fmt.Sprintf("%s-%d", e.id, run.Turn), Adapter: run.Admission.Adapter, Workspace: filepath.Base(run.Admission.Workspace),
		Base: chainBase(t.ID, t.IntentDigest, TraceName(run.Turn)),
	}, e.fs, e.now, e.wait)
	if err != nil {
		return nil, err
	}
	steps := []traceStep{{source: "user", message: t.EffectivePrompt()}}
	for _, c := range a.unread {
		steps = append(steps, traceStep{source: "system", message: "steer_consumed", extra: map[string]any{
			"revision": c.Revision, "reason": c.Reason, "adapter": run.Admission.Adapter, "acknowledgment": steerAcknowledged,
		}})
	}
	// A device may read every line of this: digests and limits, never a path of this machine. The paths stand in
	// the task's log, which stays here.
	pinned := run.Admission
	admitted := map[string]any{
		"grant_digest": pinned.GrantDigest, "adapter": pinned.Adapter, "source_revision": pinned.SourceRevision,
		"source_snapshot": pinned.SourceSnapshot,
		"program_digest":  pinned.ProgramDigest, "prompt_digest": pinned.Prompt, "read_revision": pinned.ReadRevision,
		"network": pinned.Network, "intent_digest": t.IntentDigest, "write_workspace": e.grant.Write, "git": e.grant.Git,
		"read_paths": len(a.spec.Read), "environment": e.grant.Environment, "wall_seconds": e.grant.WallSeconds,
		"stream_bytes": e.grant.StreamBytes, "memory_bytes": e.grant.MemoryBytes,
		"disk_bytes": a.spec.DiskBytes, "disk_files": a.spec.DiskFiles, "slot": a.spec.Slot,
	}
	if a.frozen != nil {
		// Kept as evidence; whether the program read any of it nobody can say.
		admitted["context_digest"] = pinned.Context
		admitted["instructions"], admitted["knowledge"] = len(a.frozen.doc.Instructions), len(a.frozen.doc.Knowledge)
	}
	steps = append(steps, traceStep{source: "system", message: "admitted", extra: admitted})
	if w := t.Worktree; w != nil {
		// Whoever reads the page must not take the workspace's files for what the turn saw.
		steps = append(steps, traceStep{source: "system", message: "works in a worktree of its own, made from commit " + w.Base +
			"; changes of the workspace that were not committed then are not seen"})
	}
	for _, s := range steps {
		if err := tr.step(ctx, s); err != nil {
			return tr, err
		}
	}
	// Durable before any effect: what was asked and pinned is never reconstructed afterwards.
	return tr, tr.sync()
}
