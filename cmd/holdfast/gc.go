package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"holdfast/host"
)

func gcCommand(g *globals) *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use: "gc", Short: "Remove what nothing needs any more: worktrees by the policy, unnamed blobs, what killed processes left", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := ask[host.Collected](c.Context(), g, "gc", host.GCArgs{DryRun: dry})
			if err != nil {
				return err
			}
			return g.emit(out, func(w io.Writer) { writeCollected(w, &out) })
		},
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "say what would go, and remove nothing")
	return c
}

func writeCollected(w io.Writer, out *host.Collected) {
	verb, total := "removed", "freed"
	if out.DryRun {
		verb, total = "would remove", "would free"
	}
	for _, r := range out.Removed {
		fmt.Fprintf(w, "%s %s %s (%s)\n", verb, r.Kind, r.Path, size(r.Bytes))
	}
	for _, r := range out.Kept {
		fmt.Fprintf(w, "kept %s %s: %s\n", r.Kind, r.Path, r.Why)
	}
	if out.More > 0 {
		fmt.Fprintf(w, "and %d more\n", out.More)
	}
	fmt.Fprintf(w, "%s %s\n", total, size(out.Freed))
}

// size is a number of bytes as people read it.
func size(n int64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if n < 10_000 {
			return fmt.Sprintf("%d %s", n, unit)
		}
		n /= 1024
	}
	return fmt.Sprintf("%d TiB", n)
}
