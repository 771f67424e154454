package client

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// twoHosts is a profile that is paired with two hosts, and closed.
func twoHosts(t *testing.T) (dir string, a, b *host, p *paper) {
	t.Helper()
	d, a, p := paired(t)
	b = newHost(t, paperURL)
	p.host = b.serve
	if _, err := d.Pair(t.Context(), b.code(b.invitation())); err != nil {
		t.Fatal(err)
	}
	if g, _ := d.Grant(); g.Host != b.key.Public() {
		t.Fatalf("after pairing with the second the device is turned to %s", g.Host)
	}
	b.op = func(nip.Request) (nip.Outcome, *nip.Refusal) { return nip.Workspaces{}, nil }
	d.Close()
	return d.dir, a, b, p
}

func openAt(t *testing.T, dir, host string, p *paper) (*Device, error) {
	t.Helper()
	d, err := Open(dir, Options{Log: zerolog.Nop(), Host: host})
	if err == nil {
		d.dial = p.dial
		t.Cleanup(func() { d.Close() })
	}
	return d, err
}

func TestSeveralHosts(t *testing.T) {
	dir, a, b, p := twoHosts(t)
	none, err := openAt(t, dir, "", p)
	if err != nil {
		t.Fatal(err)
	}
	var choice *ChoiceError
	for name, err := range map[string]error{
		"call":    func() error { _, err := none.Call(t.Context(), nip.WorkspaceList{}); return err }(),
		"resend":  none.Resend(t.Context()),
		"refresh": none.Refresh(t.Context()),
		"known":   func() error { _, _, err := none.Known(nip.TaskID(newID(t))); return err }(),
	} {
		if !errors.As(err, &choice) || len(choice.Hosts) != 2 {
			t.Errorf("%s without a choice: %v", name, err)
		}
	}
	list, err := none.Hosts()
	if err != nil || len(list) != 2 || list[0].Err != nil || list[1].Err != nil || list[0].Grant.Host != list[0].Host {
		t.Errorf("hosts = %+v, %v", list, err)
	}
	for _, h := range []*host{a, b} {
		p.mu.Lock()
		p.host, h.seen = h.serve, nil
		p.mu.Unlock()
		d, err := openAt(t, dir, string(h.key.Public())[:16], p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Call(t.Context(), nip.WorkspaceList{}); err != nil {
			t.Errorf("call: %v", err)
		}
		if len(h.seen) != 1 || h.seen[0].Host != h.key.Public() || h.seen[0].Grant != h.grant.ID {
			t.Errorf("the named host saw %+v", h.seen)
		}
	}
	if _, err := openAt(t, dir, "zz", p); !errors.Is(err, ErrNotPaired) {
		t.Errorf("an unknown host: %v", err)
	}
}

func TestChoose(t *testing.T) {
	hosts := []nip.PubKey{"0a11" + nip.PubKey(strings.Repeat("0", 60)), "0a22" + nip.PubKey(strings.Repeat("0", 60))}
	var choice *ChoiceError
	for _, tt := range []struct {
		name  string
		hosts []nip.PubKey
		want  string
		host  nip.PubKey
		fit   int // of a ChoiceError
	}{
		{"none", nil, "", "", 0},
		{"the only one", hosts[:1], "", hosts[0], 0},
		{"two", hosts, "", "", 2},
		{"a beginning of one", hosts, "0a2", hosts[1], 0},
		{"a beginning of both", hosts, "0a", "", 2},
		{"a whole key", hosts, string(hosts[0]), hosts[0], 0},
	} {
		got, err := choose(tt.hosts, tt.want)
		switch {
		case tt.fit > 0:
			if !errors.As(err, &choice) || len(choice.Hosts) != tt.fit {
				t.Errorf("%s: %v", tt.name, err)
			}
		case err != nil || got != tt.host:
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
	}
	if _, err := choose(hosts, "0b"); !errors.Is(err, ErrNotPaired) {
		t.Errorf("no fit: %v", err)
	}
}

// What is damaged of one host costs the others nothing, and says so itself.
func TestHostsAreIndependent(t *testing.T) {
	dir, a, b, p := twoHosts(t)
	path := filepath.Join(dir, recordPath(a.key.Public()))
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openAt(t, dir, string(a.key.Public()), p); !errors.Is(err, ErrDamaged) {
		t.Errorf("the damaged one: %v", err)
	}
	d, err := openAt(t, dir, string(b.key.Public()), p)
	if err != nil {
		t.Fatal(err)
	}
	list, err := d.Hosts()
	i := slices.IndexFunc(list, func(r HostRecord) bool { return r.Host == a.key.Public() })
	if err != nil || len(list) != 2 || i < 0 || !errors.Is(list[i].Err, ErrDamaged) || list[1-i].Err != nil {
		t.Errorf("hosts = %+v, %v", list, err)
	}
	// One host's record under another's name proves nothing either.
	raw, err := os.ReadFile(filepath.Join(dir, recordPath(b.key.Public())))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openAt(t, dir, string(a.key.Public()), p); !errors.Is(err, ErrDamaged) {
		t.Errorf("a record of another host: %v", err)
	}
	if ok, err := d.Forget(a.key.Public()); !ok || err != nil {
		t.Fatalf("forget: %v, %v", ok, err)
	}
	if ok, err := d.Forget(a.key.Public()); ok || err != nil {
		t.Errorf("forget again: %v, %v", ok, err)
	}
	if d, err := openAt(t, dir, "", p); err != nil || d.access == nil || d.access.grant.Host != b.key.Public() {
		t.Errorf("the one that is left: %v", err)
	}
}

// The clock and a person's word about loopback are of one host.
func TestHostsKeepTheirOwn(t *testing.T) {
	d, a, p := paired(t)
	d.learn(func(c *clock) { *c = clock{Known: true, Offset: 4000} })
	b := newHost(t, "ws://127.0.0.1:7447/")
	p.host = b.serve
	d.o.Loopback = true
	b.op = func(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, &nip.Refusal{Code: nip.Forbidden} }
	if _, err := d.Pair(t.Context(), b.code(b.invitation())); err == nil {
		t.Fatal("paired in spite of the refusal")
	}
	if d.ClockOffset() != 4000e9 {
		t.Errorf("a failed pairing left the clock of another host: %s", d.ClockOffset())
	}
	b.op = nil
	if _, err := d.Pair(t.Context(), b.code(b.invitation())); err != nil {
		t.Fatal(err)
	}
	if off := d.ClockOffset(); off > 5e9 || off < -5e9 {
		t.Errorf("clock of the first host after pairing with the second: %s", off)
	}
	if d, err := openAt(t, d.dir, string(a.key.Public()), p); err != nil || d.ClockOffset() != 4000e9 {
		t.Errorf("the first host: %v", err)
	}
	if _, err := openAt(t, d.dir, string(b.key.Public()), p); err != nil {
		t.Errorf("the word for the second host was not kept: %v", err)
	}
}

// A profile of one host, as an earlier version left it, moves once.
func TestMigrate(t *testing.T) {
	const url = "ws://127.0.0.1:7447/"
	p := &paper{}
	h := newHost(t, url)
	p.host = h.serve
	d := opened(t, filepath.Join(t.TempDir(), "profile"), p)
	d.o.Loopback = true
	if _, err := d.Pair(t.Context(), h.code(h.invitation())); err != nil {
		t.Fatal(err)
	}
	host := h.key.Public()
	record, old := filepath.Join(d.dir, recordPath(host)), filepath.Join(d.dir, oldAccessFile)
	raw, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	back := func() {
		t.Helper()
		err := d.store.update(func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucketMeta)
			return errors.Join(b.Delete(metaKey(metaClock, host)), b.Delete(metaKey(metaLoopback, host)),
				b.Put(oldMetaLoopback, []byte{1}), b.Put(oldMetaClock, []byte(`{"known":true,"offset":77,"suspect":false}`)))
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(old, raw, 0o600), os.RemoveAll(filepath.Dir(record))); err != nil {
			t.Fatal(err)
		}
	}
	back()
	for range 2 {
		n, err := openAt(t, d.dir, "", p)
		if err != nil {
			t.Fatal(err)
		}
		if g, ok := n.Grant(); !ok || g.ID != h.grant.ID || n.ClockOffset() != 77e9 {
			t.Errorf("after moving: %+v, %v, %s", g, ok, n.ClockOffset())
		}
		if _, err := os.Lstat(old); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the old name is there: %v", err)
		}
	}
	// A crash after the new name and before the old one is gone.
	if err := os.WriteFile(old, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openAt(t, d.dir, "", p); err != nil {
		t.Errorf("both names: %v", err)
	}
	// An old record does not take the place of one that ends later.
	later := h.grant
	later.ID, later.ExpiresAt = nip.GrantID(newID(t)), later.ExpiresAt+100
	a, err := admit(h.sealGrant(later), d.key, nip.Profile{Loopback: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(writeRecord(d.dir, a), os.WriteFile(old, raw, 0o600)); err != nil {
		t.Fatal(err)
	}
	if n, err := openAt(t, d.dir, "", p); err != nil || n.access.grant.ID != later.ID {
		t.Errorf("the older record won: %v", err)
	}
	// What proves nothing is not moved.
	back()
	if err := os.WriteFile(old, []byte(strings.Replace(string(raw), `"epoch":0`, `"epoch":1`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openAt(t, d.dir, "", p); !errors.Is(err, ErrDamaged) {
		t.Errorf("a damaged old record: %v", err)
	}
	// Nor is one whose relay nobody gave a word for.
	back()
	if err := d.store.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Delete(oldMetaLoopback) }); err != nil {
		t.Fatal(err)
	}
	if _, err := openAt(t, d.dir, "", p); !errors.Is(err, ErrDamaged) {
		t.Errorf("a loopback relay without the word: %v", err)
	}
}
