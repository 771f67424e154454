package host

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"holdfast/nip"
)

const (
	hintsEvery = 3600     // seconds between two hints that say the same
	hintsKept  = 2 * 3600 // seconds; longer than the pause between them
	hintsMost  = 16
)

// hintBook remembers which hints each device was sent last, so that they go out
// when the ways changed and otherwise once an hour. It begins empty: the first
// round after a start tells everybody, whose generation is another anyway.
type hintBook struct {
	h *Host

	// mu guards sent.
	mu   sync.Mutex
	sent map[nip.PubKey]sentHints
}

type sentHints struct {
	ways string
	at   int64
}

// publish puts hints into the outbox for whoever needs them: each active device,
// or those named, which then get them in any case. A host that is reached over
// relays only says which those are (NIP-HOST, companion records).
func (b *hintBook) publish(ctx context.Context, devices ...nip.PubKey) error {
	h := b.h
	now := h.now()
	recs, err := h.active(now, devices)
	if err != nil {
		return err
	}
	b.forget(recs, len(devices) == 0)
	relays := h.transport.Relays()
	var rows []outboxRow
	said := map[nip.PubKey]sentHints{}
	for _, r := range recs {
		d := r.Grant.Device
		hints, ways := relayHints(relays, r.Grant.Relay, now)
		if len(hints) == 0 || len(devices) == 0 && !b.due(d, ways, now) {
			continue
		}
		row, err := h.sealHints(r.Grant, hints, now)
		if err != nil {
			return err
		}
		rows, said[d] = append(rows, row), sentHints{ways, now}
	}
	if len(rows) == 0 {
		return nil
	}
	if err := h.putLive(ctx, rows); err != nil {
		return err
	}
	b.mu.Lock()
	for d, s := range said {
		b.sent[d] = s
	}
	b.mu.Unlock()
	return nil
}

// relayHints lists the relays for a device, and what makes two lists the same:
// that one is away for a minute is no news. A device of the wide net is not told
// of a relay on this machine's loopback, which its rules would refuse together
// with all the rest.
func relayHints(relays []RelayHealth, own nip.RelayURL, now int64) (hints []nip.Hint, ways string) {
	near := nip.CheckRelay(own, false) != nil
	var names []string
	seen := map[nip.RelayURL]bool{}
	for _, r := range relays {
		status := "unreachable"
		if r.State == "open" {
			status = "reachable"
		}
		for _, name := range append([]nip.RelayURL{r.URL}, r.Also...) {
			if len(hints) == hintsMost || seen[name] || nip.CheckRelay(name, near) != nil {
				continue
			}
			seen[name] = true
			hints = append(hints, nip.Hint{Class: "relay", Transport: "nostr", Address: string(name), Status: status, ObservedAt: now})
			names = append(names, string(name))
		}
	}
	return hints, strings.Join(names, " ")
}

func (h *Host) sealHints(g nip.Grant, hints []nip.Hint, now int64) (outboxRow, error) {
	a, err := nip.EncodeHints(nip.Hints{Host: h.self, Generation: h.generation, IssuedAt: now, ExpiresAt: now + hintsKept, Hints: hints})
	if err != nil {
		return outboxRow{}, fmt.Errorf("encode hints: %w", err)
	}
	box, err := h.ring.Mailbox(g.Device, nip.StreamHints)
	if err != nil {
		return outboxRow{}, fmt.Errorf("derive mailbox: %w", err)
	}
	ev, err := h.sealFor(g.Device, box, a)
	if err != nil {
		return outboxRow{}, fmt.Errorf("seal hints: %w", err)
	}
	return outboxRow{Device: g.Device, Stream: "hints", Relay: g.Relay, Until: now + hintsKept, Event: ev}, nil
}

func (b *hintBook) due(d nip.PubKey, ways string, now int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, told := b.sent[d]
	return !told || s.ways != ways || now >= s.at+hintsEvery
}

// forget drops who is not active any more, so that a device that comes back is
// told at once.
func (b *hintBook) forget(active []grantRecord, all bool) {
	if !all {
		return
	}
	keep := map[nip.PubKey]bool{}
	for _, r := range active {
		keep[r.Grant.Device] = true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for d := range b.sent {
		if !keep[d] {
			delete(b.sent, d)
		}
	}
}
