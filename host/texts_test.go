package host

import (
	"strings"
	"testing"

	"holdfast/nip"
	"holdfast/owner"
)

// Words that the wire lets pass and no task takes are refused at admission,
// before anything is journalled; words that a task takes reach it whole.
func TestWordsOfADevice(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "a prompt")
	held := r.command(task, nip.Queue, "held")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: held}), "")
	r.wantCode(r.ask(d, nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "lease"}}), "")
	with := func(action nip.Action, text string) func() nip.Operation {
		return func() nip.Operation { return nip.TaskCommand{Command: r.command(task, action, text)} }
	}
	for _, row := range []struct {
		name string
		op   func() nip.Operation
		code nip.Code
	}{
		{"a prompt with an escape", func() nip.Operation { return nip.TaskCreate{Title: "t", Prompt: "a\x1b[1mb", Workspace: "demo"} }, nip.Bounds},
		{"a blank title", func() nip.Operation { return nip.TaskCreate{Title: "  ", Prompt: "p", Workspace: "demo"} }, nip.Bounds},
		{"a prompt of several lines", func() nip.Operation { return nip.TaskCreate{Title: "t", Prompt: "a\n\tb\r\n", Workspace: "demo"} }, ""},
		{"a message with a zero", with(nip.Queue, "a\x00b"), nip.Bounds},
		{"a message with a C1 control", with(nip.Queue, "a\u0085b"), nip.Bounds},
		{"a message of the largest size", with(nip.Queue, strings.Repeat("é\"", 5461)), ""},
		{"a message of several lines", with(nip.Queue, "a\n\tb\r\n"), ""},
		{"a steer with a bell", func() nip.Operation { return nip.TaskSteer{Task: task, Revision: 1, Prompt: "a\ab"} }, nip.Bounds},
		{"a steer at a revision with a bell", func() nip.Operation {
			return nip.TaskCommandAt{Command: r.command(task, nip.Steer, "a\ab"), Revision: r.task(task).Revision}
		}, nip.Bounds},
		{"a blank reason", func() nip.Operation { return nip.TaskCancel{Task: task, Revision: 1, Reason: " "} }, nip.Bounds},
		{"an edit with a delete", func() nip.Operation {
			return nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "edit", Command: held.ID, Text: "a\x7fb"}}
		}, nip.Bounds},
		{"an edit of several lines", func() nip.Operation {
			return nip.TaskQueue{Task: task, Edit: nip.QueueEdit{Action: "edit", Command: held.ID, Text: "a\nb"}}
		}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			op := row.op()
			before := r.task(task)
			entries := r.rows([]byte("journal.entry"))
			in := r.sealed(d, r.req(d, op))
			r.wantCode(r.one(d, in), row.code)
			if row.code == "" {
				return
			}
			if got := r.rows([]byte("journal.entry")); got != entries {
				t.Errorf("%d journal entries, were %d", got, entries)
			}
			if after := r.task(task); after.Revision != before.Revision {
				t.Error("the task changed")
			}
			r.clock.add(5)
			if again := r.give(in); len(again) != 1 || code(r.read(d, again[0])) != row.code {
				t.Error("the refusal was not retained")
			}
		})
	}
}

// A task keeps its adapter for good. When the policy's rule runs another one,
// the task cannot start: its device reads so, and a new task runs.
func TestAdapterNoLongerFits(t *testing.T) {
	r := newRig(t)
	t.Cleanup(func() { close(r.h.stopped) })
	r.policy()
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	r.policy(func(p *Policy) { p.Rules[0].Adapter = owner.BoundedCommand })
	r.sweep()
	ended := r.task(task)
	if ended.Status != owner.Cancelled || r.launches.Load() != 0 {
		t.Fatalf("%s after %d launches", ended.Status, r.launches.Load())
	}
	const want = "the policy now runs bounded-command here, this task was made for prompt-command; make a new one"
	a, err := r.h.summaryOf(&ended)
	if err != nil {
		t.Fatal(err)
	}
	s, err := nip.ParseSummary(a.Inline, a)
	if err != nil || s.Phase != nip.PhaseCancelled || s.Headline != "Couldn't start: "+want {
		t.Errorf("summary %+v, %v", s, err)
	}
	p := r.ask(d, nip.TaskRead{Query: nip.ReadQuery{Workspace: "demo", Task: string(task), Limit: 1}})
	if page, ok := p.Outcome.(nip.TaskPage); !ok || page.Task.Termination != "not started: "+want {
		t.Errorf("page %+v, refused %+v", p.Outcome, p.Refusal)
	}
	if v := taskLine(&ended); v.NotStarted != want {
		t.Errorf("operator's view %+v", v)
	}
	r.create(d, "p")
	r.sweep()
	if n := r.launches.Load(); n != 1 {
		t.Errorf("%d launches of a task that fits", n)
	}
}
