package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/host/client"
	"holdfast/nip"
	"holdfast/owner"
)

// TestCrashRows kills one process of the product at one known moment, and
// looks at everything that the promises speak of.
func TestCrashRows(t *testing.T) {
	for _, row := range []struct {
		name string
		run  func(*crashRig)
	}{
		{"host between receipt and start", crashBeforeStart},
		{"host right after the receipt", crashAtReceipt},
		{"host during a turn", crashDuringTurn},
		{"host stopped in order during a turn", stopDuringTurn},
		{"owner during a turn", crashOwner},
		{"host and owner together", crashBoth},
		{"first process of the sandbox", crashSandbox},
		{"every command replayed", crashReplay},
		{"the same create twice", crashCreate},
		{"interrupt while the host is down", crashInterrupt},
		{"revoked while the host is down", crashRevoke},
		{"device process during a send", crashDevice},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := newCrashRig(t)
			row.run(r)
			r.nothingLeft()
			r.checked()
		})
	}
}

// A receipt was given and nothing started: the next host runs it, once.
func crashBeforeStart(r *crashRig) {
	r.policy(false)
	id := r.make("one")
	held := r.mustGive(id, nip.Queue, "two")
	r.host.kill()
	if t := r.get(id); t.Status != owner.Queued || t.Run != nil {
		r.t.Fatalf("the task is %s with run %v", t.Status, t.Run)
	}
	r.policy(true)
	r.start()
	r.ends(id, 2)
	r.wantNotes(id, "one", "two")
	r.wantEntry(held, "applied", "")
	if p := r.shows(id); p != nip.PhaseCompleted {
		r.t.Errorf("the device sees %s", p)
	}
}

// The moment between the receipt and the owner's admission, by chance: the
// owner may exist already or not. Two hosts never make two turns of it.
func crashAtReceipt(r *crashRig) {
	id := r.make("0")
	want := []string{"0"}
	r.restart()
	for _, text := range []string{"1", "2", "3"} {
		r.ends(id, len(want))
		r.mustGive(id, nip.Send, text)
		r.restart()
		want = append(want, text)
	}
	r.ends(id, len(want))
	r.wantNotes(id, want...)
}

// The turn outlives its host as the same process; what waited runs once.
func crashDuringTurn(r *crashRig) {
	id := r.make(heldPrompt)
	before := r.runs(id, 1)
	held := r.mustGive(id, nip.Queue, "after")
	r.host.kill()
	if startTime(before.Run.Process.PID) != before.Run.Process.StartTime {
		r.t.Error("the turn died with its host")
	}
	r.start()
	r.release(before)
	first := r.ends(id, 1)
	if first.Result.Ending != "exit 0" || *first.Process != *before.Run.Process || first.Epoch != before.Run.Epoch || !first.Result.GroupClear {
		r.t.Errorf("the turn ended as %+v", first.Result)
	}
	r.ends(id, 2)
	r.wantNotes(id, heldPrompt, "after")
	r.wantEntry(held, "applied", "")
}

// SIGTERM is Ctrl-C of a service: exit 0, the turn named and left alone.
func stopDuringTurn(r *crashRig) {
	id := r.make(heldPrompt)
	before := r.runs(id, 1)
	r.must(r.host.cmd.Process.Signal(syscall.SIGTERM))
	<-r.host.ended
	if code := r.host.cmd.ProcessState.ExitCode(); code != 0 {
		r.t.Errorf("SIGTERM: exit %d: %s", code, r.host.errors.String())
	}
	if l, _, err := r.host.await(r.ctx, 0, "the turn to be named", isEvent("still_running")); err != nil || l["task"] != string(id) {
		r.t.Errorf("%v, %v", l, err)
	}
	r.release(before)
	run := r.ends(id, 1)
	if run.Result.Ending != "exit 0" || *run.Process != *before.Run.Process {
		r.t.Errorf("the turn ended as %+v", run.Result)
	}
	r.start()
	r.wantNotes(id, heldPrompt)
	if p := r.shows(id); p != nip.PhaseCompleted {
		r.t.Errorf("the device sees %s", p)
	}
}

// A dead owner takes its turn with it: that is seen and said, and what waited
// goes on.
func crashOwner(r *crashRig) {
	id := r.make("wait 600")
	t := r.runs(id, 1)
	held := r.mustGive(id, nip.Queue, "ask after")
	if !r.signal(t.Run.Admission.Owner, syscall.SIGKILL) {
		r.t.Fatal("the owner was not there")
	}
	r.ownerEnded(id, 1)
	r.ends(id, 2)
	r.wantNotes(id, "wait 600", "ask after")
	r.wantEntry(held, "applied", "")
	if p := r.shows(id); p != nip.PhaseWaiting {
		r.t.Errorf("the device sees %s", p)
	}
}

func crashBoth(r *crashRig) {
	id := r.make("wait 600")
	t := r.runs(id, 1)
	held := r.mustGive(id, nip.Queue, "after")
	r.host.kill()
	if !r.signal(t.Run.Admission.Owner, syscall.SIGKILL) {
		r.t.Fatal("the owner was not there")
	}
	r.nothingLeft() // nobody is there to clean up, and nothing needs it
	r.start()
	r.ownerEnded(id, 1)
	r.ends(id, 2)
	r.wantNotes(id, "wait 600", "after")
	r.wantEntry(held, "applied", "")
}

// ownerEnded waits for the settled end of a turn whose owner was killed.
func (r *crashRig) ownerEnded(id nip.TaskID, turn int) {
	r.t.Helper()
	res := r.ends(id, turn).Result
	if res.Ending != owner.EndingOwnerEnded || !res.GroupClear {
		r.t.Errorf("the turn of a killed owner ended as %+v", res)
	}
}

// Without its first process the namespace is gone; the owner records it.
func crashSandbox(r *crashRig) {
	id := r.make("wait 600")
	t := r.runs(id, 1)
	r.mustGive(id, nip.Queue, "after")
	if !r.signal(*t.Run.Process, syscall.SIGKILL) {
		r.t.Fatal("the sandbox was not there")
	}
	res := r.ends(id, 1).Result
	if !strings.HasPrefix(res.Ending, "failed: ") || !res.GroupClear || res.ExitCode != nil || res.StopRequested {
		r.t.Errorf("the turn ended as %+v", res)
	}
	r.ends(id, 2)
	r.wantNotes(id, "wait 600", "after")
}

// Every command sent again after a restart has its first outcome, and none of
// them happens again.
func crashReplay(r *crashRig) {
	id := r.make("wait 600")
	running := r.runs(id, 1)
	type told struct {
		c   nip.Command
		err error
	}
	var all []told
	for _, x := range []struct {
		action nip.Action
		text   string
	}{
		{nip.Send, "refused while a turn runs"}, {nip.Queue, "after"}, {nip.Answer, "nothing was asked"},
		{nip.Steer, "no native steering"}, {nip.Interrupt, "enough"}, {nip.Interrupt, "enough, I said"},
	} {
		// All speak of the turn that ran when the first was sent: a late one
		// must not reach the turn after it.
		c, _, err := r.dev.Command(r.ctx, nip.Command{Task: id, Action: x.action, BasedOn: running.Revision, Text: x.text})
		all = append(all, told{c, err})
	}
	r.ends(id, 2)
	r.restart()
	revision, was := r.get(id).Revision, r.entries()
	for _, x := range all {
		_, err := r.dev.Call(r.ctx, nip.TaskCommand{Command: x.c})
		if codeOf(err) != codeOf(x.err) {
			r.t.Errorf("%s %q: first %v, replayed %v", x.c.Action, x.c.Text, x.err, err)
		}
		changed := x.c
		changed.Text += ", changed"
		if _, err := r.dev.Call(r.ctx, nip.TaskCommand{Command: changed}); codeOf(err) != string(nip.Conflict) {
			r.t.Errorf("the same ID with other words: %v", err)
		}
	}
	if now := r.get(id).Revision; now != revision {
		r.t.Errorf("replays moved the task from revision %d to %d", revision, now)
	}
	if now := r.entries(); len(now) != len(was) {
		r.t.Errorf("replays made %d journal entries", len(now)-len(was))
	}
	r.wantNotes(id, "wait 600", "after")
}

// codeOf is what the host signed: "" for taken, a code for refused.
func codeOf(err error) string {
	var refused *client.Refused
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refused):
		return string(refused.Code)
	}
	return "error: " + err.Error()
}

// One create, known to two copies of the device (a restored backup), sent on
// either side of a crash: one task, one turn.
func crashCreate(r *crashRig) {
	r.host.kill()
	ctx, cancel := r.within(300 * time.Millisecond)
	id, err := r.dev.Create(ctx, nip.TaskCreate{Title: "once", Prompt: "once", Workspace: tourLabel})
	cancel()
	if !errors.Is(err, client.ErrNoAnswer) {
		r.t.Fatalf("a create without a host: %v", err)
	}
	copied := r.profile("copy")
	r.must(os.CopyFS(copied, os.DirFS(r.profile("phone"))))
	r.must(filepath.WalkDir(copied, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	}))
	r.start()
	r.reopen()
	r.resend(r.dev)
	r.restart()
	other, err := client.Open(copied, client.Options{Loopback: true})
	r.must(err)
	defer other.Close()
	r.resend(other)
	for _, d := range []*client.Device{r.dev, other} {
		if rows, err := d.Outbox(); err != nil || len(rows) != 0 {
			r.t.Errorf("outbox %v, %v", rows, err)
		}
	}
	r.ends(id, 1)
	if list := r.tasks(); len(list) != 1 {
		r.t.Errorf("%d tasks were made", len(list))
	}
	r.wantNotes(id, "once")
}

// The device says stop while nobody listens; its outbox keeps it, and the next
// presence of the host sends it.
func crashInterrupt(r *crashRig) {
	id := r.make("wait 600")
	r.runs(id, 1)
	r.host.kill()
	ctx, cancel := r.within(300 * time.Millisecond)
	c, _, err := r.dev.Command(ctx, nip.Command{Task: id, Action: nip.Interrupt, BasedOn: r.get(id).Revision, Text: "stop it"})
	cancel()
	if !errors.Is(err, client.ErrNoAnswer) {
		r.t.Fatalf("an interrupt without a host: %v", err)
	}
	r.reopen()
	r.start()
	updates, err := r.dev.Watch(r.ctx)
	r.must(err)
	for u := range updates {
		if u.Summary != nil && u.Summary.Task == id && u.Summary.Phase == nip.PhaseCancelled {
			break
		}
	}
	if res := r.ends(id, 1).Result; res.Ending != owner.EndingStopped || !res.StopRequested || !res.GroupClear {
		r.t.Errorf("the turn ended as %+v", res)
	}
	r.wantEntry(c, "applied", "")
	r.eventually("the outbox to be empty", func() bool {
		rows, err := r.dev.Outbox()
		r.must(err)
		return len(rows) == 0
	})
}

// A revocation on the store, with no host: from then on nothing of the device
// runs, and each of its commands says why.
func crashRevoke(r *crashRig) {
	running := r.make("wait 600")
	r.runs(running, 1)
	held := r.mustGive(running, nip.Queue, "must not run")
	r.policy(false)
	waiting := r.make("must not run either")
	behind := r.mustGive(waiting, nip.Queue, "nor this")
	r.host.kill()
	r.must(r.operator(r.ctx, nil, "devices", "revoke", string(r.self)))
	r.policy(true)
	r.start()
	r.eventually("the queued turn to be refused", func() bool { return r.get(waiting).Status == owner.Cancelled })
	if t := r.get(waiting); t.NotStarted != "device revoked" || t.Run != nil {
		r.t.Errorf("the queued turn: %q, run %v", t.NotStarted, t.Run)
	}
	r.eventually("held messages to be decided", func() bool {
		return r.entryOf(string(held.ID)).State == "done" && r.entryOf(string(behind.ID)).State == "done"
	})
	r.wantEntry(held, "rejected", nip.Revoked)
	r.wantEntry(behind, "rejected", nip.Revoked)
	r.must(r.operator(r.ctx, nil, "task", "stop", string(running)))
	r.ends(running, 1)
	r.wantNotes(running, "wait 600")
	if _, err := r.dev.Call(r.ctx, nip.TaskCommand{Command: held}); codeOf(err) != string(nip.Revoked) {
		r.t.Errorf("the revoked device asks: %v", err)
	}
	if t := r.get(running); t.Turn() != 1 {
		r.t.Errorf("the revoked device's task is at turn %d", t.Turn())
	}
}

// The device's own process is killed while it sends: its outbox and the
// journal agree in the end, and the message runs once.
func crashDevice(r *crashRig) {
	id := r.make("wait 1")
	var want []string
	for i, after := range []time.Duration{60, 120, 180, 240} {
		text := "said " + string(rune('a'+i))
		cmd := testID(r.t)
		p, err := r.spawn("device", "queue", string(id), text, "--command", cmd, "--based-on", "1", "--profile", r.profile("phone"))
		r.must(err)
		select {
		case <-time.After(after * time.Millisecond):
		case <-p.ended:
		}
		p.kill()
		rows, err := r.dev.Outbox()
		r.must(err)
		kept := len(rows) == 1 && rows[0].ID == cmd
		r.resend(r.dev)
		var e struct{ Outcome string }
		err = r.operator(r.ctx, &e, "journal", "show", string(r.self), cmd)
		switch {
		case err == nil:
			want = append(want, text)
		case kept:
			r.t.Errorf("%s was in the outbox, was sent, and is not in the journal: %v", text, err)
		}
	}
	r.ends(id, 1+len(want))
	r.wantNotes(id, append([]string{"wait 1"}, want...)...)
}
