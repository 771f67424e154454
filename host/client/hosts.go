package client

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
	"holdfast/nip"
)

// maxHosts bounds the hosts that one profile is paired with.
const maxHosts = 64

const recordSuffix = ".json"

// HostRecord is one host that the profile is paired with or acts as the owner
// of. Err says why its record proves nothing; then Grant is empty. So it is for
// an owner, who has none. Hints are the last that the host published to this
// device, which may be over; nil without any.
type HostRecord struct {
	Host  nip.PubKey
	Relay nip.RelayURL
	Grant nip.Grant
	Owner bool
	Err   error
	Hints *nip.Hints
}

// ChoiceError is returned where one host of several must be named.
type ChoiceError struct {
	Hosts []nip.PubKey // those that the words fit
}

func (e *ChoiceError) Error() string {
	return fmt.Sprintf("%d paired hosts fit; name one", len(e.Hosts))
}

// Hosts verifies and lists the paired hosts, in the order of their keys.
func (d *Device) Hosts() ([]HostRecord, error) {
	hosts, err := pairedHosts(d.dir)
	if err != nil {
		return nil, err
	}
	list := make([]HostRecord, 0, len(hosts))
	for _, h := range hosts {
		r := HostRecord{Host: h}
		m, err := d.store.readMeta(h)
		if err != nil {
			return nil, err
		}
		a, err := d.readStanding(h, nip.Profile{Loopback: d.o.Loopback || m.Loopback})
		if errors.Is(err, os.ErrNotExist) {
			continue // forgotten meanwhile
		}
		r.Relay, r.Owner, r.Err = a.grant.Relay, a.owner, err
		if !a.owner {
			r.Grant = a.grant
		}
		if r.Hints, err = d.store.hints(h); err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// Forget ends what this profile knows of its standing with host; the host is
// not told. Waiting rows stay in the outbox until they are dropped. False when
// there is no such host.
func (d *Device) Forget(host nip.PubKey) (bool, error) {
	found := false
	err := d.store.exclusive(func() error {
		folder, err := saferead.OpenDir(filepath.Join(d.dir, hostsFolder))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("open %s: %w", hostsFolder, err)
		}
		defer folder.Close()
		for _, suffix := range []string{recordSuffix, ownerSuffix} {
			err := folder.Remove(string(host) + suffix)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			found = found || err == nil
		}
		return folder.Sync()
	})
	if err != nil || !found {
		return found, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.access != nil && d.access.grant.Host == host {
		d.access = nil
	}
	return true, nil
}

// pairedHosts lists the hosts that have a record, sorted. Other names in the
// folder are no records.
func pairedHosts(dir string) ([]nip.PubKey, error) {
	folder, err := saferead.OpenDir(filepath.Join(dir, hostsFolder))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer folder.Close()
	names, err := folder.Names()
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", hostsFolder, err)
	}
	var hosts []nip.PubKey
	for _, name := range names {
		key, suffix, _ := strings.Cut(name, ".")
		if (suffix == recordSuffix[1:] || suffix == ownerSuffix[1:]) && nip.ValidID(key) {
			hosts = append(hosts, nip.PubKey(key))
		}
	}
	slices.Sort(hosts)
	return slices.Compact(hosts), nil
}

// choose is the host that want names: a key, the beginning of one, or nothing
// where there is only one. "" when there is none at all.
func choose(hosts []nip.PubKey, want string) (nip.PubKey, error) {
	if want == "" {
		switch len(hosts) {
		case 0:
			return "", nil
		case 1:
			return hosts[0], nil
		}
		return "", &ChoiceError{Hosts: hosts}
	}
	if key, err := nip.ParseAnyPubKey(want); err == nil {
		want = string(key)
	}
	fit := slices.DeleteFunc(slices.Clone(hosts), func(h nip.PubKey) bool { return !strings.HasPrefix(string(h), want) })
	switch len(fit) {
	case 0:
		return "", fmt.Errorf("%w: no paired host is called %q", ErrNotPaired, bounded(want))
	case 1:
		return fit[0], nil
	}
	return "", &ChoiceError{Hosts: fit}
}

// readRecord reads and verifies the access record of host.
func readRecord(dir string, host nip.PubKey, key nip.SecretKey, p nip.Profile) (access, error) {
	raw, err := readFile(filepath.Join(dir, hostsFolder), string(host)+recordSuffix, maxAccess)
	if err != nil {
		return access{}, err
	}
	a, err := parseAccess(raw, key, p)
	if err == nil && a.grant.Host != host {
		return access{}, fmt.Errorf("%w: the access record of %s is of another host", ErrDamaged, host)
	}
	return a, err
}

// writeRecord puts the access record of a's host in place whole: a crash leaves
// the old one, or none, or the new one.
func writeRecord(dir string, a access) error {
	b, err := a.encode()
	if err != nil {
		return fmt.Errorf("encode access record: %w", err)
	}
	return writeHost(dir, a.grant.Host, recordSuffix, b)
}

// writeHost is writeRecord of any record of a host.
func writeHost(dir string, host nip.PubKey, suffix string, b []byte) error {
	hosts, err := pairedHosts(dir)
	if err != nil {
		return err
	}
	if len(hosts) >= maxHosts && !slices.Contains(hosts, host) {
		return fmt.Errorf("this profile is paired with %d hosts; forget one first", len(hosts))
	}
	profile, err := saferead.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("open profile: %w", err)
	}
	defer profile.Close()
	err = atomicfile.OS.Mkdir(profile, hostsFolder)
	if err == nil || errors.Is(err, os.ErrExist) {
		err = profile.Sync() // also where it is there: who made it may have died before this
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", hostsFolder, err)
	}
	return writeFile(filepath.Join(dir, hostsFolder), string(host)+suffix, b)
}

// migrate gives the one access record of an older profile its host's name. A
// crash anywhere in it leaves the old name, and the next Open does it again.
func (d *Device) migrate() error {
	raw, err := readFile(d.dir, oldAccessFile, maxAccess)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// The word about loopback relays is kept by host; which one shows the record.
	a, err := parseAccess(raw, d.key, nip.Profile{Loopback: true})
	if err != nil {
		return err
	}
	if err := d.store.renameMeta(a.grant.Host); err != nil {
		return err
	}
	m, err := d.store.readMeta(a.grant.Host)
	if err != nil {
		return err
	}
	if err := nip.CheckRelay(a.grant.Relay, d.o.Loopback || m.Loopback); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDamaged, oldAccessFile, err)
	}
	return d.store.exclusive(func() error {
		// A second record that ends later is a newer pairing or renewal.
		known, err := readRecord(d.dir, a.grant.Host, d.key, nip.Profile{Loopback: true})
		if err != nil || known.grant.ExpiresAt < a.grant.ExpiresAt {
			if err := writeRecord(d.dir, a); err != nil {
				return err
			}
		}
		profile, err := saferead.OpenDir(d.dir)
		if err != nil {
			return fmt.Errorf("open profile: %w", err)
		}
		defer profile.Close()
		if err := profile.Remove(oldAccessFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return profile.Sync()
	})
}
