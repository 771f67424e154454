package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"holdfast/internal/atomicfile"
	"holdfast/relay/embedded"
)

// relayStore is the file of the embedded relay.
func (g *globals) relayStore() string { return filepath.Join(g.home, "relay", "relay.db") }

// checkRelay reports what check says of that file; a relay that was never used
// has none.
func checkRelay(report func(path string, ok bool, detail string), check func() (events int, err error)) {
	const path = "relay/relay.db"
	n, err := check()
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case errors.Is(err, embedded.ErrLocked):
		report(path, true, "not read: another process serves this relay")
	case err != nil:
		report(path, false, err.Error())
	default:
		report(path, true, fmt.Sprintf("%d events and their indexes hold", n))
	}
}

func relayCommand(g *globals) *cobra.Command {
	c := &cobra.Command{Use: "relay", Short: "The embedded relay alone"}
	var o listening
	serve := &cobra.Command{
		Use: "serve", Short: "Serve the relay without a host", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			ln, err := o.open(defaultListen)
			if err != nil {
				return err
			}
			defer ln.Close()
			if err := atomicfile.MakeAll(g.home, 0o700); err != nil {
				return fmt.Errorf("make the relay's folder: %w", err)
			}
			if err := makeRelayDir(g.home); err != nil {
				return err
			}
			names := o.names(ln)
			r, err := embedded.Open(embedded.Options{
				Path: g.relayStore(), Name: names[0], Also: names[1:], AllowPlain: o.plain, Now: time.Now, Log: g.log,
			})
			if err != nil {
				return err
			}
			out := &printer{g: g}
			out.plain(o)
			text := "relay serves " + string(names[0]) + "; stop: Ctrl-C"
			if o.public != "" {
				text += "\nwhoever reaches it may use it: it keeps 30 days, at most 64 MiB for each recipient"
			}
			out.line(map[string]any{"event": "ready", "relay": names[0], "names": names}, text)
			eg, ctx := errgroup.WithContext(c.Context())
			eg.Go(func() error { <-ctx.Done(); return r.Close() })
			eg.Go(func() error { return relayFailure(ctx, r) })
			eg.Go(func() error {
				if err := o.serve(r, ln); err != nil && ctx.Err() == nil {
					return err
				}
				return nil
			})
			return eg.Wait()
		},
	}
	o.flags(serve)
	c.AddCommand(serve)
	return c
}

// plain says what a relay without TLS on the network leaks, where this is one.
func (p *printer) plain(o listening) {
	if o.plain {
		p.line(map[string]any{"event": "unencrypted", "listen": o.listen, "why": plainLeaks}, "the relay listens unencrypted on "+o.listen+":\n"+plainLeaks+"\n")
	}
}
