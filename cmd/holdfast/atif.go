package main

import (
	"context"
	"fmt"
	"io"

	"holdfast/internal/atomicfile"
	"holdfast/owner"
)

// exportATIF writes the transcripts of a task, or of one turn, as one ATIF document: to standard output, or to a new
// file, which appears whole or not at all and replaces none.
func (g *globals) exportATIF(ctx context.Context, id owner.TaskID, turn int, output string) error {
	s, err := g.readStore()
	if err != nil {
		return err
	}
	defer s.Close()
	if output == "" {
		x, err := s.ExportATIF(ctx, g.stdout, id, turn)
		if err == nil && x.Notes != "" {
			fmt.Fprintf(g.stderr, "holdfast: what was exported is not whole:\n%s\n", x.Notes)
		}
		return err
	}
	path, err := absolute(output)
	if err != nil {
		return err
	}
	var x owner.ATIFExport
	if err := atomicfile.Create(path, func(w io.Writer) (err error) {
		x, err = s.ExportATIF(ctx, w, id, turn)
		return err
	}); err != nil {
		return err
	}
	return g.emit(map[string]any{"output": path, "steps": x.Steps, "notes": x.Notes}, func(w io.Writer) {
		fmt.Fprintf(w, "%d steps in %s\n", x.Steps, path)
		if x.Notes != "" {
			fmt.Fprintf(w, "not whole:\n%s\n", x.Notes)
		}
	})
}
