package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"golang.org/x/sync/errgroup"

	"holdfast/host"
	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
)

// serveOptions are the words of up and serve.
type serveOptions struct {
	listening
	relays  []string
	noRelay bool
}

// check refuses wrong words before anything is opened.
func (o *serveOptions) check() error {
	if o.noRelay && len(o.relays) == 0 {
		return usage("--no-relay needs at least one --relay URL")
	}
	if o.noRelay && o.listening != (listening{}) {
		return usage("--no-relay leaves no embedded relay to listen or to have a name")
	}
	if err := o.listening.check(); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, u := range o.relays {
		if err := nip.CheckRelay(nip.RelayURL(u), true); err != nil {
			return usage("--relay %s: %s", u, err)
		}
		if seen[u] {
			return usage("--relay %s is named twice", u)
		}
		if u == o.public {
			return usage("--public-url %s is the embedded relay's own name; --relay names others", u)
		}
		seen[u] = true
	}
	return nil
}

// parts is a host with everything it is joined to, in the order of the data
// path: relays bring events in and take them out, the core decides.
type parts struct {
	core     *host.Core
	opts     serveOptions
	embedded *embedded.Relay
	listener net.Listener
	links    *links
	host     *host.Host
	stranded int // live grants that name a relay that is not served
}

// build opens the home and joins the parts. Nothing is served yet.
func (g *globals) build(ctx context.Context, o serveOptions, onEvent func(host.Event)) (_ *parts, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &parts{}
	opts := g.coreOptions()
	if !o.noRelay {
		// The file is this process's own, so it is checked through the open store.
		opts.Check = func(report func(string, bool, string)) {
			checkRelay(report, func() (int, error) { return p.embedded.Check() })
		}
	}
	core, err := host.OpenCore(g.home, opts)
	if err != nil {
		return nil, err
	}
	p.core, p.opts, p.links = core, o, newLinks(core.Self())
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	// Before the relay lets anybody in: until the host runs a device would be a
	// stranger, and not be shown what waits for it.
	members, err := core.Principals()
	if err != nil {
		return nil, err
	}
	p.links.members(members)
	var list []relay.Link
	var served []nip.RelayURL
	local := nip.RelayURL("")
	if !o.noRelay {
		if served, local, err = p.openEmbedded(g); err != nil {
			return nil, err
		}
		p.links.own = served
		list = append(list, p.embedded.Local(core.Self()))
	}
	for _, u := range o.relays {
		url := nip.RelayURL(u)
		list = append(list, relay.Dial(relay.Options{
			URL: url, Key: core.RelayKey(), Known: p.links.isKnown, OnGap: p.links.onGap(url), Log: g.log, Now: g.clock(),
		}))
		served = append(served, url)
	}
	if p.stranded, err = core.SetRelay(ctx, served, local); err != nil {
		return nil, err
	}
	p.links.start(list)
	p.host = host.NewHost(core, p.links, onEvent)
	return p, nil
}

// openEmbedded listens and opens the relay's store. It returns the names that
// devices may authenticate with, the first for new ones. local is the loopback
// one, from which the next start takes its address.
func (p *parts) openEmbedded(g *globals) (names []nip.RelayURL, local nip.RelayURL, err error) {
	stored, err := p.core.LocalRelay()
	if err != nil {
		return nil, "", err
	}
	addr := loopbackAddress(stored)
	if addr == "" {
		addr = defaultListen
	}
	ln, err := p.opts.open(addr)
	if err != nil {
		return nil, "", err
	}
	p.listener = ln
	names = p.opts.names(ln)
	p.links.embedded, err = embedded.Open(embedded.Options{
		Path: g.relayStore(), Name: names[0], Also: names[1:], Class: p.links.class,
		Served: func(k nip.PubKey) bool { return k == p.core.Self() }, AllowPlain: p.opts.plain, Now: g.clock(), Log: g.log,
	})
	p.embedded = p.links.embedded
	return names, p.opts.local(ln), err
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

// run serves until ctx ends or a part fails.
func (p *parts) run(ctx context.Context, ready func() error) error {
	tuneHeap()
	g, ctx := errgroup.WithContext(ctx)
	if p.embedded != nil {
		g.Go(func() error {
			if err := p.opts.serve(p.embedded, p.listener); err != nil && ctx.Err() == nil {
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
	}
	if p.listener != nil {
		p.listener.Close() // the relay closes it only once it serves
	}
	errs = append(errs, p.core.Close())
	return errors.Join(errs...)
}

func timestamp(t time.Time) *nostr.Timestamp {
	ts := nostr.Timestamp(t.Unix())
	return &ts
}

// makeRelayDir gives the embedded relay its folder. Its name is synced at every
// start: a crash may have come before the sync of the one that made it, and what
// the relay answers OK is kept below that name.
func makeRelayDir(home string) error {
	err := os.Mkdir(filepath.Join(home, "relay"), 0o700)
	if errors.Is(err, os.ErrExist) {
		err = nil
	}
	if err == nil {
		err = syncFolder(home)
	}
	if err != nil {
		return fmt.Errorf("make the relay's folder: %w", err)
	}
	return nil
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
