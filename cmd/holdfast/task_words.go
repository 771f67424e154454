package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/nip"
	"holdfast/owner"
)

// words returns an argument, or standard input for "-", at most max bytes of it.
func (g *globals) words(s string, max int64) (string, error) {
	if s != "-" {
		return s, nil
	}
	b, err := io.ReadAll(io.LimitReader(g.stdin, max+1))
	if err != nil {
		return "", fmt.Errorf("read standard input: %w", err)
	}
	if int64(len(b)) > max {
		return "", usage("standard input is longer than %d bytes", max)
	}
	return strings.TrimRight(string(b), "\n"), nil
}

// idFirst has every verb of c that takes a task's ID parse it before its own checks, and before any store is opened.
func idFirst(c *cobra.Command) {
	for _, sub := range c.Commands() {
		if !strings.Contains(sub.Use, " ID") {
			continue
		}
		own := sub.PreRunE
		sub.PreRunE = func(c *cobra.Command, args []string) error {
			if !owner.ValidTaskID(args[0]) {
				return usage("a task ID is 1 to 128 letters, digits, '.', '_' and '-', the first a letter or a digit")
			}
			if own == nil {
				return nil
			}
			return own(c, args)
		}
	}
}

// newTaskWords checks the words of a new task, as the store will.
func newTaskWords(label, prompt, title string) error {
	switch {
	case label == "" || prompt == "":
		return usage("task new needs --workspace and --prompt")
	case !host.ValidLabel(nip.Label(label)):
		return usage("--workspace is a label of 1 to 128 bytes, as workspace list shows them")
	case !owner.ValidPrompt(prompt):
		return usage("--prompt is text of at most 32 KiB, not blank, without control characters")
	case title != "" && !owner.ValidTitle(title):
		return usage("--title is one line of at most 256 bytes")
	}
	return nil
}

// action is the verb that an exact document belongs to.
func action(a owner.Action) string {
	switch {
	case a.Submit != nil:
		return "submit"
	case a.Correct != nil:
		return "correct"
	case a.Cancel != nil:
		return "cancel"
	}
	return "continue"
}
