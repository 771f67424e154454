package client

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/internal/atomicfile"
	"holdfast/nip"
	"holdfast/relay/relaytest"
)

// nearEnd pairs a device whose grant has an hour of its life left, and gives
// the grant that an honest host renews it to.
func nearEnd(t *testing.T) (*Device, *host, *paper, nip.Grant) {
	t.Helper()
	p := &paper{}
	h := newHost(t, paperURL)
	p.host = h.serve
	d := opened(t, filepath.Join(t.TempDir(), "profile"), p)
	now := time.Now().Unix()
	h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		h.grant = h.newGrant(d.PubKey(), r.Op.(nip.EnrollRedeem).Invitation)
		h.grant.IssuedAt, h.grant.ExpiresAt = now-86_400, now+3600
		return nip.Granted{Authorization: h.sealGrant(h.grant)}, nil
	}
	if _, err := d.Pair(t.Context(), h.code(h.invitation())); err != nil {
		t.Fatal(err)
	}
	h.op = func(nip.Request) (nip.Outcome, *nip.Refusal) { return nip.Workspaces{}, nil }
	p.mu.Lock()
	p.stored = nil
	p.mu.Unlock()
	return d, h, p, h.renewed()
}

// renewed is what an honest host renews its last grant to.
func (h *host) renewed() nip.Grant {
	g := h.grant
	life := g.ExpiresAt - g.IssuedAt
	g.ID, g.IssuedAt = nip.GrantID(newID(h.t)), h.now().Unix()
	g.ExpiresAt = g.IssuedAt + life
	return g
}

// holds says which grant the device works with, and which one a new process
// would.
func holds(t *testing.T, d *Device, p *paper, want nip.GrantID) {
	t.Helper()
	if g, _ := d.Grant(); g.ID != want {
		t.Errorf("the device holds %s, want %s", g.ID, want)
	}
	if g, _ := reopen(t, d, p).Grant(); g.ID != want {
		t.Errorf("the profile holds %s, want %s", g.ID, want)
	}
}

// The renewed grant comes beside the reply, or lay on the relay before, or is
// met by Refresh; and the next request names it.
func TestRenewal(t *testing.T) {
	for _, tt := range []struct {
		name string
		find func(t *testing.T, d *Device, p *paper, ev *nip.Event) error
	}{
		{"sent beside the reply", func(t *testing.T, d *Device, p *paper, ev *nip.Event) error {
			answer := p.host
			p.host = func(req *nip.Event) []*nip.Event { return append(answer(req), ev) }
			_, err := d.Call(t.Context(), nip.WorkspaceList{})
			p.host = answer
			return err
		}},
		{"stored on the relay", func(t *testing.T, d *Device, p *paper, ev *nip.Event) error {
			p.add(ev)
			_, err := d.Call(t.Context(), nip.WorkspaceList{})
			return err
		}},
		{"read by a refresh", func(t *testing.T, d *Device, p *paper, ev *nip.Event) error {
			p.add(ev)
			return d.Refresh(t.Context())
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, h, p, g := nearEnd(t)
			if err := tt.find(t, d, p, h.sealGrant(g)); err != nil {
				t.Fatal(err)
			}
			holds(t, d, p, g.ID)
			h.seen = nil
			if _, err := d.Call(t.Context(), nip.WorkspaceList{}); err != nil || h.seen[0].Grant != g.ID {
				t.Errorf("the next request: %+v, %v", h.seen, err)
			}
		})
	}
}

func TestWatchRenews(t *testing.T) {
	d, h, p, g := nearEnd(t)
	ctx, cancel := context.WithCancel(t.Context())
	updates, err := d.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	relaytest.Eventually(t, "the watch's own link", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.links) == 2 && p.links[1].subs["grants"] != nil
	})
	p.add(h.sealGrant(g))
	if u := next(t, updates); u.Grant == nil || u.Grant.ID != g.ID {
		t.Errorf("update = %+v", u)
	}
	cancel()
	for range updates {
	}
	holds(t, d, p, g.ID)
}

// Whatever is not this grant with a later end is not taken, whoever signed it.
func TestRenewalsNotBelieved(t *testing.T) {
	stranger := newKey(t)
	for _, tt := range []struct {
		name string
		make func(h *host, g nip.Grant) *nip.Event
	}{
		{"other rights", func(h *host, g nip.Grant) *nip.Event { g.Rights = nip.StandardRights(); return h.sealGrant(g) }},
		{"another epoch", func(h *host, g nip.Grant) *nip.Event { g.Epoch++; return h.sealGrant(g) }},
		{"another relay", func(h *host, g nip.Grant) *nip.Event {
			g.Relay = "wss://elsewhere.example.com/"
			return h.sealGrant(g)
		}},
		{"another owner", func(h *host, g nip.Grant) *nip.Event { g.Owner = stranger.Public(); return h.sealGrant(g) }},
		{"another origin", func(h *host, g nip.Grant) *nip.Event { g.Origin.ID = newID(t); return h.sealGrant(g) }},
		{"no later end", func(h *host, g nip.Grant) *nip.Event { g.ExpiresAt = h.grant.ExpiresAt; return h.sealGrant(g) }},
		{"issued earlier", func(h *host, g nip.Grant) *nip.Event {
			g.IssuedAt = h.grant.IssuedAt - 1
			return h.sealGrant(g)
		}},
		{"another device", func(h *host, g nip.Grant) *nip.Event {
			to := g.Device
			g.Device = stranger.Public()
			a, _ := nip.EncodeGrant(g)
			return seal(t, h.key, to, nip.Mailbox(g.ID), a)
		}},
		{"a foreign mailbox", func(h *host, g nip.Grant) *nip.Event {
			a, _ := nip.EncodeGrant(g)
			return seal(t, h.key, g.Device, nip.Mailbox(newID(t)), a)
		}},
		{"a stranger's signature", func(h *host, g nip.Grant) *nip.Event {
			a, _ := nip.EncodeGrant(g)
			return seal(t, stranger, g.Device, nip.Mailbox(g.ID), a)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, h, p, g := nearEnd(t)
			v, err := nip.VerifyEvent(tt.make(h, g))
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := d.renew(v); ok {
				t.Error("taken")
			}
			holds(t, d, p, h.grant.ID)
		})
	}
}

// A write that fails keeps the old grant, which goes on working; the new one is
// taken when it is met again. Whatever the disk shows between is one of the two.
func TestRenewalCrash(t *testing.T) {
	d, h, p, g := nearEnd(t)
	v, err := nip.VerifyEvent(h.sealGrant(g))
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(d.dir, hostsFolder)
	if err := os.Chmod(folder, 0o755); err != nil { // refused by the profile's own check, as root too
		t.Fatal(err)
	}
	if _, ok := d.renew(v); ok {
		t.Error("taken without being kept")
	}
	if err := os.Chmod(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	holds(t, d, p, h.grant.ID)
	// What a crash leaves beside the record is no record.
	if err := atomicfile.Write(filepath.Join(folder, ".x.tmp-00"), []byte("half")); err != nil {
		t.Fatal(err)
	}
	if _, ok := d.renew(v); !ok {
		t.Error("not taken the second time")
	}
	holds(t, d, p, g.ID)
}

// Two processes of one profile: the later end stays, and both come to hold it.
func TestRenewalOfTwoProcesses(t *testing.T) {
	d, h, p, first := nearEnd(t)
	other := reopen(t, d, p)
	second := first
	second.ID, second.ExpiresAt = nip.GrantID(newID(t)), first.ExpiresAt+60
	for _, step := range []struct {
		d *Device
		g nip.Grant
	}{{other, second}, {d, first}} {
		v, err := nip.VerifyEvent(h.sealGrant(step.g))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := step.d.renew(v); !ok || got.ID != second.ID {
			t.Errorf("renewed to %s, %v; want %s", got.ID, ok, second.ID)
		}
	}
	holds(t, d, p, second.ID)
	third := reopen(t, d, p)
	third.access.grant = h.grant // as if it had been open since before
	if _, err := third.Call(t.Context(), nip.WorkspaceList{}); err != nil || h.seen[len(h.seen)-1].Grant != second.ID {
		t.Errorf("a process that slept over the renewal: %v", err)
	}
	if ok, err := other.Forget(h.key.Public()); !ok || err != nil {
		t.Fatal(err)
	}
	later := second
	later.ID, later.ExpiresAt = nip.GrantID(newID(t)), second.ExpiresAt+60
	v, _ := nip.VerifyEvent(h.sealGrant(later))
	if _, ok := d.renew(v); ok {
		t.Error("a renewal brought back a forgotten host")
	}
	if _, err := Open(d.dir, Options{Log: zerolog.Nop(), Host: string(h.key.Public())}); !errors.Is(err, ErrNotPaired) {
		t.Errorf("forgotten: %v", err)
	}
}

// Long before the end nothing is asked for.
func TestRenewalNotDue(t *testing.T) {
	d, h, p := paired(t)
	before := p.reqs
	if _, err := d.Call(t.Context(), nip.WorkspaceList{}); err != nil {
		t.Fatal(err)
	}
	if n := p.reqs - before; n != 1 {
		t.Errorf("%d subscriptions for one call", n)
	}
	pr, err := d.peer()
	if err != nil {
		t.Fatal(err)
	}
	sub := d.renewals(pr.link, "early", h.key.Public())
	defer sub.Close()
	select {
	case del, ok := <-sub.C():
		t.Errorf("delivered %v, %v", del.Event.Event(), ok)
	case <-sub.EOSE():
	}
}
