package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"holdfast/host"
	"holdfast/internal/commit"
	"holdfast/owner"
	"holdfast/relay/embedded"
	"holdfast/sandbox"
)

// The exit codes that scripts rely on.
const (
	exitOK          = 0
	exitFailed      = 1 // refused or failed
	exitUsage       = 2
	exitBusy        = 3 // locked or busy
	exitCorrupt     = 4 // damaged or newer store
	exitSandbox     = 5 // sandbox not enforceable
	exitUnreachable = 6
)

// cliError is what a verb returns: a code for scripts, one line for people,
// and what to do next.
type cliError struct {
	Exit    int
	Code    string
	Message string
	Hint    string
}

func (e *cliError) Error() string { return e.Message }

// globals is what every verb shares. Streams are parameters so that tests run
// the verbs in process.
type globals struct {
	home   string
	json   bool
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	log    zerolog.Logger
	now    func() time.Time // nil is the wall clock; the benchmark's is ahead of it
}

// clock is the time that a host of this process goes by.
func (g *globals) clock() func() time.Time {
	if g.now != nil {
		return g.now
	}
	return time.Now
}

// emit prints v: one JSON document a line with --json, else what text writes.
func (g *globals) emit(v any, text func(w io.Writer)) error {
	if !g.json {
		text(g.stdout)
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	_, err = g.stdout.Write(append(b, '\n'))
	return err
}

// report prints an error in one line and returns its exit code.
func (g *globals) report(err error) int {
	ce := classify(err)
	if g.json {
		b, _ := json.Marshal(map[string]any{"error": map[string]string{"code": ce.Code, "message": ce.Message, "hint": ce.Hint}})
		_, _ = g.stderr.Write(append(b, '\n'))
		return ce.Exit
	}
	if ce.Hint != "" {
		fmt.Fprintf(g.stderr, "holdfast: %s (%s)\n", ce.Message, ce.Hint)
	} else {
		fmt.Fprintf(g.stderr, "holdfast: %s\n", ce.Message)
	}
	return ce.Exit
}

// isTerminal reports whether f is a character device a person looks at.
func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// usage marks an error as the caller's wrong words.
func usage(format string, args ...any) error {
	return &cliError{Exit: exitUsage, Code: "usage", Message: fmt.Sprintf(format, args...)}
}

// usageArgs turns cobra's argument errors into usage errors.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usage("%s", err)
		}
		return nil
	}
}

// classify is the one place where an error becomes an exit code.
func classify(err error) *cliError {
	var ce *cliError
	if errors.As(err, &ce) {
		return ce
	}
	var oe *host.OperatorError
	var refused *owner.Error
	msg := err.Error()
	switch {
	case errors.As(err, &oe):
		exit := exitFailed
		switch oe.Code {
		case "usage":
			exit = exitUsage
		case "store_busy", "workspace_busy":
			exit = exitBusy
		case "not_enforceable":
			exit = exitSandbox
		case "damaged", "newer":
			exit = exitCorrupt
		}
		return &cliError{Exit: exit, Code: oe.Code, Message: oe.Message}
	case errors.As(err, &refused):
		exit := exitFailed
		switch refused.Code {
		case "store_busy", "workspace_busy":
			exit = exitBusy
		case "not_enforceable":
			exit = exitSandbox
		}
		return &cliError{Exit: exit, Code: refused.Code, Message: msg}
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		// Before "damaged": a store whose commit found no room holds what it held.
		return &cliError{Exit: exitFailed, Code: "disk_full", Message: msg, Hint: "free some room and start again; what was not on disk was not acknowledged"}
	case errors.Is(err, host.ErrBusy), errors.Is(err, commit.ErrLocked), errors.Is(err, embedded.ErrLocked):
		return &cliError{Exit: exitBusy, Code: "busy", Message: msg, Hint: "stop the other one, or use another --home"}
	case errors.Is(err, commit.ErrNewer), errors.Is(err, owner.ErrNewer), errors.Is(err, embedded.ErrNewer):
		return &cliError{Exit: exitCorrupt, Code: "newer", Message: msg, Hint: "use the newer holdfast"}
	case errors.Is(err, host.ErrBackup):
		return &cliError{Exit: exitCorrupt, Code: "damaged", Message: msg, Hint: "nothing was changed; use another backup"}
	case host.Damaged(err), errors.Is(err, embedded.ErrCorrupt), errors.Is(err, embedded.ErrFailed):
		return &cliError{Exit: exitCorrupt, Code: "damaged", Message: msg, Hint: "nothing was changed; holdfast check names the file"}
	case errors.Is(err, sandbox.ErrNotEnforceable):
		return &cliError{Exit: exitSandbox, Code: "not_enforceable", Message: msg, Hint: "holdfast doctor says what to change"}
	case errors.Is(err, host.ErrUsage):
		return &cliError{Exit: exitUsage, Code: "usage", Message: msg}
	}
	return &cliError{Exit: exitFailed, Code: "failed", Message: msg}
}
