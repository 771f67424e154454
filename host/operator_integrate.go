package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"holdfast/commands"
	"holdfast/owner"
)

// Integrated is a candidate that became one commit on a new branch.
type Integrated struct {
	Task   owner.TaskID `json:"task"`
	Turn   int          `json:"turn"`
	Branch string       `json:"branch"`
	Commit string       `json:"commit"`
	Base   string       `json:"base"`
}

// verbTaskIntegrate makes a task's candidate a branch of its repository. Only the person at the machine has this
// verb: no operation of a device reaches it.
func verbTaskIntegrate(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	t, err := c.store.Get(a.Task)
	if err != nil {
		return err
	}
	note := "branch " + a.Branch
	if wireTask(a.Task) == "" {
		note = "task " + string(a.Task) + ": " + note
	}
	err = c.do(ctx, act{Kind: "task.integrate", Task: a.Task, Revision: t.Revision, Name: a.Branch}, note, nil, func() (actEnd, error) {
		t, err = c.store.ApplyCandidate(ctx, a.Task, a.Branch)
		return actEnd{revision: t.Revision}, err
	})
	if h := c.serving; h != nil {
		h.taskChanged(a.Task)
	}
	if err != nil {
		return err
	}
	if t.Applied == nil {
		return fmt.Errorf("task %s says nothing of the branch that was made", a.Task)
	}
	return emit(Integrated{a.Task, t.Applied.Turn, t.Applied.Branch, t.Applied.Commit, t.Applied.Base})
}

// resumeIntegration says what became of a branch that a stop may have cut off, and records one that was made.
func (c *Core) resumeIntegration(ctx context.Context, a act) (actEnd, error) {
	t, err := c.store.ResumeApply(ctx, a.Task, a.Name)
	var refused *owner.Error
	switch {
	case err == nil:
		return actEnd{revision: t.Revision}, nil
	case refusedAs(err, "not_found"):
		return nothingDone, nil
	case refusedAs(err, "store_busy"):
		return actEnd{}, err // told when nobody owns the task any more
	case errors.As(err, &refused):
		// A turn that has run since, or a repository that is not where it was: the branch cannot be told from another.
		return actEnd{outcome: commands.OutcomeUnknown, revision: t.Revision}, nil
	}
	return actEnd{}, err
}
