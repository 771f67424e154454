package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/owner"
	"holdfast/owner/gitguard"
)

// taskIntegrate makes a candidate a branch. Its words are parsed before a store is opened.
func taskIntegrate(g *globals) *cobra.Command {
	var branch string
	c := &cobra.Command{
		Use: "apply ID", Short: "Make what a task's turns changed one commit on a new branch", Args: cobra.ExactArgs(1),
		Long: "Make what a task's turns changed one commit on a new branch of its repository. Nothing is checked out, merged or pushed,\n" +
			"and no hook runs. It is refused when the repository is no longer at the commit from which the task worked, when not\n" +
			"everything that changed was retained, and when the branch exists.",
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case !owner.ValidTaskID(args[0]):
				return usage("%q is no task ID", args[0])
			case branch == "":
				return usage("task apply needs --branch, the name of a new branch")
			case !gitguard.BranchName(branch):
				return usage("%q is no name for a new branch", branch)
			}
			out, err := ask[host.Integrated](c.Context(), g, "task.integrate", host.TaskArgs{Task: owner.TaskID(args[0]), Branch: branch})
			if err != nil {
				return err
			}
			return g.emit(out, func(w io.Writer) {
				fmt.Fprintf(w, "branch %s is commit %s, on top of %.12s (task %s, turn %d)\n", out.Branch, out.Commit, out.Base, out.Task, out.Turn)
			})
		},
	}
	c.Flags().StringVar(&branch, "branch", "", "the new branch")
	return c
}
