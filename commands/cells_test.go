package commands

import (
	"fmt"

	"holdfast/nip"
)

// dimension is one thing that a decision may depend on. set writes the i-th
// value into an entry and its facts, over any other value of the dimension.
type dimension struct {
	name   string
	values []string
	set    func(e *Entry, f *Facts, i int)
}

// The dimensions' places in space.
const (
	dimAction = iota
	dimPhase
	dimState
	dimTime
	dimStanding
	dimBasedOn
	dimArchived
	dimEmulate
	dimEngine
	dimQuestion
	dimAhead
	dimNewer
	dimLease
	dimensions
)

// The task stands at this revision in every cell; its turn began at turnStart.
const (
	cellRevision  = 9
	cellTurnStart = 5
)

// actionBogus is none of the wire's.
const actionBogus nip.Action = "dance"

// space is every cell of Decide: the full product of what its arguments can
// say. Numbers stand for their classes, with both sides of every bound.
var space = [dimensions]dimension{
	dimAction: {"action", []string{"interrupt", "send", "queue", "steer", "answer", "unknown"}, func(e *Entry, _ *Facts, i int) {
		e.Command.Action = []nip.Action{nip.Interrupt, nip.Send, nip.Queue, nip.Steer, nip.Answer, actionBogus}[i]
	}},
	dimPhase: {"phase", []string{"missing", "not_started", "running", "stopping", "ended", "unknown", "checking"}, func(_ *Entry, f *Facts, i int) {
		f.View.Phase = []Phase{PhaseMissing, PhaseNotStarted, PhaseRunning, PhaseStopping, PhaseEnded, PhaseUnknown, PhaseChecking}[i]
	}},
	// sent_now is a held message that its sender sent now: received again,
	// with a place in the line and priority.
	dimState: {"state", []string{"received", "sent_now", "held", "held_first", "dispatching", "done"}, func(e *Entry, _ *Facts, i int) {
		e.State = []State{StateReceived, StateReceived, StateHeld, StateHeld, StateDispatching, StateDone}[i]
		e.Priority = i == 1 || i == 3
		e.Position = []int64{0, 3, 3, 3, 3, 3}[i]
	}},
	// Seconds between the command's issue and now, and the backup that the
	// store came from: restored is dated as far after it as a command may be
	// dated ahead, past_restore a second later.
	dimTime: {"issued", []string{"now", "-86400", "-86401", "+300", "+301", "restored", "past_restore"}, func(e *Entry, f *Facts, i int) {
		f.Now, f.Restored = start, 0
		e.Command.IssuedAt = start + []int64{0, -CommandLife, -CommandLife - 1, CommandFuture, CommandFuture + 1, -10, -10}[i]
		switch i {
		case 5:
			f.Restored = start - 10 - CommandFuture
		case 6:
			f.Restored = start - 11 - CommandFuture
		}
	}},
	dimStanding: {"standing", []string{"yes", "no"}, func(_ *Entry, f *Facts, i int) { f.Standing = i == 0 }},
	// Where the command's revision lies: before the turn of now, at its start
	// or within it, at the task's revision, beyond it; exact is the
	// exact-revision variant.
	dimBasedOn: {"based_on", []string{"older", "turn", "current", "newer", "exact_older", "exact_turn", "exact_current", "exact_newer"}, func(e *Entry, f *Facts, i int) {
		f.View.Revision, f.View.TurnStart = cellRevision, cellTurnStart
		e.Command.BasedOn = []int64{cellTurnStart - 1, cellTurnStart, cellRevision, cellRevision + 1}[i%4]
		e.Exact = i >= 4
	}},
	dimArchived: {"archived", []string{"no", "yes"}, func(_ *Entry, f *Facts, i int) { f.View.Archived = i == 1 }},
	dimEmulate:  {"emulate", []string{"no", "yes"}, func(e *Entry, _ *Facts, i int) { e.Command.Emulate = i == 1 }},
	// The engine's steering row: native mid_turn or turn_boundary, and whether
	// it offers cancel_and_continue.
	dimEngine: {"engine", []string{"boundary", "boundary+emulates", "mid_turn", "mid_turn+emulates"}, func(_ *Entry, f *Facts, i int) {
		f.View.Steering = Steering{MidTurn: i >= 2, Emulate: i%2 == 1}
	}},
	dimQuestion: {"question", []string{"no", "yes"}, func(_ *Entry, f *Facts, i int) { f.View.Question = i == 1 }},
	dimAhead: {"ahead", []string{"nothing", "held", "priority"}, func(_ *Entry, f *Facts, i int) {
		f.Ahead.Held, f.Ahead.Priority = i > 0, i == 2
	}},
	dimNewer: {"newer_stop", []string{"no", "yes"}, func(_ *Entry, f *Facts, i int) { f.Ahead.Interrupt = i == 1 }},
	dimLease: {"lease", []string{"none", "held"}, func(_ *Entry, f *Facts, i int) { f.Leased = i == 1 }},
}

// cell is one combination: the index of a value in each dimension.
type cell [dimensions]uint8

func (c cell) String() string {
	out := ""
	for d, i := range c {
		out += fmt.Sprintf("%s=%s ", space[d].name, space[d].values[i])
	}
	return out
}

// decideAll is every cell's decision, by its number.
func decideAll() []Decision {
	out := make([]Decision, 0, cellCount())
	var e Entry
	var f Facts
	var fill func(d int)
	fill = func(d int) {
		if d == len(space) {
			out = append(out, Decide(e, f))
			return
		}
		for i := range space[d].values {
			space[d].set(&e, &f, i)
			fill(d + 1)
		}
	}
	fill(0)
	return out
}

// cellCount is the size of the space.
func cellCount() int {
	n := 1
	for _, d := range space {
		n *= len(d.values)
	}
	return n
}

// cellAt is the cell of a number: the last dimension runs fastest.
func cellAt(n int) (c cell) {
	for d := dimensions - 1; d >= 0; d-- {
		size := len(space[d].values)
		c[d] = uint8(n % size)
		n /= size
	}
	return c
}

// block is a set of cells: in each dimension, the bits of the values it holds.
type block [dimensions]uint16

func wholeSpace() (b block) {
	for d := range space {
		b[d] = 1<<len(space[d].values) - 1
	}
	return b
}

// each calls fn with the number of every cell of the block until fn says false.
func (b block) each(fn func(n int) bool) {
	var fill func(d, n int) bool
	fill = func(d, n int) bool {
		if d == len(space) {
			return fn(n)
		}
		size := len(space[d].values)
		for i := range size {
			if b[d]&(1<<i) != 0 && !fill(d+1, n*size+i) {
				return false
			}
		}
		return true
	}
	fill(0, 0)
}
