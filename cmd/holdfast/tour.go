package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"holdfast/owner"
)

// tourLimit bounds the whole story; a step that hangs fails it.
const tourLimit = 4 * time.Minute

// tourStep is one chapter. It fails when anything differs from what it says.
type tourStep struct {
	name string
	run  func(*tour, context.Context) error
}

// The story in order. Each chapter leaves what the next one needs in the tour.
var tourSteps = []tourStep{
	{"a new home, a real Git repository, a policy for it alone", (*tour).stepHome},
	{"the host serves and shows a pairing code", (*tour).stepServe},
	{"two devices pair: one works, one watches", (*tour).stepPair},
	{"a task is created, runs in a sandbox, and ends", (*tour).stepCreate},
	{"its pages are read", (*tour).stepRead},
	{"two messages wait while a turn runs; the queue is edited under a lease", (*tour).stepQueue},
	{"the turn is interrupted; what waited runs in its new order", (*tour).stepInterrupt},
	{"a turn is steered: stopped, and gone on with the new words", (*tour).stepSteer},
	{"a turn asks a question, and it is answered", (*tour).stepAnswer},
	{"the host is killed in the middle of a turn; the turn goes on", (*tour).stepKill},
	{"the replayed command returns its first outcome, and ran once", (*tour).stepReplay},
	{"the device is revoked; its next command is refused", (*tour).stepRevoke},
	{"the operator checks the journal and every store", (*tour).stepCheck},
}

func tourCommand(g *globals) *cobra.Command {
	var keep bool
	c := &cobra.Command{
		Use: "tour", Short: "Play the whole story in a throw-away home", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return g.tour(c.Context(), keep) },
	}
	c.Flags().BoolVar(&keep, "keep", false, "leave the throw-away home for a look")
	return c
}

// tour is the state that the chapters share. One goroutine owns it; the
// watcher and the host's lines have locks of their own.
type tour struct {
	g       *globals
	out     *printer
	exe     string
	dir     string // everything of the tour
	home    string
	repo    string
	listen  string
	host    *tourProcess
	watcher *tourProcess
	code    string // the host's pairing code
	device  string // key of the device that works
	task    string // the task of the longer chapters
	first   string // the first message in run order
	kept    string // command that was held over the kill
}

func (g *globals) tour(parent context.Context, keep bool) (err error) {
	ctx, cancel := context.WithTimeout(parent, tourLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "holdfast-tour-")
	if err != nil {
		return fmt.Errorf("make a throw-away folder: %w", err)
	}
	// The sandbox binds canonical paths only.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return fmt.Errorf("make a throw-away folder: %w", err)
	}
	exe, err := selfProgram()
	if err != nil {
		return err
	}
	t := &tour{g: g, out: &printer{g: g}, exe: exe, dir: dir, home: filepath.Join(dir, "home"), repo: filepath.Join(dir, "repository")}
	defer func() {
		err = errors.Join(err, t.tidy(keep))
		if err == nil {
			t.out.line(map[string]any{"event": "done", "ok": true}, "\nthe whole story, as promised: done")
		}
	}()
	start := time.Now()
	for i, s := range tourSteps {
		t.out.line(map[string]any{"event": "step", "step": i + 1, "of": len(tourSteps), "name": s.name},
			fmt.Sprintf("\n%2d/%d  %s", i+1, len(tourSteps), s.name))
		if serr := s.run(t, ctx); serr != nil {
			if ctx.Err() != nil {
				serr = errors.Join(context.Cause(ctx), serr)
			}
			t.out.line(map[string]any{"event": "done", "ok": false, "step": i + 1, "why": serr.Error()}, "")
			return fmt.Errorf("tour step %d (%s): %w", i+1, s.name, serr)
		}
	}
	t.say("took", fmt.Sprintf("%.1f s in all", time.Since(start).Seconds()), nil)
	return nil
}

// say prints one hop: a few words for a person, all fields for a script.
func (t *tour) say(hop, text string, fields map[string]any) {
	v := map[string]any{"event": "hop", "hop": hop, "text": text}
	for k, x := range fields {
		v[k] = x
	}
	t.out.line(v, fmt.Sprintf("       %-9s %s", hop, text))
}

// tidy ends everything that the tour started, turns first, and deletes it.
func (t *tour) tidy(keep bool) error {
	var errs []error
	if t.watcher != nil {
		t.watcher.end()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if s, err := owner.Open(t.home, owner.Options{}); err == nil {
		errs = append(errs, owner.StopOwners(ctx, s, "the tour ended"), s.Close())
	}
	if t.host != nil {
		t.host.end()
	}
	// What the host started between the first stop and its own end.
	if s, err := owner.Open(t.home, owner.Options{}); err == nil {
		errs = append(errs, owner.StopOwners(ctx, s, "the tour ended"), s.Close())
	}
	if keep {
		_ = t.g.emit(map[string]any{"event": "kept", "home": t.home}, func(w io.Writer) { fmt.Fprintf(w, "\nkept: %s\n", t.dir) })
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, os.RemoveAll(t.dir))...)
}
