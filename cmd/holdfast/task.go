package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/internal/procid"
	"holdfast/nip"
	"holdfast/owner"
)

func absolute(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", usage("%s", err)
	}
	return abs, nil
}

// readStore opens the task store for reading; it takes no lock.
func (g *globals) readStore() (*owner.Store, error) {
	if !host.Initialised(g.home) {
		return nil, &cliError{Exit: exitFailed, Code: "no_home", Message: g.home + " holds no store", Hint: "run holdfast init or holdfast up"}
	}
	return owner.Open(g.home, owner.Options{})
}

func taskCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "task", Short: "Tasks, as the person at the machine sees them"}
	c.AddCommand(taskNew(g), taskStop(g), taskList(g), taskShow(g), taskView(g), taskStart(g), taskExecute(g), taskCheck(g), taskContext(g), taskArtifact(g), taskDiff(g), taskIntegrate(g))
	for _, verb := range []string{"submit", "correct", "cancel", "continue"} {
		c.AddCommand(taskApply(g, verb))
	}
	var reason string
	archive := taskVerb(g, "archive ID", "Put an ended task away", "task.archive", func(a *host.TaskArgs) { a.Reason = reason })
	archive.Flags().StringVar(&reason, "reason", "", "why, at most 512 bytes")
	archive.PreRunE = func(*cobra.Command, []string) error {
		if reason == "" || len(reason) > 512 {
			return usage("task archive needs a --reason of at most 512 bytes")
		}
		return nil
	}
	c.AddCommand(archive,
		taskVerb(g, "restore ID", "Bring an archived task back", "task.restore", nil),
		taskVerb(g, "recover ID", "End a run or checks of which nothing is left, or fence a lost owner", "task.recover", nil))
	idFirst(c)
	return c
}

func taskVerb(g *globals, use, short, verb string, fill func(*host.TaskArgs)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			a := host.TaskArgs{Task: owner.TaskID(args[0])}
			if fill != nil {
				fill(&a)
			}
			t, err := ask[owner.Task](c.Context(), g, verb, a)
			if err != nil {
				return err
			}
			return g.emit(t, func(w io.Writer) { writeTask(w, &t) })
		},
	}
}

func writeTask(w io.Writer, t *owner.Task) {
	_, headline, _ := t.Summary()
	fmt.Fprintf(w, "%s\n  title      %s\n  workspace  %s\n  revision   %d\n  status     %s (execution %s, checks %s)\n  turn       %d\n  %s\n",
		t.ID, t.Intent.Title, t.Intent.Workspace.Path, t.Revision, t.Status, t.Execution, t.Checks, t.Turn(), headline)
	switch {
	case t.WorktreeGone != 0:
		fmt.Fprintf(w, "  worktree   removed after its time (was made from %.12s); its changes are kept\n", t.Worktree.Base)
	case t.Worktree != nil:
		fmt.Fprintf(w, "  worktree   %s (from %.12s)\n", t.Worktree.Path, t.Worktree.Base)
	}
	if a := t.Applied; a != nil {
		fmt.Fprintf(w, "  applied    commit %.12s on branch %s, of turn %d (%s)\n", a.Commit, a.Branch, a.Turn, t.Integration())
	}
	if n := len(t.Unconsumed()); n > 0 {
		fmt.Fprintf(w, "  waiting    %d corrections that no turn has read\n", n)
	}
	if r := t.Run; r != nil && r.Admission.Context != "" {
		fmt.Fprintf(w, "  context    %s (holdfast task context shows it)\n", r.Admission.Context)
	}
	if r := t.Run; r != nil && r.Result != nil {
		fmt.Fprintf(w, "  ended      %s after %d ms, cleanup confirmed: %v\n", r.Result.Ending, r.Result.ElapsedMS, r.Clear())
		writeReached(w, r.Result.Reached())
		if r.Result.Reply != "" {
			fmt.Fprintf(w, "  reply      %s\n", r.Result.Reply)
		}
	}
}

func taskNew(g *globals) *cobra.Command {
	var label, prompt, title string
	var wait bool
	c := &cobra.Command{
		Use: "new", Short: "A task of the person at the machine", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			prompt, err := g.words(prompt, 32<<10)
			if err != nil {
				return err
			}
			if err := newTaskWords(label, prompt, title); err != nil {
				return err
			}
			t, err := ask[owner.Task](c.Context(), g, "task.new", host.TaskArgs{Workspace: nip.Label(label), Prompt: prompt, Title: title})
			if err == nil && wait {
				t, err = g.waitTask(c.Context(), t.ID)
			}
			if err != nil {
				return err
			}
			return g.emit(t, func(w io.Writer) { writeTask(w, &t) })
		},
	}
	c.Flags().StringVar(&label, "workspace", "", "the label to work in")
	c.Flags().StringVar(&prompt, "prompt", "", "what to do, - for standard input")
	c.Flags().StringVar(&title, "title", "", "a short name (default: the prompt's first line)")
	c.Flags().BoolVar(&wait, "wait", false, "wait until the turn ended")
	return c
}

// waitTask waits until the task's turn ended.
func (g *globals) waitTask(ctx context.Context, id owner.TaskID) (owner.Task, error) {
	s, err := g.readStore()
	if err != nil {
		return owner.Task{}, err
	}
	defer s.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changes := s.WatchTask(ctx, id)
	for {
		t, err := s.Get(id)
		if err != nil || t.Status == owner.Finished || t.Status == owner.Cancelled || t.Status == owner.StatusUnknown {
			return t, err
		}
		if _, ok := <-changes; !ok {
			return t, context.Cause(ctx)
		}
	}
}

func taskStop(g *globals) *cobra.Command {
	var reason string
	c := taskVerb(g, "stop ID", "Stop whatever its turn is", "task.stop", func(a *host.TaskArgs) { a.Reason = reason })
	c.Flags().StringVar(&reason, "reason", "", "why")
	c.PreRunE = func(*cobra.Command, []string) error {
		if reason != "" && !owner.ValidReason(reason) {
			return usage("--reason is text of at most 2,048 bytes without control characters")
		}
		return nil
	}
	return c
}

func taskList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "Every task", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			s, err := g.readStore()
			if err != nil {
				return err
			}
			defer s.Close()
			if !g.json {
				return listRows(g.stdout, s)
			}
			ids, err := s.List()
			if err != nil {
				return err
			}
			tasks := []owner.Task{}
			for _, id := range ids {
				t, err := s.Get(id)
				if err != nil {
					return err
				}
				tasks = append(tasks, t)
			}
			return g.emit(map[string]any{"tasks": tasks}, nil)
		},
	}
}

// listRows needs no task as a whole, and reads the logs of those alone that have not ended.
func listRows(w io.Writer, s *owner.Store) error {
	rows, err := s.Rows(func(_ owner.TaskID, err error) error { return err })
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintf(tw, "%s\trev %d\t%s\t%s\n", r.ID, r.Revision, r.Headline, r.Title)
	}
	return tw.Flush()
}

func taskShow(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "One task", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := g.readStore()
			if err != nil {
				return err
			}
			defer s.Close()
			t, err := s.Get(owner.TaskID(args[0]))
			if err != nil {
				return err
			}
			return g.emit(t, func(w io.Writer) { writeTask(w, &t) })
		},
	}
}

// viewDocument is a view as scripts read it.
type viewDocument struct {
	Task        owner.Task        `json:"task"`
	Evidence    string            `json:"evidence"`
	Integration string            `json:"integration"`
	CostStatus  string            `json:"cost_status"`
	Trace       string            `json:"trace"`
	Digest      owner.Digest      `json:"digest"`
	TotalSteps  int               `json:"total_steps"`
	Steps       []json.RawMessage `json:"steps"`
	Faults      []owner.ViewFault `json:"faults"`
	Next        *owner.ViewCursor `json:"next"`
	More        bool              `json:"more_available"`
}

func taskView(g *globals) *cobra.Command {
	var limit, turn int
	var cursor, output string
	var atif bool
	c := &cobra.Command{
		Use: "view ID", Short: "One page of a task's transcript, or all of it as ATIF", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			set := c.Flags().Changed
			switch {
			case !atif && (set("turn") || set("output")):
				return usage("--turn and --output go with --atif")
			case atif && (set("limit") || set("cursor")):
				return usage("--atif exports the whole transcript; --limit and --cursor are of a page")
			case set("turn") && turn < 1:
				return usage("--turn is 1 or more")
			case set("output") && output == "":
				return usage("--output names a file")
			case atif:
				return g.exportATIF(c.Context(), owner.TaskID(args[0]), turn, output)
			}
			if limit < 1 || limit > 200 {
				return usage("--limit is 1 to 200")
			}
			var from *owner.ViewCursor
			if cursor != "" {
				if len(cursor) > 4096 || json.Unmarshal([]byte(cursor), &from) != nil {
					return usage("--cursor is not a cursor that view printed")
				}
			}
			s, err := g.readStore()
			if err != nil {
				return err
			}
			defer s.Close()
			v, err := s.View(owner.TaskID(args[0]), limit, 1<<20, from)
			if err != nil {
				return err
			}
			d := viewDocument{v.Task, v.Evidence, v.Task.Integration(), "unknown", v.Trace, v.Digest, v.TotalSteps, []json.RawMessage{}, v.Faults, v.Next, v.More}
			for _, st := range v.Steps {
				d.Steps = append(d.Steps, st.JSON)
			}
			return g.emit(d, func(w io.Writer) { writeView(w, &d) })
		},
	}
	c.Flags().IntVar(&limit, "limit", 100, "steps of this page, 1 to 200")
	c.Flags().StringVar(&cursor, "cursor", "", "continue where an earlier page ended")
	c.Flags().BoolVar(&atif, "atif", false, "export the whole transcript as one ATIF-v1.7 document")
	c.Flags().IntVar(&turn, "turn", 0, "with --atif: of this turn only (default: of all)")
	c.Flags().StringVar(&output, "output", "", "with --atif: write it to this new file")
	return c
}

func writeView(w io.Writer, d *viewDocument) {
	writeTask(w, &d.Task)
	fmt.Fprintf(w, "  evidence   %s, %d steps\n\n", d.Evidence, d.TotalSteps)
	for _, raw := range d.Steps {
		var st struct {
			ID      int    `json:"step_id"`
			Source  string `json:"source"`
			Message string `json:"message"`
		}
		if json.Unmarshal(raw, &st) == nil {
			fmt.Fprintf(w, "%4d %-6s %s\n", st.ID, st.Source, st.Message)
		}
	}
	for _, f := range d.Faults {
		fmt.Fprintf(w, "damaged: line %d, %s\n", f.Line, f.Kind)
	}
	if d.More {
		raw, _ := json.Marshal(d.Next)
		fmt.Fprintf(w, "\nmore: --cursor '%s'\n", raw)
	}
}

// taskApply takes one exact task command; the document is parsed before the
// store is opened, so that bad input never creates anything.
func taskApply(g *globals, verb string) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: verb, Short: "Hand in one exact " + verb + " document", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if file == "" {
				return usage("task %s needs --file", verb)
			}
			raw, err := g.readInput(file, 64<<10)
			if err != nil {
				return err
			}
			cmd, err := owner.ParseCommand(raw)
			if err != nil {
				return err
			}
			if got := action(cmd.Action); got != verb {
				return usage("the document is a %s, the verb is %s", got, verb)
			}
			rec, err := ask[owner.Receipt](c.Context(), g, "task.apply", host.TaskArgs{Request: raw, Verb: verb})
			if err != nil {
				return err
			}
			return g.emit(rec, func(w io.Writer) {
				fmt.Fprintf(w, "%s: task %s revision %d, %s\n", verb, rec.TaskID, rec.Revision, rec.Status)
			})
		},
	}
	c.Flags().StringVar(&file, "file", "", "the document, - for standard input")
	return c
}

func taskStart(g *globals) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "start", Short: "Start a turn by an execution grant, detached", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			raw, err := g.readGrant(file)
			if err != nil {
				return err
			}
			st, err := ask[host.Started](c.Context(), g, "task.start", host.TaskArgs{Grant: raw})
			if err != nil {
				return err
			}
			return g.emit(st, func(w io.Writer) {
				fmt.Fprintf(w, "owner process %d started for task %s; it is not admitted yet (holdfast task show %s)\n", st.Owner, st.Task, st.Task)
			})
		},
	}
	c.Flags().StringVar(&file, "grant", "", "the execution grant")
	return c
}

func (g *globals) readGrant(file string) ([]byte, error) {
	if file == "" {
		return nil, usage("--grant is missing")
	}
	raw, err := g.readInput(file, 64<<10)
	if err != nil {
		return nil, err
	}
	_, err = owner.ParseGrant(raw)
	return raw, err
}

func taskExecute(g *globals) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "execute", Short: "Own one turn in the foreground, by an execution grant", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			raw, err := g.readGrant(file)
			if err != nil {
				return err
			}
			gr, err := owner.ParseGrant(raw)
			if err != nil {
				return err
			}
			s, err := g.readStore()
			if err != nil {
				return err
			}
			self, err := procid.Self()
			if err != nil {
				self = procid.ID{PID: os.Getpid()}
			}
			begun, err := ask[host.ActStarted](c.Context(), g, "task.execute", host.TaskArgs{Grant: raw, Caller: self})
			if err != nil {
				return errors.Join(err, s.Close())
			}
			t, err := owner.Execute(c.Context(), s, gr.TaskID, raw)
			ended := host.ActEnded{Act: begun.Act}
			if err != nil {
				ended.Code = classify(err).Code
			}
			// Said although the person may have pressed Ctrl-C; where it cannot be,
			// the journal's entry ends as unknown at the next start.
			_, noted := ask[host.ActStarted](context.WithoutCancel(c.Context()), g, "task.executed", ended)
			if err = errors.Join(err, noted, s.Close()); err != nil {
				return err
			}
			return g.emit(t, func(w io.Writer) { writeTask(w, &t) })
		},
	}
	c.Flags().StringVar(&file, "grant", "", "the execution grant, - for standard input")
	return c
}
