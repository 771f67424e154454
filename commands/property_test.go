package commands_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"holdfast/commands"
	"holdfast/internal/commit"
	"holdfast/nip"
	"holdfast/queue"
)

const start = int64(1_790_000_000)

var bg = context.Background()

func deviceKey(i int) nip.PubKey {
	return nip.PubKey(strings.Repeat(fmt.Sprintf("%02x", i+1), 32))
}

func taskID(i int) nip.TaskID { return nip.TaskID(strings.Repeat(fmt.Sprintf("%02x", 0xa0+i), 32)) }

const (
	devices = 3
	tasks   = 2 // a third one does not exist
)

// pair is the system and its model, driven together.
type pair struct {
	*rapid.T
	ev     *commands.Evaluator
	m      *machine
	model  *model
	epochs [devices]int64
	minted int
	steps  *int
	landed bool // the crash of this run came behind its first transaction
}

func newPair(t *rapid.T, open func() (*commit.DB, error), steps *int) *pair {
	p := &pair{T: t, steps: steps,
		m: &machine{open: open, tasks: make(map[nip.TaskID]*world), ledger: make(map[string]answer)},
		model: &model{
			tasks: make(map[nip.TaskID]*world), leases: make(map[nip.TaskID]commands.Lease),
			revoked: make(map[commands.Sender]bool), pruned: make(map[string]bool), clock: start,
		},
	}
	for i := range tasks {
		v := commands.TaskView{
			Phase: commands.PhaseNotStarted, Revision: 1,
			Steering: commands.Steering{MidTurn: rapid.Bool().Draw(t, "mid turn"), Emulate: rapid.Bool().Draw(t, "emulate")},
		}
		p.m.tasks[taskID(i)], p.model.tasks[taskID(i)] = &world{TaskView: v}, &world{TaskView: v}
	}
	p.restart()
	if err := p.m.write(commands.Journal{}.Setup); err != nil {
		t.Fatal(err)
	}
	return p
}

// restart is a new process over what is on disk.
func (p *pair) restart() {
	p.m.dead, p.m.dieIn = false, 0
	if err := p.m.reopen(); err != nil {
		p.Fatal(err)
	}
	p.ev = &commands.Evaluator{
		DB: p.m, Tasks: owner{p.m}, Now: func() time.Time { return time.Unix(p.model.clock, 0) },
		Standing: func(_ *bbolt.Tx, s commands.Sender, _ int64) bool { return !p.model.revoked[s] },
	}
}

func (p *pair) evaluateAll() error {
	for i := range tasks + 1 {
		if err := p.ev.Evaluate(bg, taskID(i)); err != nil {
			return err
		}
	}
	return nil
}

// run does one thing to the system, perhaps with a crash somewhere inside and
// everything a restart and a patient device do about it. say does the same to
// the model, before or after the model's restart, as the crash had it.
func (p *pair) run(do func() error, say func()) {
	if rapid.IntRange(0, 3).Draw(p.T, "crash") == 0 {
		p.m.dieIn, p.m.dieLate = rapid.IntRange(1, 5).Draw(p.T, "at"), rapid.Bool().Draw(p.T, "late")
	} else if rapid.IntRange(0, 5).Draw(p.T, "surprise") == 0 {
		p.m.surprise = rapid.SampledFrom([]string{"begin", "finish", "ask", "lose", "check"}).Draw(p.T, "event")
		p.model.surprise = p.m.surprise
	}
	before := p.m.commits
	p.landed = false
	err := do()
	if errors.Is(err, errDied) {
		p.restart()
		if p.landed = p.m.commits > before; p.landed { // its first transaction, which records it, is on disk
			say()
			say = func() {}
		}
		p.model.settleAll()
		if err := p.evaluateAll(); err != nil {
			p.Fatalf("at restart: %v", err)
		}
		err = do()
	}
	if err != nil {
		p.Fatal(err)
	}
	p.m.dieIn = 0
	say()
}

// calm ends a surprise that met no effect.
func (p *pair) calm() {
	if p.m.surprise != p.model.surprise {
		p.Fatalf("the system and the model asked the task differently often: %q, %q", p.m.surprise, p.model.surprise)
	}
	p.m.surprise, p.model.surprise = "", ""
}

func (p *pair) sender(d int) commands.Sender {
	return commands.Sender{Device: deviceKey(d), Grant: "grant", Epoch: p.epochs[d]}
}

func (p *pair) mint() (int, nip.Command) {
	d := rapid.IntRange(0, devices-1).Draw(p.T, "device")
	p.minted++
	c := nip.Command{
		ID: nip.CommandID(fmt.Sprintf("%08d%056d", p.minted, 0)), Task: taskID(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 1, 2}).Draw(p.T, "task")),
		Action:   rapid.SampledFrom([]nip.Action{nip.Send, nip.Queue, nip.Queue, nip.Queue, nip.Steer, nip.Steer, nip.Interrupt, nip.Answer}).Draw(p.T, "action"),
		Text:     fmt.Sprint("text ", p.minted),
		IssuedAt: p.model.clock + rapid.SampledFrom([]int64{0, 0, 0, -86_390, -86_401, 300, 301}).Draw(p.T, "issued"),
	}
	if w := p.model.tasks[c.Task]; w != nil {
		c.BasedOn = max(0, w.Revision-rapid.SampledFrom([]int64{0, 0, 0, 1, 3}).Draw(p.T, "behind"))
	}
	c.Emulate = c.Action == nip.Steer && rapid.Bool().Draw(p.T, "emulated")
	return d, c
}

// submitNew sends a new command; blind: while the task cannot be seen.
func (p *pair) submitNew(blind bool) {
	d, c := p.mint()
	exact := rapid.IntRange(0, 4).Draw(p.T, "exact") == 0
	s := &said{from: deviceKey(d), sender: p.sender(d), c: c, text: c.Text, exact: exact, state: "received", arrival: p.minted, place: p.minted}
	say := func() {
		p.model.said = append(p.model.said, s)
		p.model.last = p.model.now()
	}
	if blind {
		say()
		p.m.blind = true
		_, err := p.ev.Submit(bg, p.sender(d), c, commands.Hooks{Exact: exact})
		p.m.blind = false
		if !errors.Is(err, commands.ErrUnsettled) {
			p.Fatal(err)
		}
		return
	}
	answers := ""
	p.run(func() error {
		e, err := p.ev.Submit(bg, p.sender(d), c, commands.Hooks{Exact: exact, Answer: func(_ *bbolt.Tx, e commands.Entry, err error) error {
			answers = describe(e)
			return err
		}})
		if err == nil && answers != describe(e) {
			p.Fatalf("answered %q, it is %q", answers, describe(e))
		}
		return err
	}, say)
	p.model.settle(c.Task)
	p.calm()
}

// replay sends something known again, whole or changed.
func (p *pair) replay() {
	if len(p.model.said) == 0 {
		p.Skip("nothing was said")
	}
	s := rapid.SampledFrom(p.model.said).Draw(p.T, "which")
	c, sender := s.c, s.sender
	sender.Grant = "renewed"
	changed := rapid.Bool().Draw(p.T, "changed")
	if changed {
		c.Text += "!"
	}
	var e commands.Entry
	p.run(func() (err error) {
		e, err = p.ev.Submit(bg, sender, c, commands.Hooks{Exact: s.exact})
		switch {
		case p.model.pruned[string(s.c.ID)] && errors.Is(err, commands.ErrPruned):
			return nil
		case changed && errors.Is(err, commands.ErrConflict):
			return nil
		case err == nil && (changed || p.model.pruned[string(s.c.ID)]):
			p.Fatalf("a changed or pruned command was taken: %s", describe(e))
		}
		return err
	}, func() {})
	if s.state == "received" && !changed {
		p.model.settle(s.c.Task)
	}
	p.calm()
}

func (p *pair) happen() {
	w := rapid.IntRange(0, tasks-1).Draw(p.T, "task")
	name := rapid.SampledFrom([]string{"begin", "begin", "finish", "finish", "ask", "ask", "lose", "archive", "check", "checked", "checked"}).Draw(p.T, "what")
	p.m.tasks[taskID(w)].event(name)
	p.model.tasks[taskID(w)].event(name)
	if rapid.Bool().Draw(p.T, "noticed") {
		p.evaluate()
	}
}

func (p *pair) evaluate() {
	p.run(p.evaluateAll, func() {})
	p.model.settleAll()
	p.calm()
}

func (p *pair) edit() {
	by := deviceKey(rapid.IntRange(0, devices-1).Draw(p.T, "by"))
	task := taskID(rapid.IntRange(0, tasks-1).Draw(p.T, "task"))
	if l, leased := p.model.leases[task]; leased && rapid.Bool().Draw(p.T, "holder") {
		by = l.Device
	}
	e := nip.QueueEdit{Action: rapid.SampledFrom([]string{"lease", "lease", "lease", "release", "edit", "remove", "reorder", "reorder", "send_now", "list"}).Draw(p.T, "edit")}
	var line []nip.CommandID
	for _, s := range p.model.line(task) {
		if !s.priority {
			line = append(line, s.c.ID)
		}
	}
	switch e.Action {
	case "edit", "remove", "send_now":
		if len(p.model.said) == 0 {
			p.Skip("nothing was said")
		}
		e.Command = rapid.SampledFrom(p.model.said).Draw(p.T, "which").c.ID
		if len(line) > 0 && rapid.Bool().Draw(p.T, "held one") {
			e.Command = rapid.SampledFrom(line).Draw(p.T, "held")
		}
		e.Text = rapid.SampledFrom([]string{"edited", "edited otherwise"}).Draw(p.T, "text")
	case "reorder":
		if len(line) == 0 {
			p.Skip("nothing is queued")
		}
		e.Commands = rapid.Permutation(line).Draw(p.T, "order")
	}
	var got nip.Code
	var state nip.QueueState
	crashed := 0
	p.run(func() error {
		if crashed++; p.landed && got != "" {
			return nil // refused, and that is on disk: the host answers so again and asks nobody
		}
		return p.ev.Edit(bg, task, func(tx *bbolt.Tx, view commands.TaskView, now int64) error {
			var err error
			state, got, err = queue.Apply(tx, p.ev.Journal, by, task, e, view, now)
			return err
		})
	}, func() {
		if want := p.model.edit(by, task, e); got != want && crashed == 1 {
			p.Fatalf("%s by %.2s: %q, the model says %q", e.Action, by, got, want)
		}
	})
	for _, item := range state.Items {
		if (item.Text != nil) != (item.Device == by) {
			p.Fatalf("%.2s is shown a text of %.2s", by, item.Device)
		}
	}
	p.model.settle(task)
	p.calm()
}

func (p *pair) pass() {
	p.model.clock += rapid.SampledFrom([]int64{1, 20, 59, 60, 61, 3_600, 50_000, 86_401, 250_000, -30, -7_200, -300_000}).Draw(p.T, "seconds")
	p.evaluate()
}

func (p *pair) revoke() {
	d := rapid.IntRange(0, devices-1).Draw(p.T, "device")
	p.model.revoked[p.sender(d)] = true
	p.epochs[d]++ // paired anew
	if err := p.m.write(func(tx *bbolt.Tx) error { return p.ev.Journal.DropLeases(tx, deviceKey(d)) }); err != nil {
		p.Fatal(err)
	}
	for task, l := range p.model.leases {
		if l.Device == deviceKey(d) {
			delete(p.model.leases, task)
		}
	}
	p.evaluate()
}

func (p *pair) prune() {
	if rapid.Bool().Draw(p.T, "long after") {
		p.model.clock += 200_000
		p.evaluate()
	}
	if err := p.m.write(func(tx *bbolt.Tx) error {
		_, err := p.ev.Journal.Prune(tx, p.model.clock, rapid.IntRange(1, 40).Draw(p.T, "limit"))
		return err
	}); err != nil {
		p.Fatal(err)
	}
	for _, s := range p.model.said {
		if p.model.pruned[string(s.c.ID)] || p.known(s) {
			continue
		}
		if s.open() || p.model.now()-s.ended < commands.Retention {
			p.Fatalf("%s was pruned, %d s after its end", s.state, p.model.now()-s.ended)
		}
		p.model.pruned[string(s.c.ID)] = true
	}
}

func (p *pair) entry(s *said) (e commands.Entry, known bool) {
	if err := p.m.db.View(func(tx *bbolt.Tx) (err error) {
		e, known, err = p.ev.Journal.Get(tx, commands.Key{Principal: s.from, Kind: commands.KindCommand, ID: string(s.c.ID)})
		return err
	}); err != nil {
		p.Fatal(err)
	}
	return e, known
}

func (p *pair) known(s *said) bool { _, known := p.entry(s); return known }

func describe(e commands.Entry) string {
	state := e.State.String()
	if e.State == commands.StateDone {
		state = e.Outcome.String()
	}
	return fmt.Sprintf("%s %s %v %q", state, e.Reason, e.Priority, e.Text)
}

// compare holds everything that can be seen of the system against the model.
func (p *pair) compare() {
	for _, s := range p.model.said {
		e, known := p.entry(s)
		if p.model.pruned[string(s.c.ID)] {
			continue
		}
		if !known {
			p.Fatalf("%s %.8s is lost", s.c.Action, s.c.ID)
		}
		want := fmt.Sprintf("%s %s %v %q", s.state, s.reason, s.priority, s.text)
		if got := describe(e); got != want {
			p.Fatalf("%s %.8s is %s, the model says %s", s.c.Action, s.c.ID, got, want)
		}
		if e.Command != s.c || e.Sender != s.sender {
			p.Fatalf("the original request of %.8s changed", s.c.ID)
		}
	}
	for i := range tasks {
		a, b := p.m.tasks[taskID(i)], p.model.tasks[taskID(i)]
		if a.TaskView != b.TaskView || !slices.Equal(a.Effects, b.Effects) {
			p.Fatalf("task %d is %+v\n%s\nthe model says %+v\n%s", i, a.TaskView, strings.Join(a.Effects, "\n"), b.TaskView, strings.Join(b.Effects, "\n"))
		}
		var line []string
		for _, s := range p.model.line(taskID(i)) {
			line = append(line, string(s.c.ID))
		}
		if err := p.m.db.View(func(tx *bbolt.Tx) error {
			held, _, err := p.ev.Journal.Held(tx, taskID(i), 100)
			var got []string
			for _, e := range held {
				got = append(got, e.Key.ID)
			}
			if !slices.Equal(got, line) {
				p.Fatalf("task %d runs %v, the model says %v", i, got, line)
			}
			return err
		}); err != nil {
			p.Fatal(err)
		}
	}
	if *p.steps++; *p.steps%10 == 0 {
		p.check()
	}
}

func (p *pair) check() {
	if err := p.m.db.View(func(tx *bbolt.Tx) error { _, err := p.ev.Journal.Check(tx); return err }); err != nil {
		p.Fatal(err)
	}
}

// TestJournalAgainstItsModel runs random devices, clocks, leases, revocations,
// surprises, crashes with a new start from the file, prunes and replays against
// the model: 100,000 steps over a store in memory, and 2,000 over a file with
// every sync. Under the race detector they are 4,000 and 200.
func TestJournalAgainstItsModel(t *testing.T) {
	t.Parallel()
	memory, disk := 50_000, 2_000
	if commands.Race {
		memory, disk = 2_000, 200
	}
	for _, half := range []string{"first", "second"} {
		t.Run("in memory, "+half+" half", func(t *testing.T) {
			t.Parallel()
			runModel(t, memory, func() (func() (*commit.DB, error), func(), error) {
				m, err := commit.NewMemory(storeOptions)
				if err != nil {
					return nil, nil, err
				}
				return m.Open, func() { m.Close() }, nil
			})
		})
	}
	t.Run("on disk", func(t *testing.T) {
		t.Parallel()
		dir, n := t.TempDir(), 0
		runModel(t, disk, func() (func() (*commit.DB, error), func(), error) {
			n++
			path := filepath.Join(dir, fmt.Sprint(n))
			return func() (*commit.DB, error) { return commit.Open(path, storeOptions) }, func() { os.Remove(path) }, nil
		})
	})
}

var storeOptions = commit.Options{Kind: "holdfast-host", Version: 1}

// runModel checks until so many steps were taken. Each run has a store of its own.
func runModel(t *testing.T, want int, store func() (open func() (*commit.DB, error), remove func(), err error)) {
	steps, broken := 0, false // broken: the last run did not end; its kind is looked for again
	for steps < want {
		rapid.Check(t, func(rt *rapid.T) {
			if steps >= want && !broken {
				return
			}
			broken = true
			open, remove, err := store()
			if err != nil {
				rt.Fatal(err)
			}
			defer remove()
			p := newPair(rt, open, &steps)
			defer func() { p.m.db.Close() }()
			for range 3 {
				p.repeat(rt)
			}
			broken = false
		})
	}
	t.Logf("%d steps", steps)
}

func (p *pair) repeat(rt *rapid.T) {
	on := func(fn func()) func(*rapid.T) {
		return func(t *rapid.T) { p.T = t; fn() }
	}
	submit := on(func() { p.submitNew(false) })
	rt.Repeat(map[string]func(*rapid.T){
		"submit": submit, "submit again": submit, "submit more": submit,
		"submit blind": on(func() { p.submitNew(true) }),
		"replay":       on(p.replay),
		"happen":       on(p.happen), "happen more": on(p.happen), "happen again": on(p.happen),
		"evaluate": on(p.evaluate),
		"edit":     on(p.edit), "edit more": on(p.edit), "edit again": on(p.edit),
		"time":   on(p.pass),
		"revoke": on(p.revoke),
		"prune":  on(p.prune),
		"":       on(p.compare),
	})
	p.check()
}
