package main

import (
	"encoding/json"
	"fmt"
	"io"
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
			out := struct {
				Entries []host.EntryView `json:"entries"`
			}{[]host.EntryView{}}
			for more := true; more; more = a.After != 0 {
				page, err := ask[struct {
					Entries []host.EntryView `json:"entries"`
					Next    uint64           `json:"next"`
				}](c.Context(), g, "journal.list", a)
				if err != nil {
					return err
				}
				out.Entries, a.After = append(out.Entries, page.Entries...), page.Next
			}
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
			key, err := nip.ParseAnyPubKey(args[0])
			if err != nil {
				return usage("DEVICE: %s", err)
			}
			e, err := ask[host.EntryView](c.Context(), g, "journal.show", host.JournalArgs{Device: key, ID: args[1], NoText: noText})
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
