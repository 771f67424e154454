package host

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/owner"
)

const (
	pageKept  = 604_800 // seconds: the most that a published page may be asked to stay
	pageSteps = 64      // the most that task.read gives at once
)

// publishPage seals the last page of a task whose turn ended, or ended with a
// question, to every device that may observe: so that it can be read while this
// machine is off. The page is as task.read gives it, with the newest steps; of
// pages that still wait only the newest of a task goes out. What is in the
// outbox, and that it was published, is one commit.
func (h *Host) publishPage(ctx context.Context, id owner.TaskID) error {
	if !nip.ValidID(string(id)) {
		return nil // as with summaries
	}
	t, err := h.store.Get(id)
	if err != nil || t.Archived != nil || !turnOver(&t) {
		return err
	}
	now := h.now()
	if now >= t.UpdatedAt+pageKept {
		return nil // over a week ago: that is in task.read, and nobody waits for it
	}
	grants, err := h.withoutPage(&t)
	if err != nil || len(grants) == 0 {
		return err
	}
	a, ok, err := h.lastPage(&t, now)
	if err != nil || !ok {
		return err
	}
	var rows []outboxRow
	for _, g := range grants {
		box, err := h.ring.Mailbox(g.Device, nip.StreamPages)
		if err != nil {
			return fmt.Errorf("derive mailbox: %w", err)
		}
		ev, err := h.sealFor(g.Device, box, a)
		if err != nil {
			return fmt.Errorf("seal page: %w", err)
		}
		rows = append(rows, outboxRow{Device: g.Device, Stream: "page", Subject: string(t.ID), Relay: g.Relay, Until: a.RetainUntil, Event: ev})
	}
	err = h.db.Update(ctx, func(tx *bbolt.Tx) error {
		for _, r := range rows {
			key := string(r.Device) + "/" + r.Subject
			if getCount(tx, bucketPages, key) >= t.Revision {
				continue
			}
			// Whoever lost its standing since the list was made is sent nothing.
			if g, err := h.newestGrant(tx, r.Device, now); err != nil || !g.Rights.Has(nip.Observe) {
				if err != nil {
					return err
				}
				continue
			}
			if err := putCount(tx, bucketPages, key, t.Revision); err != nil {
				return err
			}
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

// turnOver reports whether the task's turn ended, however it did. A turn that
// asks has ended too.
func turnOver(t *owner.Task) bool {
	switch t.Status {
	case owner.Finished, owner.Cancelled, owner.StatusUnknown:
		return true
	}
	return false
}

// withoutPage lists the observers that were not sent a page of this revision.
func (h *Host) withoutPage(t *owner.Task) ([]nip.Grant, error) {
	grants, err := h.observers()
	if err != nil || len(grants) == 0 {
		return nil, err
	}
	var out []nip.Grant
	err = h.db.View(func(tx *bbolt.Tx) error {
		for _, g := range grants {
			if getCount(tx, bucketPages, string(g.Device)+"/"+string(t.ID)) < t.Revision {
				out = append(out, g)
			}
		}
		return nil
	})
	return out, err
}

// lastPage is the page as an artifact. Without a label for its root, which the
// operator may have taken away, a task cannot be read and has none.
func (h *Host) lastPage(t *owner.Task, now int64) (nip.Artifact, bool, error) {
	ws, err := loadWorkspaces(h.home)
	if err != nil {
		return nip.Artifact{}, false, err
	}
	labels := ws.labelsOf(t.Intent.Workspace.Path)
	if len(labels) == 0 {
		return nip.Artifact{}, false, nil
	}
	page, err := fitPage(labels[0], pageSteps, h.changes(t), func(limit int) (owner.View, error) {
		return h.store.ViewLast(t.ID, limit, stepLimit)
	})
	if err != nil {
		return nip.Artifact{}, false, err
	}
	if page.Scope.Revision != t.Revision {
		return nip.Artifact{}, false, nil // it moved meanwhile, and is looked at again for that
	}
	a, err := nip.EncodeTaskPage(nip.PublishedPage{Host: h.self, IssuedAt: now, ExpiresAt: now + pageKept, Page: page})
	var fault *nip.Error
	if errors.As(err, &fault) {
		// What task.read would refuse as too large, or a transcript that is no
		// page: trying again changes nothing.
		h.log.Error().Err(err).Str("task", string(t.ID)).Msg("this task has no page that can be published")
		return a, false, nil
	}
	return a, err == nil, err
}
