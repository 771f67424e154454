package host

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/owner"
)

const (
	presenceSeconds  = 60
	republishedTasks = 50
	summaryKept      = 86_400
	summaryKeptMost  = 604_800
)

// publishedSummary is what was sealed last for a device and a task: the same
// bytes go out again after a restart, because one sequence must never carry
// two different bodies.
type publishedSummary struct {
	Sequence int64      `json:"sequence"`
	Until    int64      `json:"until"` // until when the event is kept
	Event    *nip.Event `json:"event"`
}

// Publish is hop 11: the task as it stands becomes one sealed summary for each
// device that may observe. It comes after owner/evidence.go recorded what
// happened and before relay/send.go moves the event; what was sealed, and that
// it must go out, are one commit, and the outbox row leaves only on a relay's
// OK.
func (h *Host) publish(ctx context.Context, id owner.TaskID) error {
	if !nip.ValidID(string(id)) {
		return nil // a local task without a wire identity has no summaries
	}
	t, err := h.store.Get(id)
	if err != nil {
		return err
	}
	if t.Archived != nil {
		return nil
	}
	grants, err := h.observers()
	if err != nil || len(grants) == 0 {
		return err
	}
	a, err := h.summaryOf(&t)
	if err != nil || a.RetainUntil <= h.now() {
		return err // what happened over a week ago is in task.list, not in a summary
	}
	type sealed struct {
		device nip.PubKey
		relay  nip.RelayURL
		event  *nip.Event
	}
	var out []sealed
	for _, g := range grants {
		done, err := h.alreadyPublished(g.Device, t.ID, t.Revision)
		if err != nil {
			return err
		}
		if done {
			continue
		}
		box, err := h.ring.Mailbox(g.Device, nip.StreamSummaries)
		if err != nil {
			return fmt.Errorf("derive mailbox: %w", err)
		}
		ev, err := h.sealFor(g.Device, box, a)
		if err != nil {
			return fmt.Errorf("seal summary: %w", err)
		}
		out = append(out, sealed{g.Device, g.Relay, ev})
	}
	if len(out) == 0 {
		return nil
	}
	err = h.db.Update(ctx, func(tx *bbolt.Tx) error {
		live, err := h.liveDevices(tx)
		if err != nil {
			return err
		}
		for _, s := range out {
			if !live[s.device] {
				continue
			}
			key := string(s.device) + "/" + string(t.ID)
			var old publishedSummary
			if found, err := getJSON(tx, bucketPublished, key, &old); err != nil {
				return err
			} else if found && old.Sequence >= t.Revision {
				continue
			}
			if err := putJSON(tx, bucketPublished, key, publishedSummary{Sequence: t.Revision, Until: a.RetainUntil, Event: s.event}); err != nil {
				return err
			}
			if err := h.putEverywhere(tx, outboxRow{Device: s.device, Stream: "summary", Subject: string(t.ID), Relay: s.relay, Until: a.RetainUntil, Event: s.event}); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		h.outbox.wake()
	}
	return err
}

// summaryOf is the summary of a task: typed host state only, never a title, a
// prompt or what an engine said. It is kept for a day from now, and never for
// more than a week from the change.
func (h *Host) summaryOf(t *owner.Task) (nip.Artifact, error) {
	phase, headline, attention := t.Summary()
	a, err := nip.EncodeSummary(nip.Summary{
		Host: h.self, Task: nip.TaskID(t.ID), Sequence: t.Revision, Phase: nip.Phase(phase),
		Headline: nip.Headline(headline, "Task "+genericWord(phase)), Attention: attention, UpdatedAt: t.UpdatedAt,
	})
	if err != nil {
		return a, fmt.Errorf("encode summary of %s: %w", t.ID, err)
	}
	a.RetainUntil = max(a.RetainUntil, min(h.now()+summaryKept, t.UpdatedAt+summaryKeptMost))
	return a, nil
}

func genericWord(phase string) string {
	switch nip.Phase(phase) {
	case nip.PhaseCompleted:
		return "finished"
	case nip.PhaseUnknown:
		return "status unknown"
	}
	return phase
}

func (h *Host) alreadyPublished(device nip.PubKey, id owner.TaskID, revision int64) (bool, error) {
	var old publishedSummary
	var found bool
	err := h.db.View(func(tx *bbolt.Tx) (err error) {
		found, err = getJSON(tx, bucketPublished, string(device)+"/"+string(id), &old)
		return err
	})
	return found && old.Sequence >= revision, err
}

// observers lists the live grants with observe.
func (h *Host) observers() ([]nip.Grant, error) {
	var out []nip.Grant
	err := h.db.View(func(tx *bbolt.Tx) error {
		recs, err := h.activeGrants(tx, h.now())
		for _, r := range recs {
			if r.Grant.Rights.Has(nip.Observe) {
				out = append(out, r.Grant)
			}
		}
		return err
	})
	return out, err
}

// republish puts the stored bytes of the newest tasks into the outbox again at
// start, and seals what changed while the host was away. With devices it is for
// them alone: they were just paired.
func (h *Host) republish(ctx context.Context, devices []nip.PubKey) error {
	if err := h.fill(); err != nil {
		return err
	}
	rows := h.index.newest(republishedTasks, func(r *taskRow) bool { return !r.Archived && nip.ValidID(string(r.ID)) })
	grants, err := h.observers()
	if err != nil {
		return err
	}
	err = h.db.Update(ctx, func(tx *bbolt.Tx) error {
		now := h.now()
		if err := h.dropForeignCopies(tx); err != nil {
			return err
		}
		live, err := h.liveDevices(tx)
		if err != nil {
			return err
		}
		for _, g := range grants {
			if !live[g.Device] || devices != nil && !slices.Contains(devices, g.Device) {
				continue
			}
			for _, r := range rows {
				var p publishedSummary
				found, err := getJSON(tx, bucketPublished, string(g.Device)+"/"+string(r.ID), &p)
				if err != nil {
					return err
				}
				if !found || p.Sequence < r.Revision || p.Until <= now {
					continue
				}
				if err := h.putEverywhere(tx, outboxRow{Device: g.Device, Stream: "summary", Subject: string(r.ID), Relay: g.Relay, Until: p.Until, Event: p.Event}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	h.outbox.wake()
	for _, r := range rows {
		if err := h.publish(ctx, r.ID); err != nil {
			if fatal(err) {
				return err
			}
			h.log.Error().Err(err).Str("task", string(r.ID)).Msg("summary could not be made")
		}
		if err := h.publishPage(ctx, r.ID); err != nil {
			if fatal(err) {
				return err
			}
			h.log.Error().Err(err).Str("task", string(r.ID)).Msg("page could not be made")
		}
	}
	return nil
}

// presence seals one presence record for each active device into the outbox,
// or for those named.
func (h *Host) presence(ctx context.Context, devices ...nip.PubKey) error {
	now := h.now()
	recs, err := h.active(now, devices)
	if err != nil || len(recs) == 0 {
		return err
	}
	until := now + 3*presenceSeconds + 60
	a, err := nip.EncodePresence(nip.Presence{
		Host: h.self, Owner: h.owner, Generation: h.generation, Protocol: 1, Min: 1, Max: 1,
		Capabilities: []string{"activity-summary", "relay-control", "task-control", "task-create"}, ObservedAt: now,
	}, until)
	if err != nil {
		return fmt.Errorf("encode presence: %w", err)
	}
	var rows []outboxRow
	for _, r := range recs {
		box, err := h.ring.Mailbox(r.Grant.Device, nip.StreamPresence)
		if err != nil {
			return fmt.Errorf("derive mailbox: %w", err)
		}
		ev, err := h.sealFor(r.Grant.Device, box, a)
		if err != nil {
			return fmt.Errorf("seal presence: %w", err)
		}
		rows = append(rows, outboxRow{Device: r.Grant.Device, Stream: "presence", Relay: r.Grant.Relay, Until: until, Event: ev})
	}
	return h.putLive(ctx, rows)
}

// active lists the live grants of the devices named, of all where none is.
func (h *Host) active(now int64, devices []nip.PubKey) ([]grantRecord, error) {
	var recs []grantRecord
	err := h.db.View(func(tx *bbolt.Tx) (err error) {
		recs, err = h.activeGrants(tx, now)
		return err
	})
	if len(devices) > 0 {
		recs = slices.DeleteFunc(recs, func(r grantRecord) bool { return !slices.Contains(devices, r.Grant.Device) })
	}
	return recs, err
}

// startGeneration counts this start: presence never goes backwards.
func (c *Core) startGeneration(ctx context.Context) (int64, error) {
	var n int64
	err := c.db.Update(ctx, func(tx *bbolt.Tx) error {
		if err := indexReplies(tx); err != nil {
			return err
		}
		n = getCount(tx, bucketMeta, "generation") + 1
		return putCount(tx, bucketMeta, "generation", n)
	})
	return n, err
}
