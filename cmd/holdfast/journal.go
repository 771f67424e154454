package main

import (
	"context"
	"encoding/json"
	"errors"
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
	noText := c.PersistentFlags().Bool("no-text", false, "leave what people wrote out")
	c.AddCommand(journalList(g, noText), journalShow(g, noText), journalTail(g), journalCheck(g), journalDump(g, noText), journalResync(g))
	return c
}

func journalList(g *globals, noText *bool) *cobra.Command {
	var task, device, state, since string
	c := &cobra.Command{
		Use: "list", Short: "Entries, newest last", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			a := host.JournalArgs{Task: nip.TaskID(task), State: state, NoText: *noText}
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
	c.Flags().StringVar(&state, "state", "", "received, held, dispatching or done; or applied, rejected, expired, superseded, removed, unknown")
	c.Flags().StringVar(&since, "since", "", "a duration such as 2h, or a date")
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

func journalShow(g *globals, noText *bool) *cobra.Command {
	return &cobra.Command{
		Use: "show DEVICE COMMAND|REQUEST", Short: "One entry with each state it passed", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			a, err := g.findEntry(c.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			a.NoText = *noText
			e, err := ask[host.EntryView](c.Context(), g, "journal.show", a)
			if err != nil {
				return err
			}
			return g.emit(e, func(w io.Writer) { writeEntry(w, &e) })
		},
	}
}

// writeEntry is one entry with everything that is known of it.
func writeEntry(w io.Writer, e *host.EntryView) {
	writeEntries(w, []host.EntryView{*e})
	grant := string(e.Grant)
	if grant == "" {
		grant = "none (the owner, or the person at the machine)"
	}
	fmt.Fprintf(w, "device    %s\nid        %s\ntask      %s\ngrant     %s, epoch %d\n", e.Device, e.Command, e.Task, grant, e.Epoch)
	if e.Kind == "command" {
		fmt.Fprintf(w, "issued    %s, based on revision %d%s\n", time.Unix(e.IssuedAt, 0).Format(time.DateTime), e.BasedOn, askedHow(e))
	}
	if e.Outcome == "applied" && e.Revision > 0 {
		fmt.Fprintf(w, "applied   the task's revision after it is %d\n", e.Revision)
	}
	if e.Note != "" {
		fmt.Fprintf(w, "note      %s\n", e.Note)
	}
	if e.Original != "" {
		fmt.Fprintf(w, "original  %s\nedited    %s\n", e.Original, e.Text)
	} else if e.Text != "" {
		fmt.Fprintf(w, "text      %s\n", e.Text)
	}
	for _, h := range e.History {
		word := h.What
		if h.State != "done" && h.State != word {
			word += ", " + h.State
		}
		if h.Reason != "" {
			word += ": " + string(h.Reason)
		}
		fmt.Fprintf(w, "  %d  %s  %s\n", h.Seq, time.Unix(h.At, 0).Format(time.DateTime), word)
	}
}

// askedHow are the marks of a command, each of which changes what becomes of it.
func askedHow(e *host.EntryView) string {
	how := ""
	if e.Exact {
		how += ", at that revision only"
	}
	if e.Emulate {
		how += ", by a stop where the engine cannot be steered"
	}
	if e.Priority {
		how += ", ahead of the queue"
	}
	return how
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

const tailAgain = time.Second

func journalTail(g *globals) *cobra.Command {
	var after uint64
	c := &cobra.Command{
		Use: "tail", Short: "Each transition as it happens, a line each", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return g.tail(c.Context(), after) },
	}
	c.Flags().Uint64Var(&after, "after", 0, "start behind this sequence number")
	return c
}

// tail follows the journal until ctx ends. While a host lives it tells; while
// none does the store is looked at now and then, and never held: a host that
// starts must find it free.
func (g *globals) tail(ctx context.Context, after uint64) error {
	a := host.JournalArgs{Follow: true, After: after}
	each := func(raw json.RawMessage) error {
		var t struct {
			Seq uint64 `json:"seq"`
		}
		if err := json.Unmarshal(raw, &t); err != nil {
			return err
		}
		a.After = t.Seq
		return g.transition(raw)
	}
	for first := true; ; first = false {
		found, err := host.DialOperator(ctx, g.home, "journal.tail", a, each)
		if err == nil && !found {
			once := a
			once.Follow = false
			err = g.operateHere(ctx, "journal.tail", once, each)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (first || !errors.Is(err, host.ErrBusy)): // another verb has the store for a moment
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(tailAgain):
		}
	}
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

func journalDump(g *globals, noText *bool) *cobra.Command {
	return &cobra.Command{
		Use: "dump", Short: "The whole chain and every entry, one JSON line a record", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return g.operate(c.Context(), "journal.dump", host.JournalArgs{NoText: *noText}, g.printRaw)
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

func journalResync(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "resync", Short: "Go on from this clock, after it was ahead for a time; say it only when the clock is right", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := ask[struct {
				Ahead int64 `json:"ahead"`
			}](c.Context(), g, "journal.resync", nil)
			if err != nil {
				return err
			}
			return g.emit(out, func(w io.Writer) {
				if out.Ahead == 0 {
					fmt.Fprintln(w, "the journal is not ahead of this clock; nothing was changed")
					return
				}
				fmt.Fprintf(w, "the journal was %s ahead and goes on from now; leases ended\n", time.Duration(out.Ahead)*time.Second)
			})
		},
	}
}
