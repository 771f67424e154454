package client

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"

	"holdfast/nip"
)

func TestPair(t *testing.T) {
	p := &paper{}
	h := newHost(t, paperURL)
	p.host = h.serve
	d := opened(t, filepath.Join(t.TempDir(), "profile"), p)
	if _, ok := d.Grant(); ok {
		t.Fatal("a new device has a grant")
	}
	inv := h.invitation()
	g, err := d.Pair(t.Context(), h.code(inv))
	if err != nil {
		t.Fatal(err)
	}
	if g.Device != d.PubKey() || g.Host != h.key.Public() || g.Origin.ID != string(inv.ID) {
		t.Errorf("grant = %+v", g)
	}
	r := h.seen[0]
	if op := r.Op.(nip.EnrollRedeem); op.Invitation != inv.ID || op.Capability != inv.Capability || r.Grant != "" || r.Epoch != -1 {
		t.Errorf("redemption = %+v", r)
	}
	if r.ExpiresAt > inv.ExpiresAt || r.Relay != inv.Relay {
		t.Errorf("redemption outside its invitation: %+v", r)
	}
	if got, ok := reopen(t, d, p).Grant(); !ok || got.ID != g.ID {
		t.Errorf("after reopening: %+v, %v", got, ok)
	}
	for _, name := range []string{keyFile, recordPath(g.Host), storeFile} {
		st, err := os.Stat(filepath.Join(d.dir, name))
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	raw, err := os.ReadFile(filepath.Join(d.dir, recordPath(g.Host)))
	if err != nil || strings.Contains(string(raw), inv.Capability) {
		t.Errorf("the capability is in the access record (%v)", err)
	}
}

// A grant that is not exactly what the invitation promised is not kept, though
// the host's reply that carries it is perfect.
func TestPairRefusesGrants(t *testing.T) {
	foreign := newKey(t)
	tests := []struct {
		name string
		make func(h *host, dev nip.PubKey, inv nip.InvitationID) *nip.Event
	}{
		{"signed by another key", func(h *host, dev nip.PubKey, inv nip.InvitationID) *nip.Event {
			a, _ := nip.EncodeGrant(h.newGrant(dev, inv))
			return seal(t, foreign, dev, nip.Mailbox(newID(t)), a)
		}},
		{"naming another host", func(h *host, dev nip.PubKey, inv nip.InvitationID) *nip.Event {
			g := h.newGrant(dev, inv)
			g.Host = foreign.Public()
			return h.sealGrant(g)
		}},
		{"for another device", func(h *host, dev nip.PubKey, inv nip.InvitationID) *nip.Event {
			g := h.newGrant(foreign.Public(), inv)
			a, _ := nip.EncodeGrant(g)
			return seal(t, h.key, dev, nip.Mailbox(g.ID), a)
		}},
		{"sealed to another device", func(h *host, dev nip.PubKey, inv nip.InvitationID) *nip.Event {
			return h.sealGrant(h.newGrant(foreign.Public(), inv))
		}},
		{"in a foreign mailbox", func(h *host, dev nip.PubKey, inv nip.InvitationID) *nip.Event {
			a, _ := nip.EncodeGrant(h.newGrant(dev, inv))
			return seal(t, h.key, dev, nip.Mailbox(newID(t)), a)
		}},
		{"from another invitation", func(h *host, dev nip.PubKey, _ nip.InvitationID) *nip.Event {
			return h.sealGrant(h.newGrant(dev, nip.InvitationID(newID(t))))
		}},
		{"from an approval", func(h *host, dev nip.PubKey, inv nip.InvitationID) *nip.Event {
			g := h.newGrant(dev, inv)
			g.Origin.Kind = "approval"
			return h.sealGrant(g)
		}},
		{"over another relay", func(h *host, dev nip.PubKey, inv nip.InvitationID) *nip.Event {
			g := h.newGrant(dev, inv)
			g.Relay = "wss://elsewhere.example.com/"
			return h.sealGrant(g)
		}},
		{"that has expired", func(h *host, dev nip.PubKey, inv nip.InvitationID) *nip.Event {
			g := h.newGrant(dev, inv)
			g.IssuedAt, g.ExpiresAt = g.IssuedAt-100, g.IssuedAt-10
			return h.sealGrant(g)
		}},
		{"that is no grant", func(h *host, dev nip.PubKey, inv nip.InvitationID) *nip.Event {
			a, _ := nip.EncodeSummary(nip.Summary{Host: h.key.Public(), Task: nip.TaskID(newID(t)), Phase: nip.PhaseQueued,
				Headline: "Task queued", Attention: "none", UpdatedAt: h.now().Unix()})
			return seal(t, h.key, dev, nip.Mailbox(newID(t)), a)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &paper{}
				h := newHost(t, paperURL)
				p.host = h.serve
				d := opened(t, filepath.Join(t.TempDir(), "profile"), p)
				h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) {
					return nip.Granted{Authorization: tt.make(h, d.PubKey(), r.Op.(nip.EnrollRedeem).Invitation)}, nil
				}
				if _, err := d.Pair(t.Context(), h.code(h.invitation())); err == nil {
					t.Fatal("paired")
				}
				if _, ok := d.Grant(); ok {
					t.Error("the grant was taken")
				}
				if _, err := os.Stat(filepath.Join(d.dir, hostsFolder)); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("access record: %v", err)
				}
			})
		})
	}
}

// A plain relay on this computer needs a person's word, which is kept.
func TestPairLoopback(t *testing.T) {
	const url = "ws://127.0.0.1:7447/"
	p := &paper{}
	h := newHost(t, url)
	p.host = h.serve
	dir := filepath.Join(t.TempDir(), "profile")
	d := opened(t, dir, p)
	if _, err := d.Pair(t.Context(), h.code(h.invitation())); err == nil || len(p.published()) != 0 {
		t.Fatalf("a scanned string allowed a plain relay (err %v)", err)
	}
	d.o.Loopback = true
	if _, err := d.Pair(t.Context(), h.code(h.invitation())); err != nil {
		t.Fatal(err)
	}
	n, err := Open(dir, Options{Log: zerolog.Nop()})
	if err != nil {
		t.Fatalf("the word was not kept: %v", err)
	}
	n.Close()
	if err := d.store.putLoopback(h.key.Public(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{Log: zerolog.Nop()}); !errors.Is(err, ErrDamaged) {
		t.Errorf("without the word: %v", err)
	}
}

// A refused redemption is a typed refusal, an expired code costs no bytes.
func TestPairRefused(t *testing.T) {
	p := &paper{}
	h := newHost(t, paperURL)
	p.host = h.serve
	h.op = func(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, &nip.Refusal{Code: nip.Forbidden} }
	d := opened(t, filepath.Join(t.TempDir(), "profile"), p)
	var refused *Refused
	if _, err := d.Pair(t.Context(), h.code(h.invitation())); !errors.As(err, &refused) || refused.Code != nip.Forbidden {
		t.Errorf("err = %v", err)
	}
	sent := len(p.published())
	old := h.invitation()
	old.IssuedAt, old.ExpiresAt = old.IssuedAt-400, old.ExpiresAt-400
	var fault *nip.Error
	if _, err := d.Pair(t.Context(), h.code(old)); !errors.As(err, &fault) || fault.Code != nip.Expired {
		t.Errorf("old code: %v", err)
	}
	if _, err := d.Pair(t.Context(), strings.Replace(h.code(h.invitation()), "coder-host:", "coder-pair:", 1)); err == nil {
		t.Error("an observer's code paired a device")
	}
	if len(p.published()) != sent {
		t.Error("a bad code sent something")
	}
}

// A stranger who can write access.json cannot sign a grant of the host.
func TestAdmitWantsTheHost(t *testing.T) {
	d, h, _ := paired(t)
	g := h.newGrant(d.PubKey(), nip.InvitationID(newID(t)))
	a, err := nip.EncodeGrant(g)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admit(seal(t, h.key, d.PubKey(), nip.Mailbox(g.ID), a), d.key, nip.Profile{}); err != nil {
		t.Fatalf("the host's own: %v", err)
	}
	if _, err := admit(seal(t, newKey(t), d.PubKey(), nip.Mailbox(g.ID), a), d.key, nip.Profile{}); err == nil {
		t.Error("a stranger's grant was admitted")
	}
}

// Whatever is changed in the access record, it no longer opens, and never as
// something smaller or larger.
func TestAccessTampered(t *testing.T) {
	d, h, _ := paired(t)
	path := filepath.Join(d.dir, recordPath(h.key.Public()))
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other := h.sealGrant(h.newGrant(d.PubKey(), nip.InvitationID(newID(t))))
	rep := func(old, with string) []byte { return []byte(strings.Replace(string(good), old, with, 1)) }
	const outer = `"requires":[],"v":"openagents.host-access.v1"`
	tests := []struct {
		name string
		raw  []byte
		want error
	}{
		{"empty", nil, ErrDamaged},
		{"cut", good[:len(good)/2], ErrDamaged},
		{"trailing bytes", append(append([]byte{}, good...), "{}"...), ErrDamaged},
		{"more rights", rep(`"epoch":0`, `"epoch":1`), ErrDamaged},
		{"longer life", rep(`"expires_at":1`, `"expires_at":2`), ErrDamaged},
		{"another relay", rep("relay.example.com", "relay.example.org"), ErrDamaged},
		{"extra member", rep(outer, `"requires":[],"w":1,"v":"openagents.host-access.v1"`), ErrDamaged},
		{"duplicate member", rep(outer, `"requires":[],"requires":[],"v":"openagents.host-access.v1"`), ErrDamaged},
		{"required feature", rep(outer, `"requires":["x"],"v":"openagents.host-access.v1"`), ErrNewer},
		{"later version", rep(nip.SchemaAccess, "openagents.host-access.v2"), ErrNewer},
		{"another event of the host", rep(d.access.event.Content, other.Content), ErrDamaged},
		{"extra member of the grant", rep(`"requires":[]`, `"requires":[],"w":1`), ErrDamaged},
		{"no grant", rep(`"grant":`, `"grand":`), ErrDamaged},
		{"null", []byte("null"), ErrDamaged},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if string(tt.raw) == string(good) {
				t.Fatal("the row changes nothing")
			}
			if err := os.WriteFile(path, tt.raw, 0o600); err != nil {
				t.Fatal(err)
			}
			n, err := Open(d.dir, Options{Log: zerolog.Nop()})
			if err == nil {
				n.Close()
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("err = %v, want %v", err, tt.want)
			}
		})
	}
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := Open(d.dir, Options{Log: zerolog.Nop()})
	if err != nil {
		t.Fatalf("put back: %v", err)
	}
	n.Close()
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(d.dir, Options{Log: zerolog.Nop()}); err == nil {
		t.Error("a record that others may read was opened")
	}
}

// The profile's own files are held to the same: no new key beside an old
// record, no foreign record, no open folder.
func TestProfile(t *testing.T) {
	d, h, p := paired(t)
	again, err := Init(d.dir, Options{Log: zerolog.Nop()})
	if err != nil || again.PubKey() != d.PubKey() {
		t.Errorf("init again: %v", err)
	}
	again.Close()
	other := opened(t, filepath.Join(t.TempDir(), "other"), p)
	raw, err := os.ReadFile(filepath.Join(d.dir, recordPath(h.key.Public())))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(other.dir, hostsFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other.dir, recordPath(h.key.Public())), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(other.dir, Options{Log: zerolog.Nop()}); !errors.Is(err, ErrDamaged) {
		t.Errorf("another device's record: %v", err)
	}
	if err := os.Remove(filepath.Join(d.dir, keyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(d.dir, Options{Log: zerolog.Nop()}); !errors.Is(err, ErrNoKey) {
		t.Errorf("without a key: %v", err)
	}
	if _, err := Init(d.dir, Options{Log: zerolog.Nop()}); !errors.Is(err, ErrDamaged) {
		t.Errorf("a new key beside an old record: %v", err)
	}
	if err := os.Chmod(other.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(other.dir, Options{Log: zerolog.Nop()}); err == nil {
		t.Error("an open folder was used")
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), Options{Log: zerolog.Nop()}); !errors.Is(err, ErrNoKey) {
		t.Errorf("no folder: %v", err)
	}
}
