package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"holdfast/host/client"
	"holdfast/host/client/remote"
	"holdfast/nip"
)

// maxPrompt bounds what is read of standard input; the wire's own bound is checked after.
const maxPrompt = 64 << 10

// refreshWait is how long a command looks for the task's newest revision on the relay.
const refreshWait = 8 * time.Second

// commandVerb is one durable command: kept in the outbox until its outcome is signed.
func (v *deviceVerbs) commandVerb(action nip.Action, use, short string) *cobra.Command {
	var emulate bool
	var basedOn int64
	var id string
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ExactArgs(2)}
	if action == nip.Interrupt {
		c.Args = cobra.RangeArgs(1, 2)
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		task, err := taskID(args[0])
		if err != nil {
			return err
		}
		if id != "" && !nip.ValidID(id) {
			return usage("--command takes 64 lowercase hex characters")
		}
		text := "stopped from a device"
		if len(args) == 2 {
			if text, err = v.words(args[1], maxPrompt); err != nil {
				return err
			}
		}
		return v.with(c, v.timeout, func(ctx context.Context, d *client.Device) error {
			cmd := nip.Command{ID: nip.CommandID(id), Task: task, Action: action, BasedOn: basedOn, Text: text, Emulate: emulate}
			if !c.Flags().Changed("based-on") {
				if cmd.BasedOn, err = v.revision(ctx, d, task, action); err != nil {
					return err
				}
			}
			sent, out, err := d.Command(ctx, cmd)
			if err != nil {
				return keptError(err, sent.ID)
			}
			raw, err := nip.EncodeOutcome(out)
			if err != nil {
				return fmt.Errorf("encode outcome: %w", err)
			}
			return v.g.emit(map[string]any{"command": sent.ID, "task": sent.Task, "action": sent.Action,
				"based_on": sent.BasedOn, "outcome": rawJSON(raw)}, func(w io.Writer) {
				fmt.Fprintf(w, "%s taken\ncommand %s\n", sent.Action, sent.ID)
			})
		})
	}
	if action == nip.Steer {
		c.Flags().BoolVar(&emulate, "emulate", false, "where the engine cannot be steered, stop it and go on with these words")
	}
	c.Flags().Int64Var(&basedOn, "based-on", 0, "the revision that was read (default the newest signed one)")
	c.Flags().StringVar(&id, "command", "", "the command's ID (default a new one)")
	return c
}

// keptError says that an unanswered command goes on waiting.
func keptError(err error, id nip.CommandID) error {
	if id == "" || !errors.Is(err, client.ErrNoAnswer) {
		return err
	}
	return &cliError{Exit: exitUnreachable, Code: "no_answer", Message: err.Error(),
		Hint: "command " + string(id) + " is kept; device outbox --send sends it again under the same ID"}
}

// revision is the newest revision that the host signed for a task. Where the
// relay does not answer, the newest one seen before will do; a command about a
// turn needs one.
func (v *deviceVerbs) revision(ctx context.Context, d *client.Device, task nip.TaskID, action nip.Action) (int64, error) {
	short, cancel := context.WithTimeout(ctx, refreshWait)
	defer cancel()
	refreshErr := d.Refresh(short)
	if errors.Is(refreshErr, client.ErrNotPaired) || errors.Is(refreshErr, client.ErrBusy) {
		return 0, refreshErr
	}
	s, ok, err := d.Known(task)
	if err != nil || ok {
		return s.Sequence, err
	}
	var owner *client.OwnerError
	if errors.As(refreshErr, &owner) {
		short = ctx // the page is all that there is to be had
	}
	if refreshErr == nil || owner != nil {
		page, err := findTask(short, d, string(task), "")
		if err == nil || owner != nil {
			return page.Scope.Revision, err
		}
	}
	if action == nip.Queue || action == nip.Send {
		return 0, nil
	}
	return 0, usage("no revision of this task is known; read it, or pass --based-on")
}

func (v *deviceVerbs) createVerb() *cobra.Command {
	var op nip.TaskCreate
	var workspace, wait string
	c := &cobra.Command{
		Use: "create --workspace L --title T --prompt P", Short: "Make a task (--prompt - reads standard input)", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if workspace == "" || op.Title == "" || op.Prompt == "" {
				return usage("--workspace, --title and --prompt are needed")
			}
			phase, err := parsePhase(wait)
			if err != nil {
				return err
			}
			if op.Prompt, err = v.words(op.Prompt, maxPrompt); err != nil {
				return err
			}
			op.Workspace = nip.Label(workspace)
			limit := v.timeout
			if phase != "" && !c.Flags().Changed("timeout") {
				limit = 0 // a turn has no length that a default could know
			}
			return v.with(c, limit, func(ctx context.Context, d *client.Device) error { return v.create(ctx, d, op, phase) })
		},
	}
	c.Flags().StringVar(&workspace, "workspace", "", "the workspace label")
	c.Flags().StringVar(&op.Title, "title", "", "what people see of it, at most 200 bytes")
	c.Flags().StringVar(&op.Prompt, "prompt", "", "what is asked")
	c.Flags().StringVar(&op.Engine, "engine", "", "an engine that the host shows as ready")
	c.Flags().StringVar(&wait, "wait", "", "wait for this phase: queued, running, waiting, completed, failed, cancelled")
	return c
}

func parsePhase(s string) (nip.Phase, error) {
	switch p := nip.Phase(s); p {
	case "", nip.PhaseQueued, nip.PhaseRunning, nip.PhaseWaiting, nip.PhaseCompleted, nip.PhaseFailed, nip.PhaseCancelled:
		return p, nil
	}
	return "", usage("%q is no phase", s)
}

func (v *deviceVerbs) create(ctx context.Context, d *client.Device, op nip.TaskCreate, phase nip.Phase) error {
	task, err := d.Create(ctx, op)
	if err != nil {
		if task != "" && errors.Is(err, client.ErrNoAnswer) {
			return &cliError{Exit: exitUnreachable, Code: "no_answer", Message: err.Error(),
				Hint: "whether task " + string(task) + " was made is unknown; device outbox --send finds out"}
		}
		return err
	}
	if phase == "" {
		return v.g.emit(map[string]any{"task": task}, func(w io.Writer) { fmt.Fprintln(w, task) })
	}
	if !v.g.json {
		fmt.Fprintln(v.g.stderr, "task", task)
	}
	got, err := waitPhase(ctx, d, task, op.Workspace, phase, pollingOf(d))
	if err != nil {
		if ctx.Err() != nil {
			return &cliError{Exit: exitUnreachable, Code: "timeout", Message: fmt.Sprintf("task %s was taken, and was not %s in time", task, phase),
				Hint: "it goes on; device read shows it, and a task without a rule in the host's policy waits until it has one"}
		}
		err = fmt.Errorf("wait for task %s: %w", task, err)
		var signer *remote.RefusedError
		if errors.As(err, &signer) {
			return &cliError{Exit: exitFailed, Code: "signer_refused", Message: err.Error(), Hint: "the task was taken and goes on; device read shows it"}
		}
		return err
	}
	if err := v.g.emit(map[string]any{"task": task, "phase": got.phase, "revision": got.revision, "headline": got.words}, func(w io.Writer) {
		fmt.Fprintln(w, task, got.phase)
	}); err != nil {
		return err
	}
	if got.phase != phase {
		return &cliError{Exit: exitFailed, Code: "ended", Message: fmt.Sprintf("task %s ended as %s and not as %s: %s", task, got.phase, phase, line(got.words))}
	}
	return nil
}

// pollEvery is how often a waiting create reads the task itself, for a host
// that publishes no summaries to this device or a relay that loses them. An
// owner with the key here, who is told nothing, reads as often as ownerPollEvery;
// a signer elsewhere is troubled no more than it must be.
const (
	pollEvery      = 10 * time.Second
	ownerPollEvery = 2 * time.Second
)

func pollingOf(d *client.Device) time.Duration {
	if _, owned := d.Owned(); owned && !d.KeyElsewhere() {
		return ownerPollEvery
	}
	return pollEvery
}

// waited is the phase that a wait ended in, with the host's own words for it.
type waited struct {
	phase    nip.Phase
	revision int64
	words    string
}

// waitPhase follows the task's signed summaries, and its page where none come,
// until it is in phase want or has ended in another.
func waitPhase(ctx context.Context, d *client.Device, task nip.TaskID, label nip.Label, want nip.Phase, every time.Duration) (waited, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	updates, err := d.Watch(ctx)
	var owner *client.OwnerError // nothing is published to an owner: it polls
	if err != nil && !errors.As(err, &owner) {
		return waited{}, err
	}
	poll := time.NewTicker(every)
	defer poll.Stop()
	var highest int64
	done := func(p nip.Phase, revision int64) bool {
		if revision < highest {
			return false
		}
		highest = revision
		return p == want || p == nip.PhaseCompleted || p == nip.PhaseFailed || p == nip.PhaseCancelled
	}
	for {
		select {
		case u, ok := <-updates:
			if !ok {
				return waited{}, client.ErrNoAnswer
			}
			if s := u.Summary; s != nil && s.Task == task && done(s.Phase, s.Sequence) {
				return waited{s.Phase, s.Sequence, s.Headline}, nil
			}
		case <-ctx.Done(): // an owner has no updates to end with it
			return waited{}, ctx.Err()
		case <-poll.C:
			page, err := findTask(ctx, d, string(task), label)
			var refused *client.Refused
			var signer *remote.RefusedError // it would be asked again at each poll
			if errors.As(err, &refused) || errors.As(err, &signer) {
				return waited{}, err
			}
			if err == nil && done(page.Phase, page.Scope.Revision) {
				return waited{page.Phase, page.Scope.Revision, page.Termination}, nil
			}
		}
	}
}

// heldVerb reads and edits the messages that wait for a task's turn to end.
func (v *deviceVerbs) heldVerb() *cobra.Command {
	c := &cobra.Command{
		Use:   "held TASK list|lease|release|edit CMD TEXT|remove CMD|reorder CMD...|send-now CMD",
		Short: "Read and edit the messages a task holds",
		Args:  cobra.MinimumNArgs(2),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		task, err := taskID(args[0])
		if err != nil {
			return err
		}
		edit, err := v.queueEdit(args[1], args[2:])
		if err != nil {
			return err
		}
		return v.with(c, v.timeout, func(ctx context.Context, d *client.Device) error {
			out, err := d.Call(ctx, nip.TaskQueue{Task: task, Edit: edit})
			if err != nil {
				return err
			}
			return v.emitOutcome(out)
		})
	}
	return c
}

func (v *deviceVerbs) queueEdit(verb string, rest []string) (nip.QueueEdit, error) {
	need := map[string]int{"list": 0, "lease": 0, "release": 0, "edit": 2, "remove": 1, "send-now": 1, "reorder": -1}
	n, known := need[verb]
	switch {
	case !known:
		return nip.QueueEdit{}, usage("held has no verb %q", verb)
	case n >= 0 && len(rest) != n, n < 0 && len(rest) == 0:
		return nip.QueueEdit{}, usage("held %s takes other arguments; see device held --help", verb)
	}
	ids := rest
	if verb == "edit" {
		ids = rest[:1]
	}
	for _, id := range ids {
		if !nip.ValidID(id) {
			return nip.QueueEdit{}, usage("%q is no command ID; held TASK list shows them", id)
		}
	}
	e := nip.QueueEdit{Action: verb}
	switch verb {
	case "edit":
		text, err := v.words(rest[1], maxPrompt)
		if err != nil {
			return e, err
		}
		e.Command, e.Text = nip.CommandID(rest[0]), text
	case "remove":
		e.Command = nip.CommandID(rest[0])
	case "send-now":
		e.Action, e.Command = "send_now", nip.CommandID(rest[0])
	case "reorder":
		for _, id := range rest {
			e.Commands = append(e.Commands, nip.CommandID(id))
		}
	}
	return e, nil
}
