package host

import (
	"context"
	"os"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

// admitted commits the first half of an effect, as a host that stops right
// after it.
func (r *rig) admitted(in Inbound) (nip.RequestID, admittedEffect) {
	r.t.Helper()
	k := r.call(in)
	task, bytes, refusal, err := r.h.compileEffect(context.Background(), k)
	if err != nil || refusal != "" {
		r.t.Fatal(refusal, err)
	}
	eff := admittedEffect{Sender: k.who.sender, Kind: k.req.Kind, Task: task, Bytes: bytes, ExpiresAt: k.req.ExpiresAt}
	r.update(func(tx *bbolt.Tx) error { return putJSON(tx, bucketAdmitted, string(k.req.ID), eff) })
	return k.req.ID, eff
}

// A stop between the two commits of an effect, before or after the store took
// the bytes: the next start finishes it exactly once, its origin is recorded,
// and the device's exact retry gets the true answer.
func TestEffectCutOff(t *testing.T) {
	for _, row := range []struct {
		name string
		kind string
		took bool // the store had taken the bytes
		edit bool // the policy was changed in between
	}{
		{"create, not applied", "create", false, false},
		{"create, applied", "create", true, false},
		{"create, applied, the adapter is another now", "create", true, true},
		{"steer, not applied", "steer", false, false},
		{"steer, applied", "steer", true, false},
		{"cancel, applied", "cancel", true, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			d := r.pair(nip.PairingRights())
			var op nip.Operation = nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}
			var task nip.TaskID
			want := int64(1)
			if row.kind != "create" {
				task, want = r.create(d, "p"), 2
				if op = (nip.TaskSteer{Task: task, Revision: 1, Prompt: "other"}); row.kind == "cancel" {
					op = nip.TaskCancel{Task: task, Revision: 1, Reason: "enough"}
				}
			}
			in := r.sealed(d, r.req(d, op))
			id, eff := r.admitted(in)
			if row.kind == "create" {
				task = nip.TaskID(id)
			}
			if row.took {
				if _, err := r.c.store.Apply(t.Context(), eff.Bytes); err != nil {
					t.Fatal(err)
				}
			}
			if row.edit {
				r.policy(func(p *Policy) { p.Rules[0].Adapter = owner.BoundedCommand })
			}
			r.restart()
			if err := r.c.finishAdmitted(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := r.task(task).Revision; got != want {
				t.Fatalf("revision %d, want %d", got, want)
			}
			if n := r.rows(bucketAdmitted); n != 0 {
				t.Fatalf("%d rows left", n)
			}
			if row.kind == "create" {
				if err := r.c.db.View(func(tx *bbolt.Tx) error {
					o, err := turnOrigins(tx, owner.TaskID(task), 1)
					if len(o) != 1 || o[0].Sender.Device != d.pub() {
						t.Errorf("origins: %+v", o)
					}
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
			p := r.one(d, in)
			if o, ok := p.Outcome.(nip.Dispatched); !ok || o.Reference != string(task) {
				t.Fatalf("%+v %+v", p.Outcome, p.Refusal)
			}
			if got := r.task(task).Revision; got != want {
				t.Fatalf("the retry moved the task to revision %d", got)
			}
			ids, err := r.c.store.List()
			if err != nil || len(ids) != 1 {
				t.Fatal(ids, err)
			}
		})
	}
}

// A revocation on a home that nobody serves comes after what was cut off.
func TestOfflineRevocationFinishesFirst(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	id, _ := r.admitted(r.sealed(d, r.req(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"})))
	r.c.serving = nil
	if _, err := r.c.Revoke(t.Context(), d.pub(), false); err != nil {
		t.Fatal(err)
	}
	r.c.serving = r.h
	var made, revoked uint64
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		ts, err := r.c.journal.Transitions(tx, 0, 100)
		for _, x := range ts {
			switch {
			case x.Key.Kind == "task.create" && x.Key.ID == string(id):
				made = x.Seq
			case x.Key.Kind == "device.revoke":
				revoked = x.Seq
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if made == 0 || made > revoked {
		t.Fatalf("created at %d, revoked at %d", made, revoked)
	}
}

// What create, steer, cancel and archive refuse, and with which code.
func TestEffectRefusals(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	queued, ended, busy := r.create(d, "p"), r.create(d, "p"), r.create(d, "p")
	r.wantCode(r.ask(d, nip.TaskCancel{Task: ended, Revision: 1, Reason: "r"}), "")
	end := r.begin(busy)
	defer end(owner.Result{})
	image := nip.Image{Digest: nip.DigestOf(nil), MediaType: "image/png", Size: 1, Name: "a"}
	unknown := nip.TaskID(newID(t))
	for _, row := range []struct {
		name string
		op   nip.Operation
		code nip.Code
	}{
		{"unknown label", nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "elsewhere"}, nip.Forbidden},
		{"a path for a label", nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo2"}, nip.Forbidden},
		{"an image nobody uploaded", nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo", Images: []nip.Image{image}}, nip.Conflict},
		{"an engine", nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo", Engine: "codex"}, nip.Unsupported},
		{"steer unknown", nip.TaskSteer{Task: unknown, Revision: 1, Prompt: "p"}, nip.Forbidden},
		{"steer another revision", nip.TaskSteer{Task: queued, Revision: 2, Prompt: "p"}, nip.Stale},
		{"cancel unknown", nip.TaskCancel{Task: unknown, Revision: 1, Reason: "r"}, nip.Forbidden},
		{"cancel another revision", nip.TaskCancel{Task: queued, Revision: 7, Reason: "r"}, nip.Stale},
		{"cancel what ended", nip.TaskCancel{Task: ended, Revision: 2, Reason: "r"}, nip.Conflict},
		{"archive unknown", nip.TaskArchive{Task: unknown}, nip.Forbidden},
		{"archive what runs", nip.TaskArchive{Task: busy}, nip.Conflict},
		{"archive", nip.TaskArchive{Task: ended}, ""},
		{"archive again", nip.TaskArchive{Task: ended}, ""},
		{"command for an unknown task", nip.TaskCommand{Command: nip.Command{ID: nip.CommandID(newID(t)), Task: unknown, Action: nip.Queue, Text: "x", IssuedAt: r.clock.now()}}, nip.Forbidden},
		{"queue of an unknown task", nip.TaskQueue{Task: unknown, Edit: nip.QueueEdit{Action: "list"}}, nip.Forbidden},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			in := r.sealed(d, r.req(d, row.op))
			first := r.one(d, in)
			r.wantCode(first, row.code)
			r.clock.add(5)
			if again := r.give(in); len(again) != 1 || r.read(d, again[0]).IssuedAt != first.IssuedAt {
				t.Fatal("not retained")
			}
		})
	}
	r.t = t
	// A workspace list that cannot be read is this machine's trouble.
	if err := os.WriteFile(r.home+"/workspaces.json", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, op := range []nip.Operation{nip.WorkspaceList{}, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}, nip.TaskList{Query: nip.ListQuery{Workspace: "demo", Limit: 1}}} {
		r.wantCode(r.ask(d, op), nip.Unavailable)
	}
}

// A damaged task answers unavailable, hinders no other task and no start.
func TestDamagedTask(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	bad, good := r.create(d, "p"), r.create(d, "p")
	end := r.begin(bad)
	r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(bad, nip.Queue, "later")}), "")
	end(owner.Result{})
	log := r.c.store.TaskDir(owner.TaskID(bad)) + "/log"
	cmd, steer := r.command(bad, nip.Queue, "x"), nip.TaskSteer{Task: bad, Revision: 1, Prompt: "p"}
	r.close()
	names, err := os.ReadDir(r.home + "/tasks")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(names, err)
	}
	raw[len(raw)/2] ^= 0xff
	if err := os.WriteFile(log, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	r.open()
	r.serve()
	for _, op := range []nip.Operation{
		nip.TaskRead{Query: nip.ReadQuery{Workspace: "demo", Task: string(bad), Limit: 1}}, steer, nip.TaskArchive{Task: bad},
		nip.TaskQueue{Task: bad, Edit: nip.QueueEdit{Action: "lease"}},
	} {
		r.wantCode(r.overWire(d, op), nip.Unavailable)
	}
	r.wantCode(r.overWire(d, nip.TaskCommand{Command: cmd}), "") // journalled, and decided when the task can be read
	r.wantCode(r.overWire(d, nip.TaskRead{Query: nip.ReadQuery{Workspace: "demo", Task: string(good), Limit: 1}}), "")
	p := r.overWire(d, nip.TaskList{Query: nip.ListQuery{Workspace: "demo", Limit: 9}})
	if l, ok := p.Outcome.(nip.Tasks); !ok || len(l.Tasks.Rows) != 1 {
		t.Fatalf("%+v %+v", p.Outcome, p.Refusal)
	}
	if e := r.entry(d.pub(), cmd.ID); e.State != commands.StateReceived {
		t.Fatalf("%s", e.State)
	}
}

// overWire asks a running host through its transport.
func (r *rig) overWire(d device, op nip.Operation) nip.Reply {
	r.t.Helper()
	return r.wire(d, r.sealed(d, r.req(d, op)))
}

func (r *rig) wire(d device, in Inbound) nip.Reply {
	r.t.Helper()
	opened, err := nip.Open(in.Event, d.key)
	if err != nil {
		r.t.Fatal(err)
	}
	r.paper.in <- in
	var reply nip.Reply
	r.until("a reply to "+string(opened.Mailbox), func() bool {
		for _, ev := range r.paper.all() {
			if tag := ev.Tags.Find("h"); tag != nil && tag[1] == string(opened.Mailbox) {
				reply = r.read(d, ev)
				return true
			}
		}
		return false
	})
	return reply
}

// The queue over the wire: texts stay with their device, changes need the
// lease, and a lease that ends without a release wakes the task.
func TestQueueOverTheWire(t *testing.T) {
	r := newRig(t)
	a, b := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	r.serve()
	task := nip.TaskID(r.overWire(a, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}).Outcome.(nip.Dispatched).Reference)
	end := r.begin(task)
	first, second := r.command(task, nip.Queue, "of a"), r.command(task, nip.Queue, "of b")
	r.wantCode(r.overWire(a, nip.TaskCommand{Command: first}), "")
	r.wantCode(r.overWire(b, nip.TaskCommand{Command: second}), "")
	q := func(d device, e nip.QueueEdit) nip.Reply { return r.overWire(d, nip.TaskQueue{Task: task, Edit: e}) }
	l, ok := q(b, nip.QueueEdit{Action: "list"}).Outcome.(nip.QueueState)
	if !ok || len(l.Items) != 2 || l.Items[0].Text != nil || l.Items[1].Text == nil || *l.Items[1].Text != "of b" {
		t.Fatalf("%+v", l)
	}
	r.wantCode(q(a, nip.QueueEdit{Action: "edit", Command: first.ID, Text: "new words"}), nip.Conflict) // without a lease
	r.wantCode(q(a, nip.QueueEdit{Action: "lease"}), "")
	r.wantCode(q(b, nip.QueueEdit{Action: "lease"}), nip.Conflict)
	r.wantCode(q(a, nip.QueueEdit{Action: "edit", Command: second.ID, Text: "x"}), nip.Forbidden)
	r.wantCode(q(a, nip.QueueEdit{Action: "edit", Command: first.ID, Text: "new words"}), "")
	end(owner.Result{})
	r.until("the end is seen", func() bool { return r.task(task).Status == owner.Finished })
	if e := r.entry(a.pub(), first.ID); e.State != commands.StateHeld {
		t.Fatalf("under a lease the message is %s", e.State)
	}
	r.clock.add(60) // the lease ends; nobody releases it
	r.h.deadlines.poke(task)
	r.until("the next turn is asked for", func() bool {
		t := r.task(task)
		return t.Status == owner.Queued && t.EffectivePrompt() == "new words"
	})
	if e := r.entry(b.pub(), second.ID); e.State != commands.StateHeld {
		t.Fatalf("the second message is %s", e.State)
	}
	r.until("the command is decided", func() bool { return r.entry(a.pub(), first.ID).State == commands.StateDone })
	next := r.task(task)
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		o, err := turnOrigins(tx, next.ID, next.TurnStart())
		if len(o) != 1 || o[0].Sender.Device != a.pub() {
			t.Errorf("origin of the second turn: %+v", o)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// The same command in another request is answered with its first disposition;
// the same ID with other words conflicts; a day later it expires.
func TestCommandReplay(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	cmd := r.command(task, nip.Steer, "words")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: cmd}), "")
	at := r.task(task).Revision
	r.wantCode(r.ask(d, nip.TaskCommand{Command: cmd}), "")
	other := cmd
	other.Text = "other words"
	r.wantCode(r.ask(d, nip.TaskCommand{Command: other}), nip.Conflict)
	again := r.pair(nip.PairingRights(), d.key)
	r.wantCode(r.ask(again, nip.TaskCommand{Command: cmd}), "") // a new grant, the same command
	if got := r.task(task).Revision; got != at {
		t.Fatalf("revision %d, want %d", got, at)
	}
	late := r.command(task, nip.Queue, "late")
	r.clock.add(commands.CommandLife + 1)
	r.wantCode(r.ask(again, nip.TaskCommand{Command: late}), nip.Expired)
	ahead := r.command(task, nip.Queue, "ahead")
	ahead.IssuedAt += commands.CommandFuture + 1
	r.wantCode(r.ask(again, nip.TaskCommand{Command: ahead}), nip.Bounds)
}
