package host

import (
	"context"
	"encoding/json"
	"fmt"

	"holdfast/owner"
)

// ChecksStarted says that a process exists which will run a turn's checks, as attempt number Attempt.
type ChecksStarted struct {
	Task        owner.TaskID `json:"task"`
	Owner       int          `json:"owner_process"`
	Attempt     int          `json:"attempt"`
	Diagnostics string       `json:"diagnostics"`
}

// verbTaskCheck starts the checks of a turn that ended, in a detached process that owns the task meanwhile. Who asks
// watches the task: a start is not yet an attempt.
func verbTaskCheck(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	t, err := c.settled(ctx, a.Task) // an attempt whose process is gone stands in the way of the next one
	if err != nil {
		return err
	}
	if err := owner.Checkable(&t); err != nil {
		return err
	}
	// The process decides; that it would refuse is said here, where somebody hears it.
	holder, err := c.store.WorkspaceHolder(t.Run.Admission.Workspace, t.ID, false)
	if err != nil {
		return err
	}
	if holder != "" {
		return &owner.Error{Code: "workspace_busy", Detail: fmt.Sprintf("task %s has the workspace, or a folder above or below it; check again when its turn has ended", holder)}
	}
	var l *owner.Launched
	if err := c.do(ctx, act{Kind: "task.check", Task: a.Task, Revision: t.Revision}, byHand, nil, func() (end actEnd, err error) {
		l, err = c.opts.Launch(c.store, a.Task, "")
		return end, err
	}); err != nil {
		return err
	}
	return emit(ChecksStarted{a.Task, l.PID, t.Run.Attempts + 1, l.Diagnostic})
}
