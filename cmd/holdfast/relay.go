package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"holdfast/nip"
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
	var listen string
	serve := &cobra.Command{
		Use: "serve", Short: "Serve the relay without a host", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ln, err := listenLoopback(listen)
			if err != nil {
				return err
			}
			defer ln.Close()
			if err := os.MkdirAll(filepath.Dir(g.relayStore()), 0o700); err != nil {
				return fmt.Errorf("make the relay's folder: %w", err)
			}
			name := nip.RelayURL("ws://" + ln.Addr().String() + "/")
			r, err := embedded.Open(embedded.Options{Path: g.relayStore(), Name: name, Now: time.Now, Log: g.log})
			if err != nil {
				return err
			}
			out := &printer{g: g}
			out.line(map[string]any{"event": "ready", "relay": name}, "relay serves "+string(name)+"; stop: Ctrl-C")
			eg, ctx := errgroup.WithContext(c.Context())
			eg.Go(func() error { <-ctx.Done(); return r.Close() })
			eg.Go(func() error { return relayFailure(ctx, r) })
			eg.Go(func() error {
				if err := r.Serve(ln); err != nil && ctx.Err() == nil {
					return err
				}
				return nil
			})
			return eg.Wait()
		},
	}
	serve.Flags().StringVar(&listen, "listen", defaultListen, "loopback address")
	c.AddCommand(serve)
	return c
}
