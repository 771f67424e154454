package owner

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"syscall"
)

// Exit codes of an owner process; they are those of the command line.
const (
	exitDone           = 0
	exitRefused        = 1
	exitUsage          = 2
	exitBusy           = 3
	exitCorrupt        = 4
	exitNotEnforceable = 5
)

// RunOwner is the body of the hidden verb: args are those after OwnerArg. It owns the turn, or the checks of the turn
// that ended, in this process, waiting
// up to 30 s for the owner before it, and returns the exit code. SIGTERM and SIGINT stop the turn politely, and its
// result is still recorded; SIGHUP, which a closed terminal sends, does nothing. What goes wrong is one line on
// stderr; the log says how the turn ended.
func RunOwner(args []string, stderr io.Writer) int { return runOwner(args, stderr, realParts()) }

func runOwner(args []string, stderr io.Writer, p parts) int {
	flags := flag.NewFlagSet(OwnerArg, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	home, id, grant := flags.String("home", "", ""), flags.String("task", "", ""), flags.String("grant", "", "")
	checks := flags.Bool("checks", false, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || *home == "" || *id == "" ||
		*checks == (*grant != "") || !*checks && !Digest(*grant).valid() {
		fmt.Fprintln(stderr, "this verb is started by holdfast itself")
		return exitUsage
	}
	signal.Ignore(syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := ownTurn(ctx, *home, TaskID(*id), Digest(*grant), p)
	if err != nil {
		fmt.Fprintf(stderr, "%s task %s: %v\n", p.now().UTC().Format("2006-01-02T15:04:05Z"), *id, err)
	}
	return ownerExit(err)
}

func ownTurn(ctx context.Context, home string, id TaskID, grant Digest, p parts) error {
	s, err := Open(home, Options{Now: p.now})
	if err != nil {
		return err
	}
	defer s.Close()
	if grant == "" {
		_, err := runChecks(ctx, s, id, p)
		return err
	}
	b, err := s.GetBlob(grant, maxGrantBytes)
	if err != nil {
		return err
	}
	_, err = execute(ctx, s, id, b, p)
	return err
}

// ownerExit is the exit code for what Execute returned.
func ownerExit(err error) int {
	var refusal *Error
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewer):
		return exitCorrupt
	case !errors.As(err, &refusal):
		return exitRefused
	case refusal.Code == "store_busy" || refusal.Code == "workspace_busy":
		return exitBusy
	case refusal.Code == "not_enforceable":
		return exitNotEnforceable
	}
	return exitRefused
}
