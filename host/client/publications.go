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
	longestKept   = 604_800 // seconds that a host may ask relays to keep a publication
	presenceFresh = 180     // seconds after which a presence says nothing about now
	maxStored     = 500     // stored summaries, and command states, asked for at once
	storedPages   = 64      // stored pages asked for at once: each is up to 64 KiB
)

// mailboxes is where the host publishes to this device. Both ends derive the
// names from their shared secret, so a relay cannot.
type mailboxes struct {
	d           *Device
	host, owner nip.PubKey
	loopback    bool // hints may name plain relays on this computer
	link        relay.Link

	summaries, presence, hints, states, pages nip.Mailbox
}

func (d *Device) mailboxes() (mailboxes, error) {
	p, err := d.peer()
	if err != nil {
		return mailboxes{}, err
	}
	g, ok := d.Grant()
	if !ok {
		return mailboxes{}, &OwnerError{"the host publishes to its devices, not to its owner; read its tasks instead, and device commands"}
	}
	// That the grant's own relay passed says whether a person allowed such ones.
	m := mailboxes{d: d, host: p.host, owner: g.Owner, link: p.link, loopback: nip.CheckRelay(g.Relay, false) != nil}
	for _, b := range []struct {
		box    *nip.Mailbox
		stream nip.Stream
	}{
		{&m.summaries, nip.StreamSummaries}, {&m.presence, nip.StreamPresence}, {&m.hints, nip.StreamHints},
		{&m.states, nip.StreamCommands}, {&m.pages, nip.StreamPages},
	} {
		if *b.box, err = nip.DeriveMailbox(d.key, p.host, b.stream); err != nil {
			return m, fmt.Errorf("derive mailbox: %w", err)
		}
	}
	return m, nil
}

// ownStates is where the host publishes what became of the profile's own
// commands, which it does for its owner too. The name of a mailbox comes from the
// secret, which a key that is held elsewhere does not give.
func (d *Device) ownStates() (m mailboxes, err error) {
	if d.elsewhere() {
		return m, &OwnerError{"the signer that holds this key cannot name the mailbox of its commands' states"}
	}
	p, err := d.peer()
	if err != nil {
		return m, err
	}
	m = mailboxes{d: d, host: p.host, link: p.link}
	if m.states, err = nip.DeriveMailbox(d.key, p.host, nip.StreamCommands); err != nil {
		return m, fmt.Errorf("derive mailbox: %w", err)
	}
	return m, nil
}

// streams are the subscriptions to what a host publishes. grants may be nil.
type streams struct{ published, grants *relay.Subscription }

func (s streams) close() {
	s.published.Close()
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

// cursors are the latest times of what is kept of each stream, where a
// subscription goes on. A publication that took longer than overlap to reach
// the relay is met by a device that watches, not by one that comes later.
type cursors struct{ summaries, states, pages int64 }

func (m mailboxes) cursors(known []nip.Summary) (c cursors, err error) {
	for _, s := range known {
		c.summaries = max(c.summaries, s.UpdatedAt)
	}
	if err := m.d.store.sent(m.host, func(_ nip.CommandID, r sentRow) { c.states = max(c.states, r.StatedAt) }); err != nil {
		return c, err
	}
	return c, m.d.store.eachPage(m.host, func(_ string, p keptPage) { c.pages = max(c.pages, p.issued) })
}

// What a subscription is for. Pages are large: who only asks where a task
// stands does not wait for them.
const (
	wantWords = 1 << iota // summaries, presence, hints and command states
	wantPages
	wantStates // command states alone
)

// subscribe asks for what was published since shortly before the newest of each
// stream that is kept, and for the last presence and hints.
func (m mailboxes) subscribe(c cursors, want int) streams {
	filter := func(box nip.Mailbox, limit int) nip.Filter {
		return nip.Filter{Kinds: []int{nip.KindArtifact}, Authors: []string{string(m.host)}, Limit: limit,
			Tags: nostr.TagMap{"p": {string(m.d.pub)}, "h": {string(box)}}}
	}
	id := fmt.Sprintf("published-%d-%s", want, m.states[:16])
	return streams{published: m.link.Subscribe(id, func(now time.Time) []nip.Filter {
		since := func(box nip.Mailbox, limit int, cursor int64) nip.Filter {
			f := filter(box, limit)
			at := nostr.Timestamp(max(cursor-overlap, now.Unix()-longestKept))
			f.Since = &at
			return f
		}
		var list []nip.Filter
		if want&wantWords != 0 {
			list = append(list, filter(m.presence, 1), filter(m.hints, 1), since(m.summaries, maxStored, c.summaries))
		}
		if want&(wantWords|wantStates) != 0 {
			list = append(list, since(m.states, maxStored, c.states))
		}
		if want&wantPages != 0 {
			list = append(list, since(m.pages, storedPages, c.pages))
		}
		return list
	})}
}

// derived reports whether an event lies in a mailbox of the host's publications;
// a renewed grant lies in one of its own.
func (m mailboxes) derived(del relay.Delivery) bool {
	tags := del.Event.Event().Tags
	for _, box := range []nip.Mailbox{m.summaries, m.presence, m.hints, m.states, m.pages} {
		if box != "" && tags.FindWithValue("h", string(box)) != nil {
			return true
		}
	}
	return false
}

// publication is one opened publication; one member of Update is set, or states.
type publication struct {
	Update
	states          *nip.CommandStates
	body            []byte // canonical bytes of the artifact
	issued, expires int64
	live            bool
}

// open checks what a publication must be: from the pinned host, to this device,
// in the derived mailbox of its kind, naming its own host and owner. That the
// body's times are the envelope's is checked by nip; whether it is over is for
// take, which learns the time first.
func (m mailboxes) open(del relay.Delivery) (publication, error) {
	o, err := nip.OpenBy(m.d.life, del.Event, m.d.hold)
	if err != nil {
		return publication{}, err
	}
	if o.Signer != m.host || o.Recipient != m.d.pub {
		return publication{}, errors.New("publication of another signer or to another device")
	}
	p := publication{body: o.Inline, issued: o.IssuedAt, expires: o.RetainUntil, live: !del.Stored}
	var host nip.PubKey
	switch {
	case o.Schema == nip.SchemaSummary && o.Mailbox == m.summaries:
		s, err := nip.ParseSummary(o.Inline, o.Artifact)
		if err == nil && s.Host != m.host {
			err = errors.New("summary names another host")
		}
		p.Summary = &s
		return p, err
	case o.Schema == nip.SchemaPresence && o.Mailbox == m.presence:
		s, err := nip.ParsePresence(o.Inline)
		if err == nil && (s.Host != m.host || s.Owner != m.owner || s.ObservedAt != o.IssuedAt) {
			err = errors.New("presence names another host, owner or time")
		}
		p.Presence = &s
		return p, err
	case o.Schema == nip.SchemaHints && o.Mailbox == m.hints:
		var h nip.Hints
		h, err = nip.ParseHints(o.Inline, nip.Profile{Loopback: m.loopback})
		p.Hints, host = &h, h.Host
	case o.Schema == nip.SchemaStates && o.Mailbox == m.states:
		var s nip.CommandStates
		s, err = nip.ParseStates(o.Inline)
		p.states, host = &s, s.Host
	case o.Schema == nip.SchemaTaskPage && o.Mailbox == m.pages:
		var g nip.PublishedPage
		if g, err = nip.ParseTaskPage(o.Inline); err == nil && !nip.ValidID(g.Page.Scope.Task) {
			err = errors.New("page of a task that no device can name")
		}
		p.Page, host = &g, g.Host
	default:
		return publication{}, fmt.Errorf("%s in a foreign mailbox", o.Schema)
	}
	if err == nil && host != m.host {
		err = errors.New("publication names another host")
	}
	return p, err
}
