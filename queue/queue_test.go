package queue_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/queue"
)

const start = int64(1_790_000_000)

func device(i int) nip.PubKey {
	return nip.PubKey(strings.Repeat(fmt.Sprintf("%02x", i+1), 32))
}

var (
	task   = nip.TaskID(strings.Repeat("aa", 32))
	a, b   = device(0), device(1)
	bg     = context.Background()
	stayed = commands.TaskView{Phase: commands.PhaseRunning, Revision: 5, TurnStart: 5, Steering: commands.Steering{Emulate: true}}
)

// id names the n-th command of the tests.
func id(n int) nip.CommandID { return nip.CommandID(fmt.Sprintf("%064x", n)) }

type disk struct{ *bbolt.DB }

func (d disk) Update(_ context.Context, fn func(tx *bbolt.Tx) error) error { return d.DB.Update(fn) }

// rig is a task that stands still unless a test moves it.
type rig struct {
	t     *testing.T
	ev    *commands.Evaluator
	view  commands.TaskView
	clock int64
	said  []string // effects the task was asked for
}

func (r *rig) View(context.Context, nip.TaskID) (commands.TaskView, error) { return r.view, nil }

func (r *rig) Compile(e commands.Entry, effect commands.Effect, view commands.TaskView) ([]byte, error) {
	return json.Marshal([]string{effect.String(), e.Text})
}

func (r *rig) Apply(_ context.Context, _ nip.TaskID, request []byte) (commands.Applied, error) {
	var said []string
	if err := json.Unmarshal(request, &said); err != nil {
		return commands.Applied{}, err
	}
	r.said = append(r.said, strings.Join(said, ": "))
	r.view.Revision++
	switch said[0] {
	case "cancel":
		r.view.Phase = commands.PhaseStopping
	case "continue":
		r.view.Phase = commands.PhaseNotStarted
	}
	return commands.Applied{Revision: r.view.Revision}, nil
}

func newRig(t *testing.T) *rig {
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, &bbolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	r := &rig{t: t, view: stayed, clock: start}
	if err := db.Update(commands.Journal{}.Setup); err != nil {
		t.Fatal(err)
	}
	r.ev = &commands.Evaluator{
		DB: disk{db}, Tasks: r, Now: func() time.Time { return time.Unix(r.clock, 0) },
		Standing: func(*bbolt.Tx, commands.Sender, int64) bool { return true },
	}
	return r
}

func (r *rig) send(from nip.PubKey, n int, action nip.Action) {
	r.t.Helper()
	c := nip.Command{ID: id(n), Task: task, Action: action, BasedOn: 5, Text: fmt.Sprint("text ", n), IssuedAt: start}
	if action == nip.Steer {
		c.Emulate = true
	}
	if _, err := r.ev.Submit(bg, commands.Sender{Device: from, Grant: "g"}, c, commands.Hooks{}); err != nil {
		r.t.Fatal(err)
	}
}

// edit returns the code, or the queue as one line.
func (r *rig) edit(from nip.PubKey, e nip.QueueEdit) string {
	r.t.Helper()
	out := ""
	err := r.ev.Edit(bg, task, func(tx *bbolt.Tx, view commands.TaskView, now int64) error {
		state, code, err := queue.Apply(tx, r.ev.Journal, from, task, e, view, now)
		if out = string(code); code == "" {
			out = line(state)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.ev.DB.View(func(tx *bbolt.Tx) error { _, err := r.ev.Journal.Check(tx); return err }); err != nil {
		r.t.Fatal(err)
	}
	return out
}

func line(s nip.QueueState) string {
	var out []string
	if s.Lease != nil {
		out = append(out, fmt.Sprintf("lease %.2s+%d", s.Lease.Device, s.Lease.ExpiresAt-start))
	}
	for _, item := range s.Items {
		word := strings.TrimLeft(string(item.Command), "0")
		if item.Priority {
			word += "!"
		}
		if item.Text != nil {
			word += "=" + *item.Text
		}
		out = append(out, word)
	}
	return strings.Join(out, ", ")
}

func do(action string) nip.QueueEdit        { return nip.QueueEdit{Action: action} }
func on(action string, n int) nip.QueueEdit { return nip.QueueEdit{Action: action, Command: id(n)} }
func text(n int, s string) nip.QueueEdit {
	return nip.QueueEdit{Action: "edit", Command: id(n), Text: s}
}
func order(of ...int) nip.QueueEdit {
	e := nip.QueueEdit{Action: "reorder"}
	for _, n := range of {
		e.Commands = append(e.Commands, id(n))
	}
	return e
}

// TestEdits is the table of NIP-HOST, task.queue. Each row begins with a's
// messages 1 and 3, b's 2, and a lease of a.
func TestEdits(t *testing.T) {
	long := strings.Repeat("x", queue.TextLimit)
	rows := []struct {
		name  string
		by    nip.PubKey
		edit  nip.QueueEdit
		want  string
		after string // b's list afterwards; "" is as before
	}{
		{"list", a, do("list"), "lease 01+60, 1=text 1, 2, 3=text 3", ""},
		{"list by another", b, do("list"), "lease 01+60, 1, 2=text 2, 3", ""},
		{"lease again", a, do("lease"), "lease 01+60, 1=text 1, 2, 3=text 3", ""},
		{"lease held by another", b, do("lease"), "conflict", ""},
		{"release", a, do("release"), "1=text 1, 2, 3=text 3", "1, 2=text 2, 3"},
		{"release without one", b, do("release"), "lease 01+60, 1, 2=text 2, 3", ""},
		{"edit", a, text(1, "new"), "lease 01+60, 1=new, 2, 3=text 3", ""},
		{"edit without the lease", b, text(2, "new"), "conflict", ""},
		{"edit of another's", a, text(2, "new"), "forbidden", ""},
		{"edit of an unknown one", a, text(9, "new"), "forbidden", ""},
		{"edit to blanks", a, text(1, " \n"), "bounds", ""},
		{"edit to the limit", a, text(1, long), "lease 01+60, 1=" + long + ", 2, 3=text 3", ""},
		{"edit over the limit", a, text(1, long+"x"), "bounds", ""},
		{"remove", a, on("remove", 1), "lease 01+60, 2, 3=text 3", "lease 01+60, 2=text 2, 3"},
		{"remove another's", a, on("remove", 2), "forbidden", ""},
		{"remove without the lease", b, on("remove", 2), "conflict", ""},
		{"reorder", a, order(3, 1, 2), "lease 01+60, 3=text 3, 1=text 1, 2", "lease 01+60, 3, 1, 2=text 2"},
		{"reorder to the same", a, order(1, 2, 3), "lease 01+60, 1=text 1, 2, 3=text 3", ""},
		{"reorder without the lease", b, order(3, 1, 2), "conflict", ""},
		{"reorder of too few", a, order(1, 2), "conflict", ""},
		{"reorder of too many", a, order(1, 2, 3, 4), "conflict", ""},
		{"reorder of an unknown one", a, order(1, 2, 4), "conflict", ""},
		{"reorder twice the same", a, order(1, 2, 2), "malformed", ""},
		{"reorder of nothing", a, order(), "bounds", ""},
		{"reorder of 65", a, order(make([]int, 65)...), "bounds", ""},
		{"send now", a, on("send_now", 3), "lease 01+60, 3!=text 3, 1=text 1, 2", "lease 01+60, 3!, 1, 2=text 2"},
		{"send another's now", a, on("send_now", 2), "forbidden", ""},
		{"send now without the lease", b, on("send_now", 2), "conflict", ""},
		{"no such action", a, do("promote_all"), "malformed", ""},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			r := newRig(t)
			r.send(a, 1, nip.Queue)
			r.send(b, 2, nip.Queue)
			r.send(a, 3, nip.Queue)
			r.edit(a, do("lease"))
			if got := r.edit(row.by, row.edit); got != row.want {
				t.Errorf("%s\nwant %s", got, row.want)
			}
			want := row.after
			if want == "" {
				want = "lease 01+60, 1, 2=text 2, 3"
			}
			if got := r.edit(b, do("list")); got != want {
				t.Errorf("afterwards %s\nwant %s", got, want)
			}
		})
	}
}

func TestLeaseIsAFence(t *testing.T) {
	r := newRig(t)
	r.send(a, 1, nip.Queue)
	r.edit(a, do("lease"))
	r.clock += 40
	if got := r.edit(a, do("lease")); got != "lease 01+100, 1=text 1" {
		t.Errorf("renewed: %s", got)
	}
	r.clock += 59
	if got := r.edit(a, text(1, "in time")); got != "lease 01+100, 1=in time" {
		t.Errorf("a second before its end: %s", got)
	}
	r.clock++
	if got := r.edit(a, text(1, "late")); got != "conflict" {
		t.Errorf("at its end: %s", got)
	}
	r.clock -= 30 // the clock was set back: time does not run back
	if got := r.edit(a, text(1, "late")); got != "conflict" {
		t.Errorf("after the clock was set back: %s", got)
	}
	r.clock += 31
	if got := r.edit(b, do("lease")); got != "lease 02+161, 1" {
		t.Errorf("another takes it: %s", got)
	}
	if got := r.edit(a, do("release")); got != "lease 02+161, 1=in time" {
		t.Errorf("the old holder releases: %s", got)
	}
}

func TestRemoveAgainAndTooLate(t *testing.T) {
	r := newRig(t)
	r.send(a, 1, nip.Queue)
	r.send(a, 2, nip.Queue)
	r.edit(a, do("lease"))
	for range 2 {
		if got := r.edit(a, on("remove", 1)); got != "lease 01+60, 2=text 2" {
			t.Error(got)
		}
	}
	if got := r.edit(a, text(1, "new")); got != "conflict" {
		t.Errorf("edit of a removed one: %s", got)
	}
	r.edit(a, do("release"))
	r.view.Phase = commands.PhaseEnded
	if err := r.ev.Evaluate(bg, task); err != nil {
		t.Fatal(err)
	}
	r.edit(a, do("lease"))
	for _, e := range []nip.QueueEdit{on("remove", 2), on("send_now", 2), text(2, "new")} {
		if got := r.edit(a, e); got != "conflict" {
			t.Errorf("%s of one that ran: %s", e.Action, got)
		}
	}
}

// TestReleaseEvaluates: what waited for the lease runs, in the asked order and
// with the edited text.
func TestReleaseEvaluates(t *testing.T) {
	r := newRig(t)
	for n := 1; n <= 3; n++ {
		r.send(a, n, nip.Queue)
	}
	r.edit(b, do("lease"))
	r.edit(b, order(3, 1, 2))
	r.view.Phase = commands.PhaseEnded
	if err := r.ev.Evaluate(bg, task); err != nil || len(r.said) != 0 {
		t.Fatal(r.said, err)
	}
	r.send(a, 4, nip.Queue) // comes behind them all
	r.edit(b, do("release"))
	for range 3 {
		r.view.Phase = commands.PhaseEnded
		if err := r.ev.Evaluate(bg, task); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(r.said, "; "); got != "continue: text 3; continue: text 1; continue: text 2; continue: text 4" {
		t.Error(got)
	}
}

func TestSendNow(t *testing.T) {
	r := newRig(t)
	r.send(a, 1, nip.Queue)
	r.send(a, 2, nip.Queue)
	r.edit(a, do("lease"))
	for range 2 { // again is no change
		if got := r.edit(a, on("send_now", 2)); got != "lease 01+60, 2!=text 2, 1=text 1" {
			t.Error(got)
		}
	}
	if got := strings.Join(r.said, "; "); got != "cancel: text 2" {
		t.Error(got)
	}
	r.view.Phase = commands.PhaseEnded
	if err := r.ev.Evaluate(bg, task); err != nil { // priority does not wait for the lease
		t.Fatal(err)
	}
	if got := strings.Join(r.said, "; "); got != "cancel: text 2; continue: text 2" {
		t.Error(got)
	}
	for _, row := range []struct {
		want, list string
		view       commands.TaskView
	}{
		{"unsupported", "lease 01+60, 1=text 1", commands.TaskView{Phase: commands.PhaseRunning, Revision: 9}},
		{"unavailable", "lease 01+60, 1=text 1", commands.TaskView{Phase: commands.PhaseUnknown, Revision: 9, Steering: stayed.Steering}},
		{"forbidden", "forbidden", commands.TaskView{Phase: commands.PhaseMissing}},
	} {
		r.view = row.view
		if got := r.edit(a, on("send_now", 1)); got != row.want {
			t.Errorf("%v: %s, want %s", row.view.Phase, got, row.want)
		}
		if got := r.edit(a, do("list")); got != row.list {
			t.Errorf("%v: a refused send_now left %s", row.view.Phase, got)
		}
	}
}

// TestSentNowInJournalOrder: among priority messages a reorder does not count.
func TestSentNowInJournalOrder(t *testing.T) {
	r := newRig(t)
	for n := 1; n <= 3; n++ {
		r.send(a, n, nip.Queue)
	}
	r.edit(a, do("lease"))
	r.edit(a, order(3, 2, 1))
	r.edit(a, on("send_now", 3))
	if got := r.edit(a, on("send_now", 1)); got != "lease 01+60, 1!=text 1, 3!=text 3, 2=text 2" {
		t.Error(got)
	}
}

// TestLongQueue lists the first 64 and reorders no more.
func TestLongQueue(t *testing.T) {
	r := newRig(t)
	all := []int{}
	for n := 1; n <= 65; n++ {
		r.send(a, n, nip.Queue)
		all = append(all, n)
	}
	r.edit(a, do("lease"))
	if got := strings.Count(r.edit(a, do("list")), "="); got != 64 {
		t.Errorf("%d listed", got)
	}
	if got := r.edit(a, order(all...)); got != "bounds" {
		t.Errorf("reorder of 65: %s", got)
	}
	if got := r.edit(a, order(all[:64]...)); got != "conflict" {
		t.Errorf("reorder of 64 out of 65: %s", got)
	}
	r.edit(a, on("remove", 65))
	back := []int{}
	for n := 64; n >= 1; n-- {
		back = append(back, n)
	}
	if got := r.edit(a, order(back...)); !strings.HasPrefix(got, "lease 01+60, 40=text 64, 3f=text 63") {
		t.Errorf("reorder of 64: %.80s", got)
	}
}

func TestStepLimit(t *testing.T) {
	r := newRig(t)
	r.send(a, 1, nip.Queue)
	r.edit(a, do("lease"))
	refused := 0
	if err := r.ev.Edit(bg, task, func(tx *bbolt.Tx, view commands.TaskView, now int64) error {
		for n := range queue.StepLimit + 10 {
			_, code, err := queue.Apply(tx, r.ev.Journal, a, task, text(1, fmt.Sprint("edit ", n)), view, now)
			if err != nil {
				return err
			}
			if code == nip.Bounds {
				refused++
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if refused != 12 { // the first two transitions are its record and its hold
		t.Errorf("%d edits refused", refused)
	}
	if got := r.edit(a, on("remove", 1)); got != "lease 01+60" {
		t.Errorf("removal at the limit: %s", got)
	}
}

// TestDigest: every change of the queue has a digest of its own, the asker and
// the passing of time have none, and no text stands in it.
func TestDigest(t *testing.T) {
	r := newRig(t)
	seen := map[nip.Digest]string{}
	digest := func() (d nip.Digest, held int) {
		t.Helper()
		if err := r.ev.Edit(bg, task, func(tx *bbolt.Tx, view commands.TaskView, now int64) (err error) {
			d, held, err = queue.Digest(tx, r.ev.Journal, task, view, now)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return d, held
	}
	step := func(name string, want int) {
		t.Helper()
		d, held := digest()
		if was := seen[d]; was != "" || held != want {
			t.Errorf("%s: %d held, the digest of %q", name, held, was)
		}
		seen[d] = name
		r.clock++
		if again, _ := digest(); again != d {
			t.Errorf("%s: the digest moved by itself", name)
		}
	}
	step("empty", 0)
	r.send(a, 1, nip.Queue)
	step("one", 1)
	r.send(b, 2, nip.Queue)
	step("two", 2)
	r.edit(a, do("lease"))
	step("leased", 2)
	r.edit(a, text(1, "new"))
	step("edited", 2)
	r.edit(a, order(2, 1))
	step("reordered", 2)
	r.edit(a, on("remove", 1))
	step("removed", 1)
	r.view.Revision++
	step("moved on", 1)
	r.clock += queue.LeaseSeconds
	step("lease over", 1)
	for n := 10; n < 75; n++ {
		r.send(a, n, nip.Queue)
	}
	step("too long", 66)
}
