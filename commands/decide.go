package commands

import "holdfast/nip"

// Decide judges one undecided entry. It is hop 6 of the data path, pure: what
// it says depends on its arguments alone. journal.go comes before, evaluate.go
// after. The order of the checks is that of NIP-HOST, evaluation of durable
// commands; the 24 hours and the sender's standing hold for entries that wait
// as for new ones.
func Decide(e Entry, f Facts) Decision {
	c := e.Command
	switch {
	case e.State != StateReceived && e.State != StateHeld:
		return Decision{} // decided, or its bytes are on their way
	case f.Now > c.IssuedAt+CommandLife || beforeRestore(c.IssuedAt, f.Restored):
		return Decision{Verdict: VerdictExpire}
	case c.IssuedAt > f.Now+CommandFuture:
		return reject(nip.Bounds)
	case !f.Standing:
		return reject(nip.Revoked)
	case f.View.Phase == PhaseMissing:
		return reject(nip.Forbidden)
	case e.Exact && e.State == StateReceived && e.Position == 0 && f.View.Revision != c.BasedOn:
		return reject(nip.Stale)
	case f.View.Archived && c.Action != nip.Interrupt:
		return reject(nip.Conflict)
	}
	switch c.Action {
	case nip.Interrupt:
		return decideInterrupt(e, f)
	case nip.Send:
		return decideSend(f)
	case nip.Queue:
		if e.Priority {
			return decideSteer(e, f) // sent now: emulated steering from then on
		}
		return decideQueue(e, f)
	case nip.Steer:
		return decideSteer(e, f)
	case nip.Answer:
		return decideAnswer(e, f)
	}
	return reject(nip.Malformed)
}

// Times of a command, in seconds (NIP-HOST, numbers).
const (
	CommandLife   = 86_400 // after its issue, later it expires
	CommandFuture = 300    // how far ahead of the host it may be dated
)

// beforeRestore reports whether a command of that date may have run in the time
// that a restored store does not remember. It may have been dated ahead of the
// host as far as the host takes it, so that margin belongs to the time before.
func beforeRestore(issued, restored int64) bool {
	return restored != 0 && issued <= restored+CommandFuture
}

// Facts is everything beside the entry that a decision may depend on.
type Facts struct {
	View     TaskView
	Ahead    Ahead
	Leased   bool  // some device holds the queue's lease now
	Standing bool  // the sender holds operate under the same grant and epoch
	Restored int64 // when the store was put back from a backup; 0: never
	Now      int64
}

// Ahead is what stands before an entry in its task.
type Ahead struct {
	Held      bool // a held message runs before this one
	Priority  bool // an earlier priority message is held
	Interrupt bool // a newer interrupt is undecided and would stop the task itself
}

// Verdict is the kind of a decision.
type Verdict uint8

const (
	VerdictWait      Verdict = iota // nothing changes
	VerdictHold                     // wait as a held message, with or without priority
	VerdictRun                      // ask the task for Effect, then be applied, or held with priority
	VerdictReject                   // refused with Code
	VerdictExpire                   // outlived its time
	VerdictSupersede                // moot
)

// Decision is what Decide says.
type Decision struct {
	Verdict  Verdict
	Effect   Effect   // VerdictRun
	ThenHold bool     // VerdictRun: held with priority after the effect
	Priority bool     // VerdictHold
	Code     nip.Code // VerdictReject
}

func reject(code nip.Code) Decision { return Decision{Verdict: VerdictReject, Code: code} }
func run(effect Effect) Decision    { return Decision{Verdict: VerdictRun, Effect: effect} }

// hold keeps a held entry where it is.
func hold(e Entry, priority bool) Decision {
	if e.State == StateHeld && e.Priority == priority {
		return Decision{}
	}
	return Decision{Verdict: VerdictHold, Priority: priority}
}

// endedTurn says that the command was made in view of a turn before this one.
func endedTurn(e Entry, f Facts) bool { return e.Command.BasedOn < f.View.TurnStart }

func decideInterrupt(e Entry, f Facts) Decision {
	if endedTurn(e, f) || f.Ahead.Interrupt {
		return Decision{Verdict: VerdictSupersede}
	}
	switch f.View.Phase {
	case PhaseNotStarted, PhaseRunning:
		return run(EffectCancel)
	case PhaseStopping, PhaseEnded, PhaseChecking:
		return Decision{Verdict: VerdictSupersede}
	}
	return reject(nip.Unavailable)
}

func decideSend(f Facts) Decision {
	switch {
	case f.View.Phase == PhaseUnknown:
		return reject(nip.Unavailable)
	case f.View.Phase == PhaseEnded && !f.Ahead.Held:
		return run(EffectContinue)
	}
	return reject(nip.Conflict)
}

func decideQueue(e Entry, f Facts) Decision {
	if f.View.Phase == PhaseEnded && !f.Ahead.Held && !f.Leased {
		return run(EffectContinue)
	}
	return hold(e, false)
}

// decideSteer serves steers, and queued messages that were sent now. A steer
// that is held already has had its stop: it waits for the turn's end and never
// stops another one.
func decideSteer(e Entry, f Facts) Decision {
	sentNow := e.Command.Action == nip.Queue // said in view of the turn of now, whatever it was based on
	phase := f.View.Phase
	switch {
	case phase == PhaseUnknown:
		return reject(nip.Unavailable)
	case phase == PhaseEnded && !f.Ahead.Priority:
		return run(EffectContinue)
	case phase == PhaseEnded, phase == PhaseChecking, e.State == StateHeld, endedTurn(e, f) && !sentNow:
		return hold(e, true)
	case phase == PhaseNotStarted:
		return run(EffectCorrect)
	case e.Command.Emulate || sentNow:
		if !f.View.Steering.Emulate {
			return reject(nip.Unsupported)
		}
		if phase == PhaseStopping {
			return hold(e, true)
		}
		return Decision{Verdict: VerdictRun, Effect: EffectCancel, ThenHold: true}
	case !f.View.Steering.MidTurn:
		return reject(nip.Unsupported)
	case phase == PhaseStopping:
		return reject(nip.Conflict) // there is no engine left to deliver to
	}
	return run(EffectDeliver)
}

func decideAnswer(e Entry, f Facts) Decision {
	switch {
	case f.View.Phase == PhaseUnknown:
		return reject(nip.Unavailable)
	case endedTurn(e, f):
		return reject(nip.Stale)
	case f.View.Phase == PhaseEnded && f.View.Question && !f.Ahead.Held:
		return run(EffectContinue)
	}
	return reject(nip.Conflict)
}
