package host

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/owner"
	"holdfast/queue"
)

// at asks for an edit at the task's revision; digest "" is null.
func (r *rig) at(d device, task nip.TaskID, e nip.QueueEdit, digest nip.Digest) nip.Reply {
	r.t.Helper()
	return r.ask(d, r.atOp(task, e, digest))
}

func (r *rig) atOp(task nip.TaskID, e nip.QueueEdit, digest nip.Digest) nip.TaskQueueAt {
	r.t.Helper()
	op := nip.TaskQueueAt{Task: task, Revision: r.task(task).Revision, Edit: e}
	if digest != "" {
		op.QueueDigest = &digest
	}
	return op
}

// digest lists the queue and returns its digest.
func (r *rig) digest(d device, task nip.TaskID) nip.Digest {
	r.t.Helper()
	p := r.at(d, task, nip.QueueEdit{Action: "list"}, "")
	out, ok := p.Outcome.(nip.QueueAtRevision)
	if !ok {
		r.t.Fatalf("%+v %+v", p.Outcome, p.Refusal)
	}
	return out.QueueDigest
}

var (
	list    = nip.QueueEdit{Action: "list"}
	lease   = nip.QueueEdit{Action: "lease"}
	release = nip.QueueEdit{Action: "release"}
)

// busy is a task whose turn runs, with a held message of each device.
func (r *rig) busy(a, b device) (task nip.TaskID, ofA, ofB nip.Command) {
	r.t.Helper()
	task = r.create(a, "p")
	r.begin(task)
	ofA, ofB = r.command(task, nip.Queue, "of a"), r.command(task, nip.Queue, "of b")
	r.wantCode(r.ask(a, nip.TaskCommand{Command: ofA}), "")
	r.wantCode(r.ask(b, nip.TaskCommand{Command: ofB}), "")
	return task, ofA, ofB
}

// The codes of task.queue.at_revision.
func TestQueueAtRevisionCodes(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	task, ofA, ofB := r.busy(a, b)
	before := r.digest(a, task)
	p := r.at(a, task, lease, before)
	out, ok := p.Outcome.(nip.QueueAtRevision)
	if !ok || out.Queue.Lease == nil || out.Queue.Lease.Device != a.pub() || out.Revision != r.task(task).Revision || len(out.Queue.Items) != 2 {
		t.Fatalf("%+v %+v", p.Outcome, p.Refusal)
	}
	now := out.QueueDigest
	if now == before || now != r.digest(b, task) {
		t.Fatal("the digest is not that of the queue after the edit")
	}
	old := r.atOp(task, list, "")
	old.Revision--
	ahead := r.atOp(task, release, now)
	ahead.Revision++
	elsewhere := r.atOp(task, list, "")
	elsewhere.Task = nip.TaskID(newID(t))
	edit := nip.QueueEdit{Action: "edit", Command: ofA.ID, Text: "new"}
	foreign := nip.QueueEdit{Action: "edit", Command: ofB.ID, Text: "new"}
	for _, row := range []struct {
		name string
		from device
		op   nip.TaskQueueAt
		code nip.Code
	}{
		{"list", a, r.atOp(task, list, ""), ""},
		{"list with its digest", b, r.atOp(task, list, now), ""},
		{"list at another revision", a, old, nip.Stale},
		{"list with an old digest", a, r.atOp(task, list, before), nip.Stale},
		{"edit at another revision", a, ahead, nip.Stale},
		{"edit with an old digest", a, r.atOp(task, edit, before), nip.Stale},
		{"edit without the lease", b, r.atOp(task, foreign, now), nip.Conflict},
		{"lease held by another", b, r.atOp(task, lease, now), nip.Conflict},
		{"edit of another's message", a, r.atOp(task, foreign, now), nip.Forbidden},
		{"a task that is not there", a, elsewhere, nip.Forbidden},
		{"a stranger", device{key: newKey(t)}, r.atOp(task, list, ""), nip.Forbidden},
		{"edit", a, r.atOp(task, edit, now), ""},
		{"the same again in a new request", a, r.atOp(task, edit, now), nip.Stale},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			r.update(func(tx *bbolt.Tx) error { return pruneReplies(tx, r.clock.now(), maxReplies) }) // what ended would leave beside the reply
			replies := r.rows(bucketReplies)
			in := r.sealed(row.from, r.req(row.from, row.op))
			p := r.one(row.from, in)
			r.wantCode(p, row.code)
			r.clock.add(5)
			again := r.give(in)
			if len(again) != 1 || row.name != "a stranger" && !reflect.DeepEqual(r.read(row.from, again[0]), p) {
				t.Fatal("an exact retry got another answer")
			}
			kept := row.op.Edit.Action != "list" && row.name != "a stranger"
			if got := r.rows(bucketReplies) > replies; got != kept {
				t.Errorf("retained %v", got)
			}
		})
	}
	r.t = t
	r.recoveryCount()
}

// Whatever changes the queue changes its digest, also what only another device
// sees; and nothing else does.
func TestQueueDigest(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	task, ofA, ofB := r.busy(a, b)
	seen := map[nip.Digest]string{}
	step := func(name string, fn func()) {
		fn()
		m := r.digest(b, task)
		if was := seen[m]; was != "" {
			t.Errorf("%s has the digest of %s", name, was)
		}
		seen[m] = name
		r.clock.add(1)
		if m != r.digest(a, task) {
			t.Errorf("%s: another asker or a second changed the digest", name)
		}
	}
	q := func(e nip.QueueEdit) func() {
		return func() { r.wantCode(r.ask(a, nip.TaskQueue{Task: task, Edit: e}), "") }
	}
	step("at first", func() {})
	step("a lease", q(lease))
	step("the lease renewed", q(lease))
	step("a text", q(nip.QueueEdit{Action: "edit", Command: ofA.ID, Text: "other"}))
	step("the order", q(nip.QueueEdit{Action: "reorder", Commands: []nip.CommandID{ofB.ID, ofA.ID}}))
	step("a message", func() {
		r.wantCode(r.ask(a, nip.TaskCommand{Command: r.command(task, nip.Queue, "third")}), "")
	})
	step("one removed", q(nip.QueueEdit{Action: "remove", Command: ofA.ID}))
	step("the lease ended", func() { r.clock.add(queue.LeaseSeconds) })
}

// A request ID is one edit: an exact retry gets the recorded result also where
// its reply is gone, another action is a conflict, a record without a result
// stays unavailable, and none of them touches the queue.
func TestQueueEditRecorded(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	task, ofA, _ := r.busy(a, b)
	r.wantCode(r.at(a, task, lease, r.digest(a, task)), "")
	in := r.sealed(a, r.req(a, r.atOp(task, nip.QueueEdit{Action: "edit", Command: ofA.ID, Text: "new"}, r.digest(a, task))))
	said := r.one(a, in)
	r.wantCode(said, "")
	id := question(in).Request
	r.wantCode(r.ask(a, nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "edit", Command: ofA.ID, Text: "newer"}}), "")
	after := r.digest(a, task)

	r.update(func(tx *bbolt.Tx) error { return pruneReplies(tx, math.MaxInt64, maxReplies) })
	r.restart()
	again := r.one(a, in)
	if !reflect.DeepEqual(again.Outcome, said.Outcome) {
		t.Fatalf("%+v, was %+v", again.Outcome, said.Outcome)
	}
	other := r.req(a, r.atOp(task, nip.QueueEdit{Action: "remove", Command: ofA.ID}, after))
	other.ID = id
	r.wantCode(r.one(a, r.sealed(a, other)), nip.Conflict)

	change := func(fn func(row *recoveryRow)) {
		r.update(func(tx *bbolt.Tx) error {
			var row recoveryRow
			if _, err := getJSON(tx, bucketRecovery, string(id), &row); err != nil {
				return err
			}
			fn(&row)
			return putJSON(tx, bucketRecovery, string(id), row)
		})
		r.restart()
	}
	change(func(row *recoveryRow) { row.Action = nip.DigestOf(nil) })
	r.wantCode(r.one(a, in), nip.Conflict)
	action, err := actionDigest(r.call(in).req.Op.(nip.TaskQueueAt))
	if err != nil {
		t.Fatal(err)
	}
	change(func(row *recoveryRow) { row.Action, row.Result = action, nil })
	for range 2 { // for ever
		r.wantCode(r.one(a, in), nip.Unavailable)
		if res := r.result(a, in); res != nil {
			t.Fatalf("%+v", res)
		}
		r.restart()
	}
	if got := r.digest(a, task); got != after {
		t.Fatal("a retry touched the queue")
	}
	// Where the record left too, the journal remembers the ID.
	r.clock.add(recoverySeconds + 61)
	r.prune()
	fresh := r.req(a, r.atOp(task, lease, r.digest(a, task)))
	fresh.ID = id
	r.wantCode(r.one(a, r.sealed(a, fresh)), nip.Conflict)
	// The plain operation keeps the same rule.
	plain := r.req(a, nip.TaskQueue{Task: task, Edit: lease})
	r.wantCode(r.one(a, r.sealed(a, plain)), "")
	r.clock.add(61)
	plain.IssuedAt, plain.ExpiresAt = r.clock.now(), r.clock.now()+60
	r.wantCode(r.one(a, r.sealed(a, plain)), nip.Conflict)
}

// At most 128 edits are recorded, 64 of one device, each for 48 hours; one more
// is refused, and an edit that was refused costs none.
func TestQueueRecordBounds(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	task := r.create(a, "p")
	r.wantCode(r.at(a, task, release, nip.DigestOf(nil)), nip.Stale)
	r.fill(a.pub(), maxSignerQueueRecords-1, true)
	r.wantCode(r.at(a, task, release, r.digest(a, task)), "")
	r.wantCode(r.at(a, task, release, r.digest(a, task)), nip.Bounds)
	r.wantCode(r.at(a, task, list, ""), "")
	r.fill(nip.PubKey(strings.Repeat("1", 64)), maxQueueRecords-maxSignerQueueRecords-1, true)
	r.wantCode(r.at(b, task, release, r.digest(b, task)), "")
	r.wantCode(r.at(b, task, release, r.digest(b, task)), nip.Bounds)
	if n := r.recoveryCount(); n < maxQueueRecords {
		t.Fatalf("%d rows", n)
	}
	r.clock.add(recoverySeconds + 120)
	r.wantCode(r.at(b, task, release, r.digest(b, task)), "")
	r.recoveryCount()
}

// A queue that no answer shows in whole takes no edit by digest.
func TestQueueAtRevisionTooLong(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	end := r.begin(task)
	defer end(owner.Result{})
	long := strings.Repeat("\u00e9", 1000)
	for i := range queue.ListLimit {
		r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(task, nip.Queue, fmt.Sprint(i, long))}), "")
	}
	digest := r.digest(d, task) // 64 texts that do not fit together
	in := r.sealed(d, r.req(d, r.atOp(task, lease, digest)))
	p := r.one(d, in)
	out, ok := p.Outcome.(nip.QueueAtRevision)
	if !ok || len(out.Queue.Items) != queue.ListLimit || out.Queue.Items[0].Text == nil || out.Queue.Items[63].Text != nil {
		t.Fatalf("%+v", p.Refusal)
	}
	if res := r.result(d, in); res == nil || !reflect.DeepEqual(res.Outcome, p.Outcome) { // fits inside the question's answer
		t.Fatalf("%+v", res)
	}
	r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(task, nip.Queue, "one more")}), "")
	r.wantCode(r.at(d, task, list, ""), nip.Bounds)
	r.wantCode(r.at(d, task, release, out.QueueDigest), nip.Bounds)
	r.wantCode(r.ask(d, nip.TaskQueue{Task: task, Edit: release}), "") // the plain operation still works
}
