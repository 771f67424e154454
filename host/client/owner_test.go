package client

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"holdfast/nip"
)

// elsewhere is a key that another program holds; a set hook comes before the
// honest part and ends it with an error.
type elsewhere struct {
	nip.Keeper
	mu                     sync.Mutex // guards the hooks and calls
	sign, encrypt, decrypt func(ctx context.Context) error
	forge                  func(ev *nip.Event) error // instead of the honest signature
	calls                  []string
}

func (k *elsewhere) hook(ctx context.Context, name string, of func() func(context.Context) error) error {
	k.mu.Lock()
	k.calls = append(k.calls, name)
	fn := of()
	k.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(ctx)
}

func (k *elsewhere) Sign(ctx context.Context, ev *nip.Event) error {
	if err := k.hook(ctx, "sign", func() func(context.Context) error { return k.sign }); err != nil {
		return err
	}
	if k.forge != nil {
		return k.forge(ev)
	}
	return k.Keeper.Sign(ctx, ev)
}

func (k *elsewhere) Encrypt(ctx context.Context, peer nip.PubKey, text string) (string, error) {
	if err := k.hook(ctx, "encrypt", func() func(context.Context) error { return k.encrypt }); err != nil {
		return "", err
	}
	return k.Keeper.Encrypt(ctx, peer, text)
}

func (k *elsewhere) Decrypt(ctx context.Context, peer nip.PubKey, payload string) (string, error) {
	if err := k.hook(ctx, "decrypt", func() func(context.Context) error { return k.decrypt }); err != nil {
		return "", err
	}
	return k.Keeper.Decrypt(ctx, peer, payload)
}

// owning is a device that acts as the owner of a scripted host; k is nil where
// the key is the profile's own.
func owning(t *testing.T, held bool) (d *Device, h *host, p *paper, k *elsewhere) {
	t.Helper()
	p = &paper{}
	h = newHost(t, paperURL)
	p.host = h.serve
	h.op = func(r nip.Request) (nip.Outcome, *nip.Refusal) {
		if out := dispatched(r); out != nil {
			return out, nil
		}
		return nip.Workspaces{Workspaces: []nip.Label{"demo"}}, nil
	}
	dir := filepath.Join(t.TempDir(), "profile")
	var err error
	if held {
		k = &elsewhere{Keeper: nip.Keep(h.owner)}
		d, err = Init(dir, Options{Log: zerolog.Nop(), Keeper: k})
	} else {
		d, err = InitKey(dir, h.owner, Options{Log: zerolog.Nop()})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	d.dial = p.dial
	if err := d.Own(t.Context(), h.key.Public(), paperURL); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.taken, p.stored = nil, nil
	p.mu.Unlock()
	h.seen = nil
	return d, h, p, k
}

// The owner asks without a grant and may do all of it, wherever the key is; the
// profile opens again as the owner, and holds no secret that is elsewhere.
func TestOwner(t *testing.T) {
	for name, held := range map[string]bool{"key here": false, "key elsewhere": true} {
		t.Run(name, func(t *testing.T) {
			d, h, p, k := owning(t, held)
			if held {
				k.calls = nil
			}
			if _, err := d.Call(t.Context(), nip.WorkspaceList{}); err != nil {
				t.Fatal(err)
			}
			if held && strings.Join(k.calls, " ") != "encrypt sign decrypt" {
				t.Errorf("the signer was asked to %v", k.calls)
			}
			if _, out, err := d.Command(t.Context(), command(t, nip.Send, "words")); err != nil || out == nil {
				t.Errorf("command: %v, %v", out, err)
			}
			task, err := d.Create(t.Context(), nip.TaskCreate{Workspace: "demo", Title: "t", Prompt: "p"})
			if err != nil || !nip.ValidID(string(task)) {
				t.Errorf("create: %q, %v", task, err)
			}
			for _, r := range h.seen {
				if r.Grant != "" || r.Epoch != -1 || r.Relay != paperURL || r.Host != h.key.Public() {
					t.Errorf("asked with %+v", r)
				}
			}
			if rows, err := d.Outbox(); err != nil || len(rows) != 0 {
				t.Errorf("outbox %v, %v", rows, err)
			}
			if _, ok := d.Grant(); ok {
				t.Error("an owner has a grant")
			}
			var owner *OwnerError
			if _, err := d.Watch(t.Context()); !errors.As(err, &owner) {
				t.Errorf("watch: %v", err)
			}
			if err := d.Refresh(t.Context()); !errors.As(err, &owner) {
				t.Errorf("refresh: %v", err)
			}
			if err := d.RefreshCommands(t.Context()); errors.As(err, &owner) != held || err != nil && !held {
				t.Errorf("refresh of commands: %v", err)
			}
			if held {
				if _, err := d.Pair(t.Context(), h.code(h.invitation())); !errors.As(err, &owner) {
					t.Errorf("pair: %v", err)
				}
			}
			n, err := Open(d.dir, Options{Log: zerolog.Nop(), Keeper: d.o.Keeper, Host: string(h.key.Public())[:8]})
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			n.dial = p.dial
			if o, ok := n.Owned(); !ok || o.Host != h.key.Public() || o.Owner != h.owner.Public() || o.Relay != paperURL {
				t.Errorf("opened as %+v, %v", o, ok)
			}
			if _, err := n.Call(t.Context(), nip.WorkspaceList{}); err != nil {
				t.Errorf("opened again: %v", err)
			}
			list, err := n.Hosts()
			if err != nil || len(list) != 1 || !list[0].Owner || list[0].Relay != paperURL || list[0].Err != nil {
				t.Errorf("hosts %+v, %v", list, err)
			}
			if held {
				noSecret(t, d.dir, h.owner)
			}
			if ok, err := n.Forget(h.key.Public()); !ok || err != nil {
				t.Errorf("forget: %v, %v", ok, err)
			}
			if _, err := n.Call(t.Context(), nip.WorkspaceList{}); !errors.Is(err, ErrNotPaired) {
				t.Errorf("after forget: %v", err)
			}
		})
	}
}

func noSecret(t *testing.T, dir string, key nip.SecretKey) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), key.Hex()) {
			t.Errorf("%s holds the secret", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Who does not own the host, or gets no answer, does not become its owner.
func TestOwnRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &paper{}
		h := newHost(t, paperURL)
		p.host = h.serve
		d := opened(t, filepath.Join(t.TempDir(), "profile"), p)
		h.op = func(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, &nip.Refusal{Code: nip.Forbidden} }
		var refused *Refused
		if err := d.Own(t.Context(), h.key.Public(), paperURL); !errors.As(err, &refused) || refused.Code != nip.Forbidden {
			t.Errorf("not the owner: %v", err)
		}
		h.op = func(nip.Request) (nip.Outcome, *nip.Refusal) { return nil, nil }
		if err := d.Own(t.Context(), h.key.Public(), paperURL); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("silence: %v", err)
		}
		if err := d.Own(t.Context(), h.key.Public(), "ws://127.0.0.1:7447/"); err == nil || errors.Is(err, ErrNoAnswer) {
			t.Errorf("a plain relay without a word: %v", err)
		}
		if err := d.Own(t.Context(), d.PubKey(), paperURL); err == nil {
			t.Error("owns itself")
		}
		if list, err := d.Hosts(); err != nil || len(list) != 0 {
			t.Errorf("hosts %v, %v", list, err)
		}
		h.op = nil
		if _, err := d.Pair(t.Context(), h.code(h.invitation())); err != nil {
			t.Fatal(err)
		}
		var owner *OwnerError
		if err := d.Own(t.Context(), h.key.Public(), paperURL); !errors.As(err, &owner) {
			t.Errorf("paired already: %v", err)
		}
	})
}

// A signer that does not do its part is a clear error, nothing leaves, and
// nothing of it waits to be sent later.
func TestSignerSendsNothing(t *testing.T) {
	no := errors.New("not today")
	other := newKey(t)
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for _, tt := range []struct {
		name, words string
		set         func(k *elsewhere, owner nip.SecretKey)
	}{
		{"refuses to encrypt", "not today", func(k *elsewhere, _ nip.SecretKey) { k.encrypt = func(context.Context) error { return no } }},
		{"refuses to sign", "not today", func(k *elsewhere, _ nip.SecretKey) { k.sign = func(context.Context) error { return no } }},
		{"hangs", "deadline", func(k *elsewhere, _ nip.SecretKey) { k.encrypt = hang }},
		{"hangs at the signature", "deadline", func(k *elsewhere, _ nip.SecretKey) { k.sign = hang }},
		{"signs with another key", "another key", func(k *elsewhere, _ nip.SecretKey) { k.forge = func(ev *nip.Event) error { return other.Sign(ev) } }},
		{"alters the event", "another event", func(k *elsewhere, owner nip.SecretKey) {
			k.forge = func(ev *nip.Event) error { ev.CreatedAt--; return owner.Sign(ev) }
		}},
		{"signs too late each time", "in time", func(k *elsewhere, _ nip.SecretKey) {
			k.sign = func(context.Context) error { time.Sleep(50 * time.Second); return nil }
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, h, p, k := owning(t, true)
				tt.set(k, h.owner)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				check := func(what string, err error) {
					t.Helper()
					var signer *nip.KeeperError
					if !errors.As(err, &signer) || errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), tt.words) {
						t.Errorf("%s: %v", what, err)
					}
				}
				_, err := d.Call(ctx, nip.DeviceRevoke{Device: other.Public()})
				check("call", err)
				_, _, err = d.Command(ctx, command(t, nip.Send, "words"))
				check("command", err)
				_, err = d.Create(ctx, nip.TaskCreate{Workspace: "demo", Title: "t", Prompt: "p"})
				check("create", err)
				if n := len(p.published()); n != 0 {
					t.Errorf("%d events left", n)
				}
				if rows, err := d.Outbox(); err != nil || len(rows) != 0 {
					t.Errorf("outbox %+v, %v", rows, err)
				}
				// A command that somebody named is known elsewhere, and stays.
				named := command(t, nip.Send, "words")
				named.ID = nip.CommandID(newID(t))
				_, _, err = d.Command(ctx, named)
				check("named command", err)
				if rows, err := d.Outbox(); err != nil || len(rows) != 1 || rows[0].Foreign {
					t.Errorf("outbox %+v, %v", rows, err)
				}
			})
		})
	}
}

// What a person agreed to too late is minted anew, never sent under the old ID.
func TestSlowSignerMintsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, h, p, k := owning(t, true)
		var waited atomic.Int32 // said on a timer's goroutine
		d.hold = patient{Keeper: k, waiting: func() { waited.Add(1) }}
		slow := 45 * time.Second
		k.sign = func(context.Context) error { time.Sleep(slow); slow = 0; return nil }
		task, err := d.Create(t.Context(), nip.TaskCreate{Workspace: "demo", Title: "t", Prompt: "p"})
		if err != nil {
			t.Fatal(err)
		}
		sent := p.published()
		if len(sent) != 1 || len(h.seen) != 1 || string(h.seen[0].ID) != string(task) {
			t.Fatalf("%d events, requests %+v, task %s", len(sent), h.seen, task)
		}
		if left := h.seen[0].ExpiresAt - time.Now().Unix(); left < 55 {
			t.Errorf("sent with %d s left", left)
		}
		if n := waited.Load(); n != 1 {
			t.Errorf("said %d times that it waits", n)
		}
	})
}

// A reply that came in time is an answer, however late somebody agrees to read
// it; a refusal to read it leaves the outcome unknown, and asks nobody again.
func TestSignerReadsReplies(t *testing.T) {
	t.Run("late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, _, p, k := owning(t, true)
			k.decrypt = func(ctx context.Context) error { pause(ctx, 90*time.Second); return ctx.Err() }
			if _, err := d.Call(t.Context(), nip.WorkspaceList{}); err != nil || len(p.published()) != 1 {
				t.Errorf("%d events, %v", len(p.published()), err)
			}
		})
	})
	t.Run("not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, _, p, k := owning(t, true)
			k.decrypt = func(context.Context) error { return errors.New("not today") }
			k.calls = nil
			_, _, err := d.Command(t.Context(), command(t, nip.Send, "words"))
			var signer *nip.KeeperError
			if !errors.Is(err, ErrNoAnswer) || !errors.As(err, &signer) {
				t.Errorf("err = %v", err)
			}
			if n := strings.Count(strings.Join(k.calls, " "), "decrypt"); n != 1 || len(p.published()) != 1 {
				t.Errorf("asked %d times, %d events", n, len(p.published()))
			}
			if rows, err := d.Outbox(); err != nil || len(rows) != 1 {
				t.Errorf("outbox %+v, %v", rows, err)
			}
		})
	})
}

// A key elsewhere and a key here do not share a profile.
func TestProfileHasOneKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "profile")
	first, err := Init(dir, Options{Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	key := newKey(t)
	if d, err := Init(dir, Options{Log: zerolog.Nop(), Keeper: nip.Keep(key)}); err == nil {
		d.Close()
		t.Error("a second key, elsewhere")
	}
	if d, err := InitKey(dir, key, Options{Log: zerolog.Nop()}); err == nil {
		d.Close()
		t.Error("a second key, here")
	}
	if _, err := InitBunker(t.Context(), dir, "bunker://"+string(key.Public())+"?relay=wss://relay.example.com/", Options{Log: zerolog.Nop()}); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("a bunker: %v", err)
	}
	if d, err := InitKey(dir, first.key, Options{Log: zerolog.Nop()}); err != nil {
		t.Errorf("the same key again: %v", err)
	} else {
		d.Close()
	}
}

// An owner's record that is not of this host and this key proves nothing.
func TestOwnerRecord(t *testing.T) {
	host, self, other := newKey(t).Public(), newKey(t).Public(), newKey(t).Public()
	record := func(v string, host, owner nip.PubKey, url string) string {
		return `{"v":"` + v + `","host":"` + string(host) + `","owner":"` + string(owner) + `","relay":"` + url + `"}`
	}
	for _, tt := range []struct {
		name, raw string
		loopback  bool
		want      error
	}{
		{"good", record(ownerVersion, host, self, string(paperURL)), false, nil},
		{"a plain relay with a word", record(ownerVersion, host, self, "ws://127.0.0.1:7447/"), true, nil},
		{"a plain relay without", record(ownerVersion, host, self, "ws://127.0.0.1:7447/"), false, ErrDamaged},
		{"another key", record(ownerVersion, host, other, string(paperURL)), false, ErrDamaged},
		{"another host", record(ownerVersion, other, self, string(paperURL)), false, ErrDamaged},
		{"a later version", record("holdfast.device-owner.v2", host, self, string(paperURL)), false, ErrNewer},
		{"another member", strings.Replace(record(ownerVersion, host, self, string(paperURL)), `{`, `{"x":1,`, 1), false, ErrDamaged},
		{"nothing", "", false, ErrDamaged},
	} {
		a, err := parseOwner([]byte(tt.raw), host, self, nip.Profile{Loopback: tt.loopback})
		if !errors.Is(err, tt.want) || err == nil && (a.grant.Host != host || !a.owner) {
			t.Errorf("%s: %+v, %v", tt.name, a, err)
		}
	}
}

// FuzzOwner: whatever stands in an owner's record, it is one or a fault.
func FuzzOwner(f *testing.F) {
	host := nip.PubKey("79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798")
	self := nip.PubKey("c6047f9441ed7d6d3045406e95c07cd85c778e4b8cef3ca7abac09b95c709ee5")
	good := `{"v":"holdfast.device-owner.v1","host":"` + string(host) + `","owner":"` + string(self) + `","relay":"wss://relay.example.com/"}`
	for _, s := range []string{good, strings.Replace(good, "v1", "v2", 1), strings.Replace(good, "wss", "ws", 1), good + "x", `{}`,
		strings.Replace(good, `"v"`, `"w":1,"v"`, 1), strings.Replace(good, string(self), string(host), 1)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := parseOwner(raw, host, self, nip.Profile{})
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
				t.Fatal(err)
			}
			return
		}
		if g := a.grant; !a.owner || g.Host != host || g.Owner != self || nip.CheckRelay(g.Relay, false) != nil {
			t.Fatalf("%+v", g)
		}
	})
}

// The host publishes to its owner what became of the owner's commands; what
// another key says of them is not believed.
func TestOwnersCommands(t *testing.T) {
	d, h, p, _ := owning(t, false)
	c, _, err := d.Command(t.Context(), command(t, nip.Queue, "words"))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	p.add(h.sealStates(newKey(t), d.PubKey(), h.states(string(c.Task), 9, now, inState(string(c.ID), "removed"))))
	p.add(h.sealStates(h.key, d.PubKey(), h.states(string(c.Task), 9, now, held(string(c.ID), 3))))
	state := func() string {
		t.Helper()
		if err := d.RefreshCommands(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, err := d.Commands(c.Task)
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[0].State
	}
	if got := state(); got != "held" {
		t.Errorf("the command is %s", got)
	}
	p.add(h.sealStates(h.key, d.PubKey(), h.states(string(c.Task), 10, now+1, inState(string(c.ID), "applied"))))
	if got := state(); got != "applied" {
		t.Errorf("the command is %s", got)
	}
}
