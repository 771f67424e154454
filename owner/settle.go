package owner

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"time"

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
// A run whose own result could not prove the group gone has a result, so it stays unknown.
func (s *Store) Settle(ctx context.Context, id TaskID) (t Task, changed bool, err error) {
	t, err = s.Get(id)
	if err != nil || !unsettled(&t) {
		return t, false, err
	}
	own, err := s.Own(ctx, id, 0)
	if isRefusal(err, "store_busy") {
		return t, false, nil
	}
	if err != nil {
		return t, false, err
	}
	defer own.Release()
	// Read again: the owner may have recorded its result just before it let go.
	t, err = s.Get(id)
	if err != nil || !unsettled(&t) {
		return t, false, err
	}
	if p := t.Run.Process; p != nil {
		// Not knowing is not knowing it gone.
		if gone, err := sandbox.Gone(*p); err != nil || !gone {
			return t, false, nil
		}
	}
	digest, err := traceDigest(s.TaskDir(id), t.Run.Admission.TraceFile)
	if err != nil {
		return t, false, err
	}
	after, err := s.Append(ctx, id, t.Run.Epoch, Event{Result: &Result{
		Ending: EndingOwnerEnded, GroupClear: true, OutputIncomplete: true, CostStatus: "unknown",
		StopRequested: t.Status == CancelRequested || t.CancelReason != "",
		TraceDigest:   digest, At: s.now().UnixMilli(),
	}})
	if err != nil {
		return t, false, err
	}
	return after, true, nil
}

// unsettled reports whether t has a run that nobody has recorded the end of.
func unsettled(t *Task) bool {
	return t.Run != nil && t.Run.Result == nil &&
		(t.Status == Running || t.Status == CancelRequested || t.Status == StatusUnknown)
}

// Recover settles; where something of the run is left and its owner is gone, it fences the owner out by a new epoch,
// and the run is unknown from then on. *Error store_busy while an owner lives. Nothing is run again.
func (s *Store) Recover(ctx context.Context, id TaskID) (Task, error) {
	t, changed, err := s.Settle(ctx, id)
	if err != nil || changed || !unsettled(&t) {
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
	return s.Append(ctx, id, t.Run.Epoch+1, Event{OwnerLost: true})
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
	ids, err := s.List()
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
