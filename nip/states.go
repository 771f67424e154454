package nip

import "slices"

// StreamCommands is the mailbox of command states, host to device. It and the
// schema are Holdfast's own, beside the draft's.
const StreamCommands Stream = "holdfast.host-mailbox.commands.v1"

// SchemaStates is the schema of command states.
const SchemaStates = "holdfast.command-states.v1"

const (
	maxStates     = 64
	maxStatesLife = 604_800 // seconds
)

// CommandStates tells one device where the commands that it sent for one task
// stand. It is sealed to that device only.
type CommandStates struct {
	Host      PubKey
	IssuedAt  int64
	ExpiresAt int64 // at most 604,800 s after IssuedAt
	Task      TaskID
	Revision  int64
	Commands  []CommandState // at most 64, distinct
}

// CommandState is one command. State is one of received, held, dispatching,
// applied, rejected, expired, superseded, removed.
type CommandState struct {
	Command  CommandID
	State    string
	Position *int   // held: messages ahead of it; nil otherwise
	Revision *int64 // applied: the task's revision after it, where known
	Reason   Code   // rejected: why; "" otherwise
}

var commandStates = []string{
	"received", "held", "dispatching", "applied", "rejected", "expired", "superseded", "removed",
}

// ParseStates decodes the canonical body of command states. That the pinned host
// signed it is for the caller.
func ParseStates(inline []byte) (CommandStates, error) {
	r := &reader{layer: layerSchema}
	o := r.document("states", inline, maxBody)
	v, requires := o.header()
	s := CommandStates{
		Host: PubKey(o.text("host")), IssuedAt: o.int("issued_at"), ExpiresAt: o.int("expires_at"),
		Task: TaskID(o.text("task")), Revision: o.int("revision"),
	}
	for _, v := range o.list("commands", maxStates) {
		c := r.object("states.commands", v)
		row := CommandState{Command: CommandID(c.text("command")), State: oneOf(c, "state", commandStates...)}
		if !c.null("position") {
			n := c.count("position")
			row.Position = &n
		}
		row.Revision = c.intOrNull("revision")
		if !c.null("reason") {
			row.Reason = oneOf(c, "reason", codes...)
		}
		c.end()
		s.Commands = append(s.Commands, row)
	}
	o.end()
	r.checkHeader(v, requires, SchemaStates)
	if r.err == nil {
		r.err = checkStates(s)
	}
	if r.err != nil {
		return CommandStates{}, r.err
	}
	return s, nil
}

func checkStates(s CommandStates) *Error {
	v := &validator{layer: layerSchema}
	v.key(s.Host, "host")
	v.int(s.IssuedAt, "issued_at")
	v.int(s.ExpiresAt, "expires_at")
	v.must(s.ExpiresAt > s.IssuedAt && s.ExpiresAt-s.IssuedAt <= maxStatesLife, Malformed,
		"the states live not at all or over 7 days")
	v.id(string(s.Task), "task")
	v.int(s.Revision, "revision")
	v.must(len(s.Commands) <= maxStates, Bounds, "too many commands")
	seen := make(map[CommandID]bool)
	for _, c := range s.Commands {
		v.id(string(c.Command), "command")
		v.must(!seen[c.Command], Malformed, "a command stands twice")
		seen[c.Command] = true
		v.must(slices.Contains(commandStates, c.State), Malformed, "state is not known")
		v.must((c.State == "held") == (c.Position != nil), Malformed, "position does not agree with state")
		v.must(c.Position == nil || *c.Position >= 0 && int64(*c.Position) <= maxInt, Malformed, "position is out of range")
		v.must(c.State == "applied" || c.Revision == nil, Malformed, "revision does not agree with state")
		if c.Revision != nil {
			v.int(*c.Revision, "revision")
		}
		v.must((c.State == "rejected") == (c.Reason != ""), Malformed, "reason does not agree with state")
		v.must(c.Reason == "" || slices.Contains(codes, c.Reason), Malformed, "reason is not known")
	}
	return v.err
}

// EncodeStates writes command states under the rules of ParseStates.
func EncodeStates(s CommandStates) (Artifact, error) {
	if err := checkStates(s); err != nil {
		return Artifact{}, err
	}
	rows := make([]members, 0, len(s.Commands))
	for _, c := range s.Commands {
		row := members{
			"command": c.Command, "state": c.State, "position": c.Position, "revision": c.Revision, "reason": nil,
		}
		if c.Reason != "" {
			row["reason"] = c.Reason
		}
		rows = append(rows, row)
	}
	return artifact(SchemaStates, members{
		"host": s.Host, "issued_at": s.IssuedAt, "expires_at": s.ExpiresAt,
		"task": s.Task, "revision": s.Revision, "commands": rows,
	}, s.IssuedAt, s.ExpiresAt)
}
