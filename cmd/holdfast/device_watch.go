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
// task it reads that task's page anew at each change.
func (v *deviceVerbs) watchVerb() *cobra.Command {
	return &cobra.Command{
		Use: "watch [TASK]", Short: "Follow signed summaries, and the new pages of one task", Args: cobra.MaximumNArgs(1),
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
	var label nip.Label
	var shown nip.Scope
	for u := range updates {
		if s := u.Summary; s != nil && task != "" && s.Task != task {
			continue
		}
		if err := v.emitUpdate(u); err != nil {
			return err
		}
		if u.Summary == nil || task == "" {
			continue
		}
		page, err := findTask(ctx, d, string(task), label)
		var refused *client.Refused
		if errors.As(err, &refused) {
			return err
		}
		if err != nil || page.Scope.Equal(shown) {
			continue // silence now; the next summary asks again
		}
		label, shown = page.Scope.Workspace, page.Scope
		if err := v.emitPage(page); err != nil {
			return err
		}
	}
	return nil
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
				return errors.Join(v.emitOutbox(rows), sendErr)
			})
		},
	}
	c.Flags().BoolVar(&send, "send", false, "send it now, each command under its own ID")
	c.Flags().StringVar(&drop, "drop", "", "forget the row of this ID; what was sent may still happen")
	return c
}

func (v *deviceVerbs) emitOutbox(rows []client.OutboxRow) error {
	docs := make([]map[string]any, 0, len(rows))
	for _, r := range rows {
		docs = append(docs, map[string]any{"kind": r.Kind, "id": r.ID, "task": r.Task, "action": r.Action, "since": r.Since,
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
			fmt.Fprintf(w, "%s  %-9s  %-7s  since %s, %d tries  %s\n", r.ID, what, r.State, clockTime(r.Since), r.Tries, r.LastError)
		}
	})
}
