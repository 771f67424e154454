package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/nip"
)

func journalCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "journal", Short: "Every command that a device ever sent, and what became of it"}
	c.AddCommand(journalList(g), journalShow(g), journalTail(g), journalCheck(g), journalDump(g))
	return c
}

func journalList(g *globals) *cobra.Command {
	var task, device, state, since string
	var noText bool
	c := &cobra.Command{
		Use: "list", Short: "Entries, newest last", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			a := host.JournalArgs{Task: nip.TaskID(task), State: state, NoText: noText}
			if device != "" {
				key, err := nip.ParseAnyPubKey(device)
				if err != nil {
					return usage("--device: %s", err)
				}
				a.Device = key
			}
			if since != "" {
				at, err := parseSince(since)
				if err != nil {
					return err
				}
				a.Since = at
			}
			list, err := g.entries(c.Context(), a)
			if err != nil {
				return err
			}
			out := struct {
				Entries []host.EntryView `json:"entries"`
			}{list}
			return g.emit(out, func(w io.Writer) { writeEntries(w, out.Entries) })
		},
	}
	c.Flags().StringVar(&task, "task", "", "only this task")
	c.Flags().StringVar(&device, "device", "", "only this device")
	c.Flags().StringVar(&state, "state", "", "received, held, dispatching or done")
	c.Flags().StringVar(&since, "since", "", "a duration such as 2h, or a date")
	c.Flags().BoolVar(&noText, "no-text", false, "leave what people wrote out")
	return c
}

// entries is the whole list, page by page.
func (g *globals) entries(ctx context.Context, a host.JournalArgs) ([]host.EntryView, error) {
	list := []host.EntryView{}
	for more := true; more; more = a.After != 0 {
		page, err := ask[struct {
			Entries []host.EntryView `json:"entries"`
			Next    uint64           `json:"next"`
		}](ctx, g, "journal.list", a)
		if err != nil {
			return nil, err
		}
		list, a.After = append(list, page.Entries...), page.Next
	}
	return list, nil
}

func parseSince(s string) (int64, error) {
	if d, err := time.ParseDuration(s); err == nil {
		return time.Now().Add(-d).Unix(), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t.Unix(), nil
		}
	}
	return 0, usage("--since %s: a duration such as 2h, or a date such as 2026-01-31", s)
}

func writeEntries(w io.Writer, list []host.EntryView) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SEQ\tWHEN\tDEVICE\tID\tTASK\tASKED\tSTATE\tWHY")
	for _, e := range list {
		asked := string(e.Action)
		if e.Kind != "command" {
			asked = e.Kind
		}
		state := e.State
		if e.State == "done" {
			state = e.Outcome
		}
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Seq, time.Unix(e.ReceivedAt, 0).Format(time.DateTime),
			short(string(e.Device)), short(e.Command), short(string(e.Task)), asked, state, e.Reason)
	}
	tw.Flush()
}

func journalShow(g *globals) *cobra.Command {
	var noText bool
	c := &cobra.Command{
		Use: "show DEVICE COMMAND|REQUEST", Short: "One entry with each state it passed", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			a, err := g.findEntry(c.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			a.NoText = noText
			e, err := ask[host.EntryView](c.Context(), g, "journal.show", a)
			if err != nil {
				return err
			}
			return g.emit(e, func(w io.Writer) {
				writeEntries(w, []host.EntryView{e})
				if e.Text != "" {
					fmt.Fprintf(w, "text: %s\n", e.Text)
				}
				for _, h := range e.History {
					fmt.Fprintf(w, "  %d  %s  %s %s %s\n", h.Seq, time.Unix(h.At, 0).Format(time.DateTime), h.What, h.Outcome, h.Reason)
				}
			})
		},
	}
	c.Flags().BoolVar(&noText, "no-text", false, "leave what people wrote out")
	return c
}

// findEntry takes whole IDs, or as much of both as journal list prints.
func (g *globals) findEntry(ctx context.Context, device, id string) (host.JournalArgs, error) {
	key, err := nip.ParseAnyPubKey(device)
	if err == nil && nip.ValidID(id) {
		return host.JournalArgs{Device: key, ID: id}, nil
	}
	if len(device) < 6 || len(id) < 6 {
		return host.JournalArgs{}, usage("DEVICE and COMMAND are whole IDs, or at least the first 6 characters of both")
	}
	if err == nil {
		device = string(key)
	}
	list, err := g.entries(ctx, host.JournalArgs{NoText: true})
	if err != nil {
		return host.JournalArgs{}, err
	}
	var found []host.JournalArgs
	for _, e := range list {
		if strings.HasPrefix(string(e.Device), device) && strings.HasPrefix(e.Command, id) {
			found = append(found, host.JournalArgs{Device: e.Device, ID: e.Command})
		}
	}
	switch len(found) {
	case 0:
		return host.JournalArgs{}, &cliError{Exit: exitFailed, Code: "not_found", Message: "no entry begins with " + device + " " + id}
	case 1:
		return found[0], nil
	}
	return host.JournalArgs{}, usage("%d entries begin with %s %s; give more of the ID", len(found), device, id)
}

func journalTail(g *globals) *cobra.Command {
	var after uint64
	c := &cobra.Command{
		Use: "tail", Short: "Each transition as it happens, a line each", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.operate(c.Context(), "journal.tail", host.JournalArgs{Follow: true, After: after}, g.transition)
		},
	}
	c.Flags().Uint64Var(&after, "after", 0, "start behind this sequence number")
	return c
}

func (g *globals) transition(raw json.RawMessage) error {
	if g.json {
		return g.printRaw(raw)
	}
	var t struct {
		host.HistoryRow
		Device string `json:"device"`
		Kind   string `json:"kind"`
		ID     string `json:"command"`
	}
	if err := json.Unmarshal(raw, &t); err != nil {
		return err
	}
	_, err := fmt.Fprintf(g.stdout, "%d  %s  %s  %s %s  %s %s %s\n", t.Seq, time.Unix(t.At, 0).Format(time.DateTime), short(t.Device), t.Kind, short(t.ID), t.What, t.Outcome, t.Reason)
	return err
}

func journalDump(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "dump", Short: "The whole chain, one JSON line a record", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.operate(c.Context(), "journal.dump", nil, g.printRaw)
		},
	}
}

func journalCheck(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Verify the chain: nothing changed, removed or reordered", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := ask[struct {
				OK      bool   `json:"ok"`
				Records uint64 `json:"records"`
			}](c.Context(), g, "journal.check", nil)
			if err != nil {
				return err
			}
			return g.emit(out, func(w io.Writer) { fmt.Fprintf(w, "the chain of %d records holds\n", out.Records) })
		},
	}
}
