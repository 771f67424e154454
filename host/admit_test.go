package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

func spoil(old, with string) func(string) string {
	return func(s string) string { return strings.Replace(s, old, with, 1) }
}

// Every step of the admission order: what is silent sends nothing and changes
// nothing, what is refused says why, and only what the wire retains is kept.
func TestAdmission(t *testing.T) {
	r := newRig(t)
	full := r.pair(nip.PairingRights())
	poor := r.pair(nip.Rights{nip.Observe})
	revoked := r.pair(nip.StandardRights())
	if _, err := r.c.Revoke(t.Context(), revoked.pub(), false); err != nil {
		t.Fatal(err)
	}
	stranger := device{key: newKey(t)}
	thief := device{key: newKey(t), grant: full.grant}
	list := nip.DeviceList{}

	for _, row := range []struct {
		name   string
		from   device
		make   func(q *nip.Request)
		spoil  func(string) string
		op     nip.Operation
		in     func(Inbound) Inbound
		code   nip.Code // "" with silent false: an outcome
		silent bool
		kept   bool // a reply is retained
	}{
		{name: "answered", from: full, op: list, kept: true},
		{name: "the owner needs no grant", from: r.owner, op: list, kept: true},
		{name: "an unknown outer member", from: full, op: list, spoil: spoil(`{"epoch"`, `{"bearer":true,"epoch"`), silent: true},
		{name: "grant without epoch", from: full, op: list, spoil: spoil(`"epoch":0`, `"epoch":null`), silent: true},
		{name: "future beyond the skew", from: full, op: list, make: func(q *nip.Request) { q.IssuedAt += 61; q.ExpiresAt += 61 }, silent: true},
		{name: "future within the skew", from: full, op: list, make: func(q *nip.Request) { q.IssuedAt += 60; q.ExpiresAt += 60 }, kept: true},
		{name: "expires this second", from: full, op: list, make: func(q *nip.Request) { q.IssuedAt -= 60; q.ExpiresAt -= 60 }, silent: true},
		{name: "one second left", from: full, op: list, make: func(q *nip.Request) { q.IssuedAt -= 59; q.ExpiresAt -= 59 }, kept: true},
		{name: "another host", from: full, op: list, make: func(q *nip.Request) { q.Host = stranger.pub() }, silent: true},
		{name: "another relay than it came by", from: full, op: list, make: func(q *nip.Request) { q.Relay = "wss://other.example.com/" }, silent: true},
		{name: "came by another relay", from: full, op: list, in: func(in Inbound) Inbound { in.Relay = "wss://other.example.com/"; return in }, silent: true},
		{name: "a stranger", from: stranger, op: list, code: nip.Forbidden},
		{name: "a stranger with an operation that does not hold", from: stranger, op: list, spoil: spoil("device.list", "host.shutdown"), silent: true},
		{name: "an unknown grant", from: device{key: full.key, grant: nip.Grant{ID: nip.GrantID(newID(t))}}, op: list, code: nip.Forbidden},
		{name: "somebody else's grant", from: thief, op: list, code: nip.Forbidden},
		{name: "a revoked grant", from: revoked, op: list, code: nip.Revoked},
		{name: "a revoked grant and an operation that does not hold", from: revoked, op: list, spoil: spoil("device.list", "host.shutdown"), silent: true},
		{name: "another epoch", from: full, op: list, make: func(q *nip.Request) { q.Epoch = 1 }, code: nip.Stale},
		{name: "a device without its grant", from: device{key: full.key}, op: list, code: nip.Forbidden},
		{name: "missing right", from: poor, op: list, code: nip.MissingRight, kept: true},
		{name: "missing right of what is not served", from: poor, op: nip.Other{Name: "spend.list", Answer: nip.Unavailable}, code: nip.MissingRight, kept: true},
		{name: "not served", from: full, op: nip.Other{Name: "spend.list", Answer: nip.Unavailable}, code: nip.Unavailable, kept: true},
		{name: "not known here", from: full, op: nip.Other{Name: "studio.snapshot", Answer: nip.Unsupported}, code: nip.Unsupported, kept: true},
		{name: "an unknown operation", from: full, op: list, spoil: spoil("device.list", "host.shutdown"), code: nip.Malformed, kept: true},
		{name: "an extra member in the operation", from: full, op: list, spoil: spoil(`{"kind":"device.list"}`, `{"kind":"device.list","x":1}`), code: nip.Malformed, kept: true},
		{name: "a blank prompt", from: full, op: nip.TaskSteer{Task: nip.TaskID(newID(t)), Prompt: "word"}, spoil: spoil(`"word"`, `" "`), code: nip.Bounds, kept: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			q := r.req(row.from, row.op)
			if row.make != nil {
				row.make(&q)
			}
			var changes []func(string) string
			if row.spoil != nil {
				changes = append(changes, row.spoil)
			}
			in := r.sealed(row.from, q, changes...)
			if row.in != nil {
				in = row.in(in)
			}
			before, kept := r.dump(), r.rows(bucketReplies)
			out := r.give(in)
			switch {
			case row.silent && len(out) != 0:
				t.Fatalf("%d replies, want silence", len(out))
			case row.silent:
				if after := r.dump(); after != before {
					t.Fatal("silence changed host.db")
				}
				return
			case len(out) != 1:
				t.Fatalf("%d replies, want 1", len(out))
			}
			p := r.read(row.from, out[0])
			r.wantCode(p, row.code)
			if row.code == nip.MissingRight && p.Refusal.Missing == "" {
				t.Error("the refusal names no right")
			}
			if got := r.rows(bucketReplies) > kept; got != row.kept {
				t.Errorf("retained %v, want %v", got, row.kept)
			}
			if !row.kept && r.dump() != before {
				t.Error("an unretained refusal changed host.db")
			}
		})
	}
}

// An event of the host's own key, whatever it says, is never answered.
func TestAdmissionOwnKey(t *testing.T) {
	r := newRig(t)
	self := device{key: r.c.key}
	q := r.req(self, nip.DeviceList{})
	a, err := nip.EncodeRequest(q)
	if err != nil {
		t.Fatal(err)
	}
	ev, err := nip.Seal(r.c.key, r.owner.pub(), nip.Mailbox(q.ID), a, nil)
	if err != nil {
		t.Fatal(err)
	}
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		t.Fatal(err)
	}
	if out := r.give(Inbound{v, paperRelay}); len(out) != 0 {
		t.Fatal("answered itself")
	}
}

// A grant's bounds hold for each request that names it.
func TestAdmissionGrantWindow(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	r.clock.at.Store(d.grant.ExpiresAt - 30)
	r.wantCode(r.ask(d, nip.DeviceList{}), nip.Forbidden) // would outlive its grant
	q := r.req(d, nip.DeviceList{})
	q.ExpiresAt = d.grant.ExpiresAt
	r.wantCode(r.one(d, r.sealed(d, q)), "")
	r.clock.at.Store(d.grant.ExpiresAt)
	r.wantCode(r.ask(d, nip.DeviceList{}), nip.Expired)
	r.clock.add(61)
	if err := r.c.db.Update(t.Context(), func(tx *bbolt.Tx) error { return pruneGrants(tx, r.clock.now()) }); err != nil {
		t.Fatal(err)
	}
	r.wantCode(r.ask(d, nip.DeviceList{}), nip.Forbidden)
}

// A retry of the same event gets the same bytes, at most once in 5 s, after a
// restart too; another event under its ID is a conflict.
func TestExactRetry(t *testing.T) {
	r := newRig(t)
	full, poor := r.pair(nip.PairingRights()), r.pair(nip.Rights{nip.Observe})
	r.create(full, "something to list")
	for _, row := range []struct {
		name     string
		from     device
		op       nip.Operation
		survives bool // the bytes outlive a restart
	}{
		{"an outcome", full, nip.WorkspaceList{}, true},
		{"a missing right", poor, nip.WorkspaceList{}, true},
		{"an operation not served", full, nip.Other{Name: "spend.list", Answer: nip.Unavailable}, true},
		{"an effect", full, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}, true},
		{"a read", full, nip.TaskList{Query: nip.ListQuery{Workspace: "demo", Limit: 8}}, false},
		{"a stranger's refusal", device{key: newKey(t)}, nip.WorkspaceList{}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			in := r.sealed(row.from, r.req(row.from, row.op))
			first := r.give(in)
			if len(first) != 1 {
				t.Fatalf("%d replies", len(first))
			}
			if again := r.give(in); len(again) != 0 {
				t.Fatal("answered twice within 5 s")
			}
			r.clock.add(4)
			if again := r.give(in); len(again) != 0 {
				t.Fatal("answered after 4 s")
			}
			r.clock.add(1)
			again := r.give(in)
			if row.from.grant.ID != "" && (len(again) != 1 || again[0].ID != first[0].ID || again[0].Sig != first[0].Sig) {
				t.Fatalf("the retry got %d replies, or other bytes", len(again))
			}
			if row.survives {
				r.restart()
				r.h.accessChanged()
				again = r.give(in)
				if len(again) != 1 || again[0].ID != first[0].ID {
					t.Fatalf("after a restart the retry got %d replies, or other bytes", len(again))
				}
			}
			// Neither the same device nor another key may use the ID again.
			if row.survives {
				q := r.req(row.from, row.op)
				q.ID = r.read(row.from, first[0]).Request
				r.wantCode(r.one(row.from, r.sealed(row.from, q)), nip.Conflict)
				other := device{key: newKey(t)}
				q.Grant, q.Epoch = "", -1
				r.wantCode(r.one(other, r.sealed(other, q)), nip.Conflict)
			}
			r.clock.add(61)
			if late := r.give(in); len(late) != 0 {
				t.Fatal("answered after its expiry")
			}
		})
	}
}

// A foreign key that saw a request's ID cannot make the host drop the request.
func TestForeignKeyBlocksNobody(t *testing.T) {
	r := newRig(t)
	d, other := r.pair(nip.PairingRights()), device{key: newKey(t)}
	q := r.req(d, nip.WorkspaceList{})
	theirs := q
	theirs.Grant, theirs.Epoch = "", -1
	r.wantCode(r.one(other, r.sealed(other, theirs)), nip.Forbidden)
	r.wantCode(r.one(d, r.sealed(d, q)), "")
}

// A full store of replies answers known requests as ever and signs bounds for
// new ones; room returns with time. A command gets no answer then: its device
// keeps it, and it is taken when it comes again.
func TestRepliesFull(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	known := r.sealed(d, r.req(d, nip.WorkspaceList{}))
	first := r.give(known)
	for i := r.rows(bucketReplies); i < maxReplies; {
		r.update(func(tx *bbolt.Tx) error {
			for end := min(i+1024, maxReplies); i < end; i++ {
				id := nip.RequestID(fmt.Sprintf("filler %05d", i))
				if err := keepReply(tx, id, retainedReply{Signer: nip.PubKey(fmt.Sprintf("%064x", i%64)), ExpiresAt: r.clock.now() + 30}, r.clock.now()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		if n := getCount(tx, bucketMeta, "replies"); n != maxReplies {
			return fmt.Errorf("%d replies are counted", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	task := nip.TaskID(newID(t))
	before := r.dump()
	for _, op := range []nip.Operation{
		nip.WorkspaceList{}, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"},
		nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "lease"}},
	} {
		r.wantCode(r.ask(d, op), nip.Bounds)
	}
	command := nip.TaskCommand{Command: nip.Command{ID: nip.CommandID(newID(t)), Task: task, Action: nip.Queue, Text: "x", IssuedAt: r.clock.now()}}
	if out := r.give(r.sealed(d, r.req(d, command))); len(out) != 0 {
		t.Fatalf("the command got %d replies", len(out))
	}
	if r.dump() != before {
		t.Fatal("a request that found no room changed host.db")
	}
	r.clock.add(6)
	if again := r.give(known); len(again) != 1 || again[0].ID != first[0].ID {
		t.Fatal("a known request was not answered from its reply")
	}
	r.clock.add(25) // the fillers ran out
	r.wantCode(r.ask(d, nip.WorkspaceList{}), "")
	r.wantCode(r.ask(d, command), nip.Forbidden) // decided: there is no such task
	if n := r.rows(bucketReplies); n > 8 {
		t.Fatalf("%d replies left", n)
	}
}

// One device that asks without end fills its own share of the retained replies
// and no other device's.
func TestReplyShare(t *testing.T) {
	r := newRig(t)
	greedy, honest := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	for range maxSignerReplies - 1 { // the redemption's own reply is one
		r.wantCode(r.ask(greedy, nip.WorkspaceList{}), "")
	}
	r.wantCode(r.ask(greedy, nip.WorkspaceList{}), nip.Bounds)
	r.wantCode(r.ask(honest, nip.WorkspaceList{}), "")
	r.clock.add(90) // all of them ran out
	r.wantCode(r.ask(greedy, nip.WorkspaceList{}), "")
}

func (r *rig) rowsIn(tx *bbolt.Tx, bucket []byte) int {
	n := 0
	_ = tx.Bucket(bucket).ForEach(func(_, _ []byte) error { n++; return nil })
	return n
}

// A request that runs out while it is served gets no reply; its effect is true
// all the same, once.
func TestExpiresWhileServed(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	in := r.sealed(d, r.req(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}))
	k := r.call(in)
	r.clock.add(60)
	if err := r.h.dispatch(t.Context(), k); err != nil && !errors.Is(err, errSilent) {
		t.Fatal(err)
	}
	if out := r.queued(); len(out) != 0 {
		t.Fatal("a reply after the request's expiry")
	}
	if got := r.task(nip.TaskID(k.req.ID)); got.Revision != 1 {
		t.Fatalf("revision %d", got.Revision)
	}
	if n := r.rows(bucketAdmitted); n != 0 {
		t.Fatalf("%d admitted rows left", n)
	}
}

// call is an admitted call, for tests that stop between the steps.
func (r *rig) call(in Inbound) *call {
	r.t.Helper()
	opened, err := nip.Open(in.Event, r.c.key)
	if err != nil {
		r.t.Fatal(err)
	}
	req, err := nip.ParseRequest(opened.Inline, nip.Profile{Loopback: true})
	if err != nil {
		r.t.Fatal(err)
	}
	k := &call{in: in, opened: opened, req: req}
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		v, err := r.c.admit(tx, k, r.clock.now())
		if v != (verdict{}) {
			r.t.Fatalf("not admitted: %+v", v)
		}
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	return k
}

// What a device asks for must fit into the reply that this host may write.
func TestAnswersFit(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, strings.Repeat(`"`, 12_000)) // two bytes each in JSON
	for range 5 {
		r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(task, nip.Queue, strings.Repeat("x", 16_000))}), "")
	}
	p := r.ask(d, nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "list"}})
	q, ok := p.Outcome.(nip.QueueState)
	if !ok || len(q.Items) != 5 || q.Items[0].Text == nil || q.Items[4].Text != nil {
		t.Fatalf("queue of long messages: %+v", p.Refusal)
	}
	p = r.ask(d, nip.TaskRead{Query: nip.ReadQuery{Workspace: "demo", Task: string(task), Limit: 64}})
	if page, ok := p.Outcome.(nip.TaskPage); !ok || page.Task.Prompt == "" {
		t.Fatalf("page: %+v", p.Refusal)
	}
	for range 70 {
		r.wantCode(r.ask(d, nip.TaskCreate{Title: strings.Repeat("\\", 200), Prompt: "p", Workspace: "demo"}), "")
	}
	seen, pages := 0, 0
	var cursor *nip.ListCursor
	for {
		p = r.ask(d, nip.TaskList{Query: nip.ListQuery{Workspace: "demo", Limit: 64, Cursor: cursor}})
		l, ok := p.Outcome.(nip.Tasks)
		if !ok {
			t.Fatalf("list: %+v", p.Refusal)
		}
		seen, pages = seen+len(l.Tasks.Rows), pages+1
		if cursor = l.Tasks.Next; cursor == nil {
			break
		}
	}
	if seen != 71 || pages < 2 {
		t.Fatalf("%d tasks on %d pages", seen, pages)
	}
}

// The access book at its cap still lists who can act.
func TestDeviceListFits(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	if err := r.c.db.Update(t.Context(), func(tx *bbolt.Tx) error {
		for i := range maxGrants - 1 {
			g := d.grant
			g.ID, g.Device = nip.GrantID(newID(t)), newKey(t).Public()
			rec := grantRecord{Grant: g}
			if i%8 != 0 {
				rec.RevokedAt = 1
			}
			if err := putJSON(tx, bucketGrants, string(g.ID), rec); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	p := r.ask(d, nip.DeviceList{})
	l, ok := p.Outcome.(nip.Devices)
	if !ok {
		t.Fatalf("refused: %+v", p.Refusal)
	}
	active := 0
	for _, e := range l.Devices {
		if e.State == "active" {
			active++
		}
	}
	if active != 17 || len(l.Devices) == maxGrants {
		t.Fatalf("%d of %d entries active", active, len(l.Devices))
	}
}

// Mutations of real requests, sealed by a real device: nothing panics, nothing
// gets two replies, and only a decoded request can change the tasks.
func FuzzReceive(f *testing.F) {
	r := newRig(f)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	for _, op := range []nip.Operation{
		nip.DeviceList{}, nip.WorkspaceList{}, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"},
		nip.TaskCommand{Command: r.command(task, nip.Queue, "x")}, nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "lease"}},
		nip.TaskList{Query: nip.ListQuery{Workspace: "demo", Limit: 3}}, nip.TaskRead{Query: nip.ReadQuery{Workspace: "demo", Task: string(task), Limit: 3}},
		nip.TaskOriginal{Query: nip.OriginalQuery{Scope: nip.Scope{Workspace: "demo", Task: string(task), Revision: 1, IntentDigest: nip.DigestOf(nil)},
			Original: nip.OriginalRef{Source: "task", Digest: nip.DigestOf(nil), Bytes: 1, MediaType: "text/plain"}, Limit: 10}},
		nip.TaskSteer{Task: task, Revision: 1, Prompt: "p"}, nip.TaskCancel{Task: task, Revision: 1, Reason: "r"}, nip.TaskArchive{Task: task},
		nip.DeviceRevoke{Device: newKey(f).Public()}, nip.EnrollRedeem{Invitation: nip.InvitationID(newID(f)), Capability: newID(f)},
	} {
		q := r.req(d, op)
		if _, ok := op.(nip.EnrollRedeem); ok {
			q.Grant, q.Epoch = "", -1
		}
		a, err := nip.EncodeRequest(q)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a.Inline)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 20_000 {
			return
		}
		var head struct {
			Request   string `json:"request"`
			IssuedAt  int64  `json:"issued_at"`
			ExpiresAt int64  `json:"expires_at"`
		}
		if json.Unmarshal(body, &head) != nil || !nip.ValidID(head.Request) {
			return
		}
		ev, err := nip.Seal(d.key, r.c.Self(), nip.Mailbox(head.Request), nip.Artifact{
			Schema: nip.SchemaRequest, Inline: body, IssuedAt: head.IssuedAt, RetainUntil: head.ExpiresAt}, nil)
		if err != nil {
			return
		}
		v, err := nip.VerifyEvent(ev)
		if err != nil {
			return
		}
		if err := r.h.receive(t.Context(), Inbound{v, paperRelay}); err != nil {
			t.Fatal(err)
		}
		if out := r.queued(); len(out) > 1 {
			t.Fatalf("%d replies", len(out))
		}
	})
}
