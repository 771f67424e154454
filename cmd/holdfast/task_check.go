package main

import (
	"context"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/owner"
)

// taskCheck runs the checks that the turn's execution grant asked for, and waits for what they come to.
func taskCheck(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "check ID", Short: "Run the checks of a turn that finished", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			st, err := ask[host.ChecksStarted](c.Context(), g, "task.check", host.TaskArgs{Task: owner.TaskID(args[0])})
			if err != nil {
				return err
			}
			t, err := g.waitChecks(c.Context(), st)
			if err != nil {
				return err
			}
			return g.emit(t.Run.Report, func(w io.Writer) { writeChecks(w, &t) })
		},
	}
}

// waitChecks waits until the started process has reported, or is gone.
func (g *globals) waitChecks(ctx context.Context, st host.ChecksStarted) (owner.Task, error) {
	s, err := g.readStore()
	if err != nil {
		return owner.Task{}, err
	}
	defer s.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changes := s.WatchTask(ctx, st.Task)
	tick := time.NewTicker(time.Second) // a process that dies writes nothing
	defer tick.Stop()
	for {
		// Asked before the task is read: what a process wrote before its end is then seen.
		gone := syscall.Kill(st.Owner, 0) == syscall.ESRCH
		t, err := s.Get(st.Task)
		if err != nil {
			return t, err
		}
		if t.Run != nil && t.Run.Report != nil && t.Run.Report.Attempt >= st.Attempt {
			return t, nil
		}
		if gone {
			return t, &cliError{Exit: exitFailed, Code: "unavailable", Message: "the process that ran the checks ended without a report",
				Hint: "look at " + st.Diagnostics + ", then run holdfast task check " + string(st.Task) + " again"}
		}
		select {
		case _, ok := <-changes:
			if !ok {
				return t, context.Cause(ctx)
			}
		case <-tick.C:
		}
	}
}

func writeChecks(w io.Writer, t *owner.Task) {
	r := t.Run.Report
	fmt.Fprintf(w, "%s\n  checks     %s (attempt %d)\n", t.ID, t.Checks, r.Attempt)
	if r.Evidence == nil {
		fmt.Fprintf(w, "  %s\n", r.Reason)
		return
	}
	for _, s := range r.Evidence.Suites {
		fmt.Fprintf(w, "  %-10s %s after %d ms, said %s\n", s.Check, s.Ending, s.ElapsedMS, said(&s))
	}
	// Why nothing can be said, where no suite says it.
	if planned, ran := t.Run.Admission.Checks.Suites, len(r.Evidence.Suites); r.Verdict == owner.ChecksUnavailable {
		switch {
		case r.Evidence.After != t.Run.Result.Candidate:
			fmt.Fprintln(w, "  the workspace changed while the checks ran, or could not be seen whole after them")
		case ran == 0, ran < len(planned) && said(&r.Evidence.Suites[ran-1]) == string(owner.ChecksPassed):
			fmt.Fprintf(w, "  the time of the plan was over before check %s\n", planned[ran].Check)
		}
	}
	if t.Checks == owner.ChecksDisputed {
		fmt.Fprintf(w, "  a correction is newer than what was checked, which came to %s\n", r.Verdict)
	}
}

// said is a suite's own word.
func said(r *owner.SuiteRun) string {
	if r.Said == nil {
		return "nothing that counts"
	}
	return r.Said.Verdict
}
