package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"holdfast/owner"
)

// artifactDocument is a changed file as scripts read it.
type artifactDocument struct {
	Change owner.Change `json:"change"`
	Bytes  []byte       `json:"bytes"` // base64
}

// diffDocument is a patch as scripts read it.
type diffDocument struct {
	Changes owner.Changes `json:"changes"`
	Patch   []byte        `json:"patch"` // base64
}

func taskArtifact(g *globals) *cobra.Command {
	var path, output string
	var turn int
	c := &cobra.Command{
		Use: "artifact ID", Short: "A file that a turn changed, as the turn left it", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if path == "" || turn < 0 {
				return usage("task artifact needs --path, as task diff --json spells it, and a --turn from 1")
			}
			s, err := g.readStore()
			if err != nil {
				return err
			}
			defer s.Close()
			change, b, err := s.Artifact(owner.TaskID(args[0]), turn, path)
			if err != nil {
				return err
			}
			return g.hand(b, output, artifactDocument{change, b})
		},
	}
	c.Flags().StringVar(&path, "path", "", "the file, relative to the workspace")
	c.Flags().StringVar(&output, "output", "", "write a new file instead of standard output")
	c.Flags().IntVar(&turn, "turn", 0, "the turn (default: the newest that ended)")
	return c
}

func taskDiff(g *globals) *cobra.Command {
	var output string
	var turn int
	c := &cobra.Command{
		Use: "diff ID", Short: "What a turn changed, as a patch for git apply", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if turn < 0 {
				return usage("a --turn counts from 1")
			}
			s, err := g.readStore()
			if err != nil {
				return err
			}
			defer s.Close()
			patch, m, err := s.Patch(c.Context(), owner.TaskID(args[0]), turn)
			if err != nil {
				return err
			}
			if !g.json {
				g.leftOut(&m)
			}
			return g.hand(patch, output, diffDocument{m, patch})
		},
	}
	c.Flags().StringVar(&output, "output", "", "write a new file instead of standard output")
	c.Flags().IntVar(&turn, "turn", 0, "the turn (default: the newest that ended)")
	return c
}

// leftOut says on standard error what a patch does not show, so that nobody takes it for the whole.
func (g *globals) leftOut(m *owner.Changes) {
	for _, c := range m.Changes {
		switch c.State {
		case owner.StateRetained, owner.StateRemoved, owner.StateSymlink, owner.StateDirectory:
		default:
			fmt.Fprintf(g.stderr, "not in the patch: %s %s: %s\n", c.Kind, c.Path, c.State)
		}
	}
	if m.Omitted > 0 {
		fmt.Fprintf(g.stderr, "not in the patch: %d further changes\n", m.Omitted)
	}
}

// hand gives bytes as they are to standard output, or to a new file; with --json the document. A file that exists,
// or a link in its place, is left alone.
func (g *globals) hand(b []byte, output string, document any) error {
	if output == "" {
		return g.emit(document, func(w io.Writer) { _, _ = w.Write(b) })
	}
	f, err := os.OpenFile(output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the file: %w", err)
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write the file: %w", err)
	}
	return g.emit(map[string]any{"output": output, "bytes": len(b)}, func(w io.Writer) { fmt.Fprintf(w, "%s: %d bytes\n", output, len(b)) })
}
