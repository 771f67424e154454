package client

import (
	"context"
	"errors"
	"fmt"

	"holdfast/nip"
)

// Pair redeems an invitation string and keeps the verified access record. A
// plain ws:// relay is accepted only with Options.Loopback; that word is kept
// for later opens. The device turns to the host that it paired with and keeps
// its standing with the others. Redeeming the same invitation again gives the same grant, so
// a lost reply costs nothing but another Pair.
func (d *Device) Pair(ctx context.Context, code string) (nip.Grant, error) {
	if err := d.devicesOnly(); err != nil {
		return nip.Grant{}, err
	}
	profile := nip.Profile{Loopback: d.o.Loopback}
	inv, err := nip.ParseInvitation(code, profile, d.now())
	if err != nil {
		return nip.Grant{}, fmt.Errorf("read invitation: %w", err)
	}
	if inv.Host == d.pub {
		return nip.Grant{}, errors.New("this invitation is of the device's own key")
	}
	back, err := d.turnClock(inv.Host)
	if err != nil {
		return nip.Grant{}, err
	}
	defer back()
	link := d.connect(inv.Relay, inv.Host)
	defer link.Close()
	p := peer{link: link, host: inv.Host, relay: inv.Relay, epoch: -1, from: inv.IssuedAt, until: inv.ExpiresAt}
	r, err := d.prepare(ctx, p, nip.EnrollRedeem{Invitation: inv.ID, Capability: inv.Capability})
	if err != nil {
		return nip.Grant{}, err
	}
	x, err := d.exchange(ctx, p, r)
	if err != nil {
		return nip.Grant{}, err
	}
	granted, ok := x.Reply.Outcome.(nip.Granted)
	if !ok {
		return nip.Grant{}, fmt.Errorf("%w: the reply holds no grant", ErrNoAnswer)
	}
	a, err := admit(granted.Authorization, d.key, profile)
	if err != nil {
		return nip.Grant{}, fmt.Errorf("the host's grant does not hold: %w", err)
	}
	switch g := a.grant; {
	case g.Host != inv.Host:
		err = errors.New("it is from another host")
	case g.Relay != inv.Relay:
		err = errors.New("it names another relay than the invitation")
	case g.Origin.Kind != "invitation" || g.Origin.ID != string(inv.ID):
		err = errors.New("it comes from another invitation")
	case g.ExpiresAt <= d.hostNow():
		err = errors.New("it has expired")
	}
	if err != nil {
		return nip.Grant{}, fmt.Errorf("the host's grant does not hold: %w", err)
	}
	return a.grant, d.adopt(a)
}

// turnClock measures against another host's clock from here on. back returns to
// the old one unless the device has turned to that host meanwhile.
func (d *Device) turnClock(host nip.PubKey) (back func(), err error) {
	m, err := d.store.readMeta(host)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	was, of := d.clock, d.clockOf
	if of == host {
		return func() {}, nil
	}
	d.clock, d.clockOf = m.Clock, host
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.access == nil || d.access.grant.Host != host {
			d.clock, d.clockOf = was, of
		}
	}, nil
}

// adopt keeps a verified record and turns to its host.
func (d *Device) adopt(a access) error {
	// The word first: a crash between the two leaves a word without a grant,
	// which allows nothing, and not a grant that Open would refuse.
	if err := d.store.putLoopback(a.grant.Host, d.o.Loopback); err != nil {
		return err
	}
	// Commit point: before the rename the device is what it was, after it paired
	// or the owner.
	write := writeRecord
	if a.owner {
		write = writeOwner
	}
	if err := d.store.exclusive(func() error { return write(d.dir, a) }); err != nil {
		return err
	}
	d.mu.Lock()
	old := d.link
	d.access, d.choice, d.link = &a, nil, nil
	d.mu.Unlock()
	if old != nil {
		return old.Close()
	}
	return nil
}
