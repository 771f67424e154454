package commands

import "fmt"

func name(names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("unknown(%d)", i)
}

func (s State) String() string {
	return name([]string{"none", "received", "held", "dispatching", "done"}, uint8(s))
}

func (o Outcome) String() string {
	return name([]string{"none", "applied", "rejected", "expired", "superseded", "removed", "unknown"}, uint8(o))
}

func (p Phase) String() string {
	return name([]string{"missing", "not_started", "running", "stopping", "ended", "unknown", "checking"}, uint8(p))
}

func (e Effect) String() string {
	return name([]string{"none", "cancel", "continue", "correct", "deliver"}, uint8(e))
}

// String is the decision in a few words, as its table shows it.
func (d Decision) String() string {
	switch d.Verdict {
	case VerdictWait:
		return "wait"
	case VerdictHold:
		if d.Priority {
			return "hold with priority"
		}
		return "hold"
	case VerdictRun:
		if d.ThenHold {
			return d.Effect.String() + ", then hold with priority"
		}
		return d.Effect.String()
	case VerdictReject:
		return "refuse " + string(d.Code)
	case VerdictExpire:
		return "expire"
	case VerdictSupersede:
		return "supersede"
	}
	return fmt.Sprintf("unknown(%d)", d.Verdict)
}
