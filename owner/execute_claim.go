package owner

import "context"

// claimed makes the admission durable while the workspace is this turn's; see
// claims.go. A holder of which nothing is left is settled first. *Error
// workspace_busy names the task that has it, and nothing was written: the task
// stays queued, and another start may find the place free.
func (e *execution) claimed(ctx context.Context, ad *Admission) (t Task, err error) {
	return e.reserved(ctx, e.claim(ad), Event{Admitted: ad})
}

// reserved makes an event durable that begins to hold a workspace.
func (e *execution) reserved(ctx context.Context, c claim, ev Event) (t Task, err error) {
	for {
		var holder TaskID
		err = e.wait.do(ctx, func() error {
			holder, err = e.store.claim(ctx, c, ownerWait, func() (err error) {
				e.fault("claimed")
				t, err = e.store.Append(ctx, e.id, e.epoch, ev)
				return err
			})
			return err
		})
		if holder == "" {
			return t, err
		}
		if _, changed, serr := e.store.Settle(ctx, holder); serr != nil || !changed {
			return t, err
		}
	}
}

func (e *execution) claim(ad *Admission) claim {
	return claim{task: e.id, path: ad.Workspace, alone: claimsAlone(&e.grant)}
}

// release gives the workspace back when the turn's result is on disk. Where it
// cannot, the entry stays and counts for nothing: the log says that the turn
// has ended, and whoever meets the entry takes it away.
func (e *execution) release(ctx context.Context, ad *Admission) {
	_ = e.store.release(ctx, e.claim(ad))
}
