package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"holdfast/owner"
)

// contextDocument is a frozen context as scripts read it.
type contextDocument struct {
	Digest  owner.Digest        `json:"digest"`
	Context owner.FrozenContext `json:"context"`
}

// contextText is one of its files.
type contextText struct {
	Path   string       `json:"path"`
	Digest owner.Digest `json:"digest"`
	Bytes  []byte       `json:"bytes"` // base64
}

// taskContext shows what was frozen for a turn to read. It is verified as a whole each time, the workspace is not asked.
func taskContext(g *globals) *cobra.Command {
	var path, output string
	var turn int
	c := &cobra.Command{
		Use: "context ID", Short: "What was frozen for a turn to read, or one file of it as it was", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case turn < 0:
				return usage("a --turn counts from 1")
			case path == "" && (output != "" || c.Flags().Changed("path")):
				return usage("--output writes one file; name it by --path, as the list spells it")
			}
			s, err := g.readStore()
			if err != nil {
				return err
			}
			defer s.Close()
			id := owner.TaskID(args[0])
			if path != "" {
				b, err := s.ContextText(id, turn, path)
				if err != nil {
					return err
				}
				return g.hand(b, output, contextText{path, owner.DigestOf(b), b})
			}
			frozen, digest, err := s.FrozenContext(id, turn)
			if err != nil {
				return err
			}
			return g.emit(contextDocument{digest, frozen}, func(w io.Writer) { writeContext(w, digest, &frozen) })
		},
	}
	c.Flags().StringVar(&path, "path", "", "the file whose exact bytes are wanted")
	c.Flags().StringVar(&output, "output", "", "with --path: write a new file instead of standard output")
	c.Flags().IntVar(&turn, "turn", 0, "the turn (default: the newest that was admitted)")
	return c
}

func writeContext(w io.Writer, digest owner.Digest, c *owner.FrozenContext) {
	fmt.Fprintf(w, "%s\n  turn       %d, read at revision %d\n  context    %s\n", c.TaskID, c.Turn, c.Revision, digest)
	for _, in := range c.Instructions {
		fmt.Fprintf(w, "  applies    %s (%d bytes)\n", in.Path, in.Bytes)
	}
	for _, k := range c.Knowledge {
		fmt.Fprintf(w, "  knowledge  %s, version %d: %s (%d bytes)\n", k.ID, k.Version, k.Path, k.Bytes)
	}
	for _, s := range c.Checks.Suites {
		fmt.Fprintf(w, "  check      %s by %s\n", s.Check, s.Program)
	}
}
