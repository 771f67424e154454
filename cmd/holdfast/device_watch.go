package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"holdfast/host/client"
	"holdfast/nip"
)

// watchVerb follows the host's signed publications until it is stopped. With a
// task it shows that task's alone, and reads its page anew at each change.
func (v *deviceVerbs) watchVerb() *cobra.Command {
	return &cobra.Command{
		Use: "watch [TASK]", Short: "Follow what the host publishes: summaries, pages, and where own commands stand", Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var task nip.TaskID
			if len(args) == 1 {
				var err error
				if task, err = taskID(args[0]); err != nil {
					return err
				}
			}
			limit := v.timeout
			if !c.Flags().Changed("timeout") {
				limit = 0
			}
			return v.with(c, limit, func(ctx context.Context, d *client.Device) error { return v.watch(ctx, d, task) })
		},
	}
}

func (v *deviceVerbs) watch(ctx context.Context, d *client.Device, task nip.TaskID) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	updates, err := d.Watch(ctx)
	if err != nil {
		return err
	}
	defer func() {
		cancel()
		for range updates { // until the watch has let go of the profile
		}
	}()
	w := &watcher{v: v, d: d, task: task}
	for u := range updates {
		if err := w.show(ctx, u); err != nil {
			return err
		}
	}
	return nil
}

// watcher is one run of the watch verb.
type watcher struct {
	v     *deviceVerbs
	d     *client.Device
	task  nip.TaskID // "" follows all
	label nip.Label  // of the task, once it was read
	shown nip.Scope  // of the page that was printed last
}

func (w *watcher) show(ctx context.Context, u client.Update) error {
	switch {
	case u.Commands != nil:
		return w.v.emitStates(u.Commands, w.task)
	case u.Page != nil:
		return w.page(*u.Page)
	case u.Summary == nil || w.task == "":
		return w.v.emitUpdate(u)
	case u.Summary.Task != w.task:
		return nil
	}
	if err := w.v.emitUpdate(u); err != nil {
		return err
	}
	return w.read(ctx)
}

// page prints a published page, unless the host's own answer was printed.
func (w *watcher) page(p nip.PublishedPage) error {
	scope := p.Page.Scope
	if w.task != "" && (scope.Task != string(w.task) || scope.Equal(w.shown)) {
		return nil
	}
	w.shown = scope
	return w.v.emitNewPage(w.d, p, w.task != "")
}

// read asks the host for the task's page; where it is silent, the last published
// one is shown, and the next summary asks again.
func (w *watcher) read(ctx context.Context) error {
	asked, cancel := context.WithTimeout(ctx, hostWait)
	defer cancel()
	page, err := findTask(asked, w.d, string(w.task), w.label)
	var refused *client.Refused
	if errors.As(err, &refused) {
		return err
	}
	if err != nil {
		last, ok, err := w.d.LastPage(w.task)
		if err != nil || !ok || ctx.Err() != nil {
			return err
		}
		return w.page(last)
	}
	if page.Scope.Equal(w.shown) {
		return nil
	}
	w.label, w.shown = page.Scope.Workspace, page.Scope
	return w.v.emitPage(page)
}

// outboxVerb shows what waits to be sent, and why.
func (v *deviceVerbs) outboxVerb() *cobra.Command {
	var send bool
	var drop string
	c := &cobra.Command{
		Use: "outbox", Short: "Show what waits to be sent, and why", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return v.with(c, v.timeout, func(ctx context.Context, d *client.Device) error {
				if drop != "" {
					ok, err := d.Drop(drop)
					if err != nil {
						return err
					}
					if !ok {
						return &cliError{Exit: exitFailed, Code: "absent", Message: "nothing of that ID waits"}
					}
				}
				var sendErr error
				if send {
					sendErr = d.Resend(ctx)
				}
				rows, err := d.Outbox()
				if err != nil {
					return err
				}
				published, err := publishedOf(d)
				if err != nil {
					return err
				}
				return errors.Join(v.emitOutbox(rows, published), sendErr)
			})
		},
	}
	c.Flags().BoolVar(&send, "send", false, "send it now, each command under its own ID")
	c.Flags().StringVar(&drop, "drop", "", "forget the row of this ID; what was sent may still happen")
	return c
}

// publishedOf is what the host published of commands that are in the outbox all
// the same, because its reply to them was not seen.
func publishedOf(d *client.Device) (map[string]any, error) {
	said := map[string]any{}
	list, err := d.Commands("")
	var choice *client.ChoiceError
	if errors.Is(err, client.ErrNotPaired) || errors.As(err, &choice) {
		return said, nil
	}
	for _, s := range list {
		if s.Queued && s.At != 0 {
			said[string(s.Command)] = s.State
		}
	}
	return said, err
}

func (v *deviceVerbs) emitOutbox(rows []client.OutboxRow, published map[string]any) error {
	docs := make([]map[string]any, 0, len(rows))
	for _, r := range rows {
		docs = append(docs, map[string]any{"published": published[r.ID], "kind": r.Kind, "id": r.ID, "task": r.Task, "action": r.Action, "since": r.Since,
			"tries": r.Tries, "state": r.State, "last_error": r.LastError, "foreign": r.Foreign, "host": r.Host, "replaces": r.Replaces})
	}
	return v.g.emit(map[string]any{"outbox": docs}, func(w io.Writer) {
		if len(rows) == 0 {
			fmt.Fprintln(w, "nothing waits")
		}
		for _, r := range rows {
			what := string(r.Action)
			if r.Kind == "create" {
				what = "create"
			}
			fmt.Fprintf(w, "%s  %-9s  %-7s  since %s, %d tries  %s\n", r.ID, what, r.State, clockTime(r.Since), r.Tries, line(r.LastError))
			if said := published[r.ID]; said != nil {
				fmt.Fprintf(w, "    the host published of it: %s; device commands says more\n", said)
			}
		}
	})
}
