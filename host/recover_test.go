package host

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// question is request.operation about the request that in carried.
func question(in Inbound) nip.RequestOperation {
	ev := in.Event.Event()
	return nip.RequestOperation{Request: nip.RequestID(ev.Tags.Find("h")[1]), RequestEvent: nip.EventID(ev.ID)}
}

// result asks what came of a request; a refusal fails the test.
func (r *rig) result(d device, in Inbound) *nip.Result {
	r.t.Helper()
	q := question(in)
	p := r.ask(d, q)
	out, ok := p.Outcome.(nip.RecordedOperation)
	if !ok || out.Request != q.Request || out.RequestEvent != q.RequestEvent {
		r.t.Fatalf("%+v %+v", p.Outcome, p.Refusal)
	}
	return out.Result
}

func (r *rig) prune() {
	r.t.Helper()
	r.update(func(tx *bbolt.Tx) error {
		now := r.clock.now()
		if err := pruneReplies(tx, now, maxReplies); err != nil {
			return err
		}
		if err := pruneRecovery(tx, now); err != nil {
			return err
		}
		for {
			if n, err := r.c.journal.Prune(tx, now, 256); n < 256 {
				return err
			}
		}
	})
}

// recoveryCount compares the counts in meta with the rows that are there.
func (r *rig) recoveryCount() (rows int64) {
	r.t.Helper()
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		want := map[string]int64{}
		err := eachJSON(tx, bucketRecovery, func(_ string, row recoveryRow) error {
			all, own := recoveryCounts(&row)
			want[all]++
			want[own]++
			rows++
			return nil
		})
		for key, n := range want {
			if got := getCount(tx, bucketMeta, key); got != n {
				r.t.Errorf("%s is counted as %d, there are %d", key, got, n)
			}
		}
		ends := 0
		if b := tx.Bucket(bucketRecoveryEnds); b != nil {
			ends = b.Stats().KeyN
		}
		if int64(ends) != rows {
			r.t.Errorf("%d ends of %d rows", ends, rows)
		}
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	return rows
}

// Whatever a recoverable request was answered with, the question gets the same,
// long after the request's minute and after a restart, for 48 hours.
func TestRecoverResult(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	queued, ended := r.create(d, "p"), r.create(d, "p")
	r.wantCode(r.ask(d, nip.TaskCancel{Task: ended, Revision: 1, Reason: "r"}), "")
	at := func(action nip.Action, text string, on int64) nip.TaskCommandAt {
		c := r.command(queued, action, text)
		c.BasedOn = on
		return nip.TaskCommandAt{Command: c, Revision: on}
	}
	digest := r.digest(d, ended)
	rows := []struct {
		name string
		op   nip.Operation
		code nip.Code
	}{
		{"create", nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}, ""},
		{"create refused", nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "elsewhere"}, nip.Forbidden},
		{"steer refused", nip.TaskSteer{Task: queued, Revision: 9, Prompt: "p"}, nip.Stale},
		{"steer", nip.TaskSteer{Task: queued, Revision: 1, Prompt: "<&> \u2028"}, ""},
		{"command", at(nip.Queue, "later", 2), ""},
		{"command refused", at(nip.Send, "now", 1), nip.Stale},
		{"lease", nip.TaskQueueAt{Task: ended, Revision: 2, Edit: nip.QueueEdit{Action: "lease"}, QueueDigest: &digest}, ""},
		{"release refused", nip.TaskQueueAt{Task: ended, Revision: 2, Edit: nip.QueueEdit{Action: "release"}, QueueDigest: &digest}, nip.Stale},
		{"cancel", nip.TaskCancel{Task: queued, Revision: 2, Reason: "r"}, ""},
	}
	asked, said := map[string]Inbound{}, map[string]nip.Result{}
	for _, row := range rows {
		in := r.sealed(d, r.req(d, row.op))
		p := r.one(d, in)
		if code(p) != row.code {
			t.Fatalf("%s: %q", row.name, code(p))
		}
		asked[row.name], said[row.name] = in, nip.Result{Outcome: p.Outcome, Refusal: p.Refusal}
	}
	for _, when := range []string{"at once", "after the minute and a restart"} {
		for _, row := range rows {
			t.Run(row.name+" "+when, func(t *testing.T) {
				r.t = t
				got := r.result(d, asked[row.name])
				if got == nil || !reflect.DeepEqual(*got, said[row.name]) {
					t.Fatalf("%+v, was %+v", got, said[row.name])
				}
			})
		}
		r.t = t
		r.clock.add(100)
		r.restart()
		r.prune()
	}
	// A retry of the event itself is over, and the ID is nobody else's.
	if out := r.give(asked["create"]); len(out) != 0 {
		t.Fatal("an expired request was answered")
	}
	again := r.req(d, rows[0].op)
	again.ID = question(asked["create"]).Request
	r.wantCode(r.one(d, r.sealed(d, again)), nip.Conflict)
	r.recoveryCount()
	r.clock.add(recoverySeconds) // the replies came within 200 s
	r.wantCode(r.ask(d, question(asked["create"])), nip.Unavailable)
	r.prune()
	if n := r.recoveryCount(); n != 0 {
		t.Fatalf("%d rows stay", n)
	}
	for _, name := range []string{"create", "create refused", "steer", "cancel", "lease"} { // the journal knows them for good
		r.wantCode(r.ask(d, question(asked[name])), nip.Unavailable)
	}
}

// The checks of request.operation, in their order.
func TestRecoverRefusals(t *testing.T) {
	r := newRig(t)
	full, other := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	reader, worker := r.pair(nip.Rights{nip.Observe}), r.pair(nip.Rights{nip.Operate})
	create := nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}
	made := func(d device, op nip.Operation) Inbound {
		in := r.sealed(d, r.req(d, op))
		r.give(in)
		return in
	}
	mine, denied := made(full, create), made(reader, create)
	byOwner := made(r.owner, create)
	leftBehind := made(other, create)
	renewed := r.pair(nip.PairingRights(), other.key) // the same key under another grant
	wrongEvent := question(mine)
	wrongEvent.RequestEvent = nip.EventID(newID(t))
	wrongKept := question(made(full, nip.WorkspaceList{}))
	wrongKept.RequestEvent = nip.EventID(newID(t))
	for _, row := range []struct {
		name    string
		from    device
		op      nip.RequestOperation
		code    nip.Code
		missing nip.Right
	}{
		{"own", full, question(mine), "", ""},
		{"the owner's", r.owner, question(byOwner), "", ""},
		{"unknown", full, nip.RequestOperation{Request: nip.RequestID(newID(t)), RequestEvent: nip.EventID(newID(t))}, "", ""},
		{"another event", full, wrongEvent, nip.Forbidden, ""},
		{"another signer", r.owner, question(mine), nip.Forbidden, ""},
		{"another grant", renewed, question(leftBehind), nip.Stale, ""},
		{"the original's right", reader, question(denied), nip.MissingRight, nip.Operate},
		{"the question's right", worker, question(made(worker, create)), nip.MissingRight, nip.Observe},
		{"kept for its minute only", full, question(made(full, nip.WorkspaceList{})), nip.Unavailable, ""},
		{"kept for its minute, another event", full, wrongKept, nip.Forbidden, ""},
		{"a stranger", device{key: newKey(t)}, question(mine), nip.Forbidden, ""},
		{"a question about a question", full, question(made(full, question(mine))), "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			before := r.dump()
			p := r.ask(row.from, row.op)
			r.wantCode(p, row.code)
			if p.Refusal != nil && p.Refusal.Missing != row.missing {
				t.Errorf("missing %q", p.Refusal.Missing)
			}
			if (row.name == "unknown" || row.name == "a question about a question") && p.Outcome.(nip.RecordedOperation).Result != nil {
				t.Errorf("%+v", p.Outcome)
			}
			if after := r.dump(); row.code != nip.MissingRight && after != before {
				t.Error("a question changed host.db")
			}
		})
	}
	r.t = t
	// One whose grant ended in the meantime hears that.
	if _, err := r.c.Revoke(t.Context(), full.pub(), false); err != nil {
		t.Fatal(err)
	}
	r.wantCode(r.ask(full, question(mine)), nip.Revoked)
}

// A stop between an effect's two commits: undecided until the next start
// finished it, and then its result, although the request ran out long ago.
func TestRecoverCutOff(t *testing.T) {
	for _, took := range []bool{false, true} {
		t.Run(fmt.Sprintf("store took it %v", took), func(t *testing.T) {
			r := newRig(t)
			d := r.pair(nip.PairingRights())
			in := r.sealed(d, r.req(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}))
			k := r.call(in)
			_, eff := r.admitted(in)
			r.update(func(tx *bbolt.Tx) error { return r.c.remember(tx, k, nil) })
			if res := r.result(d, in); res != nil {
				t.Fatalf("undecided, and %+v", res)
			}
			if took {
				if _, err := r.c.store.Apply(t.Context(), eff.Bytes); err != nil {
					t.Fatal(err)
				}
			}
			r.clock.add(61)
			r.restart()
			if err := r.c.finishAdmitted(t.Context()); err != nil {
				t.Fatal(err)
			}
			res := r.result(d, in)
			if res == nil {
				t.Fatal("still undecided")
			}
			if o, ok := res.Outcome.(nip.Dispatched); !ok || o.Reference != string(k.req.ID) || o.Operation != "task.create" {
				t.Fatalf("%+v", res)
			}
		})
	}
}

// A request that ran out while it was carried out gets no reply, and its result
// can be asked for.
func TestRecoverSilence(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	in := r.sealed(d, r.req(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}))
	k := r.call(in)
	r.clock.add(61)
	if err := r.h.dispatch(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if out := r.queued(); len(out) != 0 {
		t.Fatal("answered after its end")
	}
	if res := r.result(d, in); res == nil || res.Outcome == nil {
		t.Fatalf("%+v", res)
	}
}

// A command at a revision that was recorded and decided, with its answer cut
// off: the entry says what came of it.
func TestRecoverCommandCutOff(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	cmd := r.command(task, nip.Queue, "later")
	in := r.sealed(d, r.req(d, nip.TaskCommandAt{Command: cmd, Revision: cmd.BasedOn}))
	k := r.call(in)
	stop := commands.Hooks{Exact: true, Admit: func(tx *bbolt.Tx) error {
		return r.c.remember(tx, k, func(row *recoveryRow) { row.Command = cmd.ID })
	}}
	if _, err := r.c.eval.Submit(context.Background(), k.who.sender, cmd, stop); err != nil {
		t.Fatal(err)
	}
	r.clock.add(61)
	r.restart()
	res := r.result(d, in)
	if res == nil {
		t.Fatal("undecided")
	}
	if o, ok := res.Outcome.(nip.Dispatched); !ok || o.Reference != string(task) || o.Operation != "task.command.at_revision" {
		t.Fatalf("%+v", res)
	}
	r.update(func(tx *bbolt.Tx) error { // recorded, and not looked at yet
		return r.c.remember(tx, r.call(r.sealed(d, r.req(d, nip.TaskCommandAt{Command: cmd, Revision: cmd.BasedOn}))),
			func(row *recoveryRow) { row.Command = nip.CommandID(newID(t)) })
	})
	r.recoveryCount()
}

// fill makes n rows of a signer, each ending a second later than the last.
func (r *rig) fill(signer nip.PubKey, n int, edit bool) (first nip.RequestID) {
	r.t.Helper()
	r.update(func(tx *bbolt.Tx) error {
		for i := range n {
			id := nip.RequestID(fmt.Sprintf("%s%056x", signer[56:], i))
			if i == 0 {
				first = id
			}
			k := &call{req: nip.Request{ID: id, Kind: "task.command.at_revision", ExpiresAt: r.clock.now() + int64(i)}, opened: nip.Opened{Signer: signer}}
			if err := r.c.remember(tx, k, func(row *recoveryRow) { row.Edit = edit }); err != nil {
				return err
			}
		}
		return nil
	})
	return first
}

// The rows have a bound of their own and a share for each signer. Whose oldest
// row gave way is never told that an unknown request was not there.
func TestRecoveryBounds(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	unknown := nip.RequestOperation{Request: nip.RequestID(newID(t)), RequestEvent: nip.EventID(newID(t))}
	first := r.fill(a.pub(), maxSignerRecovery, false)
	r.wantCode(r.ask(a, unknown), "")
	kept := r.create(a, "one more")
	if n := r.recoveryCount(); n != maxSignerRecovery {
		t.Fatalf("%d rows", n)
	}
	gone := nip.RequestOperation{Request: first, RequestEvent: unknown.RequestEvent}
	r.wantCode(r.ask(a, gone), nip.Unavailable)
	r.wantCode(r.ask(a, unknown), nip.Unavailable)
	r.wantCode(r.ask(b, unknown), "") // nothing of b gave way
	if r.rows(bucketReplies) == 0 {
		t.Fatal("no live reply is left")
	}
	for i := range maxRecovery/maxSignerRecovery - 1 {
		r.fill(nip.PubKey(fmt.Sprintf("%064x", i+1)), maxSignerRecovery, false)
	}
	if n := r.recoveryCount(); n != maxRecovery {
		t.Fatalf("%d rows", n)
	}
	r.create(b, "into a full store")
	r.create(b, "and again")
	if n := r.recoveryCount(); n != maxRecovery {
		t.Fatalf("%d rows", n)
	}
	r.clock.add(recoverySeconds + maxSignerRecovery + 60)
	r.prune()
	if n := r.recoveryCount(); n != 0 {
		t.Fatalf("%d rows", n)
	}
	r.wantCode(r.ask(a, unknown), "") // what gave way would have ended by now
	r.wantCode(r.ask(a, nip.RequestOperation{Request: nip.RequestID(kept), RequestEvent: unknown.RequestEvent}), nip.Unavailable)
}

// A revocation takes the device's rows, and no other's.
func TestRecoveryRevoked(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	in := r.sealed(a, r.req(a, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}))
	r.one(a, in)
	r.fill(a.pub(), 3, true)
	theirs := r.sealed(b, r.req(b, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}))
	r.one(b, theirs)
	k := r.call(r.sealed(a, r.req(a, nip.TaskSteer{Task: nip.TaskID(question(in).Request), Revision: 1, Prompt: "p"})))
	if _, err := r.c.Revoke(t.Context(), a.pub(), false); err != nil {
		t.Fatal(err)
	}
	r.update(func(tx *bbolt.Tx) error { // an effect that was under way ends after it
		return r.c.keepResult(tx, k, nip.Reply{Refusal: &nip.Refusal{Code: nip.Stale}})
	})
	if n := r.recoveryCount(); n != 1 {
		t.Fatalf("%d rows, want the other device's", n)
	}
	again := r.pair(nip.PairingRights(), a.key)
	r.wantCode(r.ask(again, question(in)), nip.Unavailable)
	if res := r.result(b, theirs); res == nil {
		t.Fatal("another device's result is gone")
	}
}

// A damaged row is a fault, never an answer.
func TestRecoveryDamaged(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	in := r.sealed(d, r.req(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}))
	r.one(d, in)
	for _, raw := range []string{`{`, `{"status":"ok"}`, `{"status":"refused","code":"conflict","missing":"operate"}`} {
		r.update(func(tx *bbolt.Tx) error {
			var row recoveryRow
			if _, err := getJSON(tx, bucketRecovery, string(question(in).Request), &row); err != nil {
				row = recoveryRow{}
			}
			if raw == `{` {
				return tx.Bucket(bucketRecovery).Put([]byte(question(in).Request), []byte(raw))
			}
			k := r.call(r.sealed(d, r.req(d, question(in))))
			row = recoveryRow{Signer: d.pub(), RequestEvent: question(in).RequestEvent, Kind: "task.create", Grant: k.who.sender.Grant, ExpiresAt: r.clock.now(), Result: []byte(raw)}
			return putJSON(tx, bucketRecovery, string(question(in).Request), row)
		})
		if err := r.h.receive(t.Context(), r.sealed(d, r.req(d, question(in)))); err == nil {
			t.Errorf("%s was answered", raw)
		}
	}
}
