package host

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
)

// The bounds of reading nudges (NIP-HOST, relay behaviour).
const (
	nudgeBoxes    = 64     // devices of one query
	nudgeEvents   = 256    // events taken of one query
	nudgeBack     = 86_400 // seconds
	nudgeRest     = 30     // seconds between two answers to one device
	nudgeMemory   = 1024   // nudges remembered
	nudgeFetching = 10 * time.Second
)

// GapTransport is a Transport that notices when a relay was not heard for long.
// One without it has no nudges; everything else works.
type GapTransport interface {
	Transport
	// Gaps names a relay after each gap of over 150 s in which the host's
	// subscription there did not stand, and after its first connection: how
	// long the host was away before it started is not known.
	Gaps() <-chan nip.RelayURL
	// Fetch asks one relay for what it stores and returns at its EOSE, or with
	// ctx's error. Events are verified, and at most the filter's limit.
	Fetch(ctx context.Context, relay nip.RelayURL, f nip.Filter) ([]nip.Verified, error)
}

// nudgeBook reads what devices left for a host that was away. All of it belongs
// to the goroutine of run; a restart begins empty, which at worst shows presence
// once more.
type nudgeBook struct {
	h      *Host
	heeded map[nip.EventID]bool
	order  []nip.EventID        // of heeded, oldest first
	last   map[nip.PubKey]int64 // when each device was answered last
}

func (b *nudgeBook) run(ctx context.Context) error {
	t, ok := b.h.transport.(GapTransport)
	if !ok {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case relay := <-t.Gaps():
			if err := b.read(ctx, t, relay); err != nil && ctx.Err() == nil {
				if fatal(err) {
					return err
				}
				b.h.log.Warn().Err(err).Str("relay", string(relay)).Msg("nudges could not be read; the devices' own retries remain")
			}
		}
	}
}

// read fetches the nudges of the devices on that relay and heeds those that are
// current.
func (b *nudgeBook) read(ctx context.Context, t GapTransport, relay nip.RelayURL) error {
	recs, err := b.h.active(b.h.now(), nil)
	if err != nil {
		return err
	}
	recs = slices.DeleteFunc(recs, func(r grantRecord) bool { return r.Grant.Relay != relay })
	for batch := range slices.Chunk(recs, nudgeBoxes) {
		if err := b.readBatch(ctx, t, relay, batch); err != nil {
			return err
		}
	}
	return nil
}

func (b *nudgeBook) readBatch(ctx context.Context, t GapTransport, relay nip.RelayURL, recs []grantRecord) error {
	h := b.h
	now := h.now()
	boxes := map[nip.PubKey]nip.Mailbox{}
	var names []string
	for _, r := range recs {
		box, err := h.ring.Mailbox(r.Grant.Device, nip.StreamNudges)
		if err != nil {
			return err
		}
		boxes[r.Grant.Device] = box
		names = append(names, string(box))
	}
	since := nostr.Timestamp(now - nudgeBack)
	fetching, cancel := context.WithTimeout(ctx, nudgeFetching)
	defer cancel()
	events, err := t.Fetch(fetching, relay, nip.Filter{
		Kinds: []int{nip.KindArtifact}, Tags: nostr.TagMap{"p": {string(h.self)}, "h": names}, Since: &since, Limit: nudgeEvents,
	})
	if err != nil {
		return err
	}
	newest := map[nip.PubKey]nip.Opened{}
	for _, v := range events[:min(len(events), nudgeEvents)] {
		o, ok := b.open(v, boxes, now)
		if ok && (newest[o.Signer].Event == nil || o.IssuedAt > newest[o.Signer].IssuedAt) {
			newest[o.Signer] = o
		}
	}
	var devices []nip.PubKey
	for device, o := range newest {
		if b.take(device, o.EventID, now) {
			devices = append(devices, device)
		}
	}
	if len(devices) == 0 {
		return nil
	}
	h.log.Info().Int("devices", len(devices)).Str("relay", string(relay)).Msg("nudged")
	// Presence makes the devices send what they hold back; what is here already
	// is decided first.
	return errors.Join(h.evaluateAll(ctx), h.presence(ctx, devices...), h.hints.publish(ctx, devices...))
}

// open checks what a nudge must be: of one of the devices asked about, in its
// own mailbox, for this host, by its signer, and current. Everything else is
// ignored.
func (b *nudgeBook) open(v nip.Verified, boxes map[nip.PubKey]nip.Mailbox, now int64) (nip.Opened, bool) {
	box, asked := boxes[nip.PubKey(v.Event().PubKey)]
	if !asked {
		return nip.Opened{}, false
	}
	o, err := nip.Open(v, b.h.key)
	if err != nil || o.Schema != nip.SchemaNudge || o.Mailbox != box || o.Recipient != b.h.self {
		return nip.Opened{}, false
	}
	n, err := nip.ParseNudge(o.Inline)
	return o, err == nil && n.Host == b.h.self && n.Device == o.Signer && n.Current(now)
}

// take reports whether a nudge is to be heeded now, and remembers it: each once,
// each device at most every 30 s.
func (b *nudgeBook) take(device nip.PubKey, id nip.EventID, now int64) bool {
	if last, answered := b.last[device]; b.heeded[id] || answered && now < last+nudgeRest {
		return false
	}
	if len(b.order) == nudgeMemory {
		delete(b.heeded, b.order[0])
		b.order = b.order[1:]
	}
	b.heeded[id] = true
	b.order = append(b.order, id)
	for d, at := range b.last {
		if now >= at+nudgeRest {
			delete(b.last, d)
		}
	}
	b.last[device] = now
	return true
}
