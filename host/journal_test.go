package host

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

// tamper changes host.db behind everybody's back.
func (r *rig) tamper(fn func(history *bbolt.Bucket) error) {
	r.t.Helper()
	r.close()
	db, err := bbolt.Open(filepath.Join(r.home, "host.db"), 0o600, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return fn(tx.Bucket([]byte("journal.history"))) })
	if err = errors.Join(err, db.Close()); err != nil {
		r.t.Fatal(err)
	}
	r.open()
}

func at(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// The check finds a record that was changed, removed, exchanged or cut off, and
// names it; what the journal says cannot be changed in silence.
func TestCheckNamesTheSequence(t *testing.T) {
	const last = 9
	for _, row := range []struct {
		name string
		fn   func(b *bbolt.Bucket) error
		says string
	}{
		{"a reason changed", func(b *bbolt.Bucket) error {
			v := bytes.Replace(append([]byte(nil), b.Get(at(7))...), []byte("conflict"), []byte("revoked!"), 1)
			if bytes.Equal(v, b.Get(at(7))) {
				return errors.New("there is no conflict in it")
			}
			return b.Put(at(7), v)
		}, "transition 7 "},
		{"cut short", func(b *bbolt.Bucket) error { return b.Put(at(4), append([]byte(nil), b.Get(at(4))[:20]...)) }, "transition 4 cannot be read"},
		{"the first removed", func(b *bbolt.Bucket) error { return b.Delete(at(1)) }, "transition 1 is missing"},
		{"one removed", func(b *bbolt.Bucket) error { return b.Delete(at(5)) }, "transition 5 is missing"},
		{"the newest removed", func(b *bbolt.Bucket) error { return b.Delete(at(last)) }, "those from 9 on are missing"},
		{"the newest four removed", func(b *bbolt.Bucket) error {
			for seq := uint64(last - 3); seq <= last; seq++ {
				if err := b.Delete(at(seq)); err != nil {
					return err
				}
			}
			return nil
		}, "those from 6 on are missing"},
		{"the newest changed", func(b *bbolt.Bucket) error {
			v := append([]byte(nil), b.Get(at(last))...)
			v[len(v)-70] ^= 1
			return b.Put(at(last), v)
		}, "transition 9"},
		{"two exchanged", func(b *bbolt.Bucket) error {
			x, y := append([]byte(nil), b.Get(at(4))...), append([]byte(nil), b.Get(at(5))...)
			return errors.Join(b.Put(at(4), y), b.Put(at(5), x))
		}, "at the place of transition 4 stands 5"},
		{"one added", func(b *bbolt.Bucket) error {
			v := bytes.Replace(append([]byte(nil), b.Get(at(last))...), at(last), at(last+1), 1)
			return b.Put(at(last+1), v)
		}, "transition 9 is not the one that 10 continues"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			d := r.pair(nip.PairingRights()) // 1, 2
			task := r.create(d, "p")         // 3
			r.begin(task)
			r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(task, nip.Queue, "words")}), "") // 4, 5
			r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(task, nip.Send, "words")}), nip.Conflict)
			r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(task, nip.Queue, "words")}), "")
			var to commands.End
			if err := r.c.db.View(func(tx *bbolt.Tx) (err error) { _, to, err = r.c.journal.Ends(tx); return err }); err != nil || to.Seq != last {
				t.Fatal(to, err)
			}
			if err := r.operate("journal.check", nil); err != nil {
				t.Fatal(err)
			}
			r.tamper(row.fn)
			err := r.operate("journal.check", nil)
			if err == nil || !strings.Contains(err.Error(), row.says) || ErrorCode(err) != "damaged" {
				t.Fatalf("%s: %v", ErrorCode(err), err)
			}
			r.operator() // and with a host that lives
			_, err = DialOperator(t.Context(), r.home, "journal.check", nil, func(json.RawMessage) error { return nil })
			var remote *OperatorError
			if !errors.As(err, &remote) || remote.Code != "damaged" || !strings.Contains(remote.Message, row.says) {
				t.Fatalf("over the socket: %v", err)
			}
		})
	}
}

// docs collects what a verb prints.
func (r *rig) docs(verb string, args any) (out []map[string]any) {
	r.t.Helper()
	if err := r.c.Operate(r.t.Context(), verb, mustRaw(r.t, args), func(v any) error {
		var m map[string]any
		if err := json.Unmarshal(mustRaw(r.t, v), &m); err != nil {
			return err
		}
		out = append(out, m)
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// The operator sees of an edited command what was sent and what runs, with every
// step, its time and its reason; of a decided one its outcome finds it.
func TestOperatorsWholeTruth(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	r.begin(task)
	held, refused := r.command(task, nip.Queue, "first words"), r.command(task, nip.Send, "refused words")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: held}), "")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: refused}), nip.Conflict)
	r.clock.add(10)
	r.wantCode(r.ask(d, nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "lease"}}), "")
	r.wantCode(r.ask(d, nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "edit", Command: held.ID, Text: "second words"}}), "")
	e := r.docs("journal.show", JournalArgs{Device: d.pub(), ID: string(held.ID)})[0]
	if e["text"] != "second words" || e["original"] != "first words" || e["edited"] != true || e["grant"] != string(d.grant.ID) || e["epoch"] != float64(0) {
		t.Fatalf("%v", e)
	}
	var steps []string
	for _, h := range e["history"].([]any) {
		h := h.(map[string]any)
		steps = append(steps, h["what"].(string))
		if h["at"].(float64) < float64(r.clock.now()-10) {
			t.Errorf("a step without its time: %v", h)
		}
	}
	if got := strings.Join(steps, " "); got != "received held edited" {
		t.Fatalf("steps: %s", got)
	}
	for state, want := range map[string]int{"held": 1, "rejected": 1, "expired": 0, "applied": 5, "done": 6, "": 7} {
		list := r.docs("journal.list", JournalArgs{State: state})[0]["entries"].([]any)
		if len(list) != want {
			t.Errorf("%d entries %q, want %d", len(list), state, want)
		}
		if state == "rejected" && list[0].(map[string]any)["reason"] != "conflict" {
			t.Errorf("%v", list[0])
		}
	}
	for name, f := range map[string]JournalArgs{
		"since":  {Since: r.clock.now()},
		"device": {Device: d.pub(), Since: r.clock.now()},
		"task":   {Task: task, Since: r.clock.now()},
	} {
		if n := len(r.docs("journal.list", f)[0]["entries"].([]any)); n != 2 { // the lease and the edit
			t.Errorf("%s: %d entries", name, n)
		}
	}
	for _, noText := range []bool{false, true} {
		var kinds []string
		said := 0
		for _, line := range r.docs("journal.dump", JournalArgs{NoText: noText}) {
			kind := line["record"].(string)
			if len(kinds) == 0 || kinds[len(kinds)-1] != kind {
				kinds = append(kinds, kind)
			}
			if strings.Contains(string(mustRaw(t, line)), "words") {
				said++
			}
		}
		if got := strings.Join(kinds, " "); got != "checkpoint transition entry head" {
			t.Errorf("dump: %s", got)
		}
		if want := map[bool]int{false: 2, true: 0}[noText]; said != want {
			t.Errorf("no_text %v: %d lines with words", noText, said)
		}
	}
	// Its chain can be checked from the dump alone.
	entries := map[float64]bool{}
	n := 0
	for _, line := range r.docs("journal.dump", nil) {
		switch line["record"] {
		case "transition":
			n++
			if line["seq"] != float64(n) || len(line["entry"].(string)) != 64 || len(line["previous"].(string)) != 64 {
				t.Errorf("%v", line)
			}
		case "entry":
			entries[line["seq"].(float64)] = true
		case "head":
			if line["seq"] != float64(n) {
				t.Errorf("%d transitions, head %v", n, line["seq"])
			}
		}
	}
	if len(entries) != len(r.entries()) {
		t.Errorf("%d entries of %d", len(entries), len(r.entries()))
	}
}

// revoke commits a revocation and nothing that follows from it, as a host that
// stops right after the commit.
func (r *rig) revoke(d device) {
	r.t.Helper()
	r.update(func(tx *bbolt.Tx) error {
		_, err := r.c.revokeIn(tx, d.pub(), r.clock.now())
		return err
	})
}

// Who sent a held message, under what, and how old it is, is looked at again at
// the moment at which it would run: it is refused, not run, and its sender hears
// the same when it sends the command again.
func TestDeferredEffects(t *testing.T) {
	for _, row := range []struct {
		name     string
		meantime func(r *rig, d device) device // while the message is held
		outcome  commands.Outcome
		reason   nip.Code
		replay   nip.Code // of the same command in a new request
	}{
		{"revoked", func(r *rig, d device) device {
			r.revoke(d)
			return d
		}, commands.OutcomeRejected, nip.Revoked, nip.Revoked},
		{"revoked and paired again", func(r *rig, d device) device {
			r.revoke(d)
			return r.pair(nip.PairingRights(), d.key)
		}, commands.OutcomeRejected, nip.Revoked, nip.Revoked},
		{"another grant without a revocation", func(r *rig, d device) device {
			return r.pair(nip.PairingRights(), d.key)
		}, commands.OutcomeRejected, nip.Revoked, nip.Revoked},
		{"its grant ended", func(r *rig, d device) device {
			r.update(func(tx *bbolt.Tx) error {
				var rec grantRecord
				if _, err := getJSON(tx, bucketGrants, string(d.grant.ID), &rec); err != nil {
					return err
				}
				rec.Grant.ExpiresAt = r.clock.now() + 100
				return putJSON(tx, bucketGrants, string(d.grant.ID), rec)
			})
			r.clock.add(100)
			return d
		}, commands.OutcomeRejected, nip.Revoked, nip.Expired},
		{"a day passed", func(r *rig, d device) device {
			r.clock.add(commands.CommandLife + 1)
			return d
		}, commands.OutcomeExpired, nip.Expired, nip.Expired},
		{"a second less than a day", func(r *rig, d device) device {
			r.clock.add(commands.CommandLife)
			return d
		}, commands.OutcomeApplied, "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			d := r.pair(nip.PairingRights())
			task := r.create(d, "p")
			end := r.begin(task)
			held := r.command(task, nip.Queue, "later")
			r.wantCode(r.ask(d, nip.TaskCommand{Command: held}), "")
			now := row.meantime(r, d)
			end(owner.Result{})
			before := r.task(task).Revision
			if err := r.c.eval.Evaluate(t.Context(), task); err != nil {
				t.Fatal(err)
			}
			e := r.entry(d.pub(), held.ID)
			if e.State != commands.StateDone || e.Outcome != row.outcome || e.Reason != row.reason {
				t.Fatalf("%s %s %s", e.State, e.Outcome, e.Reason)
			}
			moved := r.task(task).Revision != before
			if moved != (row.outcome == commands.OutcomeApplied) {
				t.Fatalf("the task moved: %v", moved)
			}
			r.wantCode(r.ask(now, nip.TaskCommand{Command: held}), row.replay)
			if r.task(task).Revision != before && !moved {
				t.Fatal("the replay moved the task")
			}
		})
	}
}
