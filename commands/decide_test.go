package commands

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/nip"
)

var update = flag.Bool("update", false, "record testdata/decide anew")

// dimension is one thing a decision may depend on, beside action and phase.
type dimension struct {
	name   string
	values []string
	set    func(e *Entry, f *Facts, value string)
}

var phases = []Phase{PhaseNotStarted, PhaseRunning, PhaseStopping, PhaseEnded, PhaseUnknown}

var dimensions = []dimension{
	{"state", []string{"received", "held"}, func(e *Entry, _ *Facts, v string) {
		if v == "held" {
			e.State, e.Position = StateHeld, 3
			// A steer is held with priority only.
			e.Priority = e.Priority || e.Command.Action == nip.Steer
		}
	}},
	{"archived", []string{"no", "yes"}, func(_ *Entry, f *Facts, v string) { f.View.Archived = v == "yes" }},
	{"based on", []string{"this turn", "an ended turn"}, func(e *Entry, f *Facts, v string) {
		f.View.Revision, f.View.TurnStart, e.Command.BasedOn = 9, 5, 7
		if v == "an ended turn" {
			e.Command.BasedOn = 4
		}
	}},
	{"newer interrupt", []string{"no", "yes"}, func(_ *Entry, f *Facts, v string) { f.Ahead.Interrupt = v == "yes" }},
	{"question", []string{"no", "yes"}, func(_ *Entry, f *Facts, v string) { f.View.Question = v == "yes" }},
	{"emulate", []string{"no", "yes"}, func(e *Entry, _ *Facts, v string) { e.Command.Emulate = v == "yes" }},
	{"engine", []string{"turn boundary", "mid turn", "emulates", "both"}, func(_ *Entry, f *Facts, v string) {
		f.View.Steering = Steering{MidTurn: v == "mid turn" || v == "both", Emulate: v == "emulates" || v == "both"}
	}},
	{"ahead", []string{"nothing", "queued", "priority"}, func(_ *Entry, f *Facts, v string) {
		f.Ahead.Held, f.Ahead.Priority = v != "nothing", v == "priority"
	}},
	{"lease", []string{"none", "held"}, func(_ *Entry, f *Facts, v string) { f.Leased = v == "held" }},
}

// subjects are the actions, and a queued message that its sender sent now.
var subjects = []struct {
	name   string
	action nip.Action
	sent   bool
}{
	{"interrupt", nip.Interrupt, false}, {"send", nip.Send, false}, {"queue", nip.Queue, false},
	{"steer", nip.Steer, false}, {"answer", nip.Answer, false}, {"queue-sent-now", nip.Queue, true},
}

func cell(action nip.Action, sent bool, phase Phase, values []string) Decision {
	e := Entry{State: StateReceived, Seq: 3, Priority: sent, Command: nip.Command{Action: action, IssuedAt: start}}
	if sent {
		e.Position = 3
	}
	f := Facts{View: TaskView{Phase: phase}, Standing: true, Now: start}
	for i, d := range dimensions {
		d.set(&e, &f, values[i])
	}
	return Decide(e, f)
}

// every calls fn with every combination of the dimensions' values.
func every(fn func(values []string)) {
	values := make([]string, len(dimensions))
	var fill func(i int)
	fill = func(i int) {
		if i == len(dimensions) {
			fn(values)
			return
		}
		for _, v := range dimensions[i].values {
			values[i] = v
			fill(i + 1)
		}
	}
	fill(0)
}

// matters finds the dimensions that change any cell of the subject.
func matters(action nip.Action, sent bool) []bool {
	out := make([]bool, len(dimensions))
	every(func(values []string) {
		for _, phase := range phases {
			base := cell(action, sent, phase, values)
			for i, d := range dimensions {
				for _, v := range d.values {
					keep := values[i]
					values[i] = v
					if cell(action, sent, phase, values) != base {
						out[i] = true
					}
					values[i] = keep
				}
			}
		}
	})
	return out
}

func decideTable(name string, action nip.Action, sent bool) []byte {
	used := matters(action, sent)
	var rows [][]string
	header := []string{}
	var rest []string
	for i, d := range dimensions {
		if used[i] {
			header = append(header, d.name)
		} else {
			rest = append(rest, d.name)
		}
	}
	dims := len(header)
	for _, p := range phases {
		header = append(header, strings.ReplaceAll(p.String(), "_", " "))
	}
	rows = append(rows, header)
	every(func(values []string) {
		var row []string
		for i, d := range dimensions {
			if used[i] {
				row = append(row, values[i])
			} else if values[i] != d.values[0] {
				return // the same cells again
			}
		}
		for _, p := range phases {
			row = append(row, cell(action, sent, p, values).String())
		}
		rows = append(rows, row)
	})
	var b bytes.Buffer
	fmt.Fprintf(&b, "Decisions over %s, by the task's phase. Every other combination was tried too:\n", strings.ReplaceAll(name, "-", ", "))
	fmt.Fprintf(&b, "nothing depends on %s.\n\n", strings.Join(rest, ", "))
	writeAligned(&b, rows, dims)
	return b.Bytes()
}

func writeAligned(b *bytes.Buffer, rows [][]string, dims int) {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, c := range row {
			width[i] = max(width[i], len(c))
		}
	}
	for n, row := range rows {
		line := ""
		for i, c := range row {
			if i == dims {
				line += "| "
			}
			line += fmt.Sprintf("%-*s  ", width[i], c)
		}
		fmt.Fprintln(b, strings.TrimRight(line, " "))
		if n == 0 {
			total := 2
			for _, w := range width {
				total += w + 2
			}
			fmt.Fprintln(b, strings.Repeat("-", total-2))
		}
	}
}

// firstTable is the part of a decision that is the same for every action.
func firstTable() []byte {
	ages := []struct {
		name     string
		issued   int64
		restored int64
	}{
		{"86400 s ago", start - CommandLife, 0}, {"86401 s ago", start - CommandLife - 1, 0},
		{"in 300 s", start + CommandFuture, 0}, {"in 301 s", start + CommandFuture + 1, 0},
		{"before a restore", start - 10, start - 9}, {"as it restored", start - 9, start - 9},
	}
	rows := [][]string{{"state", "issued", "standing", "task", "exact revision", "archived", "interrupt", "others"}}
	for _, state := range []State{StateReceived, StateHeld, StateDispatching, StateDone} {
		for _, age := range ages {
			for _, standing := range []bool{true, false} {
				for _, phase := range []Phase{PhaseEnded, PhaseMissing} {
					for _, exact := range []string{"not asked", "same", "moved"} {
						for _, archived := range []bool{false, true} {
							at := func(action nip.Action) string {
								e := Entry{State: state, Exact: exact != "not asked", Command: nip.Command{Action: action, BasedOn: 4, IssuedAt: age.issued}}
								if state != StateReceived {
									e.Position = 2
								}
								f := Facts{View: TaskView{Phase: phase, Revision: 4, Archived: archived}, Standing: standing, Restored: age.restored, Now: start}
								if exact == "moved" {
									f.View.Revision = 5
								}
								d := Decide(e, f)
								plain := Decide(Entry{State: state, Position: e.Position, Command: nip.Command{Action: action, BasedOn: 4, IssuedAt: start}},
									Facts{View: TaskView{Phase: PhaseEnded, Revision: 4}, Standing: true, Now: start})
								if d == plain && state < StateDispatching {
									return "by action"
								}
								return d.String()
							}
							other := at(nip.Send)
							for _, a := range []nip.Action{nip.Queue, nip.Steer} {
								if got := at(a); got != other {
									other += " / " + string(a) + ": " + got
								}
							}
							rows = append(rows, []string{
								state.String(), age.name, yes(standing), phase.String(), exact, yes(archived), at(nip.Interrupt), other,
							})
						}
					}
				}
			}
		}
	}
	var b bytes.Buffer
	fmt.Fprint(&b, "What is asked before the action: age, standing, task, exact revision, archive.\n\"by action\" is the action's own table.\n\n")
	writeAligned(&b, rows, 6)
	return b.Bytes()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "decide", name+".txt")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, want) {
		return
	}
	g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			t.Fatalf("%s line %d\n is       %s\n recorded %s", path, i+1, g[i], w[i])
		}
	}
	t.Fatalf("%s has %d lines, recorded are %d", path, len(g), len(w))
}

// TestDecideTables holds every cell of every action against the recorded
// tables; -update records them anew, for a person to read against the wire.
func TestDecideTables(t *testing.T) {
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) { golden(t, s.name, decideTable(s.name, s.action, s.sent)) })
	}
	t.Run("first", func(t *testing.T) { golden(t, "first", firstTable()) })
}

// TestDecideByTheWire is the table of NIP-HOST, evaluation of durable commands,
// written down by hand: it does not move when the recorded tables do.
func TestDecideByTheWire(t *testing.T) {
	bounded, native, emulating := Steering{}, Steering{MidTurn: true}, Steering{Emulate: true}
	rows := []struct {
		name  string
		edit  func(e *Entry, f *Facts)
		cells string // not started, running, stopping, ended, unknown
	}{
		{"interrupt", set(nip.Interrupt), "cancel; cancel; supersede; supersede; refuse unavailable"},
		{"interrupt of an ended turn", and(set(nip.Interrupt), old), "supersede; supersede; supersede; supersede; supersede"},
		{"interrupt before a newer one", and(set(nip.Interrupt), func(_ *Entry, f *Facts) { f.Ahead.Interrupt = true }), "supersede; supersede; supersede; supersede; supersede"},
		{"send", set(nip.Send), "refuse conflict; refuse conflict; refuse conflict; continue; refuse unavailable"},
		{"send behind a held one", and(set(nip.Send), behind), "refuse conflict; refuse conflict; refuse conflict; refuse conflict; refuse unavailable"},
		{"send under a lease", and(set(nip.Send), leased), "refuse conflict; refuse conflict; refuse conflict; continue; refuse unavailable"},
		{"queue", set(nip.Queue), "hold; hold; hold; continue; hold"},
		{"queue behind a held one", and(set(nip.Queue), behind), "hold; hold; hold; hold; hold"},
		{"queue under a lease", and(set(nip.Queue), leased), "hold; hold; hold; hold; hold"},
		{"queue, held", and(set(nip.Queue), held), "wait; wait; wait; continue; wait"},
		{"steer, bounded-command", and(set(nip.Steer), engine(bounded)), "correct; refuse unsupported; refuse unsupported; continue; refuse unavailable"},
		{"steer, native", and(set(nip.Steer), engine(native)), "correct; deliver; refuse conflict; continue; refuse unavailable"},
		{"steer, emulated", and(set(nip.Steer), engine(emulating), emulate), "correct; cancel, then hold with priority; hold with priority; continue; refuse unavailable"},
		{"steer, emulated, bounded-command", and(set(nip.Steer), engine(bounded), emulate), "correct; refuse unsupported; refuse unsupported; continue; refuse unavailable"},
		{"steer, emulation not asked for", and(set(nip.Steer), engine(emulating)), "correct; refuse unsupported; refuse unsupported; continue; refuse unavailable"},
		{"steer behind a priority one", and(set(nip.Steer), engine(emulating), emulate, behindPriority), "correct; cancel, then hold with priority; hold with priority; hold with priority; refuse unavailable"},
		{"steer behind a queued one", and(set(nip.Steer), behind), "correct; refuse unsupported; refuse unsupported; continue; refuse unavailable"},
		{"steer of an ended turn", and(set(nip.Steer), old), "hold with priority; hold with priority; hold with priority; continue; refuse unavailable"},
		{"steer, held", and(set(nip.Steer), held, emulate, engine(emulating)), "wait; wait; wait; continue; refuse unavailable"},
		{"answer, a question waits", and(set(nip.Answer), question), "refuse conflict; refuse conflict; refuse conflict; continue; refuse unavailable"},
		{"answer, no question", set(nip.Answer), "refuse conflict; refuse conflict; refuse conflict; refuse conflict; refuse unavailable"},
		{"answer behind a held one", and(set(nip.Answer), question, behind), "refuse conflict; refuse conflict; refuse conflict; refuse conflict; refuse unavailable"},
		{"answer to an ended turn", and(set(nip.Answer), question, old), "refuse stale; refuse stale; refuse stale; refuse stale; refuse unavailable"},
		{"sent now", and(set(nip.Queue), engine(emulating), sentNow), "correct; cancel, then hold with priority; hold with priority; continue; refuse unavailable"},
	}
	for _, row := range rows {
		for i, want := range strings.Split(row.cells, "; ") {
			e := Entry{State: StateReceived, Seq: 3, Command: nip.Command{BasedOn: 7, IssuedAt: start}}
			f := Facts{View: TaskView{Phase: phases[i], Revision: 9, TurnStart: 5}, Standing: true, Now: start}
			row.edit(&e, &f)
			if got := Decide(e, f).String(); got != want {
				t.Errorf("%s, %v: %s, the wire says %s", row.name, phases[i], got, want)
			}
		}
	}
}

type setup = func(e *Entry, f *Facts)

func set(a nip.Action) setup { return func(e *Entry, _ *Facts) { e.Command.Action = a } }

func and(all ...setup) setup {
	return func(e *Entry, f *Facts) {
		for _, s := range all {
			s(e, f)
		}
	}
}

func engine(s Steering) setup           { return func(_ *Entry, f *Facts) { f.View.Steering = s } }
func old(e *Entry, _ *Facts)            { e.Command.BasedOn = 4 }
func behind(_ *Entry, f *Facts)         { f.Ahead.Held = true }
func leased(_ *Entry, f *Facts)         { f.Leased = true }
func question(_ *Entry, f *Facts)       { f.View.Question = true }
func emulate(e *Entry, _ *Facts)        { e.Command.Emulate = true }
func sentNow(e *Entry, _ *Facts)        { e.Priority, e.Position, e.Command.BasedOn = true, 3, 4 }
func behindPriority(_ *Entry, f *Facts) { f.Ahead = Ahead{Held: true, Priority: true} }

func held(e *Entry, _ *Facts) {
	e.State, e.Position, e.Priority = StateHeld, 3, e.Command.Action == nip.Steer
}
