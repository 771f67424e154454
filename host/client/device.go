package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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
	key   nip.SecretKey // the zero key where it is held elsewhere
	hold  nip.Keeper    // of the key, wherever it is
	shut  func() error  // ends what hold opened
	pub   nip.PubKey
	o     Options
	store *store
	pace  pace
	dial  func(relay.Options) relay.Link
	life  context.Context // ends with Close; what runs in the background ends with it
	end   context.CancelFunc

	mu      sync.Mutex // guards the members below
	access  *access
	choice  *ChoiceError // set when none of several hosts was named; access is nil
	link    relay.Link   // to the grant's relay; nil until the first call
	clock   clock
	clockOf nip.PubKey // the host whose clock it is
	closed  bool
}

// Options of Open.
type Options struct {
	Loopback bool // a person's explicit word that ws:// on a loopback address is fine; kept by Pair
	// Host names the host that the device turns to: its key in hex or npub, or
	// the beginning of the hex. It may be empty where only one is paired; where
	// several are, calls are a *ChoiceError until Pair.
	Host string
	// AnyHost turns to no host at all: for Hosts, Forget and Pair, which then
	// work beside a record that proves nothing. Calls are ErrNotPaired.
	AnyHost bool
	// Keeper holds the key of a profile that keeps none. Such a device acts as
	// an owner (Own); it is paired with no host.
	Keeper nip.Keeper
	// Waiting is called, on a goroutine of its own, when a signer outside of
	// this process has not answered one call for two seconds.
	Waiting func()
	// Ask shows a person the address under which a bunker wants their leave.
	Ask func(address string)
	Now func() time.Time
	Log zerolog.Logger
}

// pace holds the waits of an exchange.
type pace struct {
	try    time.Duration // reading, publishing and the relay's OK
	again  time.Duration // after an OK without a reply
	settle time.Duration // after a reply without an OK

	between time.Duration // two tries
	refused time.Duration // the first wait after a relay that is short of something; it doubles
	nudge   int64         // seconds between two nudges of one host; 0 leaves none
}

var defaultPace = pace{try: 12 * time.Second, again: 4 * time.Second, settle: 250 * time.Millisecond, between: 200 * time.Millisecond,
	refused: time.Second, nudge: 30}

// Init opens the profile dir and makes the folder (0700) and the device's key
// (0600) where they are absent. An existing key is kept.
func Init(dir string, o Options) (*Device, error) {
	return initialise(dir, o, func() (nip.SecretKey, error) { return nip.GenerateSecretKey(rand.Reader) })
}

func initialise(dir string, o Options, mint func() (nip.SecretKey, error)) (*Device, error) {
	if err := makeProfile(dir); err != nil {
		return nil, err
	}
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	if o.Keeper == nil {
		if err := newStore(dir).exclusive(func() error { return makeKey(dir, mint) }); err != nil {
			return nil, err
		}
	}
	return Open(dir, o)
}

// makeKey writes a new key unless there is one, here or elsewhere. It runs under
// the store's lock, so that two first runs agree on one key.
func makeKey(dir string, mint func() (nip.SecretKey, error)) error {
	if has, err := hasKey(dir); err != nil || has {
		return err
	}
	if err := notOrphaned(dir); err != nil {
		return err
	}
	key, err := mint()
	if err != nil {
		return fmt.Errorf("make device key: %w", err)
	}
	return writeFile(dir, keyFile, []byte(key.Hex()+"\n"))
}

// Open opens a profile that Init made and turns to the host that Options.Host
// names. Its access record is verified again: one that does not prove itself is
// ErrDamaged, never a smaller grant.
func Open(dir string, o Options) (*Device, error) {
	if err := checkFolder(dir); err != nil {
		return nil, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	key, hold, shut, err := identify(dir, o)
	if err != nil {
		return nil, err
	}
	d := &Device{dir: dir, key: key, hold: hold, shut: shut, pub: hold.Public(), o: o, store: newStore(dir), pace: defaultPace, dial: relay.Dial}
	if d.elsewhere() {
		d.hold = patient{Keeper: hold, waiting: o.Waiting}
	}
	if err := d.load(); err != nil {
		return nil, errors.Join(err, shut())
	}
	d.life, d.end = context.WithCancel(context.Background())
	return d, nil
}

// load chooses a host and reads its access record and what was learnt of it.
func (d *Device) load() error {
	if err := d.migrate(); err != nil {
		return err
	}
	hosts, err := pairedHosts(d.dir)
	if err != nil || d.o.AnyHost {
		return err
	}
	host, err := choose(hosts, d.o.Host)
	if d.o.Host == "" && errors.As(err, &d.choice) {
		return nil
	}
	if err != nil || host == "" {
		return err
	}
	m, err := d.store.readMeta(host)
	if err != nil {
		return err
	}
	a, err := d.readStanding(host, nip.Profile{Loopback: d.o.Loopback || m.Loopback})
	if err != nil {
		return err
	}
	d.access, d.clock, d.clockOf = &a, m.Clock, host
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
		return d.shut()
	}
	return errors.Join(link.Close(), d.shut())
}

// PubKey is the device's public key.
func (d *Device) PubKey() nip.PubKey { return d.pub }

// Grant is the verified grant of the host that the device is turned to, and
// whether there is one: an owner has none. It may have expired or been revoked;
// only the host's answer tells.
func (d *Device) Grant() (nip.Grant, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.access == nil || d.access.owner {
		return nip.Grant{}, false
	}
	return d.access.grant, true
}

// standing is the grant, or what an owner holds in its place, for what cannot do
// without one.
func (d *Device) standing() (nip.Grant, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.access == nil {
		return nip.Grant{}, d.unpaired()
	}
	return d.access.grant, nil
}

// unpaired says why there is no grant; called with mu held.
func (d *Device) unpaired() error {
	if d.choice != nil {
		return d.choice
	}
	return ErrNotPaired
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
	after, host := d.clock, d.clockOf
	d.mu.Unlock()
	if after == before || host == "" {
		return
	}
	if err := d.store.putClock(host, after); err != nil {
		d.o.Log.Debug().Err(err).Msg("clock offset not kept")
	}
}

// peer is whom an exchange is with, and by which standing.
type peer struct {
	link  relay.Link
	host  nip.PubKey
	relay nip.RelayURL
	grant nip.GrantID // "" in a redemption and of an owner
	epoch int64       // -1 then
	from  int64       // nothing is issued before, host time
	until int64       // nothing expires after, host time
}

// peer returns the paired host with the link to it, dialled at first use.
func (d *Device) peer() (peer, error) {
	d.reread()
	d.relink()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return peer{}, relay.ErrClosed
	}
	if d.access == nil {
		return peer{}, d.unpaired()
	}
	if d.link == nil {
		d.link = d.connect(d.access.grant.Relay, d.access.grant.Host)
	}
	return d.access.peer(d.link), nil
}

// connect dials a relay and lets through only what the host addressed to this
// device; the signature is the link's own check.
func (d *Device) connect(url nip.RelayURL, host nip.PubKey) relay.Link {
	o := relay.Options{URL: url, Key: d.key, Log: d.o.Log, Now: d.o.Now, Admit: func(ev *nip.Event) bool {
		return ev.Kind == nip.KindArtifact && ev.PubKey == string(host) && ev.Tags.FindWithValue("p", string(d.pub)) != nil
	}}
	if d.elsewhere() {
		return d.connectElsewhere(o)
	}
	return d.dial(o)
}
