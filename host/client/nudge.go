package client

import (
	"context"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/relay"
)

// nudgeLife is the draft's exact life of a nudge, in seconds.
const nudgeLife = 86_400

// nudge leaves a host that does not answer a word to show itself when it is
// back (NIP-HOST, nudges): it then looks at what it holds of this device and
// publishes presence, which makes a Watch send the outbox again. At most one in
// 30 s goes to a host, over all processes of the profile. A nudge that cannot
// be left costs nothing but itself.
func (d *Device) nudge(ctx context.Context, p peer) {
	if d.pace.nudge == 0 || p.grant == "" || p.link.Health().State != relay.StateOpen {
		return
	}
	ev, err := d.sealNudge(p)
	if err != nil {
		d.o.Log.Debug().Err(err).Msg("nudge not made")
		return
	}
	// Noted first: a crash after it costs one nudge, and never sends two.
	due, err := d.store.takeNudge(p.host, d.now(), d.pace.nudge)
	if err != nil || !due {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, d.pace.again)
	defer cancel()
	if err := p.link.Publish(ctx, ev); err != nil {
		d.o.Log.Debug().Err(err).Msg("nudge not left")
	}
}

func (d *Device) sealNudge(p peer) (*nip.Event, error) {
	box, err := nip.DeriveMailbox(d.key, p.host, nip.StreamNudges)
	if err != nil {
		return nil, fmt.Errorf("derive mailbox: %w", err)
	}
	now := d.hostNow()
	a, err := nip.EncodeNudge(nip.Nudge{Host: p.host, Device: d.pub, IssuedAt: now, ExpiresAt: now + nudgeLife})
	if err != nil {
		return nil, fmt.Errorf("encode nudge: %w", err)
	}
	return nip.Seal(d.key, p.host, box, a, nil)
}

// takeNudge reports whether a nudge of host is due at local time now, which is
// every so many seconds, and notes that it was taken.
func (s *store) takeNudge(host nip.PubKey, now, every int64) (bool, error) {
	key := metaKey(metaNudge, host)
	recent := false
	if err := s.view(func(tx *bbolt.Tx) error {
		recent = nudgedSince(tx.Bucket(bucketMeta).Get(key), now, every)
		return nil
	}); err != nil || recent {
		return false, err
	}
	raw, err := json.Marshal(now)
	if err != nil {
		return false, err
	}
	due := false
	err = s.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketMeta)
		if nudgedSince(b.Get(key), now, every) {
			return nil // another process was first
		}
		due = true
		return b.Put(key, raw)
	})
	return due && err == nil, err
}

// nudgedSince reads a kept time. One in the future is of a clock that was set
// back and holds up nothing.
func nudgedSince(raw []byte, now, every int64) bool {
	var last int64
	return raw != nil && json.Unmarshal(raw, &last) == nil && last <= now && now-last < every
}
