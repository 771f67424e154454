package host

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/internal/procid"
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
	Branch    string       `json:"branch"`  // of "task.integrate": the new branch
	Grant     []byte       `json:"grant"`   // exact bytes of an execution grant
	Caller    procid.ID    `json:"caller"`  // who owns the turn of "task.execute", and says how it ended
}

// byHand is the note of an act that has nothing more to say.
const byHand = "by the person at the machine"

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
		title = titleOf(a.Prompt)
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
	task := owner.TaskID(id)
	if err := c.do(ctx, act{Kind: "task.new", Task: task, Bytes: b}, byHand, func(tx *bbolt.Tx) error {
		return putOrigin(tx, task, 1, turnOrigin{Sender: c.localSender(), Local: true})
	}, func() (actEnd, error) {
		rec, err := c.store.Apply(ctx, b)
		return actEnd{revision: rec.Revision}, err
	}); err != nil {
		return err
	}
	return c.emitTask(task, emit)
}

// titleOf is the first line of a prompt that says something, as a title: short, and one line of text.
func titleOf(prompt string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(prompt), "\n")
	return cut(strings.Join(strings.FieldsFunc(line, unicode.IsControl), " "), 80)
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
// stands. Each try's exact bytes are durable before the task sees them.
func (c *Core) StopTask(ctx context.Context, id owner.TaskID, reason string) (owner.Task, error) {
	t, err := c.settled(ctx, id)
	if err != nil {
		return t, err
	}
	a := act{Kind: "task.stop", Task: id}
	if !stoppable(&t) {
		return t, c.moot(ctx, a, reason, t.Revision)
	}
	if a.Bytes, err = stopBytes(&t, reason); err != nil {
		return t, err
	}
	actID, err := c.intend(ctx, a, reason, nil)
	if err != nil {
		return t, err
	}
	var end actEnd
	for try := 0; ; try++ {
		var rec owner.Receipt
		rec, err = c.store.Apply(ctx, a.Bytes)
		end = actEnd{revision: rec.Revision}
		if !refusedAs(err, "revision_mismatch") || try == 50 {
			break
		}
		// An owner event came between; the person meant whatever runs.
		if t, err = c.settled(ctx, id); err != nil {
			break
		}
		if !stoppable(&t) {
			end, err = actEnd{outcome: commands.OutcomeSuperseded, revision: t.Revision}, nil
			break
		}
		if a.Bytes, err = stopBytes(&t, reason); err == nil {
			err = c.exactly(ctx, actID, a)
		}
		if err != nil {
			break
		}
	}
	if err := c.ended(ctx, actID, a, end, err); err != nil {
		return t, err
	}
	return c.store.Get(id)
}

func stoppable(t *owner.Task) bool { return t.Status == owner.Queued || t.Status == owner.Running }

func stopBytes(t *owner.Task, reason string) ([]byte, error) {
	token, err := nip.NewID(rand.Reader)
	if err != nil {
		return nil, err
	}
	b, err := owner.EncodeCommand(owner.Command{
		CommandID: token, TaskID: t.ID, Expected: &t.Revision, Action: owner.Action{Cancel: &owner.CancelAction{Reason: reason}},
	})
	if err != nil {
		err = fmt.Errorf("%w: %s", ErrUsage, err)
	}
	return b, err
}

func verbTaskStop(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	if a.Reason == "" {
		a.Reason = "stopped by the person at the machine"
	}
	if _, err := c.StopTask(ctx, a.Task, a.Reason); err != nil {
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
	var rec owner.Receipt
	if err := c.do(ctx, act{Kind: "task." + a.Verb, Task: cmd.TaskID, Bytes: a.Request}, "exact document, "+string(owner.DigestOf(a.Request))+", for task "+string(cmd.TaskID), nil, func() (end actEnd, err error) {
		rec, err = c.store.Apply(ctx, a.Request)
		return actEnd{revision: rec.Revision}, err
	}); err != nil {
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

func verbTaskStart(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
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
	var l *owner.Launched
	if err := c.do(ctx, act{Kind: "task.start", Task: g.TaskID}, grantNote(blob, g.TaskID), nil, func() (end actEnd, err error) {
		l, err = c.opts.Launch(c.store, g.TaskID, blob)
		return end, err
	}); err != nil {
		return err
	}
	return emit(Started{g.TaskID, l.PID, "pending", l.Diagnostic})
}

func grantNote(grant owner.Digest, task owner.TaskID) string {
	return "execution grant " + string(grant) + " for task " + string(task)
}

// ActStarted names an act whose caller says how it ended.
type ActStarted struct {
	Act string `json:"act"`
}

// ActEnded of "task.executed".
type ActEnded struct {
	Act  string `json:"act"`
	Code string `json:"code"` // why nothing was executed; "" where a turn was
}

// verbTaskExecute journals that the caller is about to own one turn itself.
func verbTaskExecute(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	g, err := owner.ParseGrant(a.Grant)
	if err != nil {
		return err
	}
	t, err := c.store.Get(g.TaskID)
	if err != nil {
		return err
	}
	id, err := c.intend(ctx, act{Kind: "task.execute", Task: g.TaskID, Revision: t.Revision, Caller: a.Caller}, grantNote(owner.DigestOf(a.Grant), g.TaskID), nil)
	if err != nil {
		return err
	}
	return emit(ActStarted{id})
}

// verbTaskExecuted journals how that ended; the turn's own end is in the task.
func verbTaskExecuted(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a ActEnded
	if err := arguments(raw, &a); err != nil {
		return err
	}
	var of act
	if err := c.db.View(func(tx *bbolt.Tx) error {
		found, err := getJSON(tx, bucketActs, a.Act, &of)
		if err == nil && (!found || of.Kind != "task.execute") {
			err = fmt.Errorf("%w: no execution %q is open", ErrNotFound, cut(a.Act, 64))
		}
		return err
	}); err != nil {
		return err
	}
	end := actEnd{}
	if a.Code != "" {
		end = actEnd{outcome: commands.OutcomeRejected, reason: nip.Code(cut(a.Code, 64))}
	}
	if t, err := c.store.Get(of.Task); err == nil {
		end.revision = t.Revision
	}
	if err := c.conclude(ctx, a.Act, of.Kind, end); err != nil {
		return err
	}
	return emit(ActStarted{a.Act})
}

func verbTaskArchive(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	if a.Reason == "" || len(a.Reason) > 512 {
		return fmt.Errorf("%w: archive needs a reason of at most 512 bytes", ErrUsage)
	}
	if err := c.moveTask(ctx, "task.archive", a.Task, a.Reason, func() error {
		return c.archive(ctx, a.Task, a.Reason, "owner")
	}); err != nil {
		return err
	}
	return c.emitTask(a.Task, emit)
}

func verbTaskRestore(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	if err := c.moveTask(ctx, "task.restore", a.Task, byHand, func() error {
		t, err := c.store.Get(a.Task)
		if err != nil || t.Archived == nil {
			return err
		}
		_, err = c.store.Append(ctx, a.Task, epochOfTask(&t), owner.Event{Restored: true})
		return err
	}); err != nil {
		return err
	}
	return c.emitTask(a.Task, emit)
}

// moveTask journals a verb that appends an event of its own to a task's log.
func (c *Core) moveTask(ctx context.Context, kind string, id owner.TaskID, note string, move func() error) error {
	t, err := c.store.Get(id)
	if err != nil {
		return err
	}
	if wireTask(id) == "" {
		note = "task " + string(id) + ": " + note
	}
	return c.do(ctx, act{Kind: kind, Task: id, Revision: t.Revision}, note, nil, func() (end actEnd, err error) {
		if err := move(); err != nil {
			return end, err
		}
		t, err := c.store.Get(id)
		return actEnd{revision: t.Revision}, err
	})
}

func verbTaskRecover(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a TaskArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	if err := c.moveTask(ctx, "task.recover", a.Task, byHand, func() error {
		_, err := c.store.Recover(ctx, a.Task)
		return err
	}); err != nil {
		return err
	}
	return c.emitTask(a.Task, emit)
}

// refusedAs reports whether err is the store's definite refusal of that code.
func refusedAs(err error, code string) bool {
	var refused *owner.Error
	return errors.As(err, &refused) && refused.Code == code
}
