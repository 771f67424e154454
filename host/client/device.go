package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"holdfast/nip"
	"holdfast/relay"
)

// Device is one paired (or not yet paired) device with its durable files in a
// profile folder.
type Device struct {
	dir   string
	key   nip.SecretKey
	pub   nip.PubKey
	o     Options
	store *store
	pace  pace
	dial  func(relay.Options) relay.Link
	life  context.Context // ends with Close; what runs in the background ends with it
	end   context.CancelFunc

	mu     sync.Mutex // guards the members below
	access *access
	link   relay.Link // to the grant's relay; nil until the first call
	clock  clock
	closed bool
}

// Options of Open.
type Options struct {
	Loopback bool // a person's explicit word that ws:// on a loopback address is fine; kept by Pair
	Now      func() time.Time
	Log      zerolog.Logger
}

// pace holds the waits of an exchange.
type pace struct {
	try    time.Duration // reading, publishing and the relay's OK
	again  time.Duration // after an OK without a reply
	settle time.Duration // after a reply without an OK

	between time.Duration // two tries
}

var defaultPace = pace{try: 12 * time.Second, again: 4 * time.Second, settle: 250 * time.Millisecond, between: 200 * time.Millisecond}

// Init opens the profile dir and makes the folder (0700) and the device's key
// (0600) where they are absent. An existing key is kept.
func Init(dir string, o Options) (*Device, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make profile: %w", err)
	}
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	s := newStore(dir)
	err := s.exclusive(func() error { return makeKey(dir) })
	if err != nil {
		return nil, err
	}
	return Open(dir, o)
}

// makeKey writes a new key unless there is one. It runs under the store's lock,
// so that two first runs agree on one key.
func makeKey(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, keyFile)); err == nil || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, err := os.Lstat(filepath.Join(dir, accessFile)); err == nil {
		return fmt.Errorf("%w: %s is missing beside %s; put it back or use another profile", ErrDamaged, keyFile, accessFile)
	}
	key, err := nip.GenerateSecretKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("make device key: %w", err)
	}
	return writeFile(dir, keyFile, []byte(key.Hex()+"\n"))
}

// Open opens a profile that Init made. The access record is verified again:
// one that does not prove itself is ErrDamaged, never a smaller grant.
func Open(dir string, o Options) (*Device, error) {
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	raw, err := readFile(dir, keyFile, 1024)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNoKey
	}
	if err != nil {
		return nil, err
	}
	key, err := nip.ParseSecretKey(strings.TrimSuffix(string(raw), "\n"))
	if err != nil {
		return nil, fmt.Errorf("%w: %s is not a key", ErrDamaged, keyFile)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	d := &Device{dir: dir, key: key, pub: key.Public(), o: o, store: newStore(dir), pace: defaultPace, dial: relay.Dial}
	if err := d.load(); err != nil {
		return nil, err
	}
	d.life, d.end = context.WithCancel(context.Background())
	return d, nil
}

// load reads what was learnt and the access record.
func (d *Device) load() error {
	m, err := d.store.readMeta()
	if err != nil {
		return err
	}
	d.clock = m.Clock
	raw, err := readFile(d.dir, accessFile, maxAccess)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	a, err := parseAccess(raw, d.key, nip.Profile{Loopback: d.o.Loopback || m.Loopback})
	if err != nil {
		return err
	}
	d.access = &a
	return nil
}

// Close ends the link and what runs on it. Calling it again does nothing.
func (d *Device) Close() error {
	d.mu.Lock()
	link := d.link
	d.link, d.closed = nil, true
	d.mu.Unlock()
	d.end()
	if link == nil {
		return nil
	}
	return link.Close()
}

// PubKey is the device's public key.
func (d *Device) PubKey() nip.PubKey { return d.pub }

// Grant is the verified grant, and whether there is one. It may have expired or
// been revoked; only the host's answer tells.
func (d *Device) Grant() (nip.Grant, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.access == nil {
		return nip.Grant{}, false
	}
	return d.access.grant, true
}

// ClockOffset is how far this device's clock is ahead of the host's, as the
// host's signed times showed it; 0 while nothing was seen.
func (d *Device) ClockOffset() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(d.clock.Offset) * time.Second
}

func (d *Device) now() int64 { return d.o.Now().Unix() }

// hostNow is the host's time as far as this device knows it.
func (d *Device) hostNow() int64 {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clock.host(now)
}

// learn changes the clock and keeps the change. A store in use elsewhere costs
// only the memory of it.
func (d *Device) learn(change func(c *clock)) {
	d.mu.Lock()
	before := d.clock
	change(&d.clock)
	after := d.clock
	d.mu.Unlock()
	if after == before {
		return
	}
	if err := d.store.putClock(after); err != nil {
		d.o.Log.Debug().Err(err).Msg("clock offset not kept")
	}
}

// peer is whom an exchange is with, and by which standing.
type peer struct {
	link  relay.Link
	host  nip.PubKey
	relay nip.RelayURL
	grant nip.GrantID // "" in a redemption
	epoch int64       // -1 in a redemption
	from  int64       // nothing is issued before, host time
	until int64       // nothing expires after, host time
}

// peer returns the paired host with the link to it, dialled at first use.
func (d *Device) peer() (peer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return peer{}, relay.ErrClosed
	}
	if d.access == nil {
		return peer{}, ErrNotPaired
	}
	g := d.access.grant
	if d.link == nil {
		d.link = d.connect(g.Relay, g.Host)
	}
	return peer{link: d.link, host: g.Host, relay: g.Relay, grant: g.ID, epoch: g.Epoch, from: g.IssuedAt, until: g.ExpiresAt}, nil
}

// connect dials a relay and lets through only what the host addressed to this
// device; the signature is the link's own check.
func (d *Device) connect(url nip.RelayURL, host nip.PubKey) relay.Link {
	return d.dial(relay.Options{URL: url, Key: d.key, Log: d.o.Log, Now: d.o.Now, Admit: func(ev *nip.Event) bool {
		return ev.Kind == nip.KindArtifact && ev.PubKey == string(host) && ev.Tags.FindWithValue("p", string(d.pub)) != nil
	}})
}
