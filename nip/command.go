package nip

import "slices"

var actions = []Action{Send, Queue, Steer, Interrupt, Answer}

func (o object) command() Command {
	c := Command{
		ID: CommandID(o.text("command")), Task: TaskID(o.text("task")),
		Action:  oneOf(o, "action", actions...),
		BasedOn: o.int("based_on"), Text: o.text("text"),
		Emulate: o.bool("emulate"), IssuedAt: o.int("issued_at"),
	}
	o.end()
	return c
}

// command holds a durable command to its rules (NIP-HOST, task.command). An
// interrupt's text is a single short line; every other is a message.
func (v *validator) command(c Command) {
	v.id(string(c.ID), "command")
	v.id(string(c.Task), "task")
	v.must(slices.Contains(actions, c.Action), Malformed, "action is not known")
	v.int(c.BasedOn, "based_on")
	v.int(c.IssuedAt, "issued_at")
	v.must(!c.Emulate || c.Action == Steer, Malformed, "emulate stands with another action than steer")
	if c.Action == Interrupt {
		v.text(c.Text, maxReason, "text")
	}
	v.prose(c.Text, maxPrompt, "text")
}

func commandMembers(c Command) members {
	return members{
		"command": c.ID, "task": c.Task, "action": c.Action, "based_on": c.BasedOn,
		"text": c.Text, "emulate": c.Emulate, "issued_at": c.IssuedAt,
	}
}

// EncodeCommand gives the canonical bytes of a command. Two sends of one command
// are the same command exactly when these bytes are equal.
func EncodeCommand(c Command) ([]byte, error) {
	v := &validator{layer: layerOperation}
	v.command(c)
	if v.err != nil {
		return nil, v.err
	}
	return encode(commandMembers(c))
}
