package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"holdfast/host"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/relay/embedded"
)

const benchLabel nip.Label = "bench"

// benchDir makes the throw-away folder: under the folder asked for, else in the
// nearest folder above the home that is there, which is its file system.
func benchDir(home, under string) (string, error) {
	if under == "" {
		for under = filepath.Dir(home); ; under = filepath.Dir(under) {
			if st, err := os.Stat(under); err == nil && st.IsDir() || under == filepath.Dir(under) {
				break
			}
		}
	}
	dir, err := os.MkdirTemp(under, ".holdfast-bench-")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir) // the sandbox binds canonical paths only
	}
	if err != nil {
		return "", fmt.Errorf("make a throw-away folder (--dir chooses another place): %w", err)
	}
	return dir, nil
}

// benchClock is the wall clock, which a measurement may put forward: what is
// kept for a minute or five, such as replies and invitations, is then gone
// without the wait.
type benchClock struct{ ahead atomic.Int64 }

func (c *benchClock) now() time.Time          { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *benchClock) forward(d time.Duration) { c.ahead.Add(int64(d)) }

// benchHost is a host in this process, joined as cmd joins every host, with a
// real socket. No policy is set, so no task of it ever starts.
type benchHost struct {
	clock  *benchClock
	home   string
	dir    string
	g      *globals
	o      serveOptions
	relay  *embedded.Relay // where the host dials a relay of ours; else nil
	self   nip.PubKey
	url    nip.RelayURL // the relay's name
	parts  *parts       // nil while it is stopped
	cancel context.CancelFunc
	ended  chan error
}

// newHost makes a new home and serves it. away puts the relay outside the host,
// so that it goes on while the host does not.
func (b *bench) newHost(ctx context.Context, away bool) (*benchHost, error) {
	h, err := b.newHome(away)
	if err != nil {
		return h, err
	}
	if err := h.start(ctx); err != nil {
		return h, errors.Join(err, h.close())
	}
	return h, nil
}

// newHome makes a home with a workspace.
func (b *bench) newHome(away bool) (_ *benchHost, err error) {
	b.homes++
	dir := filepath.Join(b.dir, fmt.Sprint(b.homes))
	h := &benchHost{clock: &benchClock{}, dir: dir, home: filepath.Join(dir, "home")}
	h.g = &globals{home: h.home, log: zerolog.Nop(), now: h.clock.now}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	work := filepath.Join(dir, "work")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return h, err
	}
	if err := host.Init(h.home, "", h.g.coreOptions()); err != nil {
		return h, err
	}
	if err := makeRelayDir(h.home); err != nil {
		return h, err
	}
	if _, err := host.AddWorkspace(h.home, benchLabel, work); err != nil {
		return h, err
	}
	if h.o.listen, err = freeLoopback(); err != nil {
		return h, err
	}
	if away {
		if err := h.openAway(); err != nil {
			return h, err
		}
	}
	return h, nil
}

// openAway serves a relay beside the host, as relay serve does.
func (h *benchHost) openAway() error {
	ln, err := h.o.open("")
	if err != nil {
		return err
	}
	name := h.o.local(ln)
	h.relay, err = embedded.Open(embedded.Options{Path: filepath.Join(h.dir, "relay.db"), Name: name, Now: h.clock.now, Log: h.g.log})
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	go func() { _ = h.relay.Serve(ln) }() // ends with the relay
	h.o = serveOptions{noRelay: true, relays: []string{string(name)}}
	return nil
}

// start serves until stop; it returns when the host takes requests.
func (h *benchHost) start(ctx context.Context) error {
	p, err := h.g.build(ctx, h.o, nil)
	if err != nil {
		return err
	}
	run, cancel := context.WithCancel(ctx)
	ready := make(chan struct{})
	h.parts, h.cancel, h.ended = p, cancel, make(chan error, 1)
	h.self, h.url = p.core.Self(), p.links.Relays()[0].URL
	go func() { h.ended <- p.run(run, func() error { close(ready); return nil }) }()
	select {
	case <-ready:
		return nil
	case err := <-h.ended:
		h.ended <- err
		return fmt.Errorf("the host ended: %w", err)
	}
}

func (h *benchHost) stop() error {
	if h.parts == nil {
		return nil
	}
	h.cancel()
	err := <-h.ended
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	h.parts.host.Wait(5 * time.Second)
	err = errors.Join(err, h.parts.close())
	h.parts = nil
	return err
}

// close ends the host, whatever it may have started, and removes its files.
func (h *benchHost) close() error {
	errs := []error{h.stop()}
	if h.relay != nil {
		errs = append(errs, h.relay.Close())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if s, err := owner.Open(h.home, owner.Options{}); err == nil {
		errs = append(errs, owner.StopOwners(ctx, s, "the measurement ended"), s.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(h.dir))...)
}

// invite makes an invitation of the person at the machine.
func (h *benchHost) invite(ctx context.Context, rights nip.Rights) (nip.Invitation, string, error) {
	return h.parts.core.NewInvitation(ctx, rights, 1, h.url)
}
