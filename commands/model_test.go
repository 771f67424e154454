package commands_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/internal/commit"
	"holdfast/nip"
	"holdfast/queue"
)

// world is one task as the owner keeps it. The system under test and the model
// have one each; they must stay equal.
type world struct {
	commands.TaskView
	Effects []string // "<device>/<command>/<step> <effect> <text>", in the order in which they happened
}

// event is what happens to a task from outside.
func (w *world) event(name string) {
	switch {
	case name == "begin" && w.Phase == commands.PhaseNotStarted:
		w.Revision++
		w.Phase, w.TurnStart = commands.PhaseRunning, w.Revision
	case (name == "finish" || name == "ask") && (w.Phase == commands.PhaseRunning || w.Phase == commands.PhaseStopping || w.Phase == commands.PhaseUnknown):
		w.Revision++
		w.Phase, w.Question = commands.PhaseEnded, name == "ask"
	case name == "lose" && w.Phase == commands.PhaseRunning:
		w.Revision++
		w.Phase = commands.PhaseUnknown
	case name == "check" && w.Phase == commands.PhaseEnded:
		w.Revision++
		w.Phase = commands.PhaseChecking
	case name == "checked" && w.Phase == commands.PhaseChecking:
		w.Revision++
		w.Phase = commands.PhaseEnded
	case name == "archive" && w.Phase == commands.PhaseEnded:
		w.Revision++
		w.Archived = !w.Archived
	}
}

// apply is the task's side of an effect, or a refusal.
func (w *world) apply(id string, effect commands.Effect, base int64, text string) string {
	if base != w.Revision {
		return "revision_mismatch"
	}
	switch {
	case effect == commands.EffectCancel && w.Phase == commands.PhaseNotStarted:
		w.Phase = commands.PhaseEnded
	case effect == commands.EffectCancel && w.Phase == commands.PhaseRunning:
		w.Phase = commands.PhaseStopping
	case effect == commands.EffectContinue && w.Phase == commands.PhaseEnded:
		w.Phase, w.Question = commands.PhaseNotStarted, false
	case effect == commands.EffectCorrect && w.Phase == commands.PhaseNotStarted:
	case effect == commands.EffectDeliver && w.Phase == commands.PhaseRunning:
	default:
		return "invalid_transition"
	}
	w.Revision++
	w.Effects = append(w.Effects, fmt.Sprintf("%s %s %s", id, effect, text))
	return ""
}

func stepID(device nip.PubKey, c nip.Command, effect commands.Effect) string {
	step := "apply"
	if effect == commands.EffectCancel && c.Action != nip.Interrupt {
		step = "stop"
	}
	return fmt.Sprintf("%.2s/%.8s/%s", device, c.ID, step)
}

var errDied = errors.New("the process died here")

// machine is the disk and the tasks under the system: what survives a crash.
type machine struct {
	db       *commit.DB
	open     func() (*commit.DB, error)
	tasks    map[nip.TaskID]*world
	ledger   map[string]answer // store command ID -> what it did: the same bytes do nothing more
	blind    bool              // View fails
	surprise string            // an event just before the next effect
	dieIn    int               // transactions and applies until the process dies; 0 never
	dieLate  bool              // it dies after the fatal one instead of before
	dead     bool
	commits  int
}

type answer struct {
	bytes    []byte
	revision int64
}

func (m *machine) step(fn func() error) error {
	if m.dead {
		return errDied
	}
	if m.dieIn > 0 {
		if m.dieIn--; m.dieIn == 0 {
			m.dead = true
			if m.dieLate {
				if err := fn(); err != nil {
					return err
				}
			}
			return errDied
		}
	}
	return fn()
}

func (m *machine) Update(_ context.Context, fn func(tx *bbolt.Tx) error) error {
	return m.step(func() error {
		err := m.write(fn)
		if err == nil {
			m.commits++
		}
		return err
	})
}

// write is a transaction that no crash meets.
func (m *machine) write(fn func(tx *bbolt.Tx) error) error { return m.db.Update(bg, fn) }

// reopen is what a new process finds: everything that was committed, read back
// from the file.
func (m *machine) reopen() (err error) {
	if m.db != nil {
		if err := m.db.Close(); err != nil {
			return err
		}
	}
	m.db, err = m.open()
	return err
}

func (m *machine) View(fn func(tx *bbolt.Tx) error) error {
	if m.dead {
		return errDied
	}
	return m.db.View(fn)
}

// owner is the Tasks of the machine.
type owner struct{ *machine }

type request struct {
	ID, Text string
	Effect   commands.Effect
	Base     int64
}

func (o owner) View(_ context.Context, task nip.TaskID) (commands.TaskView, error) {
	if o.blind {
		return commands.TaskView{}, errors.New("no view")
	}
	if w := o.tasks[task]; w != nil {
		return w.TaskView, nil
	}
	return commands.TaskView{}, nil
}

func (o owner) Compile(e commands.Entry, effect commands.Effect, view commands.TaskView) ([]byte, error) {
	return json.Marshal(request{stepID(e.Key.Principal, e.Command, effect), e.Text, effect, view.Revision})
}

func (o owner) Apply(_ context.Context, task nip.TaskID, b []byte) (out commands.Applied, err error) {
	err = o.step(func() error {
		var r request
		if err := json.Unmarshal(b, &r); err != nil {
			return err
		}
		if done, ok := o.ledger[r.ID]; ok {
			if out.Revision = done.revision; !bytes.Equal(done.bytes, b) {
				out = commands.Applied{Refused: "command_conflict"}
			}
			return nil
		}
		w := o.tasks[task]
		w.event(o.surprise)
		o.surprise = ""
		if out.Refused = w.apply(r.ID, r.Effect, r.Base, r.Text); out.Refused == "" {
			out.Revision = w.Revision
			o.ledger[r.ID] = answer{bytes.Clone(b), w.Revision}
		}
		return nil
	})
	return out, err
}

// said is one command in the model.
type said struct {
	from     nip.PubKey
	sender   commands.Sender
	c        nip.Command
	text     string
	exact    bool
	state    string // received, held, or how it ended: applied, expired, ...
	reason   nip.Code
	priority bool
	place    int // among queued ones
	arrival  int
	ended    int64
}

func (s *said) open() bool { return s.state == "received" || s.state == "held" }

// model is the reference: no disk, no crash, one thing after the other.
type model struct {
	tasks    map[nip.TaskID]*world
	said     []*said
	leases   map[nip.TaskID]commands.Lease
	revoked  map[commands.Sender]bool
	pruned   map[string]bool
	clock    int64
	last     int64 // time of the last change of an entry
	surprise string
}

func (m *model) now() int64 { return max(m.clock, m.last) }

func (m *model) find(from nip.PubKey, id nip.CommandID) *said {
	for _, s := range m.said {
		if s.from == from && s.c.ID == id {
			return s
		}
	}
	return nil
}

// line is the task's held messages in run order.
func (m *model) line(task nip.TaskID) []*said {
	var first, rest []*said
	for _, s := range m.said {
		switch {
		case s.c.Task != task || s.state != "held" && !(s.state == "received" && s.priority):
		case s.priority:
			first = append(first, s)
		default:
			rest = append(rest, s)
		}
	}
	slices.SortFunc(rest, func(a, b *said) int { return a.place - b.place })
	return append(first, rest...)
}

// settleAll is what a restart does.
func (m *model) settleAll() {
	for i := range tasks + 1 {
		m.settle(taskID(i))
	}
}

// settle evaluates the task until nothing changes.
func (m *model) settle(task nip.TaskID) {
	if l, ok := m.leases[task]; ok && m.now() >= l.ExpiresAt {
		delete(m.leases, task)
	}
	for again := true; again; {
		again = false
		for _, s := range m.said {
			if s.c.Task == task && s.open() && m.judge(s) {
				again = true
				break
			}
		}
	}
}

// judge decides s and carries it out; it says whether the task was asked for
// anything, so that everybody must look again.
func (m *model) judge(s *said) bool {
	cell := m.cell(s)
	word, code, _ := strings.Cut(cell, " ")
	switch word {
	case "wait":
		return false
	case "hold", "hold!":
		if s.state != "held" || s.priority != (word == "hold!") {
			s.state, s.priority = "held", word == "hold!"
			m.last = m.now()
		}
		return false
	case "refuse":
		m.end(s, "rejected", nip.Code(code))
		return false
	case "expire":
		m.end(s, "expired", nip.Expired)
		return false
	case "moot":
		m.end(s, "superseded", nip.Stale)
		return false
	}
	w := m.tasks[s.c.Task]
	effect := map[string]commands.Effect{
		"stop": commands.EffectCancel, "stop!": commands.EffectCancel, "next": commands.EffectContinue,
		"replace": commands.EffectCorrect, "deliver": commands.EffectDeliver,
	}[word]
	base := w.Revision
	w.event(m.surprise)
	m.surprise = ""
	m.last = m.now()
	switch refused := w.apply(stepID(s.from, s.c, effect), effect, base, s.text); {
	case refused == "revision_mismatch": // as if nothing had been said; it is judged again
	case refused != "":
		m.end(s, "rejected", nip.Conflict)
	case word == "stop!":
		s.state, s.priority = "held", true
	default:
		m.end(s, "applied", "")
	}
	return true
}

func (m *model) end(s *said, state string, reason nip.Code) {
	m.last = m.now()
	s.state, s.reason, s.ended = state, reason, m.last
}

// cells is the table of the wire: not started, running, stopping, ended, unknown; and ended, but being checked.
var cells = map[nip.Action][6]string{
	nip.Interrupt: {"stop", "stop", "moot", "moot", "refuse unavailable", "moot"},
	nip.Send:      {"refuse conflict", "refuse conflict", "refuse conflict", "next or refuse conflict", "refuse unavailable", "refuse conflict"},
	nip.Queue:     {"hold", "hold", "hold", "next or hold", "hold", "hold"},
	nip.Steer:     {"replace", "steer", "steer", "next or hold!", "refuse unavailable", "hold!"},
	nip.Answer:    {"refuse conflict", "refuse conflict", "refuse conflict", "next or refuse conflict", "refuse unavailable", "refuse conflict"},
}

// cell says what happens to s, in the words of the table.
func (m *model) cell(s *said) string {
	w, ok := m.tasks[s.c.Task]
	switch {
	case m.now() > s.c.IssuedAt+86_400:
		return "expire"
	case s.c.IssuedAt > m.now()+300:
		return "refuse bounds"
	case m.revoked[s.sender]:
		return "refuse revoked"
	case !ok:
		return "refuse forbidden"
	case s.exact && s.state == "received" && !s.priority && w.Revision != s.c.BasedOn:
		return "refuse stale"
	case w.Archived && s.c.Action != nip.Interrupt:
		return "refuse conflict"
	}
	return m.byAction(s, w)
}

func (m *model) byAction(s *said, w *world) string {
	ended := s.c.BasedOn < w.TurnStart
	action := s.c.Action
	sentNow := action == nip.Queue && s.priority
	if sentNow {
		action, ended = nip.Steer, false
	}
	column := int(w.Phase) - 1
	ahead, aheadPriority := false, false
	for _, other := range m.line(s.c.Task) {
		if other == s {
			continue
		}
		before := other.arrival < s.arrival
		if !other.priority && !s.priority {
			before = other.place < s.place
		}
		aheadPriority = aheadPriority || other.priority && other.arrival < s.arrival
		ahead = ahead || before || other.priority && !s.priority
	}
	_, leased := m.leases[s.c.Task]
	switch action {
	case nip.Interrupt:
		if ended || m.laterStop(s) {
			return "moot"
		}
	case nip.Answer:
		if column == 4 {
			break
		}
		if ended {
			return "refuse stale"
		}
		ahead = ahead || !w.Question
	case nip.Queue:
		ahead = ahead || leased
	case nip.Steer:
		ahead = aheadPriority
		if column < 3 && (ended || s.state == "held") {
			return "hold!"
		}
	}
	cell := cells[action][column]
	if before, after, either := strings.Cut(cell, " or "); either {
		if cell = before; ahead {
			cell = after
		}
	}
	if cell != "steer" {
		return cell
	}
	switch {
	case (s.c.Emulate || sentNow) && !w.Steering.Emulate, !s.c.Emulate && !sentNow && !w.Steering.MidTurn:
		return "refuse unsupported"
	case s.c.Emulate || sentNow:
		return []string{"", "stop!", "hold!"}[column]
	case column == 2:
		return "refuse conflict"
	}
	return "deliver"
}

// laterStop says whether a newer interrupt would stop the task.
func (m *model) laterStop(s *said) bool {
	for _, other := range m.said {
		if other.arrival > s.arrival && other.c.Task == s.c.Task && other.open() && other.c.Action == nip.Interrupt && m.cell(other) == "stop" {
			return true
		}
	}
	return false
}

// edit is the table of queue edits.
func (m *model) edit(by nip.PubKey, task nip.TaskID, e nip.QueueEdit) nip.Code {
	w := m.tasks[task]
	l, leased := m.leases[task]
	if leased && m.now() >= l.ExpiresAt {
		leased = false
	}
	mine := leased && l.Device == by
	switch e.Action {
	case "list":
		return ""
	case "lease":
		if leased && !mine {
			return nip.Conflict
		}
		m.leases[task] = commands.Lease{Device: by, ExpiresAt: m.now() + queue.LeaseSeconds}
		return ""
	case "release":
		if mine {
			delete(m.leases, task)
		}
		return ""
	}
	if !mine {
		return nip.Conflict
	}
	if e.Action == "reorder" {
		return m.reorder(task, e.Commands)
	}
	s := m.find(by, e.Command)
	switch {
	case s == nil || m.pruned[string(s.c.ID)] || s.c.Task != task:
		return nip.Forbidden
	case e.Action == "remove" && s.state == "removed", e.Action == "send_now" && s.priority && s.open():
		return ""
	case s.state != "held":
		return nip.Conflict
	case e.Action == "send_now" && !w.Steering.Emulate:
		return nip.Unsupported
	case e.Action == "send_now" && w.Phase == commands.PhaseUnknown:
		return nip.Unavailable
	}
	switch e.Action {
	case "edit":
		if s.text == e.Text {
			return ""
		}
		s.text = e.Text
	case "remove":
		m.end(s, "removed", "")
	case "send_now":
		s.state, s.priority = "received", true
	}
	m.last = m.now()
	return ""
}

func (m *model) reorder(task nip.TaskID, order []nip.CommandID) nip.Code {
	var queued []*said
	for _, s := range m.line(task) {
		if !s.priority {
			queued = append(queued, s)
		}
	}
	byID := make(map[nip.CommandID]*said)
	var places []int
	for _, s := range queued {
		byID[s.c.ID] = s
		places = append(places, s.place)
	}
	wanted := make(map[nip.CommandID]bool)
	for _, id := range order {
		if byID[id] == nil {
			return nip.Conflict
		}
		wanted[id] = true
	}
	if len(order) != len(queued) || len(byID) != len(queued) || !slices.Equal(slices.Sorted(maps.Keys(wanted)), slices.Sorted(maps.Keys(byID))) {
		return nip.Conflict
	}
	for i, id := range order {
		if byID[id].place != places[i] {
			byID[id].place = places[i]
			m.last = m.now()
		}
	}
	return ""
}
