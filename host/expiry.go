package host

import (
	"context"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// accessChanged renews the subscriptions to whoever may ask now, and tells the
// devices that the host is there. It returns who left since the last time.
func (h *Host) accessChanged() (gone []nip.PubKey) {
	h.renewing.Lock()
	defer h.renewing.Unlock()
	keys, _, err := h.principals()
	if err != nil {
		h.log.Error().Err(err).Msg("access book cannot be read")
		return nil
	}
	set := make(map[string]bool, len(keys))
	for _, k := range keys {
		set[string(k)] = true
	}
	for k := range *h.members.Load() {
		if !set[k] {
			gone = append(gone, nip.PubKey(k))
		}
	}
	h.members.Store(&set)
	h.transport.Authors(keys)
	h.publisher.announce()
	return gone
}

// isMember reports whether the key was the owner or an active device at the
// last change. It sorts traffic and grants nothing.
func (h *Host) isMember(key string) bool { return (*h.members.Load())[key] }

// Principals lists the owner and the devices with an active grant, so that a
// relay of this process can tell them from strangers before the host runs.
func (c *Core) Principals() ([]nip.PubKey, error) {
	keys, _, err := c.principals()
	return keys, err
}

// principals lists the owner and the active devices, and when the next grant
// among them runs out (0: none).
func (c *Core) principals() (keys []nip.PubKey, next int64, err error) {
	keys = []nip.PubKey{c.owner}
	err = c.db.View(func(tx *bbolt.Tx) error {
		recs, err := c.activeGrants(tx, c.now())
		for _, r := range recs {
			keys = append(keys, r.Grant.Device)
			if next == 0 || r.Grant.ExpiresAt < next {
				next = r.Grant.ExpiresAt
			}
		}
		return err
	})
	return keys, next, err
}

// watchExpiry notices grants that run out: their devices leave the
// subscriptions and the outbox, what they sent and still waits is decided, and
// their queued turns end. Admission and every start look at the clock
// themselves; this only makes the end visible in time.
func (h *Host) watchExpiry(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		keys, next, err := h.principals()
		if err != nil {
			return err
		}
		if len(keys) < len(*h.members.Load()) {
			if err := h.dropExpired(ctx, h.accessChanged()); err != nil && ctx.Err() == nil {
				if fatal(err) {
					return err
				}
				h.log.Error().Err(err).Msg("what waited for an expired device could not be ended; a restart tries again")
			}
		}
		// At most a minute, so that a new grant and a wall clock that jumped
		// are noticed.
		wait := time.Minute
		if next != 0 {
			wait = min(wait, max(time.Duration(next-h.now())*time.Second, expiryResolution))
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
	}
}

const expiryResolution = 100 * time.Millisecond

func (h *Host) dropExpired(ctx context.Context, gone []nip.PubKey) error {
	if len(gone) == 0 {
		return nil
	}
	err := h.db.Update(ctx, func(tx *bbolt.Tx) error {
		for _, device := range gone {
			if err := dropOutbox(tx, device); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	h.starter.wake()
	return h.evaluateAll(ctx)
}
