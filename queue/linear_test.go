package queue_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/internal/commit"
	"holdfast/nip"
	"holdfast/queue"
)

// call is one edit, or one message that is queued, as a device made it: what it
// asked, what it was answered, and when, in ticks of one counter.
type call struct {
	by       int
	edit     nip.QueueEdit // Action "queue" submits Command
	now      int64         // the time it was carried out at, by the journal's clock
	answer   string
	from, to int64
}

func (c call) String() string {
	return fmt.Sprintf("%d..%d device %d at +%d: %s %v %v %q -> %s", c.from, c.to, c.by, c.now-start, c.edit.Action, short(c.edit.Command), shorts(c.edit.Commands), c.edit.Text, c.answer)
}

func short(id nip.CommandID) string { return strings.TrimLeft(string(id), "0") }

func shorts(ids []nip.CommandID) (out []string) {
	for _, id := range ids {
		out = append(out, short(id))
	}
	return out
}

// message is one held message of the sequential queue.
type message struct {
	id    nip.CommandID
	owner int
	text  string
}

// sequential is the queue as one person would keep it on paper.
type sequential struct {
	holder int // -1: nobody
	until  int64
	first  []message // sent now, in arrival order
	queued []message
	gone   map[nip.CommandID]int // removed ones and who wrote them
	last   int64                 // journalled time
}

func (q sequential) clone() sequential {
	q.first, q.queued, q.gone = slices.Clone(q.first), slices.Clone(q.queued), maps.Clone(q.gone)
	return q
}

// show is the queue as a device sees it.
func (q sequential) show(by int) string {
	var out []string
	if q.holder >= 0 {
		out = append(out, fmt.Sprintf("lease %.2s+%d", device(q.holder), q.until-start))
	}
	for i, m := range slices.Concat(q.first, q.queued) {
		word := short(m.id)
		if i < len(q.first) {
			word += "!"
		}
		if m.owner == by {
			word += "=" + m.text
		}
		out = append(out, word)
	}
	return strings.Join(out, ", ")
}

// do carries a call out and returns the answer that it must have had; ok is
// false where its time cannot be right.
func (q *sequential) do(c call) (answer string, ok bool) {
	if c.now < q.last {
		return "", false
	}
	if q.holder >= 0 && c.now >= q.until {
		q.holder = -1
	}
	code := q.change(c)
	if code != "" {
		return code, true
	}
	return q.show(c.by), true
}

func (q *sequential) change(c call) string {
	switch c.edit.Action {
	case "list":
		return ""
	case "queue":
		q.queued = append(q.queued, message{c.edit.Command, c.by, c.edit.Text})
		q.last = c.now
		return "held"
	case "lease":
		if q.holder >= 0 && q.holder != c.by {
			return "conflict"
		}
		q.holder, q.until = c.by, c.now+queue.LeaseSeconds
		return ""
	case "release":
		if q.holder == c.by {
			q.holder = -1
		}
		return ""
	}
	if q.holder != c.by {
		return "conflict"
	}
	if c.edit.Action == "reorder" {
		return q.reorder(c)
	}
	of := func(m message) bool { return m.id == c.edit.Command }
	at, first := slices.IndexFunc(q.queued, of), slices.IndexFunc(q.first, of)
	owner, known := q.gone[c.edit.Command]
	line := &q.queued
	switch {
	case at >= 0:
		owner, known = q.queued[at].owner, true
	case first >= 0:
		owner, known, line, at = q.first[first].owner, true, &q.first, first
	}
	switch {
	case !known || owner != c.by:
		return "forbidden"
	case at < 0 && c.edit.Action == "remove", c.edit.Action == "send_now" && first >= 0:
		return ""
	case at < 0:
		return "conflict"
	}
	m := (*line)[at]
	switch c.edit.Action {
	case "edit":
		if m.text == c.edit.Text {
			return ""
		}
		(*line)[at].text = c.edit.Text
	case "remove":
		*line = slices.Delete(*line, at, at+1)
		q.gone[m.id] = m.owner
	case "send_now":
		q.queued = slices.Delete(q.queued, at, at+1)
		q.first = append(q.first, m)
		slices.SortFunc(q.first, func(a, b message) int { return strings.Compare(string(a.id), string(b.id)) })
	}
	q.last = c.now
	return ""
}

func (q *sequential) reorder(c call) string {
	var moved []message
	for _, id := range c.edit.Commands {
		at := slices.IndexFunc(q.queued, func(m message) bool { return m.id == id })
		if at < 0 {
			return "conflict"
		}
		moved = append(moved, q.queued[at])
	}
	if len(moved) != len(q.queued) {
		return "conflict"
	}
	if !slices.Equal(moved, q.queued) {
		q.queued, q.last = moved, c.now
	}
	return ""
}

// linear looks for an order of the calls that one after the other gives every
// answer, in which no call stands before one that had ended when it began.
func linear(q sequential, history []call) bool {
	seen := make(map[string]bool)
	var search func(q sequential, done uint64) bool
	search = func(q sequential, done uint64) bool {
		if done == 1<<len(history)-1 {
			return true
		}
		state := fmt.Sprintf("%d %+v", done, q)
		if seen[state] {
			return false
		}
		seen[state] = true
		ends := int64(1) << 62 // the first end among those that are left
		for i, c := range history {
			if done&(1<<i) == 0 {
				ends = min(ends, c.to)
			}
		}
		for i, c := range history {
			if done&(1<<i) != 0 || c.from > ends {
				continue
			}
			next := q.clone()
			if answer, ok := next.do(c); ok && answer == c.answer && search(next, done|1<<i) {
				return true
			}
		}
		return false
	}
	return search(q, 0)
}

// party is some devices on one task of a store that others use too.
type party struct {
	ev    *commands.Evaluator
	task  nip.TaskID
	ticks *atomic.Int64
	ids   *atomic.Int64
}

// still is a task that is being stopped: messages wait, and nothing happens to them.
type still struct{}

func (still) View(context.Context, nip.TaskID) (commands.TaskView, error) {
	return commands.TaskView{Phase: commands.PhaseStopping, Revision: 5, TurnStart: 5, Steering: commands.Steering{Emulate: true}}, nil
}

func (still) Compile(commands.Entry, commands.Effect, commands.TaskView) ([]byte, error) {
	panic("a task that stands still is asked for nothing")
}

func (still) Apply(context.Context, nip.TaskID, []byte) (commands.Applied, error) {
	panic("a task that stands still is asked for nothing")
}

// make makes one call.
func (p *party) make(c call) (call, error) {
	c.from = p.ticks.Add(1)
	var err error
	if c.edit.Action == "queue" {
		var e commands.Entry
		m := nip.Command{ID: c.edit.Command, Task: p.task, Action: nip.Queue, BasedOn: 5, Text: c.edit.Text, IssuedAt: p.ev.Now().Unix()}
		e, err = p.ev.Submit(bg, commands.Sender{Device: device(c.by), Grant: "g"}, m, commands.Hooks{})
		c.now, c.answer = e.ReceivedAt, e.State.String()
	} else {
		err = p.ev.Edit(bg, p.task, func(tx *bbolt.Tx, view commands.TaskView, now int64) error {
			state, code, err := queue.Apply(tx, p.ev.Journal, device(c.by), p.task, c.edit, view, now)
			if c.now, c.answer = now, string(code); code == "" {
				c.answer = line(state)
			}
			return err
		})
	}
	c.to = p.ticks.Add(1)
	return c, err
}

// mint draws a call of a device over the messages that it may have seen.
func (p *party) mint(dice *rand.Rand, by int, known []nip.CommandID) call {
	c := call{by: by}
	actions := []string{"lease", "lease", "lease", "release", "edit", "edit", "edit", "remove", "reorder", "reorder", "send_now", "list", "queue"}
	switch c.edit.Action = actions[dice.IntN(len(actions))]; c.edit.Action {
	case "edit", "remove", "send_now":
		c.edit.Command, c.edit.Text = known[dice.IntN(len(known))], fmt.Sprint("by ", by, ", ", dice.IntN(1000))
	case "reorder":
		for _, i := range dice.Perm(len(known)) {
			c.edit.Commands = append(c.edit.Commands, known[i])
		}
	case "queue":
		c.edit.Command = id(int(p.ids.Add(1)))
		c.edit.Text = "text " + short(c.edit.Command)
	}
	return c
}

// TestQueueIsLinear: several devices lease, edit, remove, reorder, send now,
// list and queue at the same time on one task, over a clock that jumps both
// ways; what each was answered fits some order of them, one after the other,
// that keeps every "before". The order's times are the journal's: they never
// run back over a change, and no edit counts from the second at which its lease
// ended.
func TestQueueIsLinear(t *testing.T) {
	t.Parallel()
	memory, err := commit.NewMemory(commit.Options{Kind: "holdfast-host", Version: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	db, err := memory.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(bg, commands.Journal{}.Setup); err != nil {
		t.Fatal(err)
	}
	var clock, ticks, ids atomic.Int64
	clock.Store(start)
	ev := &commands.Evaluator{
		DB: db, Tasks: still{}, Now: func() time.Time { return time.Unix(clock.Load(), 0) },
		Standing: func(*bbolt.Tx, commands.Sender, int64) bool { return true },
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const devices, calls = 3, 6
	answers, overlaps := make(map[string]int), 0
	for round := range 400 {
		dice := rand.New(rand.NewPCG(seed, uint64(round)))
		p := &party{ev: ev, task: nip.TaskID(fmt.Sprintf("%064x", round+1)), ticks: &ticks, ids: &ids}
		q := sequential{holder: -1, gone: make(map[nip.CommandID]int)}
		var known []nip.CommandID
		for i := range 3 { // in arrival order: nobody else is there yet
			c, err := p.make(call{by: i, edit: nip.QueueEdit{Action: "queue", Command: id(int(ids.Add(1))), Text: "first"}})
			if err != nil {
				t.Fatal(err)
			}
			q.do(c)
			known = append(known, c.edit.Command)
		}
		history := play(t, p, dice, &clock, known, devices, calls)
		for _, c := range history {
			word := c.answer
			if !slices.Contains([]string{"held", "conflict", "forbidden"}, word) {
				word = "done"
			}
			answers[c.edit.Action+" "+word]++
			for _, other := range history {
				if other.from < c.from && c.from < other.to {
					overlaps++
				}
			}
		}
		if !linear(q, history) {
			slices.SortFunc(history, func(a, b call) int { return int(a.from - b.from) })
			for _, c := range history {
				t.Log(c)
			}
			t.Fatalf("round %d: no order gives these answers", round)
		}
	}
	if err := db.View(func(tx *bbolt.Tx) error { _, err := ev.Journal.Check(tx); return err }); err != nil {
		t.Error(err)
	}
	t.Logf("%d calls began within another: %v", overlaps, answers)
	if overlaps < 400 {
		t.Error("the devices hardly met")
	}
	for _, want := range []string{"edit done", "edit conflict", "edit forbidden", "lease conflict", "lease done", "reorder done", "reorder conflict", "remove done", "send_now done"} {
		if answers[want] == 0 {
			t.Errorf("no round had %q", want)
		}
	}
}

// play lets the devices call at once, while the clock jumps between their
// calls, and returns what happened.
func play(t *testing.T, p *party, dice *rand.Rand, clock *atomic.Int64, known []nip.CommandID, devices, calls int) []call {
	var mu sync.Mutex // guards history
	var history []call
	var all sync.WaitGroup
	begin := make(chan struct{})
	for d := range devices {
		mine := rand.New(rand.NewPCG(dice.Uint64(), uint64(d)))
		all.Go(func() {
			<-begin
			for range calls {
				c, err := p.make(p.mint(mine, d, known))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				history = append(history, c)
				mu.Unlock()
				if mine.IntN(3) == 0 {
					clock.Add([]int64{1, 15, 30, 59, 60, -20, -45, -60}[mine.IntN(8)])
				}
				if mine.IntN(2) == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	close(begin)
	all.Wait()
	return history
}
