package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay"
)

// enrollmentLife is how long the draft lets an enrollment request live, in seconds.
const enrollmentLife = 300

// maxCopies is how many stored events a look for enrollment requests takes.
const maxCopies = 64

// EnrollmentCopy is an enrollment request as the host sealed it to this device.
// Digest is what an approval or a denial names, so that nothing else can be
// approved in its place.
type EnrollmentCopy struct {
	nip.Enrollment
	Digest nip.Digest
}

// Enrollments reads the enrollment requests of the paired host that wait now,
// the newest first. Only administrators get copies; for others the list is
// empty. It works while the host is away, an approval does not.
func (d *Device) Enrollments(ctx context.Context) ([]EnrollmentCopy, error) {
	p, err := d.peer()
	if err != nil {
		return nil, err
	}
	g, err := d.standing()
	if err != nil {
		return nil, err
	}
	if err := d.ready(ctx, p.link); err != nil {
		return nil, err
	}
	// Older ones have expired, and each is one more question to a signer.
	since := nostr.Timestamp(min(d.hostNow(), d.now()) - enrollmentLife - tolerated)
	sub := p.link.Subscribe("enrollments", func(time.Time) []nip.Filter {
		return []nip.Filter{{Kinds: []int{nip.KindArtifact}, Authors: []string{string(p.host)}, Limit: maxCopies,
			Tags: nostr.TagMap{"p": {string(d.pub)}}, Since: &since}}
	})
	defer sub.Close()
	events, err := storedEvents(ctx, sub, p.link)
	if err != nil {
		return nil, err
	}
	var list []EnrollmentCopy
	for _, v := range events {
		e, err := d.openEnrollment(ctx, v, g)
		var signer *nip.KeeperError
		if errors.As(err, &signer) {
			return nil, err // it would be asked again for each of them
		}
		if err != nil {
			d.o.Log.Debug().Str("event", v.Event().ID).Err(err).Msg("no enrollment request")
			continue
		}
		if !slices.ContainsFunc(list, func(o EnrollmentCopy) bool { return o.ID == e.ID }) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b EnrollmentCopy) int { return int(b.IssuedAt - a.IssuedAt) })
	return list, nil
}

// storedEvents takes what a relay has stored, at most maxCopies.
func storedEvents(ctx context.Context, sub *relay.Subscription, link relay.Link) ([]nip.Verified, error) {
	var list []nip.Verified
	for len(list) < maxCopies {
		select {
		case del, ok := <-sub.C():
			if !ok {
				return nil, relay.ErrClosed
			}
			list = append(list, del.Event)
		case <-sub.EOSE():
			return append(list, arrivedEvents(sub, maxCopies-len(list))...), nil
		case <-ctx.Done():
			return nil, noAnswer(link.Health(), nil)
		}
	}
	return list, nil
}

// arrivedEvents takes what can be had without waiting: what came before the end
// of stored events may still lie in the channel after it.
func arrivedEvents(sub *relay.Subscription, limit int) []nip.Verified {
	var list []nip.Verified
	for len(list) < limit {
		select {
		case del, ok := <-sub.C():
			if !ok {
				return list
			}
			list = append(list, del.Event)
		default:
			return list
		}
	}
	return list
}

// openEnrollment checks what a copy must be: from the paired host, to this
// device, in the mailbox of its ID, naming its own host and owner, not expired.
func (d *Device) openEnrollment(ctx context.Context, v nip.Verified, g nip.Grant) (EnrollmentCopy, error) {
	o, err := nip.OpenBy(ctx, v, d.hold)
	if err != nil {
		return EnrollmentCopy{}, err
	}
	switch {
	case o.Schema != nip.SchemaEnrollment:
		return EnrollmentCopy{}, fmt.Errorf("envelope holds %q", o.Schema)
	case o.Signer != g.Host || o.Recipient != d.pub:
		return EnrollmentCopy{}, errors.New("enrollment request of another signer or to another device")
	}
	e, err := nip.ParseEnrollment(o.Inline, nip.Profile{Loopback: true})
	if err != nil {
		return EnrollmentCopy{}, err
	}
	switch {
	case string(o.Mailbox) != string(e.ID):
		return EnrollmentCopy{}, errors.New("enrollment request in a foreign mailbox")
	case e.Host != g.Host || e.Owner != g.Owner:
		return EnrollmentCopy{}, errors.New("enrollment request names another host or owner")
	case o.IssuedAt != e.IssuedAt || o.RetainUntil != e.ExpiresAt:
		return EnrollmentCopy{}, errors.New("enrollment request and envelope disagree about time")
	case e.ExpiresAt <= d.hostNow():
		return EnrollmentCopy{}, errors.New("enrollment request has expired")
	}
	return EnrollmentCopy{Enrollment: e, Digest: o.Digest}, nil
}

// Accept keeps the grant that an administrator got for this device by approving
// an enrollment and passed on: the host's own envelope, which only this device
// can open. host is the key that the person read on the host's screen; nothing
// else ties the grant to the host that they mean. A plain ws:// relay is
// accepted only with Options.Loopback. A grant that is older than the one held
// from that host is refused.
func (d *Device) Accept(ev *nip.Event, host nip.PubKey) (nip.Grant, error) {
	if err := d.devicesOnly(); err != nil {
		return nip.Grant{}, err
	}
	a, err := admit(ev, d.key, nip.Profile{Loopback: d.o.Loopback})
	if err != nil {
		return nip.Grant{}, fmt.Errorf("the grant does not hold: %w", err)
	}
	known, knownErr := readRecord(d.dir, host, d.key, nip.Profile{Loopback: true})
	switch g := a.grant; {
	case g.Host != host:
		err = errors.New("it is from another host")
	case g.Origin.Kind != "approval":
		err = errors.New("it comes from no approval")
	case g.ExpiresAt <= d.now():
		err = errors.New("it has expired")
	case knownErr == nil && (g.IssuedAt < known.grant.IssuedAt || g.Epoch < known.grant.Epoch):
		err = errors.New("a newer one is held already")
	}
	if err != nil {
		return nip.Grant{}, fmt.Errorf("the grant does not hold: %w", err)
	}
	back, err := d.turnClock(host)
	if err != nil {
		return nip.Grant{}, err
	}
	defer back()
	return a.grant, d.adopt(a)
}
