package owner

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

	"holdfast/internal/procid"
	"holdfast/sandbox"
)

// Settle ends a run of which nothing is left, so that its task and workspace are free again. It kills, reruns and
// deletes nothing, and does nothing while it is not sure: while some process holds owner.lock, or while the recorded
// process group may have a member. changed says whether it wrote. Callers are each admission, each sweep of the
// host, and a cancel of the task.
//
// A run without a recorded process has nothing to look for. Its owner is gone, for owner.lock is free, and the
// program was still behind its gate: the gate opens only after `spawned` is durable, closes for good when its owner's
// end of the pipe does, and what waits there is killed with its owner.
//
// A run whose own result could not prove the group gone is cleared by the same proof; the result stays as it is.
// Checks whose checker is gone become unavailable.
func (s *Store) Settle(ctx context.Context, id TaskID) (t Task, changed bool, err error) {
	t, changed, err = s.settle(ctx, id)
	if isRefusal(err, "store_busy") || errors.As(err, new(stillThere)) {
		return t, false, nil
	}
	return t, changed, err
}

// stillThere is the refusal to end what may still run.
type stillThere struct{ why *Error }

func (s stillThere) Error() string { return s.why.Error() }
func (s stillThere) Unwrap() error { return s.why }

// settle is Settle that says why it did nothing: *Error store_busy, or stillThere.
func (s *Store) settle(ctx context.Context, id TaskID) (t Task, changed bool, err error) {
	t, err = s.Get(id)
	if err != nil || !unsettled(&t) && t.Checks != ChecksRunning {
		return t, false, err
	}
	own, err := s.Own(ctx, id, 0)
	if err != nil {
		return t, false, err
	}
	defer own.Release()
	// Read again: the owner may have recorded its result just before it let go.
	t, err = s.Get(id)
	if err == nil && t.Checks == ChecksRunning {
		t, err = s.checkerLost(ctx, &t)
		return t, err == nil, err
	}
	if err != nil || !unsettled(&t) {
		return t, false, err
	}
	proof, err := proveEmpty(t.Run.Process)
	if err != nil {
		return t, false, err
	}
	ev := Event{Cleared: &Cleared{Proof: proof, At: s.now().UnixMilli()}}
	if t.Run.Result == nil {
		digest, err := traceDigest(s.TaskDir(id), t.Run.Admission.TraceFile)
		if err != nil {
			return t, false, err
		}
		ev = Event{Result: &Result{
			Ending: EndingOwnerEnded, GroupClear: true, OutputIncomplete: true, CostStatus: "unknown",
			StopRequested: t.Status == CancelRequested || t.CancelReason != "",
			TraceDigest:   digest, At: s.now().UnixMilli(),
		}}
	}
	// At the next epoch: were the owner that was found gone to write after all, it would be refused.
	after, err := s.Append(ctx, id, t.NextEpoch(), ev)
	if err != nil {
		return t, false, err
	}
	return after, true, nil
}

// proveEmpty says what proves that nothing of a process group is left; stillThere where something is, or where
// it is not known: not knowing is not knowing it gone. A pid alone proves nothing either way, for the kernel gives it
// to others: a group is its first process's pid with that process's start time, boot and PID namespace.
func proveEmpty(p *sandbox.Identity) (string, error) {
	if p == nil {
		return ProofEmpty, nil
	}
	gone, err := sandbox.Gone(*p)
	switch {
	case err != nil:
		return "", stillThere{refuse("invalid_transition", "whether anything of the run is left cannot be told: %v; start the machine anew, and recover again", err)}
	case !gone:
		return "", stillThere{refuse("invalid_transition", "process %d, the first of the run's PID namespace, or another process in it still runs; "+
			"end it or start the machine anew, and recover again", p.PID)}
	}
	if self, err := procid.Self(); err == nil && self.BootID != p.BootID {
		return ProofBoot, nil
	}
	return ProofEmpty, nil
}

// unsettled reports whether t has a run that nobody has recorded the end of, or not whether anything of it is left.
func unsettled(t *Task) bool {
	return t.Run != nil && !t.Run.Clear() &&
		(t.Status == Running || t.Status == CancelRequested || t.Status == StatusUnknown)
}

// Recover settles; where something of the run is left and its owner is gone, it fences the owner out by a new epoch,
// and the run is unknown from then on. A run that is unknown already and cannot be settled is refused with *Error
// invalid_transition, which says what is left of it; *Error store_busy while an owner lives. Nothing is run again.
func (s *Store) Recover(ctx context.Context, id TaskID) (Task, error) {
	t, changed, err := s.settle(ctx, id)
	if changed || !errors.As(err, new(stillThere)) || !unsettled(&t) || t.Status == StatusUnknown {
		return t, err
	}
	own, err := s.Own(ctx, id, 0)
	if err != nil {
		return t, err
	}
	defer own.Release()
	t, err = s.Get(id)
	if err != nil || !unsettled(&t) || t.Status == StatusUnknown {
		return t, err
	}
	return s.Append(ctx, id, t.NextEpoch(), Event{OwnerLost: true})
}

// OwnerAlive reports whether some process holds the task's owner.lock, whatever any recorded pid says. It asks by a
// shared lock, so that two who ask at once do not take each other for an owner.
func (s *Store) OwnerAlive(id TaskID) (bool, error) {
	own, err := s.own(context.Background(), id, 0, shared)
	if isRefusal(err, "store_busy") {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	own.Release()
	return false, nil
}

// stopWait bounds how long StopOwners waits for one owner.
const stopWait = 60 * time.Second

// StopOwners asks every turn that runs, or has an owner that is about to run it, to stop, and waits until the owners
// have left. reason is what the tasks will say. It is for homes that are about to go away; a host that stops leaves
// its turns alone.
func StopOwners(ctx context.Context, s *Store, reason string) error {
	ids, err := s.Awake()
	if err != nil {
		return err
	}
	var errs []error
	var waiting []TaskID
	for _, id := range ids {
		alive, err := s.OwnerAlive(id)
		if err == nil && alive {
			waiting = append(waiting, id)
			err = s.cancel(ctx, id, reason)
		}
		errs = append(errs, err)
	}
	for _, id := range waiting {
		own, err := s.Own(ctx, id, stopWait)
		if err == nil {
			own.Release()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// cancel asks one task to stop, at whatever revision it is. A task that has ended by then needs nothing.
func (s *Store) cancel(ctx context.Context, id TaskID, reason string) error {
	for {
		t, err := s.Get(id)
		if err != nil {
			return err
		}
		if t.Status != Queued && t.Status != Running {
			return nil
		}
		var name [16]byte
		rand.Read(name[:])
		b, err := EncodeCommand(Command{CommandID: "stop-" + hex.EncodeToString(name[:]), TaskID: id,
			Expected: &t.Revision, Action: Action{Cancel: &CancelAction{Reason: reason}}})
		if err != nil {
			return err
		}
		_, err = s.Apply(ctx, b)
		if !isRefusal(err, "revision_mismatch") && !isRefusal(err, "invalid_transition") {
			return err
		}
	}
}

// isRefusal reports whether err is the refusal with this code.
func isRefusal(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}
