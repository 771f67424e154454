package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/host"
	"holdfast/internal/diskfault"
	"holdfast/internal/diskfault/faulttest"
	"holdfast/nip"
	"holdfast/owner"
)

// pathStory is a life that passes some of the kinds of write. Each is played as
// often as it has calls, so several short ones cost less than a long one.
type pathStory struct {
	name   string
	least  int // calls
	sample int // plans played by default, of all of them
	// life returns the task. It begins in a served home with a phone, or with
	// nothing.
	life  func(f *faultPath) nip.TaskID
	fresh bool // it begins with nothing
}

var pathStories = []pathStory{
	{"home", 150, 4, (*faultPath).firstHour, true},
	{"queue", 400, 6, (*faultPath).queueLife, false},
	{"turns", 400, 6, (*faultPath).turnLife, false},
	{"access", 250, 5, (*faultPath).accessLife, false},
	{"prune", 150, 4, (*faultPath).pruneLife, false},
}

// TestEveryFaultOfThePath fails every call of every story, through the whole
// path: device, relay, host, journal, task, and back. No command is applied
// twice, none that has a receipt is lost, their order stays, each ends with an
// outcome that its device can read, replays change nothing, and both checks
// hold.
func TestEveryFaultOfThePath(t *testing.T) {
	for _, s := range pathStories {
		t.Run(s.name, func(t *testing.T) {
			faulttest.Loop{Least: s.least, Sample: s.sample}.Run(t, s.teller())
		})
	}
}

// teller plays the story in a copy of one home, made when it is first played.
func (s pathStory) teller() faulttest.Story {
	listen := ""
	return func(t *testing.T, disk *diskfault.Disk, dir string, plan diskfault.Plan) (string, int) {
		template := filepath.Join(filepath.Dir(dir), "template")
		if listen == "" {
			listen = freePort(t)
			f := newFaultPath(t, disk, template, listen)
			f.must(os.Mkdir(template, 0o700))
			if !s.fresh {
				f.make()
				f.pair("phone")
				f.must(f.shut())
			}
		}
		f := newFaultPath(t, disk, dir, listen)
		f.must(copyTree(template, dir))
		disk.Begin(dir, plan)
		if !s.fresh {
			f.devices["phone"] = nil
			f.restart()
		}
		id := s.life(f)
		f.shut() // where a disk died last of all, it says so
		f.must(disk.Revive())
		f.receipts()
		calls, _ := disk.End()
		f.must(f.open())
		f.must(f.resend())
		f.decided() // the start finishes what was cut off
		told := f.tells(id)
		f.replays(id)
		if after := f.tells(id); after != told {
			t.Errorf("replays changed\n%s\nto\n%s", told, after)
		}
		if err := f.shut(); err != nil {
			t.Errorf("end: %v", err)
		}
		return told, calls
	}
}

// make is a home with a workspace, served.
func (f *faultPath) make() {
	f.t.Helper()
	for try := 0; ; try++ {
		work := filepath.Join(f.dir, "work")
		err := os.MkdirAll(work, 0o700)
		if err == nil {
			err = host.Init(f.g.home, "", f.g.coreOptions())
		}
		if err == nil {
			err = makeRelayDir(f.g.home)
		}
		if err == nil {
			if _, err = host.AddWorkspace(f.g.home, benchLabel, work); errors.Is(err, host.ErrUsage) {
				err = nil // it is there
			}
		}
		if err == nil {
			err = f.open()
		}
		if err == nil {
			return
		}
		if call, _ := f.disk.Struck(); call == "" || try == 3 {
			f.t.Fatalf("make a home: %v (failed: %q)", err, call)
		}
		f.shut()
		f.must(f.disk.Revive())
	}
}

// firstHour makes the home and pairs the phone.
func (f *faultPath) firstHour() nip.TaskID {
	f.t.Helper()
	f.make()
	f.pair("phone")
	return f.create("phone", "first words")
}

// say is a message, or another command, of a device.
func (f *faultPath) say(by string, task nip.TaskID, action nip.Action, text string) nip.CommandID {
	f.t.Helper()
	return f.give(by, text, nip.Command{Task: task, Action: action, Text: text, Emulate: action == nip.Steer})
}

// queueLife holds messages, edits and reorders them under a lease, corrects a
// turn that has not started and one that runs.
func (f *faultPath) queueLife() nip.TaskID {
	f.t.Helper()
	id := f.create("phone", "first words")
	f.say("phone", id, nip.Steer, "corrected words")
	f.begin(id, "corrected words")
	one, two, three := f.say("phone", id, nip.Queue, "one"), f.say("phone", id, nip.Queue, "two"), f.say("phone", id, nip.Queue, "three")
	f.edit("phone", id, nip.QueueEdit{Action: "edit", Command: two, Text: "two, edited"},
		nip.QueueEdit{Action: "reorder", Commands: []nip.CommandID{three, two, one}}, nip.QueueEdit{Action: "remove", Command: one})
	f.say("phone", id, nip.Steer, "rather this")
	f.stopping(id)
	f.finish(id, owner.Result{Ending: owner.EndingStopped, StopRequested: true})
	for _, prompt := range []string{"rather this", "three", "two, edited"} {
		f.begin(id, prompt)
		f.finish(id, owner.Result{})
	}
	return id
}

// turnLife refuses, stops, answers and goes on.
func (f *faultPath) turnLife() nip.TaskID {
	f.t.Helper()
	id := f.create("phone", "first words")
	f.begin(id, "first words")
	f.say("phone", id, nip.Queue, "one")
	f.say("phone", id, nip.Queue, "two")
	f.say("phone", id, nip.Send, "too early")
	f.say("phone", id, nip.Interrupt, "stop the first")
	f.stopping(id)
	f.finish(id, owner.Result{Ending: owner.EndingStopped, StopRequested: true})
	f.until("one", id, func(t owner.Task) bool { return t.EffectivePrompt() == "one" })
	f.say("phone", id, nip.Interrupt, "not one")
	f.begin(id, "two")
	f.finish(id, owner.Result{Ending: owner.EndingAskedQuestion, Reply: "Which one?", Ask: "question"})
	f.say("phone", id, nip.Answer, "the second")
	f.begin(id, "the second")
	f.finish(id, owner.Result{})
	f.say("phone", id, nip.Send, "go on")
	return id
}

// accessLife pairs a second device whose message is held, and revokes it before
// its turn.
func (f *faultPath) accessLife() nip.TaskID {
	f.t.Helper()
	id := f.create("phone", "first words")
	f.begin(id, "first words")
	f.pair("tablet")
	f.say("phone", id, nip.Queue, "one")
	f.say("tablet", id, nip.Queue, "of the tablet")
	f.revoke("tablet")
	f.finish(id, owner.Result{})
	f.begin(id, "one")
	f.finish(id, owner.Result{})
	return id
}

// pruneLife lets all of the journal grow old and go.
func (f *faultPath) pruneLife() nip.TaskID {
	f.t.Helper()
	id := f.create("phone", "first words")
	f.begin(id, "first words")
	f.say("phone", id, nip.Queue, "one")
	f.say("phone", id, nip.Send, "too early")
	f.finish(id, owner.Result{})
	f.begin(id, "one")
	f.finish(id, owner.Result{})
	f.decided() // what is decided three days later stays for two
	f.pruned = true
	f.clock.forward(3 * 24 * time.Hour)
	f.try("prune", func(ctx context.Context) error { return f.parts.host.Tidy(ctx) })
	return id
}

// tells is the task's instructions in their order, and each command with its
// first answer and its outcome.
func (f *faultPath) tells(id nip.TaskID) string {
	f.t.Helper()
	f.checked()
	var b strings.Builder
	ids, err := f.store.List()
	f.must(err)
	t := f.get(id)
	fmt.Fprintf(&b, "%d task, %q, %s, turn %d\n", len(ids), t.Intent.Prompt, t.Status, t.Turn())
	for _, c := range t.Corrections {
		fmt.Fprintf(&b, "corrected to %q\n", c.Prompt)
	}
	for _, u := range t.FollowUps {
		fmt.Fprintf(&b, "continued with %q\n", u.Prompt)
	}
	entries := map[string]host.EntryView{}
	creates := 0
	if left := f.entries(); f.pruned {
		if len(left) != 0 {
			f.t.Errorf("%d entries are left after three days: %+v", len(left), left[0])
		}
		return b.String()
	}
	for _, e := range f.entries() {
		entries[e.Command] = e
		if e.Kind == "task.create" && e.Outcome == "applied" {
			creates++
		}
	}
	if creates != len(ids) || entries[string(id)].Kind != "task.create" {
		f.t.Errorf("%d creates for %d tasks", creates, len(ids))
	}
	seq := uint64(0)
	for _, m := range f.minted {
		e, ok := entries[string(m.command.ID)]
		switch {
		case !ok:
			f.t.Errorf("%s %q is in no journal", m.command.Action, m.name)
		case e.State != "done":
			f.t.Errorf("%s %q is still %s", e.Action, m.name, e.State)
		case m.told == nil:
			f.t.Errorf("%s %q has no answer", e.Action, m.name)
		case *m.told != "" && *m.told != wireCode(e):
			f.t.Errorf("%s %q was answered %s, the journal says %s %s", e.Action, m.name, *m.told, e.Outcome, e.Reason)
		case e.Seq < seq || e.BasedOn != m.command.BasedOn || e.IssuedAt != m.command.IssuedAt:
			f.t.Errorf("%s %q is not in its place, or another: %+v", e.Action, m.name, e)
		}
		seq = e.Seq
		fmt.Fprintf(&b, "%s %s %q: %s %s, runs as %q\n", m.by, e.Action, m.name, e.Outcome, e.Reason, e.Text)
	}
	return b.String()
}

// replays sends every command again. Each is answered as it was decided, as
// expired once it was pruned, and that of a revoked device as that.
func (f *faultPath) replays(id nip.TaskID) {
	f.t.Helper()
	entries := map[string]host.EntryView{}
	for _, e := range f.entries() {
		entries[e.Command] = e
	}
	was := f.get(id).Revision
	for _, m := range f.minted {
		want := wireCode(entries[string(m.command.ID)])
		switch {
		case f.revoked[m.by]:
			want = string(nip.Revoked)
		case f.pruned:
			want = string(nip.Expired)
		}
		f.try("replay "+m.name, func(ctx context.Context) error {
			_, err := f.devices[m.by].Call(ctx, nip.TaskCommand{Command: m.command})
			code := codeOf(err)
			if strings.HasPrefix(code, "error") {
				return err
			}
			if code != want {
				f.t.Errorf("%s %q again: %q, not %q", m.command.Action, m.name, code, want)
			}
			return nil
		})
	}
	if now := f.get(id).Revision; now != was {
		f.t.Errorf("replays moved the task from revision %d to %d", was, now)
	}
}
