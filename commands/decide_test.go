package commands

import (
	"strings"
	"testing"

	"holdfast/nip"
)

// phases are the columns of the wire's table, and one that it does not have: an ended turn that is being checked,
// behind which what may wait waits.
var phases = []Phase{PhaseNotStarted, PhaseRunning, PhaseStopping, PhaseEnded, PhaseUnknown, PhaseChecking}

// TestDecideByTheWire is the table of NIP-HOST, evaluation of durable commands,
// written down by hand: it does not move when the recorded tables do.
func TestDecideByTheWire(t *testing.T) {
	bounded, native, emulating := Steering{}, Steering{MidTurn: true}, Steering{Emulate: true}
	rows := []struct {
		name  string
		edit  func(e *Entry, f *Facts)
		cells string // not started, running, stopping, ended, unknown, checking
	}{
		{"interrupt", set(nip.Interrupt), "cancel; cancel; supersede; supersede; refuse unavailable; supersede"},
		{"interrupt of an ended turn", and(set(nip.Interrupt), old), "supersede; supersede; supersede; supersede; supersede; supersede"},
		{"interrupt before a newer one", and(set(nip.Interrupt), func(_ *Entry, f *Facts) { f.Ahead.Interrupt = true }), "supersede; supersede; supersede; supersede; supersede; supersede"},
		{"send", set(nip.Send), "refuse conflict; refuse conflict; refuse conflict; continue; refuse unavailable; refuse conflict"},
		{"send behind a held one", and(set(nip.Send), behind), "refuse conflict; refuse conflict; refuse conflict; refuse conflict; refuse unavailable; refuse conflict"},
		{"send under a lease", and(set(nip.Send), leased), "refuse conflict; refuse conflict; refuse conflict; continue; refuse unavailable; refuse conflict"},
		{"queue", set(nip.Queue), "hold; hold; hold; continue; hold; hold"},
		{"queue behind a held one", and(set(nip.Queue), behind), "hold; hold; hold; hold; hold; hold"},
		{"queue under a lease", and(set(nip.Queue), leased), "hold; hold; hold; hold; hold; hold"},
		{"queue, held", and(set(nip.Queue), held), "wait; wait; wait; continue; wait; wait"},
		{"steer, bounded-command", and(set(nip.Steer), engine(bounded)), "correct; refuse unsupported; refuse unsupported; continue; refuse unavailable; hold with priority"},
		{"steer, native", and(set(nip.Steer), engine(native)), "correct; deliver; refuse conflict; continue; refuse unavailable; hold with priority"},
		{"steer, emulated", and(set(nip.Steer), engine(emulating), emulate), "correct; cancel, then hold with priority; hold with priority; continue; refuse unavailable; hold with priority"},
		{"steer, emulated, bounded-command", and(set(nip.Steer), engine(bounded), emulate), "correct; refuse unsupported; refuse unsupported; continue; refuse unavailable; hold with priority"},
		{"steer, emulation not asked for", and(set(nip.Steer), engine(emulating)), "correct; refuse unsupported; refuse unsupported; continue; refuse unavailable; hold with priority"},
		{"steer behind a priority one", and(set(nip.Steer), engine(emulating), emulate, behindPriority), "correct; cancel, then hold with priority; hold with priority; hold with priority; refuse unavailable; hold with priority"},
		{"steer behind a queued one", and(set(nip.Steer), behind), "correct; refuse unsupported; refuse unsupported; continue; refuse unavailable; hold with priority"},
		{"steer of an ended turn", and(set(nip.Steer), old), "hold with priority; hold with priority; hold with priority; continue; refuse unavailable; hold with priority"},
		{"steer, held", and(set(nip.Steer), held, emulate, engine(emulating)), "wait; wait; wait; continue; refuse unavailable; wait"},
		{"answer, a question waits", and(set(nip.Answer), question), "refuse conflict; refuse conflict; refuse conflict; continue; refuse unavailable; refuse conflict"},
		{"answer, no question", set(nip.Answer), "refuse conflict; refuse conflict; refuse conflict; refuse conflict; refuse unavailable; refuse conflict"},
		{"answer behind a held one", and(set(nip.Answer), question, behind), "refuse conflict; refuse conflict; refuse conflict; refuse conflict; refuse unavailable; refuse conflict"},
		{"answer to an ended turn", and(set(nip.Answer), question, old), "refuse stale; refuse stale; refuse stale; refuse stale; refuse unavailable; refuse stale"},
		{"sent now", and(set(nip.Queue), engine(emulating), sentNow), "correct; cancel, then hold with priority; hold with priority; continue; refuse unavailable; hold with priority"},
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
