package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay"
)

// maxRenewals bounds the stored events that are asked for when a renewed grant
// may lie among them: it stands in a mailbox that only its host knows.
const maxRenewals = 256

// renewalFrom is the first time, the host's, at which g may be renewed.
func renewalFrom(g nip.Grant) int64 { return g.ExpiresAt - (g.ExpiresAt-g.IssuedAt)/4 }

// renewals subscribes to what the host addressed to this device since its grant
// could be renewed. Before that time the relay has nothing to deliver.
func (d *Device) renewals(link relay.Link, id string, host nip.PubKey) *relay.Subscription {
	g, _ := d.Grant()
	since := nostr.Timestamp(renewalFrom(g) - tolerated)
	return link.Subscribe(id, func(time.Time) []nip.Filter {
		return []nip.Filter{{Kinds: []int{nip.KindArtifact}, Authors: []string{string(host)}, Limit: maxRenewals,
			Tags: nostr.TagMap{"p": {string(d.pub)}}, Since: &since}}
	})
}

// expectRenewal listens for a renewed grant while a request is under way: the
// host sends one when an admitted request finds a quarter or less of the
// grant's life left. The returned function waits for it a moment longer when
// the request was answered, and ends the listening. What comes later is stored
// on the relay and found by the next request, Refresh or Watch.
func (d *Device) expectRenewal(ctx context.Context, p peer, r prepared) func(answered bool) {
	g, ok := d.Grant()
	if !ok || g.ID != p.grant || !nip.RenewalDue(g, d.hostNow()) || g.Origin.Issuer != g.Host && g.Origin.Issuer != g.Owner {
		return func(bool) {}
	}
	sub := d.renewals(p.link, "grants-"+string(r.req.ID[:32]), p.host)
	renewed, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		have := false
		// Read to the end: a subscription that nobody reads holds up the link.
		for del := range sub.C() {
			if have {
				continue
			}
			if _, have = d.renew(del.Event); have {
				close(renewed)
			}
		}
	}()
	return func(answered bool) {
		if answered {
			timer := time.NewTimer(d.pace.settle)
			defer timer.Stop()
			select {
			case <-renewed:
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		sub.Close()
		<-done
	}
}

// renew puts a renewed grant in the place of the one held (NIP-HOST, renewal):
// the host's signed envelope, of the same standing in every member, ending
// later. False for every other event. The old grant stays valid to its own end,
// so requests under way with it are answered all the same.
func (d *Device) renew(v nip.Verified) (nip.Grant, bool) {
	old, ok := d.Grant()
	if !ok || int64(v.Event().CreatedAt) < old.IssuedAt {
		return nip.Grant{}, false
	}
	// The relay is held against the old grant's, which somebody allowed.
	a, err := admitVerified(v, d.key, nip.Profile{Loopback: true})
	if err != nil || nip.CheckRenewal(old, a.grant) != nil || a.grant.ExpiresAt <= d.hostNow() {
		return nip.Grant{}, false
	}
	if a, err = d.keepRenewal(old, a); err != nil {
		d.o.Log.Warn().Err(err).Msg("renewed grant not kept; it is asked for again")
		return nip.Grant{}, false
	}
	if !d.replace(old.ID, a) {
		return nip.Grant{}, false
	}
	d.o.Log.Info().Str("host", string(a.grant.Host)).Int64("until", a.grant.ExpiresAt).Msg("the host renewed the grant")
	return a.grant, true
}

// keepRenewal writes a in the place of old. What another process of the profile
// has put there meanwhile, and a does not renew, is returned instead.
func (d *Device) keepRenewal(old nip.Grant, a access) (access, error) {
	err := d.store.exclusive(func() error {
		known, err := readRecord(d.dir, old.Host, d.key, nip.Profile{Loopback: true})
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w: this host was forgotten", ErrNotPaired)
		}
		if err == nil && known.grant.ID != old.ID && nip.CheckRenewal(known.grant, a.grant) != nil {
			a = known
			return nil
		}
		// Commit point: a crash before the rename leaves the old grant, after it
		// the new one; both are of the same standing.
		return writeRecord(d.dir, a)
	})
	return a, err
}

// replace turns to a if the grant held is still the one of that ID.
func (d *Device) replace(old nip.GrantID, a access) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.access == nil || d.access.grant.ID != old {
		return false
	}
	d.access = &a
	return true
}

// reread takes up what another process of the profile has renewed. It reads the
// file only when the grant held is near its end.
func (d *Device) reread() {
	old, ok := d.Grant()
	if !ok || d.hostNow() < renewalFrom(old) {
		return
	}
	a, err := readRecord(d.dir, old.Host, d.key, nip.Profile{Loopback: true})
	if err == nil && a.grant.Relay == old.Relay && a.grant.ExpiresAt > old.ExpiresAt {
		d.replace(old.ID, a)
	}
}
