package owner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"holdfast/internal/atomicfile"
	"holdfast/internal/procid"
	"holdfast/sandbox"
)

// Execute is the execution owner's hop of the data path: owner/apply.go has recorded what was asked; from here the
// turn goes to sandbox/start.go, and what is observed comes back to owner/evidence.go.
//
// It owns one turn of one task in this process, by one execution grant, from before admission to after the result:
//
//  1. take owner.lock (30 s, else store_busy); the task is queued without a run, and the grant names its intent and
//     revision, or nothing happens at all;
//  2. find the place (worktree.go) and its snapshot (source.go), the program and its digest, both held open from here on
//     so that nothing can pass for them, the commit, the secrets;
//     what is missing here ends the turn as not started, with a cause that names no path;
//  3. the workspace is no other turn's (claims.go, else workspace_busy with nothing written), and `admitted` durable:
//     from here on the turn has a run, and ends with a result or is settled;
//  4. the transcript: prompt, consumed corrections, admission; then the sandbox, its program held at a gate;
//  5. the workspace still has the pinned snapshot; then, under the task's lock: no cancel was asked, the program is
//     still the pinned one, `effect_intent` durable, `spawned` durable, the gate opens. A cancel acknowledged before
//     this is followed by no effect; one after it stops the program;
//  6. a crash before the gate opened means that nothing ran: the program's first process dies with its owner;
//  7. evidence, the candidate's snapshot, then `result` durable.
//
// The end of ctx stops the turn politely and still records it. A refusal is an *Error: of step 1 with nothing
// written, of step 2 with the turn ended (a cause is in the returned task). A turn that was admitted returns no error
// once its result is on disk, however it ended, unless its transcript could not be written whole; after any other
// error what was recorded stands, and Settle ends it.
func Execute(ctx context.Context, s *Store, id TaskID, grantBytes []byte) (Task, error) {
	return execute(ctx, s, id, grantBytes, realParts())
}

// ownerWait is how long an owner waits for the one before it to leave.
const ownerWait = 30 * time.Second

// parts are what an execution takes from outside: clock, disk, and in tests a place to die.
type parts struct {
	now   func() time.Time
	wait  patience
	fs    atomicfile.FS
	probe func() sandbox.Capability
	fault func(point string) // called where tests kill owners; does nothing in the product
	disk  int64              // by how many bytes a workspace may grow
}

func realParts() parts {
	return parts{now: time.Now, wait: patience{sleep: sleepFor}, fs: atomicfile.OS, probe: sandbox.Probe, fault: func(string) {}, disk: maxGrowth}
}

// execution is one owned turn. One goroutine has it.
type execution struct {
	parts
	store *Store
	id    TaskID
	grant Grant
	epoch Epoch             // of the run, from admission on
	turn  int               // known from admission on
	ahead *sandbox.Prepared // nil until the machine is looked at

	// What was pinned is held open until the turn is over, so that nothing else can pass for it.
	folder *os.File // the workspace
	exe    program
}

// letGo ends what was begun and held for a turn.
func (e *execution) letGo() {
	e.ahead.Discard()
	e.folder.Close()
	e.exe.file.Close()
}

func execute(ctx context.Context, s *Store, id TaskID, grantBytes []byte, p parts) (Task, error) {
	g, err := ParseGrant(grantBytes)
	if err != nil {
		return Task{}, err
	}
	if g.TaskID != id {
		return Task{}, refuse("invalid_command", "the execution grant is for another task")
	}
	own, err := s.Own(ctx, id, ownerWait)
	if err != nil {
		return Task{}, err
	}
	defer own.Release()
	p.fault("owned")
	e := &execution{parts: p, store: s, id: id, grant: g}
	defer e.letGo()
	t, a, err := e.admit(ctx, grantBytes)
	if err != nil {
		return t, err
	}
	e.fault("admitted")
	defer e.release(context.WithoutCancel(ctx), &t.Run.Admission)
	// The end of ctx is a wish to stop; what happened must still get on disk.
	return e.run(ctx, context.WithoutCancel(ctx), a)
}

// run takes an admitted turn to its result.
func (e *execution) run(ctx, keep context.Context, a *admittedTurn) (Task, error) {
	e.turn = a.task.Run.Turn
	tr, err := e.openTranscript(keep, a)
	if err != nil {
		return e.refused(keep, tr, true, err)
	}
	p, err := e.ahead.Start(a.spec)
	if err != nil {
		return e.refused(keep, tr, true, err) // nothing ran and nothing is left
	}
	e.fault("gated")
	verdict, err := e.holdSource(ctx, a)
	if verdict == undecided {
		verdict, err = e.dispatch(ctx, keep, a, p)
	}
	if verdict == dispatched {
		ev := e.collect(ctx, keep, p, tr)
		e.fault("ended")
		return e.finish(keep, tr, a, ev)
	}
	p.Stop()
	clear := p.Wait().Cleanup.Confirmed // behind its gate nothing of the program ever ran
	switch verdict {
	case cancelled:
		return e.cancelledBefore(keep, tr, clear)
	case drifted:
		return e.refused(keep, tr, clear, err)
	}
	tr.close()
	return Task{}, err
}

// verdict is what became of a dispatch.
type verdict uint8

const (
	undecided  verdict = iota // an error: what is on disk stands
	dispatched                // spawned is durable, the gate is open
	cancelled                 // a cancel came first
	drifted                   // a pin no longer holds
)

// dispatch makes the effect happen at most once and only if it is still wanted. On a full disk the lock is given back
// between tries, so that a cancel can come through; each try starts from what the log says by then.
func (e *execution) dispatch(ctx, keep context.Context, a *admittedTurn, p *sandbox.Process) (v verdict, err error) {
	err = e.wait.do(keep, func() error { v, err = e.tryDispatch(ctx, keep, a, p); return err })
	if err == nil && v == dispatched {
		e.fault("released")
	}
	return v, err
}

func (e *execution) tryDispatch(ctx, keep context.Context, a *admittedTurn, p *sandbox.Process) (verdict, error) {
	l, err := e.store.Lock(keep, e.id)
	if err != nil {
		return undecided, err
	}
	defer l.Unlock()
	t := l.Task()
	switch {
	case t.Run == nil || t.Run.Epoch != e.epoch || t.Run.Result != nil:
		return undecided, refuse("invalid_transition", "another process took this run over")
	case t.Status != Running || ctx.Err() != nil:
		return cancelled, nil
	}
	if !e.exe.stands() {
		return drifted, errors.New("the program changed between admission and dispatch")
	}
	if t.Run.EffectID == "" {
		intent := EffectID(e.id, t.Turn())
		// A crash after this and before `spawned`: the program is behind the gate and dies with this process.
		if _, err := l.Append(e.epoch, Event{EffectIntent: &intent}); err != nil {
			return undecided, err
		}
	}
	e.fault("intent")
	if t.Run.Process == nil {
		id := p.Identity()
		// The child's first instruction comes only after this is on disk, so a run that may have had an effect
		// always names the group to look for.
		if _, err := l.Append(e.epoch, Event{Spawned: &id}); err != nil {
			return undecided, err
		}
	}
	e.fault("spawned")
	// `spawned` is durable. A crash now leaves a dead gate; Settle proves the group gone. The gate opens under the lock,
	// so that whoever has had a cancel acknowledged knows from the log's order whether anything can still be
	// dispatched: before `spawned` nothing ever is, after it the program has been let go already. A refused release
	// means that the sandbox has ended by itself, and its result says how.
	if p.Release() == nil {
		e.fault("opened")
	}
	return dispatched, nil
}

// append writes one owner event, waiting for room on a full disk.
func (e *execution) append(ctx context.Context, ev Event) (t Task, err error) {
	err = e.wait.do(ctx, func() error { t, err = e.store.Append(ctx, e.id, e.epoch, ev); return err })
	return t, err
}

// self is this process as the log names it.
func self() (sandbox.Identity, error) {
	id, err := procid.Self()
	if err != nil {
		return sandbox.Identity{}, fmt.Errorf("name the owner process: %w", err)
	}
	return sandbox.Identity{PID: id.PID, StartTime: id.StartTime, BootID: id.BootID}, nil
}
