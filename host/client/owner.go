package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"holdfast/nip"
	"holdfast/relay"
)

const (
	ownerSuffix  = ".owner"
	ownerVersion = "holdfast.device-owner.v1"
	maxOwner     = 8192
)

// OwnerError is returned for what a host does for its devices and not for its
// owner, and for what only a device can do.
type OwnerError struct{ Why string }

func (e *OwnerError) Error() string { return e.Why }

// Ownership is the host that the device acts as the owner of: its requests name
// no grant and have every right (NIP-HOST, principals).
type Ownership struct {
	Host  nip.PubKey
	Owner nip.PubKey // the device's own key
	Relay nip.RelayURL
}

// Owned is the host that the device is turned to, if it acts as its owner.
func (d *Device) Owned() (Ownership, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.access == nil || !d.access.owner {
		return Ownership{}, false
	}
	g := d.access.grant
	return Ownership{Host: g.Host, Owner: g.Owner, Relay: g.Relay}, true
}

// Own turns to a host as its owner, once the host has signed an answer to an
// owner's request of this key; every other key is *Refused forbidden. host is
// the key that the person read on the host's screen, and url one of the names
// under which it is reached, byte for byte. A plain ws:// relay is accepted only
// with Options.Loopback, and that word is kept.
//
// There is nothing to pair, to renew or to run out. The host publishes to its
// devices: an owner reads, and Watch and Refresh are an *OwnerError. What became
// of the owner's own commands is published to it too: RefreshCommands.
func (d *Device) Own(ctx context.Context, host nip.PubKey, url nip.RelayURL) error {
	if err := nip.CheckRelay(url, d.o.Loopback); err != nil {
		return fmt.Errorf("the host's relay: %w", err)
	}
	if host == d.pub {
		return errors.New("this is the device's own key; say the host's")
	}
	if _, err := os.Lstat(filepath.Join(d.dir, hostsFolder, string(host)+recordSuffix)); !errors.Is(err, os.ErrNotExist) {
		return errors.Join(&OwnerError{"this profile is paired with that host; its owner is another key"}, err)
	}
	back, err := d.turnClock(host)
	if err != nil {
		return err
	}
	defer back()
	link := d.connect(url, host)
	defer link.Close()
	a := access{owner: true, grant: ownerStanding(host, d.pub, url)}
	p := a.peer(link)
	r, err := d.prepare(ctx, p, nip.WorkspaceList{})
	if err != nil {
		return err
	}
	if _, err := d.exchange(ctx, p, r); err != nil {
		return err
	}
	return d.adopt(a)
}

// ownerStanding has the shape of a grant so that host, relay and times are asked
// of one value; without an ID it is none.
func ownerStanding(host, owner nip.PubKey, url nip.RelayURL) nip.Grant {
	return nip.Grant{Host: host, Owner: owner, Device: owner, Relay: url, Epoch: -1, Rights: nip.PairingRights(), ExpiresAt: math.MaxInt64}
}

// peer is the host as the access record says it, over link.
func (a access) peer(link relay.Link) peer {
	g := a.grant
	return peer{link: link, host: g.Host, relay: g.Relay, grant: g.ID, epoch: g.Epoch, from: g.IssuedAt, until: g.ExpiresAt}
}

// ownerDisk is a person's word that the profile's key owns a host.
type ownerDisk struct {
	V     string       `json:"v"`
	Host  nip.PubKey   `json:"host"`
	Owner nip.PubKey   `json:"owner"`
	Relay nip.RelayURL `json:"relay"`
}

func writeOwner(dir string, a access) error {
	raw, err := json.Marshal(ownerDisk{V: ownerVersion, Host: a.grant.Host, Owner: a.grant.Owner, Relay: a.grant.Relay})
	if err != nil {
		return fmt.Errorf("encode owner's record: %w", err)
	}
	return writeHost(dir, a.grant.Host, ownerSuffix, append(raw, '\n'))
}

// readStanding is the access record of host, or the owner's.
func (d *Device) readStanding(host nip.PubKey, p nip.Profile) (access, error) {
	a, err := readRecord(d.dir, host, d.key, p)
	if !errors.Is(err, os.ErrNotExist) {
		return a, err
	}
	raw, err := readFile(filepath.Join(d.dir, hostsFolder), string(host)+ownerSuffix, maxOwner)
	if err != nil {
		return access{}, err
	}
	return parseOwner(raw, host, d.pub, p)
}

func parseOwner(raw []byte, host, self nip.PubKey, p nip.Profile) (access, error) {
	bad := func(why string) (access, error) {
		return access{}, fmt.Errorf("%w: the owner's record of %s %s", ErrDamaged, host, why)
	}
	canon, err := nip.Canonical(raw)
	if err != nil || len(raw) > maxOwner {
		return bad("is no JSON object")
	}
	var o ownerDisk
	var members map[string]json.RawMessage
	if json.Unmarshal(canon, &members) != nil || json.Unmarshal(canon, &o) != nil {
		return bad("is no JSON object")
	}
	if o.V != ownerVersion {
		return access{}, fmt.Errorf("%w: the owner's record of %s", ErrNewer, host)
	}
	switch {
	case len(members) != 4:
		return bad("has the wrong members")
	case o.Host != host:
		return bad("is of another host")
	case o.Owner != self:
		return bad("is of another key")
	}
	if err := nip.CheckRelay(o.Relay, p.Loopback); err != nil {
		return bad("names a relay that is not allowed")
	}
	return access{owner: true, grant: ownerStanding(host, self, o.Relay)}, nil
}

// devicesOnly refuses what needs a device's own secret or standing.
func (d *Device) devicesOnly() error {
	if d.elsewhere() {
		return &OwnerError{"a key that is held elsewhere acts as an owner and is not paired"}
	}
	return nil
}
