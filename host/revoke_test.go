package host

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

func (r *rig) entry(device nip.PubKey, id nip.CommandID) commands.Entry {
	r.t.Helper()
	var e commands.Entry
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		var found bool
		var err error
		e, found, err = r.c.journal.Get(tx, commands.Key{Principal: device, Kind: commands.KindCommand, ID: string(id)})
		if !found && err == nil {
			err = errors.New("no entry")
		}
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	return e
}

// One revocation: held commands are refused, the lease falls, the queued turn
// ends, the running one goes on and is named, connections close, and nothing
// that the device asks is answered with more than a refusal.
func TestRevocation(t *testing.T) {
	r := newRig(t)
	d, other := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	running, queued := r.create(d, "runs"), r.create(d, "waits")
	theirs := r.create(other, "of another device")
	end := r.begin(running)
	held := r.command(running, nip.Queue, "later")
	heldReply := r.sealed(d, r.req(d, nip.TaskCommand{Command: held}))
	r.wantCode(r.one(d, heldReply), "")
	kept := r.command(running, nip.Queue, "of another device")
	r.wantCode(r.ask(other, nip.TaskCommand{Command: kept}), "")
	r.wantCode(r.ask(d, nip.TaskQueue{Task: running, Edit: nip.QueueEdit{Action: "lease"}}), "")
	r.wantCode(r.ask(other, nip.TaskQueue{Task: running, Edit: nip.QueueEdit{Action: "lease"}}), nip.Conflict)

	rev, err := r.c.Revoke(t.Context(), d.pub(), false)
	if err != nil {
		t.Fatal(err)
	}
	if rev.Epoch != 1 || !slices.Equal(rev.Grants, []nip.GrantID{d.grant.ID}) || !slices.Equal(rev.Running, []owner.TaskID{owner.TaskID(running)}) {
		t.Fatalf("%+v", rev)
	}
	if !slices.Contains(r.paper.disconnected, d.pub()) || slices.Contains(r.paper.authors, d.pub()) {
		t.Fatal("the device's connections or subscription stay")
	}
	if e := r.entry(d.pub(), held.ID); e.State != commands.StateDone || e.Reason != nip.Revoked {
		t.Fatalf("held command: %s %s %s", e.State, e.Outcome, e.Reason)
	}
	if e := r.entry(other.pub(), kept.ID); e.State != commands.StateHeld {
		t.Fatalf("another device's command: %s", e.State)
	}
	r.wantCode(r.ask(other, nip.TaskQueue{Task: running, Edit: nip.QueueEdit{Action: "lease"}}), "")
	r.clock.add(6)
	r.wantCode(r.one(d, heldReply), nip.Revoked) // not the retained answer
	r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(running, nip.Interrupt, "stop")}), nip.Revoked)
	if n := r.task(running); n.Status != owner.Running {
		t.Fatalf("the running turn is %s", n.Status)
	}

	// The queued turn ends although no policy would start it.
	if err := r.h.starter.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.task(queued); got.Status != owner.Cancelled || got.NotStarted != "device revoked" {
		t.Fatalf("queued turn: %s %q", got.Status, got.NotStarted)
	}
	ended := r.task(queued)
	if _, headline, _ := ended.Summary(); headline != "Couldn't start: device revoked" {
		t.Fatalf("headline %q", headline)
	}
	if got := r.task(theirs); got.Status != owner.Queued {
		t.Fatalf("another device's turn: %s", got.Status)
	}
	if r.launches.Load() != 0 {
		t.Fatal("something started without a policy")
	}
	end(owner.Result{})
}

func TestRevocationStops(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	running := r.create(d, "runs")
	end := r.begin(running)
	rev, err := r.c.Revoke(t.Context(), d.pub(), true)
	if err != nil || len(rev.Running) != 1 {
		t.Fatal(rev, err)
	}
	if got := r.task(running); got.Status != owner.CancelRequested {
		t.Fatalf("the turn is %s", got.Status)
	}
	end(owner.Result{Ending: owner.EndingStopped, StopRequested: true})
	if _, err := r.c.Revoke(t.Context(), newKey(t).Public(), false); !errors.Is(err, ErrNotFound) {
		t.Fatalf("an unknown device: %v", err)
	}
}

// A device that corrected a queued turn and was revoked takes its words back.
func TestRevokedCorrection(t *testing.T) {
	r := newRig(t)
	r.policy()
	maker, helper := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	steered, commanded := r.create(maker, "as the maker said"), r.create(maker, "as the maker said")
	r.wantCode(r.ask(helper, nip.TaskSteer{Task: steered, Revision: 1, Prompt: "as the helper says"}), "")
	r.wantCode(r.ask(helper, nip.TaskCommand{Command: r.command(commanded, nip.Steer, "as the helper says")}), "")
	if _, err := r.c.Revoke(t.Context(), helper.pub(), false); err != nil {
		t.Fatal(err)
	}
	if err := r.h.starter.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range []nip.TaskID{steered, commanded} {
		if got := r.task(id); got.NotStarted != "device revoked" {
			t.Fatalf("%s %q", got.Status, got.NotStarted)
		}
	}
}

// Two hundred races of one command against its device's revocation. Either the
// journal has the command's effect before the revocation, or there is none at
// all; and once Revoke returned nothing moves any more.
func TestRevokeRace(t *testing.T) {
	r := newRig(t)
	admin := r.pair(nip.PairingRights())
	applied, refused := 0, 0
	var before device
	for i := range 200 {
		r.clock.add(10)                     // invitations run out
		r.update(func(tx *bbolt.Tx) error { // a full book makes each round slow and shows nothing more
			if before.grant.ID == "" {
				return nil
			}
			return tx.Bucket(bucketGrants).Delete([]byte(before.grant.ID))
		})
		d := r.pair(nip.Rights{nip.Observe, nip.Operate})
		before = d
		task := r.create(admin, "p")
		cmd := r.command(task, nip.Steer, "of the device")
		in := r.sealed(d, r.req(d, nip.TaskCommand{Command: cmd}))
		if i%2 == 1 { // the other kind of effect: not journalled before it happens
			in = r.sealed(d, r.req(d, nip.TaskSteer{Task: task, Revision: 1, Prompt: "of the device"}))
		}
		var both sync.WaitGroup
		both.Go(func() {
			if err := r.h.receive(context.Background(), in); err != nil {
				t.Error(err)
			}
		})
		var atReturn int64
		both.Go(func() {
			if _, err := r.c.Revoke(context.Background(), d.pub(), false); err != nil {
				t.Error(err)
			}
			atReturn = r.task(task).Revision
		})
		both.Wait()
		out := r.queued()
		if len(out) != 1 {
			t.Fatalf("%d replies", len(out))
		}
		if got := r.task(task).Revision; got != atReturn {
			t.Fatalf("revision %d when Revoke returned, %d afterwards", atReturn, got)
		}
		if _, err := r.c.StopTask(t.Context(), owner.TaskID(task), "done with"); err != nil { // so that it costs later rounds nothing
			t.Fatal(err)
		}
		r.h.taskChanged(owner.TaskID(task))
		switch c := code(r.read(d, out[0])); {
		case c == "" && atReturn == 2:
			applied++
		case c == nip.Revoked && atReturn == 1:
			refused++
		default:
			t.Fatalf("reply %q at revision %d", c, atReturn)
		}
	}
	t.Logf("%d applied, %d refused", applied, refused)
	// The order in the journal: no command's bytes were recorded after the
	// revocation of its sender.
	gone := map[string]bool{}
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		ts, err := r.c.journal.Transitions(tx, 0, 1<<20)
		for _, x := range ts {
			if x.Key.Kind == "device.revoke" {
				e, _, err := r.c.journal.Get(tx, x.Key)
				if err != nil {
					return err
				}
				gone[e.Note[len("revoked "):]] = true
			}
			if x.State == commands.StateDispatching && gone[string(x.Key.Principal)] {
				t.Error("a command of a revoked device was dispatched")
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(gone) != 200 {
		t.Fatalf("%d revocations in the journal", len(gone))
	}
}

// A grant that runs out leaves the subscriptions and the outbox, and what it
// held and queued ends with a reason.
func TestGrantExpires(t *testing.T) {
	r := newRig(t)
	d, other := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	running, queued := r.create(d, "runs"), r.create(d, "waits")
	end := r.begin(running)
	held := r.command(running, nip.Queue, "later")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: held}), "")
	r.paper.refusing(func(*nip.Event) error { return errors.New("away") })
	r.serve()
	r.until("summaries wait", func() bool { return r.rows(bucketOutbox) >= 4 })
	r.update(func(tx *bbolt.Tx) error { // both last equally long: this one ends now
		var rec grantRecord
		if _, err := getJSON(tx, bucketGrants, string(d.grant.ID), &rec); err != nil {
			return err
		}
		rec.Grant.ExpiresAt = r.clock.now()
		return putJSON(tx, bucketGrants, string(d.grant.ID), rec)
	})
	if err := r.h.dropExpired(t.Context(), r.h.accessChanged()); err != nil {
		t.Fatal(err)
	}
	r.paper.mu.Lock()
	authors := slices.Clone(r.paper.authors)
	r.paper.mu.Unlock()
	if slices.Contains(authors, d.pub()) || !slices.Contains(authors, other.pub()) {
		t.Fatal("authors")
	}
	if e := r.entry(d.pub(), held.ID); e.State != commands.StateDone || e.Reason != nip.Revoked {
		t.Fatalf("%s %s", e.State, e.Reason)
	}
	r.until("the queued turn ends", func() bool { return r.task(queued).NotStarted == "device expired" })
	r.until("nothing waits for the device", func() bool {
		left := 0
		_ = r.c.db.View(func(tx *bbolt.Tx) error {
			return eachJSON(tx, bucketOutbox, func(_ string, row outboxRow) error {
				if row.Device == d.pub() {
					left++
				}
				return nil
			})
		})
		return left == 0
	})
	end(owner.Result{})
}

// The loop notices an end by itself.
func TestGrantExpiryIsNoticed(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	r.clock.at.Store(d.grant.ExpiresAt - 1)
	r.serve()
	r.clock.add(1)
	r.until("the device leaves", func() bool {
		r.paper.mu.Lock()
		defer r.paper.mu.Unlock()
		return !slices.Contains(r.paper.authors, d.pub())
	})
}

// A revocation returns only when the effects that were decided before it ended.
func TestRevokeWaitsForEffects(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	r.h.effects.RLock() // an effect of some device is under way
	done := make(chan error, 1)
	go func() {
		_, err := r.c.Revoke(context.Background(), d.pub(), false)
		done <- err
	}()
	r.until("the revocation's commit", func() bool { return r.rows(bucketEpochs) == 1 })
	select {
	case <-done:
		t.Fatal("returned while an effect was under way")
	default:
	}
	r.wantCode(r.ask(d, nip.TaskArchive{Task: nip.TaskID(newID(t))}), nip.Revoked) // and nobody may begin one
	r.h.effects.RUnlock()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
