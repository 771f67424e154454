package host

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/owner"
)

// TaskArgs of the task verbs; each uses what it needs.
type TaskArgs struct {
	Task      owner.TaskID `json:"task"`
	Workspace nip.Label    `json:"workspace"`
	Title     string       `json:"title"`
	Prompt    string       `json:"prompt"`
	Reason    string       `json:"reason"`
	Request   []byte       `json:"request"` // exact bytes of a task command
	Verb      string       `json:"verb"`    // submit, cancel, correct or continue: what the bytes must be
	Grant     []byte       `json:"grant"`   // exact bytes of an execution grant
}

// verbTaskNew is a task of the person at the machine: its turn may start by
// the policy as a device's may, with nobody's standing to recheck.
func verbTaskNew(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	ws, err := loadWorkspaces(c.home)
	if err != nil {
		return err
	}
	w, ok := ws.find(a.Workspace)
	if !ok {
		return fmt.Errorf("%w: no workspace %q; see holdfast workspace list", ErrNotFound, a.Workspace)
	}
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		return err
	}
	p, _, err := loadPolicy(c.home)
	if err != nil {
		return err
	}
	adapter := owner.PromptCommand
	if r, ok := p.ruleFor(a.Workspace); ok {
		adapter = r.Adapter
	}
	title := a.Title
	if title == "" {
		title = cut(firstLine(a.Prompt), 80)
	}
	b, err := owner.EncodeCommand(owner.Command{
		CommandID: storeCommandID(c.self, id, "create"), TaskID: owner.TaskID(id),
		Action: owner.Action{Submit: &owner.Intent{
			Title: title, Prompt: a.Prompt, Workspace: owner.Workspace{Path: w.Path},
			Configuration: owner.Configuration{Adapter: adapter},
		}},
	})
	if err != nil {
		return fmt.Errorf("%w: %s", ErrUsage, err)
	}
	// The origin first: a task without one would never start. A row without a
	// task means nothing.
	if err := c.localNote(ctx, "task.new", owner.TaskID(id), "by the person at the machine", 1, func(tx *bbolt.Tx) error {
		return putOrigin(tx, owner.TaskID(id), 1, turnOrigin{Sender: c.localSender(), Local: true})
	}); err != nil {
		return err
	}
	if _, err := c.store.Apply(ctx, b); err != nil {
		return err
	}
	return c.emitTask(owner.TaskID(id), emit)
}

func firstLine(s string) string {
	for i, r := range s {
		if r == '\n' || r == '\r' {
			return s[:i]
		}
	}
	return s
}

func (c *Core) emitTask(id owner.TaskID, emit func(any) error) error {
	t, err := c.store.Get(id)
	if err != nil {
		return err
	}
	if h := c.serving; h != nil {
		h.taskChanged(id)
		h.starter.wake()
	}
	return emit(t)
}

// StopTask asks whatever turn the task has to stop, at whatever revision it
// stands.
func (c *Core) StopTask(ctx context.Context, id owner.TaskID, reason string) (owner.Task, error) {
	for try := 0; ; try++ {
		t, err := c.settled(ctx, id)
		if err != nil {
			return t, err
		}
		if t.Status != owner.Queued && t.Status != owner.Running {
			return t, nil
		}
		token, err := nip.NewID(rand.Reader)
		if err != nil {
			return t, err
		}
		b, err := owner.EncodeCommand(owner.Command{
			CommandID: token, TaskID: id, Expected: &t.Revision, Action: owner.Action{Cancel: &owner.CancelAction{Reason: reason}},
		})
		if err != nil {
			return t, fmt.Errorf("%w: %s", ErrUsage, err)
		}
		_, err = c.store.Apply(ctx, b)
		if refusedAs(err, "revision_mismatch") && try < 50 {
			continue // an owner event came between; the person meant whatever runs
		}
		if err != nil {
			return t, err
		}
		return c.store.Get(id)
	}
}

func verbTaskStop(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	if a.Reason == "" {
		a.Reason = "stopped by the person at the machine"
	}
	t, err := c.StopTask(ctx, a.Task, a.Reason)
	if err != nil {
		return err
	}
	if err := c.localNote(ctx, "task.stop", a.Task, a.Reason, t.Revision, nil); err != nil {
		return err
	}
	return c.emitTask(a.Task, emit)
}

// verbTaskApply takes one exact task command. It is inert: nothing starts by
// it, because no turn origin is recorded.
func verbTaskApply(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	cmd, err := owner.ParseCommand(a.Request)
	if err != nil {
		return err
	}
	if got := actionName(cmd.Action); got != a.Verb {
		return fmt.Errorf("%w: the document is a %s, the verb is %s", ErrUsage, got, a.Verb)
	}
	rec, err := c.store.Apply(ctx, a.Request)
	if err != nil {
		return err
	}
	if h := c.serving; h != nil {
		h.taskChanged(cmd.TaskID)
	}
	return emit(rec)
}

func actionName(a owner.Action) string {
	switch {
	case a.Submit != nil:
		return "submit"
	case a.Cancel != nil:
		return "cancel"
	case a.Correct != nil:
		return "correct"
	case a.Continue != nil:
		return "continue"
	}
	return ""
}

// Started says that an owner process exists; it is not an admission.
type Started struct {
	Task        owner.TaskID `json:"task"`
	Owner       int          `json:"owner_process"`
	Admission   string       `json:"admission"`
	Diagnostics string       `json:"diagnostics"`
}

func verbTaskStart(_ context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	g, err := owner.ParseGrant(a.Grant)
	if err != nil {
		return err
	}
	if _, err := c.store.Get(g.TaskID); err != nil {
		return err
	}
	blob, err := c.store.PutBlob(a.Grant)
	if err != nil {
		return err
	}
	l, err := c.opts.Launch(c.store, g.TaskID, blob)
	if err != nil {
		return err
	}
	return emit(Started{g.TaskID, l.PID, "pending", l.Diagnostic})
}

func verbTaskArchive(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	if a.Reason == "" || len(a.Reason) > 512 {
		return fmt.Errorf("%w: archive needs a reason of at most 512 bytes", ErrUsage)
	}
	if err := c.archive(ctx, a.Task, a.Reason, "owner"); err != nil {
		return err
	}
	return c.emitTask(a.Task, emit)
}

func verbTaskRestore(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	t, err := c.store.Get(a.Task)
	if err != nil {
		return err
	}
	if t.Archived != nil {
		if _, err := c.store.Append(ctx, a.Task, epochOfTask(&t), owner.Event{Restored: true}); err != nil {
			return err
		}
	}
	return c.emitTask(a.Task, emit)
}

func verbTaskRecover(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	if _, err := c.store.Recover(ctx, a.Task); err != nil {
		return err
	}
	return c.emitTask(a.Task, emit)
}

// refusedAs reports whether err is the store's definite refusal of that code.
func refusedAs(err error, code string) bool {
	var refused *owner.Error
	return errors.As(err, &refused) && refused.Code == code
}
