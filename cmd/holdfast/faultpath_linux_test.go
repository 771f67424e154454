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

// TestEveryFaultOfAHome fails every call of a home's first hour: it is made,
// served, a device is paired, and its first task is there.
func TestEveryFaultOfAHome(t *testing.T) {
	listen := freePort(t)
	faulttest.Loop{Least: 200, Sample: 16}.Run(t, func(t *testing.T, disk *diskfault.Disk, dir string, plan diskfault.Plan) (string, int) {
		f := newFaultPath(t, disk, dir, listen)
		f.must(os.Mkdir(dir, 0o700))
		disk.Begin(dir, plan)
		f.make()
		f.pair("phone")
		id := f.create("phone", "first words")
		return f.ends(id)
	})
}

// TestEveryFaultOfThePath fails every call of a task's life, through the whole
// path: device, relay, host, journal, task, and back. No command is applied
// twice, none that has a receipt is lost, their order stays, each ends with an
// outcome that its device can read, and both checks hold.
func TestEveryFaultOfThePath(t *testing.T) {
	var listen string
	faulttest.Loop{Least: 800, Sample: 24}.Run(t, func(t *testing.T, disk *diskfault.Disk, dir string, plan diskfault.Plan) (string, int) {
		template := filepath.Join(filepath.Dir(dir), "template")
		if listen == "" {
			listen = freePort(t)
			f := newFaultPath(t, disk, template, listen)
			f.must(os.Mkdir(template, 0o700))
			f.make()
			f.pair("phone")
			f.must(f.shut())
		}
		f := newFaultPath(t, disk, dir, listen)
		f.must(copyTree(template, dir))
		f.devices["phone"] = nil
		disk.Begin(dir, plan)
		f.restart()
		return f.ends(f.life())
	})
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

// life passes every kind of write: commands of two devices that are held, edited
// under a lease, reordered, corrected, stopped and answered, an invitation with
// its redemption, and a revocation.
func (f *faultPath) life() nip.TaskID {
	f.t.Helper()
	const a = "phone"
	id := f.create(a, "first words")
	say := func(by, text string, action nip.Action) nip.CommandID {
		f.t.Helper()
		return f.give(by, text, nip.Command{Task: id, Action: action, Text: text, Emulate: action == nip.Steer})
	}
	say(a, "corrected words", nip.Steer)
	f.begin(id, "corrected words")
	one, two, three := say(a, "one", nip.Queue), say(a, "two", nip.Queue), say(a, "three", nip.Queue)
	say(a, "too early", nip.Send)
	f.edit(a, id, nip.QueueEdit{Action: "edit", Command: two, Text: "two, edited"},
		nip.QueueEdit{Action: "reorder", Commands: []nip.CommandID{three, one, two}})
	say(a, "rather this", nip.Steer)
	f.finish(id, owner.Result{Ending: owner.EndingStopped, StopRequested: true})
	f.begin(id, "rather this")
	f.finish(id, owner.Result{})
	f.until("three", id, func(t owner.Task) bool { return t.EffectivePrompt() == "three" })
	say(a, "not three", nip.Interrupt)
	f.begin(id, "one")
	f.pair("tablet")
	tablet := f.devices["tablet"].PubKey()
	say("tablet", "of the tablet", nip.Queue)
	f.finish(id, owner.Result{})
	f.begin(id, "two, edited")
	f.try("revoke", func(ctx context.Context) error {
		_, err := f.parts.core.Revoke(ctx, tablet, false)
		return err
	})
	f.finish(id, owner.Result{Ending: owner.EndingAskedQuestion, Reply: "Which one?", Ask: "question"})
	say(a, "the second", nip.Answer)
	f.begin(id, "the second")
	f.finish(id, owner.Result{})
	say(a, "go on", nip.Send)
	return id
}

// ends restarts once more, holds what was said against what happened, sends
// everything again, and prunes the journal. It tells how it ended.
func (f *faultPath) ends(id nip.TaskID) (told string, calls int) {
	f.t.Helper()
	f.restart()
	told = f.tells(id)
	f.replays(id, false)
	if after := f.tells(id); after != told {
		f.t.Errorf("replays changed\n%s\nto\n%s", told, after)
	}
	f.clock.forward(3 * 24 * time.Hour)
	f.try("prune", func(ctx context.Context) error { return f.parts.host.Tidy(ctx) })
	f.restart()
	f.checked()
	if left := f.entries(); len(left) != 0 {
		f.t.Errorf("%d entries are left after three days: %+v", len(left), left[0])
	}
	f.replays(id, true)
	f.restart() // the last failure may have come after the last step
	f.checked()
	calls, _ = f.disk.End()
	if err := f.shut(); err != nil {
		f.t.Errorf("end: %v", err)
	}
	return told, calls
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

// replays sends every command of the first device again, and each is answered as
// it was decided, or as expired once it was pruned.
func (f *faultPath) replays(id nip.TaskID, pruned bool) {
	f.t.Helper()
	entries := map[string]host.EntryView{}
	for _, e := range f.entries() {
		entries[e.Command] = e
	}
	was := f.get(id).Revision
	for _, m := range f.minted {
		want := string(nip.Expired)
		if !pruned {
			want = wireCode(entries[string(m.command.ID)])
		}
		f.try("replay "+m.name, func(ctx context.Context) error {
			_, err := f.devices[m.by].Call(ctx, nip.TaskCommand{Command: m.command})
			code := codeOf(err)
			if strings.HasPrefix(code, "error") {
				return err
			}
			if m.by == "tablet" {
				want = string(nip.Revoked)
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
