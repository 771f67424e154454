package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
	"holdfast/owner"
)

// pages are the published pages that d was sent, in order.
func (r *rig) pages(d device, events []*nip.Event) []nip.PublishedPage {
	r.t.Helper()
	box, err := nip.DeriveMailbox(d.key, r.c.Self(), nip.StreamPages)
	if err != nil {
		r.t.Fatal(err)
	}
	var out []nip.PublishedPage
	for _, o := range r.opened(d, events, nip.SchemaTaskPage) {
		p, err := nip.ParseTaskPage(o.Inline)
		if err != nil {
			r.t.Fatal(err)
		}
		if o.Mailbox != box || p.Host != r.c.Self() {
			r.t.Fatal("not in the device's mailbox of pages")
		}
		out = append(out, p)
	}
	return out
}

// waitingPages are those in the outbox.
func (r *rig) waitingPages(d device) []nip.PublishedPage {
	r.t.Helper()
	var events []*nip.Event
	if err := r.c.db.View(func(tx *bbolt.Tx) error {
		return eachJSON(tx, bucketOutbox, func(_ string, row outboxRow) error {
			if row.Stream == "page" {
				events = append(events, row.Event)
			}
			return nil
		})
	}); err != nil {
		r.t.Fatal(err)
	}
	return r.pages(d, events)
}

// trace writes the transcript of the task's first turn.
func (r *rig) trace(id nip.TaskID, steps int, message string) {
	r.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, `{"type":"session","id":"%s-1","agent":{"name":"holdfast","version":"x"},"adapter":"prompt-command","workspace":"/w","at":1}`+"\n", id)
	for i := range steps {
		fmt.Fprintf(&b, `{"type":"step","step_id":%d,"at":%d,"source":"agent","message":"%s","extra":{"stream":"stdout"}}`+"\n", i+1, i, message)
	}
	b.WriteString(`{"type":"end","state":"ended","at":9}` + "\n")
	path := filepath.Join(r.c.store.TaskDir(owner.TaskID(id)), owner.TraceName(1))
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// A turn that ended, or ended with a question, leaves its page with every device
// that may observe; nothing else does.
func TestPages(t *testing.T) {
	r := newRig(t)
	d, blind := r.pair(nip.PairingRights()), r.pair(nip.Rights{nip.Operate})
	r.serve()
	dispatched := func(p nip.Reply) nip.TaskID { return nip.TaskID(p.Outcome.(nip.Dispatched).Reference) }
	task := dispatched(r.overWire(d, nip.TaskCreate{Title: "a title", Prompt: "p", Workspace: "demo"}))
	end := r.begin(task)
	r.trace(task, 100, "a line")
	r.until("the running turn is published", func() bool {
		s := r.summaries(d, r.paper.all())
		return len(s) > 0 && s[len(s)-1].Phase == nip.PhaseRunning
	})
	if n := len(r.pages(d, r.paper.all())); n != 0 {
		t.Fatalf("%d pages of a turn that runs", n)
	}
	zero := 0
	end(owner.Result{Ending: owner.EndingAskedQuestion, ExitCode: &zero, Ask: "question", Reply: "which?"})
	r.until("the page", func() bool { return len(r.pages(d, r.paper.all())) == 1 })
	got := r.pages(d, r.paper.all())[0]
	if got.ExpiresAt-got.IssuedAt > 604_800 || got.Page.Phase != nip.PhaseWaiting || got.Page.Title != "a title" {
		t.Fatalf("%+v", got)
	}
	steps := got.Page.Evidence.Steps
	if got.Page.Evidence.TotalSteps != 100 || len(steps) == 0 || steps[len(steps)-1].Index != 99 || got.Page.MoreAvailable {
		t.Fatalf("%d steps of %d, the last %d", len(steps), got.Page.Evidence.TotalSteps, steps[len(steps)-1].Index)
	}
	// It goes on where task.read goes on.
	p := r.overWire(d, nip.TaskRead{Query: nip.ReadQuery{Workspace: "demo", Task: string(task), Revision: &got.Page.Scope.Revision, Cursor: got.Page.Next, Limit: 1}})
	if page, ok := p.Outcome.(nip.TaskPage); !ok || len(page.Task.Evidence.Steps) != 0 || page.Task.Scope.Revision != got.Page.Scope.Revision {
		t.Fatalf("%+v %+v", p.Outcome, p.Refusal)
	}
	if n := len(r.pages(blind, r.paper.all())); n != 0 {
		t.Fatalf("%d pages without observe", n)
	}
	// Once archived it is nobody's news, also for a device that comes later.
	r.wantCode(r.overWire(d, nip.TaskArchive{Task: task}), "")
	r.until("the archive is seen", func() bool { row, _ := r.h.index.get(owner.TaskID(task)); return row.Archived })
	other := dispatched(r.overWire(d, nip.TaskCreate{Title: "t", Prompt: "p", Workspace: "demo"}))
	r.wantCode(r.overWire(d, nip.TaskCancel{Task: other, Revision: 1, Reason: "no"}), "")
	r.until("a page of the task that was cancelled", func() bool {
		ps := r.pages(d, r.paper.all())
		return ps[len(ps)-1].Page.Scope.Task == string(other)
	})
	for _, p := range r.pages(d, r.paper.all())[1:] {
		if p.Page.Scope.Task == string(task) {
			t.Fatal("a second page of the task: it was archived")
		}
	}
	late := r.pairRunning()
	r.until("the page for the new device", func() bool { return len(r.pages(late, r.paper.all())) > 0 })
	for _, p := range r.pages(late, r.paper.all()) {
		if p.Page.Scope.Task != string(other) {
			t.Fatal("a page of an archived task")
		}
	}
}

// Of pages that wait only the newest of a task goes out; each revision is sealed
// once, also over a restart; and who is revoked is sent nothing.
func TestPageWaits(t *testing.T) {
	r := newRig(t)
	d, gone := r.pair(nip.PairingRights()), r.pair(nip.PairingRights())
	task := r.create(d, "p")
	r.begin(task)(owner.Result{})
	publish := func() {
		t.Helper()
		if err := r.h.publishPage(t.Context(), owner.TaskID(task)); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	first := r.waitingPages(d)
	if len(first) != 1 || len(r.waitingPages(gone)) != 1 {
		t.Fatalf("%d pages", len(first))
	}
	r.clock.add(1)
	r.restart()
	publish()
	if again := r.waitingPages(d); len(again) != 1 || again[0].IssuedAt != first[0].IssuedAt {
		t.Fatal("sealed again without news")
	}
	if _, err := r.c.Revoke(t.Context(), gone.pub(), false); err != nil {
		t.Fatal(err)
	}
	r.wantCode(r.ask(d, nip.TaskCommand{Command: r.command(task, nip.Send, "more")}), "")
	publish()
	if again := r.waitingPages(d); len(again) != 1 || again[0].IssuedAt != first[0].IssuedAt {
		t.Fatal("a page of a turn that is queued")
	}
	r.begin(task)(owner.Result{})
	publish()
	now := r.waitingPages(d)
	if len(now) != 1 || now[0].Page.Scope.Revision <= first[0].Page.Scope.Revision || *now[0].Page.Scope.Attempt != 2 {
		t.Fatalf("%d pages: %+v", len(now), now[0].Page.Scope)
	}
	if len(r.waitingPages(gone)) != 0 {
		t.Fatal("a revoked device was sent a page")
	}
	// Who was revoked and comes back knows nothing any more.
	back := r.pair(nip.StandardRights())
	publish()
	if _, err := r.c.Revoke(t.Context(), back.pub(), false); err != nil {
		t.Fatal(err)
	}
	r.pair(nip.StandardRights(), back.key)
	publish()
	if len(r.waitingPages(back)) != 1 {
		t.Fatal("a device that came back has no page")
	}
	// So it is with one that pairs anew, perhaps at another relay.
	r.clock.add(1)
	r.pair(nip.StandardRights(), back.key)
	publish()
	if again := r.waitingPages(back); len(again) != 1 || again[0].IssuedAt != r.clock.now() {
		t.Fatal("a device that paired anew is left with the page of before")
	}
	// Without a label, or a week later, nobody gets one.
	late := r.pair(nip.StandardRights())
	if err := RemoveWorkspace(r.home, "demo"); err != nil {
		t.Fatal(err)
	}
	publish()
	if _, err := AddWorkspace(r.home, "demo", r.repo); err != nil {
		t.Fatal(err)
	}
	r.clock.add(pageKept)
	publish()
	if len(r.waitingPages(late)) != 0 {
		t.Fatal("a page without a label, or of long ago")
	}
}

// However long the lines and the prompt, a page fits: fewer of the newest steps.
func TestPageFits(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	for _, row := range []struct {
		name    string
		message string
		prompt  string
	}{
		{"long lines", strings.Repeat("x", 12<<10), "p"},
		{"lines over the limit of a step", strings.Repeat("x", 20<<10), "p"},
		{"a long prompt", "m", strings.Repeat("\"", 16_000)},
	} {
		t.Run(row.name, func(t *testing.T) {
			r.t = t
			task := r.create(d, row.prompt)
			end := r.begin(task)
			r.trace(task, 10, row.message)
			end(owner.Result{})
			if err := r.h.publishPage(t.Context(), owner.TaskID(task)); err != nil {
				t.Fatal(err)
			}
			for _, p := range r.waitingPages(d) {
				if p.Page.Scope.Task != string(task) {
					continue
				}
				steps := p.Page.Evidence.Steps
				if len(steps) == 0 || steps[len(steps)-1].Index != 9 {
					t.Fatalf("%d steps", len(steps))
				}
				return
			}
			t.Fatal("no page")
		})
	}
}

// A turn whose transcript is not there yet, or no more, can be read.
func TestReadWithoutTranscript(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "p")
	end := r.begin(task)
	for range 2 {
		p := r.ask(d, nip.TaskRead{Query: nip.ReadQuery{Workspace: "demo", Task: string(task), Limit: 1}})
		page, ok := p.Outcome.(nip.TaskPage)
		if !ok || page.Task.Next != nil || page.Task.Evidence.State != "missing" {
			t.Fatalf("%+v %+v", p.Outcome, p.Refusal)
		}
		if end != nil {
			end(owner.Result{})
			end = nil
		}
	}
}
