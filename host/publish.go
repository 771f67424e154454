package host

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/owner"
)

const (
	presenceSeconds  = 60
	republishedTasks = 50
)

// publishedSummary is what was sealed last for a device and a task: the same
// bytes go out again after a restart, because one sequence must never carry
// two different bodies.
type publishedSummary struct {
	Sequence int64      `json:"sequence"`
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
	if err != nil {
		return err
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
		box, err := nip.DeriveMailbox(h.key, g.Device, nip.StreamSummaries)
		if err != nil {
			return fmt.Errorf("derive mailbox: %w", err)
		}
		ev, err := nip.Seal(h.key, g.Device, box, a, nil)
		if err != nil {
			return fmt.Errorf("seal summary: %w", err)
		}
		out = append(out, sealed{g.Device, g.Relay, ev})
	}
	if len(out) == 0 {
		return nil
	}
	err = h.db.Update(ctx, func(tx *bbolt.Tx) error {
		for _, s := range out {
			key := string(s.device) + "/" + string(t.ID)
			var old publishedSummary
			if found, err := getJSON(tx, bucketPublished, key, &old); err != nil {
				return err
			} else if found && old.Sequence >= t.Revision {
				continue
			}
			if err := putJSON(tx, bucketPublished, key, publishedSummary{Sequence: t.Revision, Event: s.event}); err != nil {
				return err
			}
			if err := putOutbox(tx, outboxRow{Device: s.device, Stream: "summary", Subject: string(t.ID), Relay: s.relay, Event: s.event}); err != nil {
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
// prompt or what an engine said.
func (h *Host) summaryOf(t *owner.Task) (nip.Artifact, error) {
	phase, headline, attention := t.Summary()
	a, err := nip.EncodeSummary(nip.Summary{
		Host: h.self, Task: nip.TaskID(t.ID), Sequence: t.Revision, Phase: nip.Phase(phase),
		Headline: nip.Headline(headline, "Task "+genericWord(phase)), Attention: attention, UpdatedAt: t.UpdatedAt,
	})
	if err != nil {
		return a, fmt.Errorf("encode summary of %s: %w", t.ID, err)
	}
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

// newestTasks lists the tasks that changed last, newest first.
func (h *Host) newestTasks(limit int) ([]owner.Task, error) {
	ids, err := h.store.List()
	if err != nil {
		return nil, err
	}
	var all []owner.Task
	for _, id := range ids {
		t, err := h.store.Get(id)
		if err != nil {
			h.log.Error().Err(err).Str("task", string(id)).Msg("task cannot be read")
			continue
		}
		if t.Archived == nil {
			all = append(all, t)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].UpdatedAt > all[j].UpdatedAt })
	return all[:min(limit, len(all))], nil
}

// republish puts the stored bytes of the newest tasks into the outbox again at
// start, and seals what changed while the host was away.
func (h *Host) republish(ctx context.Context) error {
	tasks, err := h.newestTasks(republishedTasks)
	if err != nil {
		return err
	}
	grants, err := h.observers()
	if err != nil {
		return err
	}
	err = h.db.Update(ctx, func(tx *bbolt.Tx) error {
		for _, t := range tasks {
			for _, g := range grants {
				var p publishedSummary
				found, err := getJSON(tx, bucketPublished, string(g.Device)+"/"+string(t.ID), &p)
				if err != nil {
					return err
				}
				if !found {
					continue
				}
				if err := putOutbox(tx, outboxRow{Device: g.Device, Stream: "summary", Subject: string(t.ID), Relay: g.Relay, Event: p.Event}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, t := range tasks {
		if err := h.publish(ctx, t.ID); err != nil {
			return err
		}
	}
	return nil
}

// presence seals one presence record for each active device into the outbox.
func (h *Host) presence(ctx context.Context) error {
	now := h.now()
	var recs []grantRecord
	if err := h.db.View(func(tx *bbolt.Tx) (err error) {
		recs, err = h.activeGrants(tx, now)
		return err
	}); err != nil || len(recs) == 0 {
		return err
	}
	a, err := nip.EncodePresence(nip.Presence{
		Host: h.self, Owner: h.owner, Generation: h.generation, Protocol: 1, Min: 1, Max: 1,
		Capabilities: []string{"activity-summary", "relay-control", "task-control", "task-create"}, ObservedAt: now,
	}, now+3*presenceSeconds+60)
	if err != nil {
		return fmt.Errorf("encode presence: %w", err)
	}
	var rows []outboxRow
	for _, r := range recs {
		box, err := nip.DeriveMailbox(h.key, r.Grant.Device, nip.StreamPresence)
		if err != nil {
			return fmt.Errorf("derive mailbox: %w", err)
		}
		ev, err := nip.Seal(h.key, r.Grant.Device, box, a, nil)
		if err != nil {
			return fmt.Errorf("seal presence: %w", err)
		}
		rows = append(rows, outboxRow{Device: r.Grant.Device, Stream: "presence", Relay: r.Grant.Relay, Event: ev})
	}
	err = h.db.Update(ctx, func(tx *bbolt.Tx) error {
		for _, r := range rows {
			if err := putOutbox(tx, r); err != nil {
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

// startGeneration counts this start: presence never goes backwards.
func (c *Core) startGeneration(ctx context.Context) (int64, error) {
	var n int64
	err := c.db.Update(ctx, func(tx *bbolt.Tx) error {
		n = getCount(tx, bucketMeta, "generation") + 1
		return putCount(tx, bucketMeta, "generation", n)
	})
	return n, err
}

// outboxRow is one event that must reach a relay. A newer row of the same
// device, stream and subject replaces it: only the newest matters.
type outboxRow struct {
	Device  nip.PubKey   `json:"device"`
	Stream  string       `json:"stream"`
	Subject string       `json:"subject,omitempty"`
	Relay   nip.RelayURL `json:"relay"`
	Event   *nip.Event   `json:"event"`
}

func (r outboxRow) key() string { return string(r.Device) + "/" + r.Stream + "/" + r.Subject }

func putOutbox(tx *bbolt.Tx, r outboxRow) error { return putJSON(tx, bucketOutbox, r.key(), r) }

// dropOutbox forgets what was meant for a device that lost its standing.
func dropOutbox(tx *bbolt.Tx, device nip.PubKey) error {
	prefix := string(device) + "/"
	for _, bucket := range [][]byte{bucketOutbox, bucketPublished} {
		var keys [][]byte
		c := tx.Bucket(bucket).Cursor()
		for k, _ := c.Seek([]byte(prefix)); k != nil && len(k) > len(prefix) && string(k[:len(prefix)]) == prefix; k, _ = c.Next() {
			keys = append(keys, append([]byte(nil), k...))
		}
		for _, k := range keys {
			if err := tx.Bucket(bucket).Delete(k); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeSent deletes the row unless a newer event took its place meanwhile.
func removeSent(tx *bbolt.Tx, r outboxRow) error {
	raw := tx.Bucket(bucketOutbox).Get([]byte(r.key()))
	var now outboxRow
	if raw == nil || json.Unmarshal(raw, &now) != nil || now.Event.ID != r.Event.ID {
		return nil
	}
	return tx.Bucket(bucketOutbox).Delete([]byte(r.key()))
}
