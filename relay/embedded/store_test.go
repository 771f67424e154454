package embedded_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/embedded"
	"holdfast/relay/relaytest"
)

const name nip.RelayURL = "ws://127.0.0.1:7447/"

func reopen(t testing.TB, path string, change ...func(*embedded.Options)) (*embedded.Relay, error) {
	o := embedded.Options{Path: path, Name: name, Log: zerolog.Nop()}
	for _, c := range change {
		c(&o)
	}
	r, err := embedded.Open(o)
	if err == nil {
		t.Cleanup(func() { r.Close() })
	}
	return r, err
}

// contents reads what key is shown, as stored.
func contents(t testing.TB, r *embedded.Relay, key nip.PubKey) []string {
	t.Helper()
	l := r.Local(key)
	defer l.Close()
	s := l.Subscribe("s", relaytest.To(key, relaytest.Limit(5000)))
	var out []string
	for {
		select {
		case d := <-s.C():
			out = append(out, d.Event.Event().Content)
			continue
		default:
		}
		select {
		case d := <-s.C():
			out = append(out, d.Event.Event().Content)
		case <-s.EOSE():
			for {
				select {
				case d := <-s.C():
					out = append(out, d.Event.Event().Content)
					continue
				default:
				}
				return out
			}
		case <-time.After(relaytest.Patience):
			t.Fatal("no EOSE")
		}
	}
}

func TestRestartKeepsEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.db")
	a, b := relaytest.Key(t), relaytest.Key(t)
	r, err := reopen(t, path)
	if err != nil {
		t.Fatal(err)
	}
	relaytest.Publish(t, r.Local(a.Public()), event(t, a, b.Public(), "kept"))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal("closed twice:", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	if r, err = reopen(t, path); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, r, b.Public()); len(got) != 1 || got[0] != "kept" {
		t.Fatalf("got %q", got)
	}
}

func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "relay.db")
	if _, err := reopen(t, path); err != nil {
		t.Fatal(err)
	}
	if _, err := reopen(t, path); !errors.Is(err, embedded.ErrLocked) {
		t.Fatalf("got %v", err)
	}
}

func TestFileThatCannotBe(t *testing.T) {
	good := filepath.Join(t.TempDir(), "relay.db")
	k := relaytest.Key(t)
	r, err := reopen(t, good)
	if err != nil {
		t.Fatal(err)
	}
	l := r.Local(k.Public())
	for i := range 50 {
		relaytest.Publish(t, l, event(t, k, k.Public(), fmt.Sprint(i, strings.Repeat("x", 3000))))
	}
	r.Close()
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(f func(tx *bbolt.Tx) error) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Update(f); err != nil {
				t.Fatal(err)
			}
			db.Close()
		}
	}
	write := func(b []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, row := range []struct {
		name   string
		damage func(t *testing.T, path string)
		want   error
	}{
		{"a later version", edit(func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("header")).Put([]byte("header"), embedded.Header(2))
		}), embedded.ErrNewer},
		{"a version that never was", edit(func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("header")).Put([]byte("header"), embedded.Header(0))
		}), embedded.ErrCorrupt},
		{"a header with a wrong sum", edit(func(tx *bbolt.Tx) error {
			h := embedded.Header(1)
			h[len(h)-1] ^= 1
			return tx.Bucket([]byte("header")).Put([]byte("header"), h)
		}), embedded.ErrCorrupt},
		{"another magic word", edit(func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte("header")).Put([]byte("header"), []byte("holdfast-ledge\x00\x00\x00\x01\x00\x00\x00\x00"))
		}), embedded.ErrCorrupt},
		{"no header", edit(func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("header")) }), embedded.ErrCorrupt},
		{"no index", edit(func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("author")) }), embedded.ErrCorrupt},
		{"another bbolt file", func(t *testing.T, path string) {
			os.Remove(path)
			edit(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("x")); return err })(t, path)
		}, embedded.ErrCorrupt},
		{"text", write([]byte("hello\n")), embedded.ErrCorrupt},
		{"zeros", write(make([]byte, 1<<16)), embedded.ErrCorrupt},
		{"both meta pages torn", write(append(bytes.Repeat([]byte{1}, 8192), whole[8192:]...)), embedded.ErrCorrupt},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "relay.db")
			write(whole)(t, path)
			row.damage(t, path)
			if _, err := reopen(t, path); !errors.Is(err, row.want) {
				t.Fatalf("got %v", err)
			}
		})
	}
	t.Run("every truncation", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "relay.db")
		for n := 1; n < len(whole); n += 3*4096 - 7 {
			write(whole[:n])(t, path)
			r, err := reopen(t, path)
			if err == nil { // bbolt's file ends in pages that nobody uses
				if got := contents(t, r, k.Public()); len(got) != 50 {
					t.Fatalf("cut at %d of %d: opened with %d events", n, len(whole), len(got))
				}
				r.Close()
			} else if !errors.Is(err, embedded.ErrCorrupt) {
				t.Fatalf("cut at %d: %v", n, err)
			}
		}
	})
	t.Run("every page overwritten", func(t *testing.T) {
		dir := t.TempDir()
		for at := 0; at < len(whole); at += 4096 * (1 + at/(8*4096)) {
			path := filepath.Join(dir, fmt.Sprint(at))
			b := bytes.Clone(whole)
			for i := at; i < min(at+4096, len(b)); i++ {
				b[i] = 0xa5
			}
			write(b)(t, path)
			r, err := reopen(t, path)
			if at < 2*4096 && err != nil {
				t.Fatalf("one of two meta pages is lost, as a torn write leaves it: %v", err)
			}
			if err != nil {
				if !errors.Is(err, embedded.ErrCorrupt) {
					t.Fatalf("page %d: %v", at/4096, err)
				}
				continue
			}
			// Whatever is still shown is genuine, and nothing crashes.
			l := r.Local(k.Public())
			s := l.Subscribe("s", relaytest.To(k.Public()))
			relaytest.Eventually(t, "an end or an error", func() bool {
				select {
				case d := <-s.C():
					if len(d.Event.Event().Content) < 3000 {
						t.Fatal("a damaged event was shown")
					}
				case <-s.EOSE():
					return true
				default:
				}
				return l.Health().LastError != ""
			})
			l.Close()
			r.Close()
		}
	})
}

func TestRoomOfARecipient(t *testing.T) {
	r, err := reopen(t, filepath.Join(t.TempDir(), "relay.db"))
	if err != nil {
		t.Fatal(err)
	}
	author, full, other := relaytest.Key(t), relaytest.Key(t), relaytest.Key(t)
	embedded.SetRoom(r, 1<<20, 1)
	l := r.Local(author.Public())
	relaytest.Publish(t, l, event(t, author, other.Public(), "another recipient's"))
	body := strings.Repeat("x", 20_000)
	const n = 70 // 1.4 MB
	now := time.Now().Unix()
	for i := range n {
		// created_at falls: the oldest is who arrived first, not who says so.
		relaytest.Publish(t, l, relaytest.Event(t, author, full.Public(), relaytest.Mailbox('a'), now-int64(i), fmt.Sprintf("%04d%s", i, body)))
	}
	got := contents(t, r, full.Public())
	const fit = (1 << 20) / 20_600
	if len(got) < fit-1 || len(got) > fit+1 {
		t.Fatalf("%d events fit", len(got))
	}
	if last := got[0][:4]; last != fmt.Sprintf("%04d", n-len(got)) {
		t.Fatalf("the first kept is %s of %d", last, len(got))
	}
	if got := contents(t, r, other.Public()); len(got) != 1 {
		t.Fatal("another recipient lost an event")
	}
}

func TestExpiry(t *testing.T) {
	c := &clock{at: time.Now()}
	path := filepath.Join(t.TempDir(), "relay.db")
	host, member, stranger := relaytest.Key(t), relaytest.Key(t), relaytest.Key(t)
	rules := func(o *embedded.Options) {
		o.Now = c.now
		o.Class = func(k nip.PubKey) embedded.Class {
			if k == stranger.Public() {
				return embedded.Stranger
			}
			return embedded.Member
		}
		o.Served = func(k nip.PubKey) bool { return k == host.Public() }
	}
	r, err := reopen(t, path, rules)
	if err != nil {
		t.Fatal(err)
	}
	relaytest.Publish(t, r.Local(member.Public()), event(t, member, host.Public(), "member's"))
	relaytest.Publish(t, r.Local(stranger.Public()), event(t, stranger, host.Public(), "stranger's"))
	relaytest.Publish(t, r.Local(host.Public()), event(t, host, stranger.Public(), "answer"))
	if got := contents(t, r, host.Public()); len(got) != 2 {
		t.Fatalf("got %q", got)
	}
	c.add(10*time.Minute + time.Second)
	if got := contents(t, r, host.Public()); len(got) != 1 || got[0] != "member's" {
		t.Fatalf("after ten minutes: %q", got)
	}
	if got := contents(t, r, stranger.Public()); len(got) != 0 {
		t.Fatalf("the stranger after ten minutes: %q", got)
	}
	// A commit sweeps what has ended out of the file.
	relaytest.Publish(t, r.Local(member.Public()), event(t, member, host.Public(), "later"))
	r.Close()
	if n := embedded.CountFile(t, path); n != 2 {
		t.Fatalf("%d events in the file", n)
	}
	c.add(30 * 24 * time.Hour)
	if r, err = reopen(t, path, rules); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, r, host.Public()); len(got) != 0 {
		t.Fatalf("after thirty days: %q", got)
	}
	r.Close()
	if n := embedded.CountFile(t, path); n != 0 {
		t.Fatalf("%d events in the file", n)
	}
}

func TestStrangers(t *testing.T) {
	c := &clock{at: time.Now()}
	path := filepath.Join(t.TempDir(), "relay.db")
	host, member := relaytest.Key(t), relaytest.Key(t)
	r, url := open(t, func(o *embedded.Options) {
		o.Path, o.Now = path, c.now
		o.Class = func(k nip.PubKey) embedded.Class {
			if k == host.Public() || k == member.Public() {
				return embedded.Member
			}
			return embedded.Stranger
		}
		o.Served = func(k nip.PubKey) bool { return k == host.Public() }
	})
	embedded.SetRoom(r, 1<<20, 100)
	k := relaytest.Key(t)
	p := connect(t, url)
	p.login(k)
	has(t, "to a served host", p.publish(event(t, k, host.Public(), "x")), "true")
	has(t, "to a member", p.publish(event(t, k, member.Public(), "x")), "restricted:")
	has(t, "to itself", p.publish(event(t, k, k.Public(), "x")), "restricted:")
	has(t, "too large", p.publish(event(t, k, host.Public(), strings.Repeat("x", 17<<10))), "invalid:")
	q := connect(t, url) // a second connection has the same address
	other := relaytest.Key(t)
	q.login(other)
	for i := range 63 {
		has(t, fmt.Sprint("event ", i), q.publish(event(t, other, host.Public(), fmt.Sprint(i))), "true")
	}
	has(t, "the 65th of a minute", q.publish(event(t, other, host.Public(), "65")), "rate-limited:")
	has(t, "from the first connection", p.publish(event(t, k, host.Public(), "65")), "rate-limited:")
	m := connect(t, url)
	m.login(member)
	has(t, "a member meanwhile", m.publish(event(t, member, host.Public(), "m")), "true")
	// A bounded number in all, the oldest out first, and none of a member's.
	var last []*nip.Event
	for minute := range 4 {
		c.add(time.Minute)
		last = nil
		for i := range 60 {
			last = append(last, event(t, other, host.Public(), fmt.Sprint("stranger ", minute, " ", i)))
			q.send("EVENT", nip.EncodeEvent(last[i]))
		}
		for range last {
			q.await("OK")
		}
	}
	got := contents(t, r, host.Public())
	if len(got) != 101 {
		t.Fatalf("%d events kept", len(got))
	}
	if !slices.Contains(got, "m") || !slices.Contains(got, last[0].Content) || slices.Contains(got, "stranger 0 0") {
		t.Fatal("a member's event or the newest is gone, or the oldest is there")
	}
}

func TestRevocation(t *testing.T) {
	revoked := make(chan struct{})
	k, other := relaytest.Key(t), relaytest.Key(t)
	r, url := open(t, func(o *embedded.Options) {
		o.Class = func(p nip.PubKey) embedded.Class {
			select {
			case <-revoked:
				if p == k.Public() {
					return embedded.Revoked
				}
			default:
			}
			return embedded.Member
		}
	})
	p, q, o := connect(t, url), connect(t, url), connect(t, url)
	p.login(k)
	q.login(k)
	o.login(other)
	local := r.Local(k.Public())
	defer local.Close()
	s := local.Subscribe("s", relaytest.To(k.Public()))
	relaytest.AwaitEOSE(t, s)
	close(revoked)
	has(t, "between the commit and the disconnect", p.publish(event(t, k, other.Public(), "x")), "restricted:")
	r.Disconnect(k.Public())
	p.gone()
	q.gone()
	again := connect(t, url)
	ev := authEvent(t, k, again.await("AUTH")[0], string(url), time.Now())
	again.send("AUTH", nip.EncodeEvent(ev))
	has(t, "logging in", again.answer(ev.ID), "restricted:")
	again.gone()
	var refused *relay.RefusedError
	if err := local.Publish(t.Context(), event(t, k, other.Public(), "x")); !errors.As(err, &refused) || refused.Prefix != "restricted" {
		t.Fatalf("the local link: %v", err)
	}
	has(t, "another key", o.publish(event(t, other, k.Public(), "to the revoked")), "true")
	relaytest.Eventually(t, "the local link to say why", func() bool { return strings.Contains(local.Health().LastError, "revoked") })
	relaytest.Nothing(t, s)
}

func TestDeliveryNamesThePublishersRelay(t *testing.T) {
	const public nip.RelayURL = "wss://relay.example/x"
	r, url := open(t, func(o *embedded.Options) { o.Also = []nip.RelayURL{o.Name}; o.Name = public })
	host, device := relaytest.Key(t), relaytest.Key(t)
	s := r.Local(host.Public()).Subscribe("s", relaytest.To(host.Public()))
	relaytest.AwaitEOSE(t, s)
	p := connect(t, url)
	ev := authEvent(t, device, p.await("AUTH")[0], string(public), time.Now())
	p.send("AUTH", nip.EncodeEvent(ev))
	has(t, "login", p.answer(ev.ID), "true")
	has(t, "publish", p.publish(event(t, device, host.Public(), "x")), "true")
	if d := relaytest.Next(t, s); d.Relay != public {
		t.Fatalf("live: %s", d.Relay)
	}
	relaytest.Publish(t, dial(t, url, device), event(t, device, host.Public(), "y"))
	if d := relaytest.Next(t, s); d.Relay != url {
		t.Fatalf("live: %s", d.Relay)
	}
	again := r.Local(host.Public()).Subscribe("s", relaytest.To(host.Public()))
	for range 2 {
		d := relaytest.Next(t, again)
		if want := map[string]nip.RelayURL{"x": public, "y": url}[d.Event.Event().Content]; d.Relay != want || !d.Stored {
			t.Fatalf("stored: %s, want %s", d.Relay, want)
		}
	}
}

// A store that others can read, or that has a second name, is not opened: what
// devices and host say to each other would leak, or be written twice.
func TestStoreFileIsPrivate(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"open to others": func(path string) error { return os.Chmod(path, 0o644) },
		"a second name":  func(path string) error { return os.Link(path, path+"-too") },
		"a link": func(path string) error {
			return errors.Join(os.Rename(path, path+"-real"), os.Symlink(path+"-real", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := embedded.Options{Path: filepath.Join(t.TempDir(), "relay.db"), Name: "ws://127.0.0.1:1/"}
			r, err := embedded.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if err := spoil(o.Path); err != nil {
				t.Fatal(err)
			}
			if r, err = embedded.Open(o); err == nil {
				r.Close()
				t.Fatal("it was opened")
			}
		})
	}
}

// TestMembersWriteToHosts: where there are hosts, no device fills the room of
// another; a relay by itself knows none, and members write to whom they like.
func TestMembersWriteToHosts(t *testing.T) {
	host, one, two := relaytest.Key(t), relaytest.Key(t), relaytest.Key(t)
	for _, row := range []struct {
		name     string
		alone    bool
		from, to nip.SecretKey
		taken    bool
	}{
		{"a device to the host", false, one, host, true},
		{"the host to a device", false, host, one, true},
		{"the host to itself", false, host, host, true},
		{"a device to another", false, one, two, false},
		{"a device to itself", false, one, one, false},
		{"a relay without hosts", true, one, two, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, url := open(t, func(o *embedded.Options) {
				if !row.alone {
					o.Served = func(k nip.PubKey) bool { return k == host.Public() }
				}
			})
			p := connect(t, url)
			p.login(row.from)
			got := p.publish(event(t, row.from, row.to.Public(), "x"))
			if (got == "true") != row.taken {
				t.Fatalf("the relay said %q", got)
			}
		})
	}
}

// TestRevokedReadsNothing: what was sent to a key while it was paired is not
// shown to it as a stranger, by any way of asking; what it is told as a stranger
// is, and all of it once it is paired again.
func TestRevokedReadsNothing(t *testing.T) {
	host, device := relaytest.Key(t), relaytest.Key(t)
	var paired atomic.Bool
	paired.Store(true)
	r, url := open(t, func(o *embedded.Options) {
		o.Class = func(k nip.PubKey) embedded.Class {
			if k == device.Public() && !paired.Load() {
				return embedded.Stranger
			}
			return embedded.Member
		}
		o.Served = func(k nip.PubKey) bool { return k == host.Public() }
	})
	secret := event(t, host, device.Public(), "a page")
	relaytest.Publish(t, r.Local(host.Public()), secret)
	relaytest.Publish(t, r.Local(device.Public()), event(t, device, host.Public(), "its own"))
	paired.Store(false)
	relaytest.Publish(t, r.Local(host.Public()), event(t, host, device.Public(), "revoked"))
	sees := func(filter string, want ...string) {
		t.Helper()
		p := connect(t, url)
		p.login(device)
		got, closed := p.ask("s", filter)
		slices.Sort(got)
		if closed != "" || !slices.Equal(got, want) {
			t.Errorf("%s shows %q, %q; want %q", filter, got, closed, want)
		}
	}
	sees(`{}`, "revoked")
	sees(`{"ids":["` + secret.ID + `"]}`)
	sees(`{"authors":["` + string(device.Public()) + `"]}`)
	paired.Store(true)
	sees(`{}`, "a page", "its own", "revoked")
}
