package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

// toldTo are the command states that d was sent, in the order of their going out.
func (r *rig) toldTo(d device, events []*nip.Event) []nip.CommandStates {
	r.t.Helper()
	var out []nip.CommandStates
	box, err := nip.DeriveMailbox(d.key, r.c.Self(), nip.StreamCommands)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, o := range r.opened(d, events, nip.SchemaStates) {
		s, err := nip.ParseStates(o.Inline)
		if err != nil {
			r.t.Fatal(err)
		}
		if o.Mailbox != box || o.Signer != r.c.Self() || s.Host != r.c.Self() {
			r.t.Fatalf("sealed as %+v", o)
		}
		if strings.Contains(string(o.Inline), "text") || strings.Contains(string(o.Inline), "words") {
			r.t.Fatalf("a text went out: %s", o.Inline)
		}
		out = append(out, s)
	}
	return out
}

// told is the newest record of d for the task, one word a command; names are
// what the test calls them.
func (r *rig) told(d device, task nip.TaskID, names map[nip.CommandID]string) string {
	r.t.Helper()
	var last nip.CommandStates
	for _, s := range r.toldTo(d, r.paper.all()) {
		if s.Task == task && s.IssuedAt > last.IssuedAt {
			last = s
		}
	}
	var out []string
	for _, c := range last.Commands {
		word := names[c.Command] + " " + c.State
		if c.Position != nil {
			word += fmt.Sprint(" ", *c.Position)
		}
		if c.Revision != nil {
			word += fmt.Sprint(" at ", *c.Revision)
		}
		if c.Reason != "" {
			word += " " + string(c.Reason)
		}
		out = append(out, word)
	}
	return strings.Join(out, ", ")
}

// untilTold waits for the record to say exactly this.
func (r *rig) untilTold(d device, task nip.TaskID, names map[nip.CommandID]string, want string) {
	r.t.Helper()
	defer func() {
		if r.t.Failed() {
			r.t.Logf("last told: %s", r.told(d, task, names))
		}
	}()
	r.until("told: "+want, func() bool { return r.told(d, task, names) == want })
}

// issuedLater fails where two records of one task do not follow each other.
func (r *rig) issuedLater(d device) {
	r.t.Helper()
	last := map[nip.TaskID]int64{}
	for _, s := range r.toldTo(d, r.paper.all()) {
		if s.IssuedAt <= last[s.Task] {
			r.t.Fatalf("a record issued at %d went out after one of %d", s.IssuedAt, last[s.Task])
		}
		last[s.Task] = s.IssuedAt
	}
}

// served is a rig that serves, with a running task of a.
func served(t *testing.T) (r *rig, a, b device, task nip.TaskID, end func(owner.Result)) {
	r = newRig(t)
	a, b = r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	r.serve()
	task = nip.TaskID(r.overWire(a, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}).Outcome.(nip.Dispatched).Reference)
	return r, a, b, task, r.begin(task)
}

func (r *rig) sends(d device, cmd nip.Command) {
	r.t.Helper()
	r.overWire(d, nip.TaskCommand{Command: cmd})
}

// What is queued, moved, changed and taken away, as each of two senders hears it.
func TestToldOfAQueue(t *testing.T) {
	r, a, b, task, end := served(t)
	one, two, three := r.command(task, nip.Queue, "words 1"), r.command(task, nip.Queue, "words 2"), r.command(task, nip.Queue, "words 3")
	names := map[nip.CommandID]string{one.ID: "1", two.ID: "2", three.ID: "3"}
	r.sends(a, one)
	r.untilTold(a, task, names, "1 held 0")
	r.sends(b, two)
	r.untilTold(b, task, names, "2 held 1")
	r.sends(a, three)
	r.untilTold(a, task, names, "1 held 0, 3 held 2")
	q := func(d device, e nip.QueueEdit) {
		t.Helper()
		r.wantCode(r.overWire(d, nip.TaskQueue{Task: task, Edit: e}), "")
	}
	q(a, nip.QueueEdit{Action: "lease"})
	q(a, nip.QueueEdit{Action: "reorder", Commands: []nip.CommandID{three.ID, one.ID, two.ID}})
	r.untilTold(a, task, names, "3 held 0, 1 held 1")
	r.untilTold(b, task, names, "2 held 2")
	// An edit moves nothing: nothing is said, and the words stay here.
	before := len(r.toldTo(a, r.paper.all()))
	q(a, nip.QueueEdit{Action: "edit", Command: one.ID, Text: "other words"})
	q(a, nip.QueueEdit{Action: "remove", Command: three.ID})
	r.untilTold(a, task, names, "1 held 0, 3 removed")
	r.untilTold(b, task, names, "2 held 1")
	if n := len(r.toldTo(a, r.paper.all())); n != before+1 {
		t.Errorf("%d records for one removal", n-before)
	}
	q(a, nip.QueueEdit{Action: "release"})
	end(owner.Result{})
	r.until("the edited message runs", func() bool { x := r.task(task); return x.EffectivePrompt() == "other words" })
	r.untilTold(a, task, names, fmt.Sprintf("1 applied at %d, 3 removed", r.task(task).Revision))
	r.untilTold(b, task, names, "2 held 0")
	for _, d := range []device{a, b} {
		r.issuedLater(d)
	}
}

// What runs at once, what is refused, what is moot.
func TestToldAtOnce(t *testing.T) {
	r, a, b, task, end := served(t)
	refused := r.command(task, nip.Send, "words")
	stop, again := r.command(task, nip.Interrupt, "enough"), r.command(task, nip.Interrupt, "enough, I said")
	names := map[nip.CommandID]string{refused.ID: "send", stop.ID: "stop", again.ID: "again"}
	r.sends(a, refused)
	r.untilTold(a, task, names, "send rejected conflict")
	r.sends(a, stop)
	r.untilTold(a, task, names, "stop applied at 3, send rejected conflict")
	r.sends(a, again)
	r.untilTold(a, task, names, "again superseded, stop applied at 3, send rejected conflict")
	end(owner.Result{Ending: owner.EndingStopped, StopRequested: true})
	r.until("the end is seen", func() bool { return r.task(task).Status == owner.Finished })
	next := r.command(task, nip.Send, "more words")
	names[next.ID] = "next"
	r.sends(a, next)
	r.untilTold(a, task, names, "next applied at 5, again superseded, stop applied at 3, send rejected conflict")
	unknown := r.command(task, nip.Queue, "words")
	unknown.Task, names[unknown.ID] = nip.TaskID(newID(t)), "nowhere"
	r.sends(a, unknown)
	r.untilTold(a, unknown.Task, names, "nowhere rejected forbidden")
	if n := len(r.toldTo(b, r.paper.all())); n != 0 {
		t.Fatalf("a device that sent nothing was told %d times", n)
	}
	r.issuedLater(a)
}

// A day is over: what still waits expires, and its sender hears it.
func TestToldOfExpiry(t *testing.T) {
	r, a, _, task, end := served(t)
	defer end(owner.Result{})
	late := r.command(task, nip.Queue, "words")
	names := map[nip.CommandID]string{late.ID: "late"}
	r.sends(a, late)
	r.untilTold(a, task, names, "late held 0")
	r.clock.add(commands.CommandLife + 1)
	r.h.deadlines.poke(task)
	r.untilTold(a, task, names, "late expired")
}

// A revoked device hears nothing any more; who stands behind it moves up. The
// same device, paired again, hears of what it sends from then on.
func TestToldAfterRevocation(t *testing.T) {
	r, a, b, task, _ := served(t)
	one, two := r.command(task, nip.Queue, "words"), r.command(task, nip.Queue, "words too")
	names := map[nip.CommandID]string{one.ID: "1", two.ID: "2"}
	r.sends(a, one)
	r.sends(b, two)
	r.untilTold(a, task, names, "1 held 0")
	r.untilTold(b, task, names, "2 held 1")
	before := len(r.toldTo(a, r.paper.all()))
	if _, err := r.c.Revoke(t.Context(), a.pub(), false); err != nil {
		t.Fatal(err)
	}
	r.untilTold(b, task, names, "2 held 0")
	r.until("the outbox is empty", func() bool { return r.rows(bucketOutbox) == 0 })
	if n := len(r.toldTo(a, r.paper.all())); n != before {
		t.Fatalf("%d records after the revocation", n-before)
	}
	r.restart()
	r.serve()
	r.untilTold(b, task, names, "2 held 0")
	if n := len(r.toldTo(a, r.paper.all())); n != 0 {
		t.Fatalf("%d records after the revocation and a start", n)
	}
	a.grant = r.granted(a, r.overWire(device{key: a.key}, redeem(r.invite(nip.Rights{nip.Operate})))) // without observe
	three := r.command(task, nip.Queue, "words again")
	names[three.ID] = "3"
	r.sends(a, three)
	r.untilTold(a, task, names, "3 held 1, 1 rejected revoked")
}

// Sealed before a revocation and committed after it: nothing waits to go out,
// also where the device was paired again in between. A batch that a sender had
// claimed before is looked at again before it leaves.
func TestSealedBeforeRevocation(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("paired again: ", again), func(t *testing.T) {
			r := newRig(t)
			a := r.pair(nip.PairingRights())
			task := r.create(a, "p")
			r.begin(task)
			r.wantCode(r.ask(a, nip.TaskCommand{Command: r.command(task, nip.Queue, "words")}), "")
			if told, _, err := r.h.teller.round(t.Context()); err != nil || !told {
				t.Fatal(told, err)
			}
			claimed, err := r.h.outbox.claim(paperRelay)
			if err != nil || len(claimed) == 0 {
				t.Fatal(claimed, err)
			}
			rows := r.cutRound()
			if len(rows) != 1 {
				t.Fatalf("%d records", len(rows))
			}
			if _, err := r.c.Revoke(t.Context(), a.pub(), false); err != nil {
				t.Fatal(err)
			}
			if again {
				r.pair(nip.PairingRights(), a.key)
			}
			if _, err := r.h.teller.commit(t.Context(), rows, 1); err != nil {
				t.Fatal(err)
			}
			if err := r.h.outbox.send(t.Context(), paperRelay, claimed); err != nil {
				t.Fatal(err)
			}
			if n := r.storedStates(); n != 0 {
				t.Fatalf("%d rows of what was told", n)
			}
			if n := len(r.toldTo(a, r.paper.all())); n != 0 {
				t.Fatalf("%d records went out", n)
			}
		})
	}
}

// cutRound is what a round seals and does not commit.
func (r *rig) cutRound() []toldRow {
	r.t.Helper()
	r.update(func(tx *bbolt.Tx) error { return tx.DeleteBucket(bucketStates) })
	r.h.teller.after = 0
	var rows []toldRow
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		ts, err := r.c.journal.Transitions(tx, 0, statesBatch)
		if err == nil {
			rows, err = r.h.teller.changed(tx, ts)
		}
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	for i := range rows {
		if err := r.h.teller.seal(&rows[i]); err != nil {
			r.t.Fatal(err)
		}
	}
	return rows
}

// A stop at any point: what was not told is told by the next start, what was
// sealed goes out with the same bytes, and nothing is said twice in other words.
func TestToldOverRestart(t *testing.T) {
	r := newRig(t)
	a := r.pair(nip.PairingRights())
	task := r.create(a, "p")
	r.begin(task)
	one := r.command(task, nip.Queue, "words")
	names := map[nip.CommandID]string{one.ID: "1"}
	r.wantCode(r.ask(a, nip.TaskCommand{Command: one}), "") // no loop runs: a stop before the record was made
	r.restart()
	r.paper.refusing(func(*nip.Event) error { return errors.New("away") })
	r.serve()
	r.until("the record waits", func() bool { return r.rowsOf("commands") == 1 })
	sealed := r.waitingID("commands")
	r.restart()
	r.serve()
	r.untilTold(a, task, names, "1 held 0")
	r.restart()
	r.serve()
	r.untilTold(a, task, names, "1 held 0")
	events := r.opened(a, r.paper.all(), nip.SchemaStates)
	if len(events) != 1 || string(events[0].EventID) != sealed {
		t.Fatalf("%d records after a start, or other bytes than the first", len(events))
	}
	// Without a relay a later record takes the place of the earlier one.
	r.paper.refusing(func(*nip.Event) error { return errors.New("away") })
	two := r.command(task, nip.Queue, "words")
	names[two.ID] = "2"
	r.paper.in <- r.sealed(a, r.req(a, nip.TaskCommand{Command: two}))
	r.until("the second record waits", func() bool { return r.rowsOf("commands") == 1 && r.waitingID("commands") != sealed })
	first := r.waitingID("commands")
	r.paper.in <- r.sealed(a, r.req(a, nip.TaskCommand{Command: r.command(task, nip.Send, "refused")}))
	r.until("the third takes its place", func() bool { return r.rowsOf("commands") == 1 && r.waitingID("commands") != first })
}

func (r *rig) eachOutbox(fn func(outboxRow)) {
	r.t.Helper()
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		return eachJSON(tx, bucketOutbox, func(_ string, row outboxRow) error { fn(row); return nil })
	}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) rowsOf(stream string) (n int) {
	r.eachOutbox(func(row outboxRow) {
		if row.Stream == stream {
			n++
		}
	})
	return n
}

func (r *rig) waitingID(stream string) (id string) {
	r.eachOutbox(func(row outboxRow) {
		if row.Stream == stream {
			id = row.Event.ID
		}
	})
	return id
}

// At most 64: what is undecided first, then the last decisions. A queued message
// that waited through a hundred refusals is told all the same when it ends.
func TestToldAtMost(t *testing.T) {
	r := newRig(t)
	a := r.pair(nip.PairingRights())
	task := r.create(a, "p")
	r.begin(task)
	submit := func(cmd nip.Command) {
		t.Helper()
		s := commands.Sender{Device: a.pub(), Grant: a.grant.ID, Epoch: a.grant.Epoch}
		if _, err := r.c.eval.Submit(context.Background(), s, cmd, commands.Hooks{}); err != nil {
			t.Fatal(err)
		}
	}
	held := r.command(task, nip.Queue, "words")
	submit(held)
	for range 100 {
		submit(r.command(task, nip.Send, "words"))
	}
	round := func() nip.CommandStates {
		t.Helper()
		if _, _, err := r.h.teller.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		var ev []*nip.Event
		r.eachOutbox(func(row outboxRow) { ev = append(ev, row.Event) })
		return r.toldTo(a, ev)[0]
	}
	s := round()
	if len(s.Commands) != statesMost || s.Commands[0].Command != held.ID || s.Commands[0].State != "held" || s.Commands[1].State != "rejected" {
		t.Fatalf("%d commands, first %+v", len(s.Commands), s.Commands[0])
	}
	r.wantCode(r.ask(a, nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "lease"}}), "")
	r.wantCode(r.ask(a, nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "remove", Command: held.ID}}), "")
	later := round()
	if len(later.Commands) != statesMost || later.Commands[0].Command != held.ID || later.Commands[0].State != "removed" || later.IssuedAt <= s.IssuedAt {
		t.Fatalf("%d commands, first %+v", len(later.Commands), later.Commands[0])
	}
}

func (r *rig) storedStates() (n int) {
	r.t.Helper()
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		return eachJSON(tx, bucketStates, func(string, toldStates) error { n++; return nil })
	}); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// However much there is to tell, it is a tenth of what one goroutine can do.
func TestTellingRests(t *testing.T) {
	teller := &teller{pause: statesPause}
	for _, row := range []struct{ took, want time.Duration }{
		{time.Millisecond, statesPause},
		{300 * time.Millisecond, 3 * time.Second},
		{time.Minute, statesRest},
	} {
		if got := teller.restAfter(row.took); got != row.want {
			t.Errorf("a round of %s rests %s, want %s", row.took, got, row.want)
		}
	}
}
