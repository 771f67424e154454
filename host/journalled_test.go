package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

// entries are all entries of the journal, by key.
func (r *rig) entries() map[commands.Key]commands.Entry {
	r.t.Helper()
	out := map[commands.Key]commands.Entry{}
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		list, _, err := r.c.journal.Page(tx, commands.Filter{Limit: 1 << 20})
		for _, e := range list {
			out[e.Key] = e
		}
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// left is the one new entry of that kind, looked at as every entry must be: who,
// under what, decided how; nothing of what people wrote.
func (r *rig) left(before map[commands.Key]commands.Entry, kind string, who commands.Sender) {
	r.t.Helper()
	var found []commands.Entry
	for k, e := range r.entries() {
		if _, known := before[k]; !known && k.Kind == kind {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		r.t.Fatalf("%d entries of kind %q, want 1", len(found), kind)
	}
	e := found[0]
	switch {
	case e.Sender != who || e.Key.Principal != who.Device:
		r.t.Errorf("by %+v", e.Sender)
	case e.State != commands.StateDone && e.State != commands.StateHeld, e.State == commands.StateDone && e.Outcome == commands.OutcomeNone:
		r.t.Errorf("%s %s: nothing is decided", e.State, e.Outcome)
	case kind != commands.KindCommand && e.Note == "":
		r.t.Error("what was asked is not said")
	case e.Outcome == commands.OutcomeRejected && e.Reason == "":
		r.t.Error("refused without a reason")
	case strings.Contains(e.Note, "words"):
		r.t.Errorf("the note says what somebody wrote: %q", e.Note)
	}
}

// operate runs a verb in this process.
func (r *rig) operate(verb string, args any) error {
	return r.c.Operate(context.Background(), verb, mustRaw(r.t, args), func(v any) error { _, err := json.Marshal(v); return err })
}

func (r *rig) document(t *testing.T, cmd owner.Command) []byte {
	t.Helper()
	if cmd.CommandID == "" {
		cmd.CommandID = newID(t)
	}
	b, err := owner.EncodeCommand(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// executionGrant is what the rig's policy gives the task.
func (r *rig) executionGrant(id nip.TaskID) []byte {
	r.t.Helper()
	p, digest, err := loadPolicy(r.home)
	if err != nil {
		r.t.Fatal(err)
	}
	task := r.task(id)
	b, err := owner.EncodeGrant(grantOf(&task, &p.Rules[0], digest))
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// Every operator verb has chosen: it leaves one entry, or it has no effect. A
// verb that is in neither place fails here.
func TestEveryVerbIsJournalled(t *testing.T) {
	one := int64(1)
	submit := func(task owner.TaskID, r *rig) owner.Command {
		return owner.Command{TaskID: task, Action: owner.Action{Submit: &owner.Intent{
			Title: "t", Prompt: "words", Workspace: owner.Workspace{Path: r.repo}, Configuration: owner.Configuration{Adapter: owner.PromptCommand},
		}}}
	}
	type verbRow struct {
		kind string // of its entry, where that is not the verb
		do   func(t *testing.T, r *rig, d device, task nip.TaskID) error
		none string // why it leaves none
	}
	apply := func(verb string, cmd func(r *rig, task owner.TaskID) owner.Command) verbRow {
		return verbRow{kind: "task." + verb, do: func(t *testing.T, r *rig, _ device, task nip.TaskID) error {
			return r.operate("task.apply", TaskArgs{Request: r.document(t, cmd(r, owner.TaskID(task))), Verb: verb})
		}}
	}
	on := func(verb string, change ...func(*TaskArgs)) verbRow {
		return verbRow{do: func(_ *testing.T, r *rig, _ device, task nip.TaskID) error {
			a := TaskArgs{Task: owner.TaskID(task), Reason: "because"}
			for _, c := range change {
				c(&a)
			}
			return r.operate(verb, a)
		}}
	}
	const reads = "it reads"
	rows := map[string][]verbRow{
		"status": {{none: reads}}, "devices.list": {{none: reads}}, "workspace.list": {{none: reads}}, "check": {{none: reads}},
		"journal.list": {{none: reads}}, "journal.show": {{none: reads}}, "journal.tail": {{none: reads}},
		"journal.check": {{none: reads}}, "journal.dump": {{none: reads}},
		"invitations.list": {{none: reads}}, "backup": {{none: "it copies, and changes nothing"}},
		"invitations.cancel": {{kind: "invite.cancel", do: func(_ *testing.T, r *rig, _ device, _ nip.TaskID) error {
			inv := r.invite(nip.StandardRights())
			return r.operate("invitations.cancel", InvitationArgs{Invitation: inv.ID})
		}}},
		"journal.resync": {{do: func(_ *testing.T, r *rig, _ device, _ nip.TaskID) error {
			r.clock.add(-60)
			return r.operate("journal.resync", nil)
		}}},
		"task.executed": {{none: "it ends the entry of task.execute"}},
		"invite": {{kind: "invite.create", do: func(_ *testing.T, r *rig, _ device, _ nip.TaskID) error {
			return r.operate("invite", InviteArgs{Rights: nip.StandardRights(), Days: 1, Relay: paperRelay})
		}}},
		"enroll": {{kind: "enroll.request", do: func(_ *testing.T, r *rig, _ device, _ nip.TaskID) error {
			enough := errors.New("enough")
			err := r.c.Operate(context.Background(), "enroll", mustRaw(r.t, EnrollArgs{Rights: nip.StandardRights(), Relay: paperRelay}), func(any) error { return enough })
			if errors.Is(err, enough) {
				return nil
			}
			return err
		}}},
		"devices.revoke": {{kind: "device.revoke", do: func(_ *testing.T, r *rig, d device, _ nip.TaskID) error {
			return r.operate("devices.revoke", RevokeArgs{Device: d.pub()})
		}}, {kind: "task.stop", do: func(_ *testing.T, r *rig, d device, task nip.TaskID) error {
			defer r.begin(task)(owner.Result{Ending: owner.EndingStopped, StopRequested: true})
			return r.operate("devices.revoke", RevokeArgs{Device: d.pub(), Stop: true})
		}}},
		"workspace.add": {{do: func(_ *testing.T, r *rig, _ device, _ nip.TaskID) error {
			return r.operate("workspace.add", WorkspaceArgs{Label: "two", Path: r.repo})
		}}},
		"workspace.remove": {{do: func(_ *testing.T, r *rig, _ device, _ nip.TaskID) error {
			return r.operate("workspace.remove", WorkspaceArgs{Label: "demo"})
		}}},
		"policy.set": {{do: func(t *testing.T, r *rig, _ device, _ nip.TaskID) error {
			p, err := ShowPolicy(r.home)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := EncodePolicy(p)
			if err != nil {
				t.Fatal(err)
			}
			return r.operate("policy.set", json.RawMessage(raw))
		}}},
		"policy.off": {{do: func(_ *testing.T, r *rig, _ device, _ nip.TaskID) error { return r.operate("policy.off", nil) }}},
		"secret.set": {{do: func(_ *testing.T, r *rig, _ device, _ nip.TaskID) error {
			return r.operate("secret.set", SecretArgs{Name: "KEY", Value: "secret words"})
		}}},
		"secret.remove": {{do: func(t *testing.T, r *rig, _ device, _ nip.TaskID) error {
			if err := r.operate("secret.set", SecretArgs{Name: "KEY", Value: "secret words"}); err != nil {
				t.Fatal(err)
			}
			return r.operate("secret.remove", SecretArgs{Name: "KEY"})
		}}},
		"task.new": {{do: func(_ *testing.T, r *rig, _ device, _ nip.TaskID) error {
			return r.operate("task.new", TaskArgs{Workspace: "demo", Prompt: "words"})
		}}},
		"task.apply": {
			apply("submit", func(r *rig, _ owner.TaskID) owner.Command { return submit("by-hand", r) }),
			apply("cancel", func(_ *rig, id owner.TaskID) owner.Command {
				return owner.Command{TaskID: id, Expected: &one, Action: owner.Action{Cancel: &owner.CancelAction{Reason: "words"}}}
			}),
			apply("correct", func(_ *rig, id owner.TaskID) owner.Command {
				return owner.Command{TaskID: id, Expected: &one, Action: owner.Action{Correct: &owner.CorrectAction{Prompt: "words", Reason: "because"}}}
			}),
			apply("continue", func(r *rig, id owner.TaskID) owner.Command {
				r.begin(nip.TaskID(id))(owner.Result{})
				at := r.task(nip.TaskID(id)).Revision
				return owner.Command{TaskID: id, Expected: &at, Action: owner.Action{Continue: &owner.ContinueAction{Prompt: "words"}}}
			}),
		},
		"task.stop": {on("task.stop")},
		"task.archive": {{do: func(t *testing.T, r *rig, _ device, task nip.TaskID) error {
			r.begin(task)(owner.Result{})
			return r.operate("task.archive", TaskArgs{Task: owner.TaskID(task), Reason: "done with"})
		}}},
		"task.restore": {{do: func(t *testing.T, r *rig, _ device, task nip.TaskID) error {
			r.begin(task)(owner.Result{})
			if err := r.c.archive(t.Context(), owner.TaskID(task), "done with", "owner"); err != nil {
				t.Fatal(err)
			}
			return r.operate("task.restore", TaskArgs{Task: owner.TaskID(task)})
		}}},
		"task.recover": {on("task.recover")},
		"task.check": {{do: func(t *testing.T, r *rig, _ device, task nip.TaskID) error {
			r.checkable(t, task)
			return r.operate("task.check", TaskArgs{Task: owner.TaskID(task)})
		}}},
		"task.integrate": {{do: func(_ *testing.T, r *rig, _ device, task nip.TaskID) error {
			// Of a queued task: the refusal is recorded. One that is carried out is a test of the command line's.
			err := r.operate("task.integrate", TaskArgs{Task: owner.TaskID(task), Branch: "made"})
			if refusedAs(err, "invalid_transition") {
				return nil
			}
			return fmt.Errorf("not refused: %w", err)
		}}},
		"gc": {{do: func(_ *testing.T, r *rig, _ device, _ nip.TaskID) error { return r.operate("gc", GCArgs{}) }}},
		"task.start": {{do: func(_ *testing.T, r *rig, _ device, task nip.TaskID) error {
			return r.operate("task.start", TaskArgs{Grant: r.executionGrant(task)})
		}}},
		"task.execute": {{do: func(t *testing.T, r *rig, _ device, task nip.TaskID) error {
			var begun ActStarted
			if err := r.c.Operate(t.Context(), "task.execute", mustRaw(t, TaskArgs{Grant: r.executionGrant(task)}), func(v any) error {
				begun = v.(ActStarted)
				return nil
			}); err != nil {
				return err
			}
			return r.operate("task.executed", ActEnded{Act: begun.Act})
		}}},
	}
	for name := range verbs {
		if len(rows[name]) == 0 {
			t.Errorf("the verb %s has not chosen: does it leave an entry, or has it no effect?", name)
		}
	}
	for name, all := range rows {
		if verbs[name] == nil {
			t.Errorf("there is no verb %s", name)
		}
		for _, row := range all {
			if row.none != "" {
				continue
			}
			kind := row.kind
			if kind == "" {
				kind = name
			}
			t.Run(name+" "+kind, func(t *testing.T) {
				r := newRig(t)
				r.policy()
				d := r.pair(nip.PairingRights())
				task := r.create(d, "words")
				before := r.entries()
				if err := row.do(t, r, d, task); err != nil {
					t.Fatal(err)
				}
				r.left(before, kind, r.c.localSender())
				if n := r.openActs(); n != 0 {
					t.Errorf("%d acts without an outcome", n)
				}
				if name == "task.recover" { // the same act, refused: that is recorded as well
					before, end := r.entries(), r.begin(task)
					if err := row.do(t, r, d, task); err == nil {
						t.Error("recovered under a living owner")
					}
					r.left(before, kind, r.c.localSender())
					end(owner.Result{})
				}
			})
		}
	}
}

func (r *rig) openActs() (n int) {
	r.t.Helper()
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		return eachJSON(tx, bucketActs, func(string, act) error { n++; return nil })
	}); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// operationKinds are the operations that package nip has a shape for.
func operationKinds(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../nip/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Name.Name != "Kind" || fn.Recv == nil {
				continue
			}
			ret, ok := fn.Body.List[0].(*ast.ReturnStmt)
			if !ok {
				continue
			}
			if l, ok := ret.Results[0].(*ast.BasicLit); ok {
				kind, _ := strconv.Unquote(l.Value)
				out = append(out, kind)
			}
		}
	}
	if len(out) < 15 {
		t.Fatalf("only %v: this test looks for the wrong thing", out)
	}
	return out
}

// Every operation of the wire has chosen as well, whatever the answer is.
func TestEveryRequestIsJournalled(t *testing.T) {
	all := nip.Rights{nip.Observe, nip.Operate, nip.AccessRead, nip.AccessAdmin}
	type opRow struct {
		kind string // of its entry, where that is not the operation
		op   func(r *rig, d device, task nip.TaskID) nip.Operation
		none string // why it leaves none
	}
	edit := func(e nip.QueueEdit) opRow {
		return opRow{op: func(_ *rig, _ device, task nip.TaskID) nip.Operation { return nip.TaskQueue{Task: task, Edit: e} }}
	}
	const reads = "it reads"
	rows := map[string][]opRow{
		"device.list": {{none: reads}}, "workspace.list": {{none: reads}}, "task.list": {{none: reads}}, "task.read": {{none: reads}},
		"task.original": {{none: reads}}, "request.operation": {{none: reads}},
		"enroll.redeem": {{none: "TestRedemptionAndRenewalAreJournalled has it"}},
		"task.create": {{op: func(*rig, device, nip.TaskID) nip.Operation {
			return nip.TaskCreate{Title: "t", Prompt: "words", Workspace: "demo"}
		}}, {op: func(*rig, device, nip.TaskID) nip.Operation {
			return nip.TaskCreate{Title: "t", Prompt: "words", Workspace: "nowhere"}
		}}},
		"task.steer": {{op: func(_ *rig, _ device, task nip.TaskID) nip.Operation {
			return nip.TaskSteer{Task: task, Revision: 1, Prompt: "words"}
		}}},
		"task.cancel": {{op: func(_ *rig, _ device, task nip.TaskID) nip.Operation {
			return nip.TaskCancel{Task: task, Revision: 1, Reason: "words"}
		}}, {op: func(_ *rig, _ device, task nip.TaskID) nip.Operation {
			return nip.TaskCancel{Task: task, Revision: 7, Reason: "words"}
		}}},
		"task.archive": {{op: func(r *rig, _ device, task nip.TaskID) nip.Operation {
			r.begin(task)(owner.Result{})
			return nip.TaskArchive{Task: task}
		}}, {op: func(_ *rig, _ device, task nip.TaskID) nip.Operation { return nip.TaskArchive{Task: task} }}},
		"task.command": {{kind: commands.KindCommand, op: func(r *rig, _ device, task nip.TaskID) nip.Operation {
			return nip.TaskCommand{Command: r.command(task, nip.Queue, "words")}
		}}, {kind: commands.KindCommand, op: func(r *rig, _ device, task nip.TaskID) nip.Operation {
			return nip.TaskCommand{Command: r.command(task, nip.Send, "words")}
		}}},
		"task.command.at_revision": {{kind: commands.KindCommand, op: func(r *rig, _ device, task nip.TaskID) nip.Operation {
			return nip.TaskCommandAt{Command: r.command(task, nip.Interrupt, "words"), Revision: r.task(task).Revision}
		}}},
		"task.queue": {
			edit(nip.QueueEdit{Action: "lease"}), edit(nip.QueueEdit{Action: "release"}),
			edit(nip.QueueEdit{Action: "edit", Command: nip.CommandID(newID(t)), Text: "words"}),
			edit(nip.QueueEdit{Action: "remove", Command: nip.CommandID(newID(t))}),
			edit(nip.QueueEdit{Action: "send_now", Command: nip.CommandID(newID(t))}),
			edit(nip.QueueEdit{Action: "reorder", Commands: []nip.CommandID{nip.CommandID(newID(t))}}),
		},
		"invite.create": {{op: func(r *rig, d device, _ nip.TaskID) nip.Operation {
			return nip.InviteCreate{Rights: nip.PairingRights(), GrantExpiresAt: d.grant.ExpiresAt}
		}}, {op: func(r *rig, d device, _ nip.TaskID) nip.Operation {
			return nip.InviteCreate{Rights: nip.PairingRights(), GrantExpiresAt: d.grant.ExpiresAt + 1}
		}}},
		"invite.cancel": {{op: func(r *rig, _ device, _ nip.TaskID) nip.Operation {
			return nip.InviteCancel{Invitation: r.invite(nip.PairingRights()).ID}
		}}},
		"enroll.approve": {{op: func(r *rig, d device, _ nip.TaskID) nip.Operation {
			rec, code := r.enrolled(nip.PairingRights())
			return nip.EnrollApprove{Enrollment: rec.ID, RequestDigest: rec.Digest, Code: code, Device: newKey(r.t).Public(), Rights: nip.PairingRights(), GrantExpiresAt: d.grant.ExpiresAt}
		}}, {op: func(r *rig, d device, _ nip.TaskID) nip.Operation {
			rec, _ := r.enrolled(nip.PairingRights())
			return nip.EnrollApprove{Enrollment: rec.ID, RequestDigest: rec.Digest, Code: "0000-0000", Device: newKey(r.t).Public(), Rights: nip.PairingRights(), GrantExpiresAt: d.grant.ExpiresAt}
		}}},
		"enroll.deny": {{op: func(r *rig, _ device, _ nip.TaskID) nip.Operation {
			rec, _ := r.enrolled(nip.PairingRights())
			return nip.EnrollDeny{Enrollment: rec.ID, RequestDigest: rec.Digest}
		}}},
		"device.revoke": {{op: func(r *rig, _ device, _ nip.TaskID) nip.Operation {
			return nip.DeviceRevoke{Device: r.pair(nip.PairingRights()).pub()}
		}}, {op: func(r *rig, _ device, _ nip.TaskID) nip.Operation {
			return nip.DeviceRevoke{Device: newKey(r.t).Public()}
		}}},
		"task.queue.at_revision": {{op: func(_ *rig, _ device, task nip.TaskID) nip.Operation {
			none := nip.DigestOf(nil)
			return nip.TaskQueueAt{Task: task, Revision: 1, QueueDigest: &none, Edit: nip.QueueEdit{Action: "lease"}}
		}}},
		"artifact.put": {{op: func(*rig, device, nip.TaskID) nip.Operation {
			data := []byte("\x89PNG")
			return nip.ArtifactPut{Digest: nip.DigestOf(data), MediaType: "image/png", Size: int64(len(data)), Data: data}
		}}},
	}
	for _, kind := range operationKinds(t) {
		if len(rows[kind]) == 0 {
			t.Errorf("the operation %s has not chosen: does it leave an entry, or has it no effect?", kind)
		}
	}
	for name, list := range rows {
		for _, row := range list {
			if row.none != "" {
				continue
			}
			kind := row.kind
			if kind == "" {
				kind = name
			}
			t.Run(name, func(t *testing.T) {
				r := newRig(t)
				d := r.pair(all)
				task := r.create(d, "words")
				op := row.op(r, d, task)
				before := r.entries()
				r.ask(d, op)
				r.left(before, kind, commands.Sender{Device: d.pub(), Grant: d.grant.ID, Epoch: d.grant.Epoch})
			})
		}
	}
}

func TestRedemptionAndRenewalAreJournalled(t *testing.T) {
	r := newRig(t)
	inv := r.invite(nip.PairingRights())
	before := r.entries()
	d := device{key: newKey(t)}
	d.grant = r.granted(d, r.ask(d, redeem(inv)))
	r.left(before, "enroll.redeem", commands.Sender{Device: d.pub(), Grant: d.grant.ID, Epoch: d.grant.Epoch})
	r.clock.at.Store(d.grant.ExpiresAt - 3600)
	before = r.entries()
	if err := r.h.renew(t.Context(), d.pub()); err != nil {
		t.Fatal(err)
	}
	r.left(before, "grant.renew", r.c.localSender())
}
