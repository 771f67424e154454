package host

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

// NewInvitation makes an invitation of the person at the machine. The
// capability stands in the returned string and nowhere else.
func (c *Core) NewInvitation(ctx context.Context, rights nip.Rights, days int, relay nip.RelayURL) (nip.Invitation, string, error) {
	if days < 1 || days > 30 {
		return nip.Invitation{}, "", fmt.Errorf("%w: a grant lasts 1 to 30 days", ErrUsage)
	}
	names := make([]string, len(rights))
	for i, r := range rights {
		names[i] = string(r)
	}
	if _, err := nip.ParseRights(names); err != nil {
		return nip.Invitation{}, "", fmt.Errorf("%w: rights: a nonempty list without repeats, in the order observe, operate, terminal, review, access_read, access_admin", ErrUsage)
	}
	now := c.now()
	inv, code, rec, err := c.mintInvitation(relay, now)
	if err != nil {
		return nip.Invitation{}, "", fmt.Errorf("%w: %s", ErrUsage, err)
	}
	rec.Rights, rec.GrantExpiresAt, rec.Issuer = rights, now+int64(days)*86400, c.self
	err = c.db.Update(ctx, func(tx *bbolt.Tx) error {
		if err := pruneInvitations(tx, now); err != nil {
			return err
		}
		if holds(tx, bucketInvitations, maxInvitations) {
			return errors.New("64 invitations are open; wait five minutes for the first to run out")
		}
		key := commands.Key{Principal: c.self, Kind: "invite.create", ID: string(inv.ID)}
		if err := c.journal.Note(tx, key, c.localSender(), "", fmt.Sprintf("invitation by the person at the machine: %s for %d days", rightsNote(rights), days), commands.OutcomeApplied, "", 0, now); err != nil {
			return err
		}
		return putJSON(tx, bucketInvitations, string(inv.ID), rec)
	})
	return inv, code, err
}

// rightsNote is a list of rights as a note has it.
func rightsNote(rights nip.Rights) string {
	names := make([]string, len(rights))
	for i, r := range rights {
		names[i] = string(r)
	}
	return strings.Join(names, ",")
}

// localSender is the person at the machine in the journal: the host's own key.
func (c *Core) localSender() commands.Sender { return commands.Sender{Device: c.self, Epoch: -1} }

// pruneGrants drops grants a minute after their time, revoked ones too: until
// then a device hears why, afterwards it is unknown.
func pruneGrants(tx *bbolt.Tx, now int64) error {
	var gone []string
	err := eachJSON(tx, bucketGrants, func(key string, rec grantRecord) error {
		if now >= rec.Grant.ExpiresAt+afterExpirySeconds {
			gone = append(gone, key)
		}
		return nil
	})
	for _, key := range gone {
		if err == nil {
			err = tx.Bucket(bucketGrants).Delete([]byte(key))
		}
	}
	return err
}

// pruneInvitations drops what ran out a minute ago; a redeemed one leaves with
// its time too, since no retry can be fresh any more.
func pruneInvitations(tx *bbolt.Tx, now int64) error {
	var gone []string
	err := eachJSON(tx, bucketInvitations, func(key string, inv invitationRecord) error {
		if now >= inv.ExpiresAt+afterExpirySeconds {
			gone = append(gone, key)
		}
		return nil
	})
	for _, key := range gone {
		if err == nil {
			err = tx.Bucket(bucketInvitations).Delete([]byte(key))
		}
	}
	return err
}

// revokeGrants marks every grant of a device as revoked and returns their IDs
// in order.
func (c *Core) revokeGrants(tx *bbolt.Tx, device nip.PubKey, now int64) ([]nip.GrantID, error) {
	var hit []grantRecord
	if err := eachJSON(tx, bucketGrants, func(_ string, rec grantRecord) error {
		if rec.Grant.Device == device {
			hit = append(hit, rec)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var ids []nip.GrantID
	for _, rec := range hit {
		ids = append(ids, rec.Grant.ID)
		if rec.RevokedAt != 0 {
			continue
		}
		rec.RevokedAt = now
		if err := putJSON(tx, bucketGrants, string(rec.Grant.ID), rec); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// Revocation says what a revocation did.
type Revocation struct {
	Device  nip.PubKey     `json:"device"`
	Epoch   int64          `json:"epoch"`
	Grants  []nip.GrantID  `json:"grants"`
	Running []owner.TaskID `json:"running"` // turns of this device that still run
}

// revokeIn does the whole revocation in one transaction: grants, epoch,
// retained replies, recorded results, uploads, leases, pending publications.
// After its commit no request and no held command of the device has standing.
func (c *Core) revokeIn(tx *bbolt.Tx, device nip.PubKey, now int64) (Revocation, error) {
	ids, err := c.revokeGrants(tx, device, now)
	if err != nil {
		return Revocation{}, err
	}
	epoch := epochOf(tx, device) + 1
	if err := putCount(tx, bucketEpochs, string(device), epoch); err != nil {
		return Revocation{}, err
	}
	if err := dropRepliesOf(tx, device); err != nil {
		return Revocation{}, err
	}
	if err := dropRecovery(tx, device); err != nil {
		return Revocation{}, err
	}
	if err := dropUploads(tx, device); err != nil {
		return Revocation{}, err
	}
	if err := dropOutbox(tx, device); err != nil {
		return Revocation{}, err
	}
	return Revocation{Device: device, Epoch: epoch, Grants: ids}, c.journal.DropLeases(tx, device)
}

// known reports whether the book has ever had this device.
func (c *Core) known(tx *bbolt.Tx, device nip.PubKey) (bool, error) {
	if tx.Bucket(bucketEpochs).Get([]byte(device)) != nil {
		return true, nil
	}
	found := false
	err := eachJSON(tx, bucketGrants, func(_ string, rec grantRecord) error {
		found = found || rec.Grant.Device == device
		return nil
	})
	return found, err
}

// Revoke is the operator's revocation.
func (c *Core) Revoke(ctx context.Context, device nip.PubKey, stop bool) (Revocation, error) {
	var rev Revocation
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		return rev, err
	}
	if c.serving == nil {
		// Effects of this device that a stop cut off were decided before this
		// revocation: they are carried out before it, not after.
		if err := c.finishAdmitted(ctx); err != nil {
			return rev, err
		}
	}
	err = c.db.Update(ctx, func(tx *bbolt.Tx) error {
		now := c.now()
		ok, err := c.known(tx, device)
		if err == nil && !ok {
			err = fmt.Errorf("%w: no device %s was ever paired; see holdfast devices list", ErrNotFound, device)
		}
		if err != nil {
			return err
		}
		if rev, err = c.revokeIn(tx, device, now); err != nil {
			return err
		}
		key := commands.Key{Principal: c.self, Kind: "device.revoke", ID: id}
		return c.journal.Note(tx, key, c.localSender(), "", "revoked "+string(device), commands.OutcomeApplied, "", 0, now)
	})
	if err != nil {
		return rev, err
	}
	return rev, c.afterRevocation(ctx, &rev, stop)
}

// afterRevocation carries a committed revocation outward: connections close,
// effects that were decided before it end, held commands are decided, turns are
// named or stopped. What fails here undoes nothing: the revocation stands, and
// admission, evaluation and every start check it again.
func (c *Core) afterRevocation(ctx context.Context, rev *Revocation, stop bool) error {
	if h := c.serving; h != nil {
		h.transport.Disconnect(rev.Device)
		h.accessChanged()
		h.emit(Event{Event: "revoked", Device: rev.Device})
	}
	c.awaitEffects()
	err := c.evaluateAll(ctx)
	ids, listErr := c.openTasks()
	err = errors.Join(err, listErr)
	for _, id := range ids {
		mine, running, taskErr := c.turnOf(id, rev.Device)
		err = errors.Join(err, taskErr)
		if !mine {
			continue
		}
		rev.Running = append(rev.Running, id)
		if stop && running {
			_, stopErr := c.StopTask(ctx, id, "its device was revoked")
			err = errors.Join(err, stopErr)
		}
	}
	if h := c.serving; h != nil {
		h.starter.wake()
	}
	return err
}

// awaitEffects returns when the effects that were under way have ended. Each
// waits for its task at most effectWait.
func (c *Core) awaitEffects() {
	c.effects.Lock()
	defer c.effects.Unlock()
}

// turnOf reports whether the device's word made the turn that runs, and whether
// it was not asked to stop yet.
func (c *Core) turnOf(id owner.TaskID, device nip.PubKey) (mine, running bool, err error) {
	t, err := c.store.Get(id)
	if err != nil || t.Status != owner.Running && t.Status != owner.CancelRequested {
		return false, false, err
	}
	err = c.db.View(func(tx *bbolt.Tx) error {
		origins, err := turnOrigins(tx, id, t.TurnStart())
		for _, o := range origins {
			mine = mine || o.Sender.Device == device
		}
		return err
	})
	return mine, t.Status == owner.Running, err
}

// evaluateAll decides what stands undecided in every task that has some. One
// that fails keeps no other from it.
func (c *Core) evaluateAll(ctx context.Context) error {
	var tasks []nip.TaskID
	if err := c.db.View(func(tx *bbolt.Tx) (err error) {
		tasks, err = c.journal.Tasks(tx)
		return err
	}); err != nil {
		return err
	}
	var failed error
	for _, t := range tasks {
		if h := c.serving; h != nil {
			failed = errors.Join(failed, h.deadlines.evaluate(ctx, t))
		} else {
			failed = errors.Join(failed, c.eval.Evaluate(ctx, t))
		}
	}
	return failed
}

// revokeFromWire is device.revoke.
func (h *Host) revokeFromWire(ctx context.Context, k *call, op nip.DeviceRevoke) error {
	var rev Revocation
	done := false
	err := h.answerRetained(ctx, k, nip.Reply{}, func(tx *bbolt.Tx, now int64) (nip.Reply, error) {
		done = false
		ok, err := h.known(tx, op.Device)
		if err != nil {
			return nip.Reply{}, err
		}
		if !ok || op.Device == h.owner || op.Device == h.self {
			r := &nip.Refusal{Code: nip.Forbidden}
			return nip.Reply{Refusal: r}, h.note(tx, k, "", "revoke "+string(op.Device), r, 0, now)
		}
		if rev, err = h.revokeIn(tx, op.Device, now); err != nil {
			return nip.Reply{}, err
		}
		done = true
		if err := h.note(tx, k, "", "revoke "+string(op.Device), nil, 0, now); err != nil {
			return nip.Reply{}, err
		}
		return nip.Reply{Outcome: nip.RevokedDevice{Device: rev.Device, Epoch: rev.Epoch, Grants: rev.Grants}}, nil
	})
	if err != nil || !done {
		return err
	}
	return h.afterRevocation(ctx, &rev, false)
}

// deviceEntries is the access book as device.list shows it.
func (c *Core) deviceEntries(tx *bbolt.Tx, now int64) ([]nip.DeviceEntry, error) {
	var out []nip.DeviceEntry
	err := eachJSON(tx, bucketGrants, func(_ string, rec grantRecord) error {
		g := rec.Grant
		e := nip.DeviceEntry{
			Device: g.Device, Grant: g.ID, Rights: g.Rights, Epoch: g.Epoch, Origin: g.Origin.Kind,
			IssuedAt: g.IssuedAt, ExpiresAt: g.ExpiresAt, State: "active",
		}
		switch {
		case rec.RevokedAt != 0:
			e.State = "revoked"
		case !rec.live(tx, now):
			e.State = "expired"
		}
		if seen := getCount(tx, bucketSeen, string(g.Device)); seen != 0 {
			e.LastSeen = &seen
		}
		out = append(out, e)
		return nil
	})
	sort.Slice(out, func(i, j int) bool {
		if out[i].IssuedAt != out[j].IssuedAt {
			return out[i].IssuedAt < out[j].IssuedAt
		}
		return out[i].Grant < out[j].Grant
	})
	return out, err
}

// fitDevices drops the oldest dead entries of a listing that would not fit into
// one reply; whoever can act now is always shown while that is possible.
func fitDevices(list []nip.DeviceEntry) []nip.DeviceEntry {
	for len(list) > 0 {
		if fits(nip.Devices{Devices: list}) {
			break
		}
		dead := slices.IndexFunc(list, func(e nip.DeviceEntry) bool { return e.State != "active" })
		if dead < 0 {
			break // the reply says bounds
		}
		list = slices.Delete(list, dead, dead+1)
	}
	return list
}
