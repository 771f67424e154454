package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
	"holdfast/relay"
)

const (
	overlap       = 600     // seconds that a resumed subscription reads again
	summaryLife   = 604_800 // the longest that a host may ask relays to keep a summary
	presenceFresh = 180     // seconds after which a presence says nothing about now
	maxStored     = 500     // stored summaries asked for at once
)

// mailboxes is where the host publishes to this device. Both ends derive the
// names from their shared secret, so a relay cannot.
type mailboxes struct {
	d                   *Device
	host, owner         nip.PubKey
	link                relay.Link
	summaries, presence nip.Mailbox
}

func (d *Device) mailboxes() (mailboxes, error) {
	p, err := d.peer()
	if err != nil {
		return mailboxes{}, err
	}
	g, ok := d.Grant()
	if !ok {
		return mailboxes{}, &OwnerError{"the host publishes to its devices, not to its owner; read its tasks instead"}
	}
	m := mailboxes{d: d, host: p.host, owner: g.Owner, link: p.link}
	if m.summaries, err = nip.DeriveMailbox(d.key, p.host, nip.StreamSummaries); err != nil {
		return m, fmt.Errorf("derive mailbox: %w", err)
	}
	if m.presence, err = nip.DeriveMailbox(d.key, p.host, nip.StreamPresence); err != nil {
		return m, fmt.Errorf("derive mailbox: %w", err)
	}
	return m, nil
}

// streams are the subscriptions to what a host publishes. grants may be nil.
type streams struct{ summaries, presence, grants *relay.Subscription }

func (s streams) close() {
	s.summaries.Close()
	s.presence.Close()
	if s.grants != nil {
		s.grants.Close()
	}
}

// renewals never delivers where there is no subscription.
func (s streams) renewals() <-chan relay.Delivery {
	if s.grants == nil {
		return nil
	}
	return s.grants.C()
}

// subscribe asks for the summaries since shortly before the newest one kept,
// and for the last presence.
func (m mailboxes) subscribe(kept []nip.Summary) streams {
	var cursor int64
	for _, s := range kept {
		cursor = max(cursor, s.UpdatedAt)
	}
	filter := func(box nip.Mailbox, limit int) nip.Filter {
		return nip.Filter{Kinds: []int{nip.KindArtifact}, Authors: []string{string(m.host)}, Limit: limit,
			Tags: nostr.TagMap{"p": {string(m.d.pub)}, "h": {string(box)}}}
	}
	summaries := m.link.Subscribe("summaries-"+string(m.summaries[:16]), func(now time.Time) []nip.Filter {
		f := filter(m.summaries, maxStored)
		since := nostr.Timestamp(max(cursor-overlap, now.Unix()-summaryLife))
		f.Since = &since
		return []nip.Filter{f}
	})
	presence := m.link.Subscribe("presence-"+string(m.presence[:16]), func(time.Time) []nip.Filter {
		return []nip.Filter{filter(m.presence, 1)}
	})
	return streams{summaries: summaries, presence: presence}
}

// take verifies a batch of deliveries, keeps them in one transaction, and
// returns what is news: the rest was old, repeated or not believed.
func (m mailboxes) take(batch []relay.Delivery) []Update {
	var news []Update
	var sums []nip.Summary
	for _, del := range batch {
		if !m.derived(del) {
			if g, ok := m.d.renew(del.Event); ok {
				news = append(news, Update{Grant: &g})
			}
			continue
		}
		u, err := m.open(del)
		switch {
		case err != nil:
			m.d.o.Log.Debug().Str("event", del.Event.Event().ID).Err(err).Msg("publication not believed")
		case u.Summary != nil:
			sums = append(sums, *u.Summary)
		case m.takePresence(*u.Presence, !del.Stored):
			news = append(news, u)
		}
	}
	if len(sums) == 0 {
		return news
	}
	kept, err := m.d.store.keepSummaries(sums)
	if err != nil {
		// Shown all the same: a busy store must not hide what the host says.
		m.d.o.Log.Warn().Err(err).Msg("summaries not kept")
		for i := range sums {
			news = append(news, Update{Summary: &sums[i]})
		}
		return news
	}
	for i := range sums {
		switch kept[i] {
		case newer:
			news = append(news, Update{Summary: &sums[i]})
		case clash:
			m.d.o.Log.Warn().Str("task", string(sums[i].Task)).Int64("seq", sums[i].Sequence).
				Msg("the host signed two different summaries of one revision; the first is kept")
		}
	}
	return news
}

// derived reports whether an event lies in a mailbox of the host's publications;
// a renewed grant lies in one of its own.
func (m mailboxes) derived(del relay.Delivery) bool {
	tags := del.Event.Event().Tags
	return tags.FindWithValue("h", string(m.summaries)) != nil || tags.FindWithValue("h", string(m.presence)) != nil
}

// takePresence keeps a newer presence. One that lay on the relay for more than
// 180 s raises the floor and is not shown: it says nothing about now. That it
// may be ahead of this clock is no fault of it, it corrects the clock.
func (m mailboxes) takePresence(p nip.Presence, live bool) bool {
	newer, err := m.d.store.raiseFloor(p)
	if err != nil {
		m.d.o.Log.Warn().Err(err).Msg("presence not kept")
		return false
	}
	if !newer {
		return false
	}
	now := m.d.now()
	m.d.learn(func(c *clock) { c.sample(now, p.ObservedAt, live) })
	return m.d.hostNow()-p.ObservedAt <= presenceFresh
}

func (d *Device) inHostTime(local int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clock.host(local)
}

// open checks what a publication must be: from the pinned host, to this device,
// in the derived mailbox of its kind, naming its own host and owner.
func (m mailboxes) open(del relay.Delivery) (Update, error) {
	o, err := nip.Open(del.Event, m.d.key)
	if err != nil {
		return Update{}, err
	}
	if o.Signer != m.host || o.Recipient != m.d.pub {
		return Update{}, errors.New("publication of another signer or to another device")
	}
	switch {
	case o.Schema == nip.SchemaSummary && o.Mailbox == m.summaries:
		s, err := nip.ParseSummary(o.Inline, o.Artifact)
		if err == nil && s.Host != m.host {
			err = errors.New("summary names another host")
		}
		return Update{Summary: &s}, err
	case o.Schema == nip.SchemaPresence && o.Mailbox == m.presence:
		p, err := nip.ParsePresence(o.Inline)
		if err == nil && (p.Host != m.host || p.Owner != m.owner || p.ObservedAt != o.IssuedAt) {
			err = errors.New("presence names another host, owner or time")
		}
		return Update{Presence: &p}, err
	}
	return Update{}, fmt.Errorf("%s in a foreign mailbox", o.Schema)
}
