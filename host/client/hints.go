package client

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// Hints are the last verified hints of the host that the device is turned to,
// and whether there are any that are not over. They are advice (NIP-HOST,
// companion records): the device shows them and goes nowhere because of them. It
// moves to another relay by an invitation.
func (d *Device) Hints() (nip.Hints, bool, error) {
	g, err := d.standing()
	if err != nil {
		return nip.Hints{}, false, err
	}
	h, err := d.store.hints(g.Host)
	if err != nil || h == nil || h.ExpiresAt <= d.hostNow() {
		return nip.Hints{}, false, err
	}
	return *h, true, nil
}

// hints returns the kept hints of a host; nil without any.
func (s *store) hints(host nip.PubKey) (h *nip.Hints, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		h, err = readHints(tx, host)
		return err
	})
	return h, err
}

func readHints(tx *bbolt.Tx, host nip.PubKey) (*nip.Hints, error) {
	raw := tx.Bucket(bucketMeta).Get(metaKey(metaHints, host))
	if raw == nil {
		return nil, nil
	}
	// They were held to the person's word about loopback relays when they came.
	h, err := nip.ParseHints(raw, nip.Profile{Loopback: true})
	if err == nil && h.Host != host {
		err = errors.New("of another host")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: kept hints: %w", ErrDamaged, err)
	}
	return &h, nil
}

// keepHints keeps the hints of pub if they are newer than the kept ones: a
// generation never goes back, and within one they were issued later. news says
// that they name other ways, or another state of one.
func (s *store) keepHints(pub publication) (news bool, err error) {
	h := *pub.Hints
	err = s.update(func(tx *bbolt.Tx) error {
		known, err := readHints(tx, h.Host)
		if err != nil {
			return err
		}
		if known != nil && (h.Generation < known.Generation || h.Generation == known.Generation && h.IssuedAt <= known.IssuedAt) {
			return nil
		}
		news = known == nil || !sameWays(known.Hints, h.Hints)
		return tx.Bucket(bucketMeta).Put(metaKey(metaHints, h.Host), pub.body)
	})
	return news, err
}

// sameWays compares hints without their times.
func sameWays(a, b []nip.Hint) bool {
	return slices.EqualFunc(a, b, func(a, b nip.Hint) bool {
		a.ObservedAt = b.ObservedAt
		return a == b
	})
}
