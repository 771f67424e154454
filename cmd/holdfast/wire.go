package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"golang.org/x/sync/errgroup"

	"holdfast/host"
	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
)

const defaultListen = "127.0.0.1:7447"

// serveOptions are the words of up and serve.
type serveOptions struct {
	relays  []string
	listen  string
	noRelay bool
}

// check refuses wrong words before anything is opened.
func (o *serveOptions) check() error {
	if o.noRelay && len(o.relays) == 0 {
		return usage("--no-relay needs at least one --relay URL")
	}
	if o.listen != "" {
		if err := checkLoopback(o.listen); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	for _, u := range o.relays {
		if err := nip.CheckRelay(nip.RelayURL(u), true); err != nil {
			return usage("--relay %s: %s", u, err)
		}
		if seen[u] {
			return usage("--relay %s is named twice", u)
		}
		seen[u] = true
	}
	return nil
}

// parts is a host with everything it is joined to, in the order of the data
// path: relays bring events in and take them out, the core decides.
type parts struct {
	core     *host.Core
	embedded *embedded.Relay
	listener net.Listener
	links    *links
	host     *host.Host
	stranded int // live grants that name another relay than the primary
}

// build opens the home and joins the parts. Nothing is served yet.
func (g *globals) build(ctx context.Context, o serveOptions, onEvent func(host.Event)) (_ *parts, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	core, err := host.OpenCore(g.home, g.coreOptions())
	if err != nil {
		return nil, err
	}
	p := &parts{core: core, links: newLinks(core.Self())}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	var list []relay.Link
	primary := nip.RelayURL("")
	if !o.noRelay {
		if primary, err = p.openEmbedded(g, o); err != nil {
			return nil, err
		}
		list = append(list, p.embedded.Local(core.Self()))
	}
	for _, u := range o.relays {
		url := nip.RelayURL(u)
		list = append(list, relay.Dial(relay.Options{URL: url, Key: core.RelayKey(), Known: p.links.isKnown, Log: g.log, Now: g.clock()}))
		if primary == "" {
			primary = url
		}
	}
	if p.stranded, err = core.SetRelay(ctx, primary); err != nil {
		return nil, err
	}
	p.links.start(list)
	p.host = host.NewHost(core, p.links, onEvent)
	return p, nil
}

// openEmbedded listens and opens the relay's store. The name that devices
// authenticate with is the address it listens on, stored at the first run.
func (p *parts) openEmbedded(g *globals, o serveOptions) (nip.RelayURL, error) {
	addr := o.listen
	if addr == "" {
		stored, err := p.core.Relay()
		if err != nil {
			return "", err
		}
		if addr = loopbackAddress(stored); addr == "" {
			addr = defaultListen
		}
	}
	ln, err := listenLoopback(addr)
	if err != nil {
		return "", err
	}
	p.listener = ln
	name := nip.RelayURL("ws://" + ln.Addr().String() + "/")
	p.links.embedded, err = embedded.Open(embedded.Options{
		Path: filepath.Join(g.home, "relay", "relay.db"), Name: name, Class: p.links.class,
		Served: func(k nip.PubKey) bool { return k == p.core.Self() }, Now: g.clock(), Log: g.log,
	})
	p.embedded = p.links.embedded
	return name, err
}

// loopbackAddress is the listen address inside a ws:// name of this machine.
func loopbackAddress(name nip.RelayURL) string {
	const prefix = "ws://"
	s := string(name)
	if len(s) < len(prefix)+2 || s[:len(prefix)] != prefix || s[len(s)-1] != '/' {
		return ""
	}
	return s[len(prefix) : len(s)-1]
}

// checkLoopback refuses every address that other machines could reach.
func checkLoopback(addr string) error {
	hostPart, _, err := net.SplitHostPort(addr)
	if err != nil {
		return usage("--listen %s: %s", addr, err)
	}
	if ip := net.ParseIP(hostPart); ip == nil || !ip.IsLoopback() {
		return usage("--listen %s: only a literal loopback address such as 127.0.0.1:7447; another machine needs a wss:// relay (--relay)", addr)
	}
	return nil
}

func listenLoopback(addr string) (net.Listener, error) {
	if err := checkLoopback(addr); err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &cliError{Exit: exitBusy, Code: "port_in_use", Message: "something already listens on " + addr, Hint: "stop it, or choose another with --listen 127.0.0.1:PORT"}
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return ln, nil
}

// run serves until ctx ends or a part fails.
func (p *parts) run(ctx context.Context, ready func() error) error {
	g, ctx := errgroup.WithContext(ctx)
	if p.embedded != nil {
		g.Go(func() error {
			if err := p.embedded.Serve(p.listener); err != nil && ctx.Err() == nil {
				return fmt.Errorf("embedded relay: %w", err)
			}
			return nil
		})
		g.Go(func() error { return relayFailure(ctx, p.embedded) })
	}
	g.Go(func() error { return p.core.ServeOperator(ctx) })
	g.Go(func() error { return p.host.Run(ctx) })
	g.Go(func() error {
		defer func() {
			if p.embedded != nil {
				<-ctx.Done()
				_ = p.embedded.Close()
			}
		}()
		return ready()
	})
	return g.Wait()
}

// relayFailure ends with the relay's store: a host whose own relay takes
// nothing any more is deaf, and only a new start mends it.
func relayFailure(ctx context.Context, r *embedded.Relay) error {
	select {
	case <-r.Failed():
		return r.Failure()
	case <-ctx.Done():
		return nil
	}
}

func (p *parts) close() error {
	if p.host != nil {
		p.links.close()
	}
	var errs []error
	if p.embedded != nil {
		errs = append(errs, p.embedded.Close())
	} else if p.listener != nil {
		p.listener.Close()
	}
	errs = append(errs, p.core.Close())
	return errors.Join(errs...)
}

func timestamp(t time.Time) *nostr.Timestamp {
	ts := nostr.Timestamp(t.Unix())
	return &ts
}

// makeRelayDir gives the embedded relay its folder.
func makeRelayDir(home string) error {
	err := os.Mkdir(filepath.Join(home, "relay"), 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the relay's folder: %w", err)
	}
	return nil
}
