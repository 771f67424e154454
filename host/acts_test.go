package host

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/internal/atomicfile"
	"holdfast/internal/procid"
	"holdfast/nip"
	"holdfast/owner"
)

// find is the one entry of a kind under the host's own key.
func (r *rig) find(kind string) commands.Entry {
	r.t.Helper()
	var out []commands.Entry
	for k, e := range r.entries() {
		if k.Kind == kind && k.Principal == r.c.self {
			out = append(out, e)
		}
	}
	if len(out) != 1 {
		r.t.Fatalf("%d entries of kind %s", len(out), kind)
	}
	return out[0]
}

// A stop between the intent of an act and its outcome, before or after its
// effect: the next opening finishes it once, or says what can be seen, or says
// that it is unknown; and the journal holds.
func TestActCutOff(t *testing.T) {
	type cut struct {
		act    func(r *rig, task owner.TaskID) act
		effect func(r *rig, a act) // nil: the stop came before it
		want   string
		after  func(r *rig, task owner.TaskID) string // "" is as it must be
	}
	stop := func(r *rig, task owner.TaskID) act {
		x := r.task(nip.TaskID(task))
		b, err := stopBytes(&x, "enough")
		if err != nil {
			r.t.Fatal(err)
		}
		return act{Kind: "task.stop", Task: task, Bytes: b}
	}
	cancelled := func(r *rig, task owner.TaskID) string {
		if x := r.task(nip.TaskID(task)); x.Status != owner.Cancelled || x.Revision != 2 {
			return fmt.Sprintf("%s at %d", x.Status, x.Revision)
		}
		return ""
	}
	apply := func(r *rig, a act) {
		if _, err := r.c.store.Apply(r.t.Context(), a.Bytes); err != nil {
			r.t.Fatal(err)
		}
	}
	policy := func(r *rig, _ owner.TaskID) act {
		p, err := ShowPolicy(r.home)
		if err != nil {
			r.t.Fatal(err)
		}
		p.Enabled = false
		out, err := policyFile(p)
		if err != nil {
			r.t.Fatal(err)
		}
		return act{Kind: "policy.off", Want: string(nip.DigestOf(out))}
	}
	plain := func(a act) func(*rig, owner.TaskID) act {
		return func(_ *rig, task owner.TaskID) act {
			if strings.HasPrefix(a.Kind, "task.") {
				a.Task = task
			}
			return a
		}
	}
	label := func(kind string) func(*rig, owner.TaskID) act {
		return func(r *rig, _ owner.TaskID) act {
			if kind == "workspace.remove" {
				return act{Kind: kind, Name: "demo"}
			}
			return act{Kind: kind, Name: "two", Want: r.repo}
		}
	}
	for name, row := range map[string]cut{
		"stop, not applied":   {act: stop, want: "applied", after: cancelled},
		"stop, applied":       {act: stop, effect: apply, want: "applied", after: cancelled},
		"workspace, not kept": {act: label("workspace.add"), want: "rejected unavailable"},
		"workspace, kept": {act: label("workspace.add"), want: "applied", effect: func(r *rig, a act) {
			if _, err := AddWorkspace(r.home, "two", r.repo); err != nil {
				r.t.Fatal(err)
			}
		}},
		"label, not removed": {act: label("workspace.remove"), want: "rejected unavailable"},
		"label, removed": {act: label("workspace.remove"), want: "applied", effect: func(r *rig, _ act) {
			if err := RemoveWorkspace(r.home, "demo"); err != nil {
				r.t.Fatal(err)
			}
		}},
		"policy, not written": {act: policy, want: "rejected unavailable"},
		"policy, written": {act: policy, want: "applied", effect: func(r *rig, _ act) {
			r.policy(func(p *Policy) { p.Enabled = false })
		}},
		"archive, not done":     {act: plain(act{Kind: "task.archive"}), want: "rejected unavailable"},
		"restore, done":         {act: plain(act{Kind: "task.restore"}), want: "applied"},
		"secret, set":           {act: plain(act{Kind: "secret.set", Name: "KEY"}), want: "unknown"},
		"secret, not removed":   {act: plain(act{Kind: "secret.remove", Name: "KEY"}), want: "rejected unavailable", effect: secretFile},
		"a start":               {act: plain(act{Kind: "task.start"}), want: "unknown"},
		"a run by hand":         {act: plain(act{Kind: "task.execute", Caller: procid.ID{PID: 1, StartTime: 1, BootID: "of another boot"}}), want: "unknown"},
		"a recovery, not done":  {act: plain(act{Kind: "task.recover", Revision: 1}), want: "rejected unavailable"},
		"a recovery, who knows": {act: plain(act{Kind: "task.recover"}), want: "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.policy()
			task := owner.TaskID(r.create(r.pair(nip.PairingRights()), "p"))
			a := row.act(r, task)
			if _, err := r.c.intend(t.Context(), a, "a note", nil); err != nil {
				t.Fatal(err)
			}
			if e := r.find(a.Kind); e.State != commands.StateReceived || r.openActs() != 1 {
				t.Fatalf("%s before its effect", e.State)
			}
			if row.effect != nil {
				row.effect(r, a)
			}
			for range 2 { // the second opening finds nothing to do
				r.restart()
				e := r.find(a.Kind)
				if got := strings.TrimSpace(e.Outcome.String() + " " + string(e.Reason)); e.State != commands.StateDone || got != row.want {
					t.Fatalf("%s, %s; want %s", e.State, got, row.want)
				}
				if n := r.openActs(); n != 0 {
					t.Fatalf("%d rows stay", n)
				}
			}
			if row.after != nil {
				if why := row.after(r, task); why != "" {
					t.Fatal(why)
				}
			}
			if err := r.operate("journal.check", nil); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func secretFile(r *rig, _ act) {
	if err := atomicfile.Write(filepath.Join(r.home, "secrets.json"), []byte(`{"v":"holdfast.secrets.v1","values":{"KEY":"x"}}`)); err != nil {
		r.t.Fatal(err)
	}
}

// The entry is there before the effect; a definite refusal is its reason; a
// fault after which nobody knows is looked at, and otherwise called unknown.
func TestActOrder(t *testing.T) {
	r := newRig(t)
	r.policy()
	d := r.pair(nip.PairingRights())
	r.launch = func(*owner.Store, owner.TaskID, owner.Digest) (*owner.Launched, error) {
		if e := r.find("task.start"); e.State != commands.StateReceived {
			t.Errorf("%s at its effect", e.State)
		}
		return nil, errors.New("no process")
	}
	if err := r.operate("task.start", TaskArgs{Grant: r.executionGrant(r.create(d, "p"))}); err == nil {
		t.Fatal("started")
	}
	if e := r.find("task.start"); e.Outcome != commands.OutcomeUnknown {
		t.Fatalf("%s", e.Outcome)
	}
	if err := r.operate("workspace.remove", WorkspaceArgs{Label: "none"}); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	if e := r.find("workspace.remove"); e.Outcome != commands.OutcomeRejected || e.Reason != "not_found" || e.Note != "none" {
		t.Fatalf("%s %s %q", e.Outcome, e.Reason, e.Note)
	}
	// What ended while it was being stopped is moot, and names where it stood.
	task := r.create(d, "p")
	r.begin(task)(owner.Result{})
	if _, err := r.c.StopTask(t.Context(), owner.TaskID(task), "enough"); err != nil {
		t.Fatal(err)
	}
	if e := r.find("task.stop"); e.Outcome != commands.OutcomeSuperseded || e.Revision != 3 {
		t.Fatalf("%s at %d", e.Outcome, e.Revision)
	}
	if n := r.openActs(); n != 0 {
		t.Fatalf("%d rows stay", n)
	}
}

// A device's archive that a stop cut off is finished at the start, under the
// device's name, whether or not the task had it.
func TestArchiveCutOff(t *testing.T) {
	for _, took := range []bool{false, true} {
		t.Run(fmt.Sprint("the task had it: ", took), func(t *testing.T) {
			r := newRig(t)
			d := r.pair(nip.PairingRights())
			task := r.create(d, "p")
			r.begin(task)(owner.Result{})
			in := r.sealed(d, r.req(d, nip.TaskArchive{Task: task}))
			id, eff := r.admitted(in)
			if took {
				if _, err := r.c.carryOut(t.Context(), eff); err != nil {
					t.Fatal(err)
				}
			}
			r.restart()
			if err := r.c.finishAdmitted(t.Context()); err != nil {
				t.Fatal(err)
			}
			x := r.task(task)
			if x.Archived == nil || x.Archived.By != string(d.pub()) || x.Revision != 4 {
				t.Fatalf("%+v at %d", x.Archived, x.Revision)
			}
			e, found := r.entries()[commands.Key{Principal: d.pub(), Kind: "task.archive", ID: string(id)}]
			if !found || e.Outcome != commands.OutcomeApplied || e.Sender.Grant != d.grant.ID {
				t.Fatalf("%v %+v", found, e)
			}
			r.wantCode(r.one(d, in), "")
		})
	}
}

// A damaged row of an act stops nothing else.
func TestDamagedAct(t *testing.T) {
	r := newRig(t)
	r.update(func(tx *bbolt.Tx) error {
		return errors.Join(putJSON(tx, bucketActs, "a", act{Kind: "task.start"}), tx.Bucket(bucketActs).Put([]byte("b"), []byte("{")))
	})
	r.restart()
	if err := r.operate("status", nil); err != nil {
		t.Fatal(err)
	}
}
