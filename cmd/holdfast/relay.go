package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"holdfast/nip"
	"holdfast/relay/embedded"
)

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
			dir := filepath.Join(g.home, "relay")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return fmt.Errorf("make the relay's folder: %w", err)
			}
			name := nip.RelayURL("ws://" + ln.Addr().String() + "/")
			r, err := embedded.Open(embedded.Options{Path: filepath.Join(dir, "relay.db"), Name: name, Now: time.Now, Log: g.log})
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
