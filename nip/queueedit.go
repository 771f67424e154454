package nip

const maxHeld = 64 // messages of one listing or one reorder

func (o object) queueEdit() QueueEdit {
	e := QueueEdit{
		Action: oneOf(o, "action", "list", "lease", "release", "edit", "remove", "reorder", "send_now"),
	}
	switch e.Action {
	case "edit":
		e.Command, e.Text = CommandID(o.text("command")), o.text("text")
	case "remove", "send_now":
		e.Command = CommandID(o.text("command"))
	case "reorder":
		for _, s := range o.texts("commands", maxHeld) {
			e.Commands = append(e.Commands, CommandID(s))
		}
	}
	o.end()
	return e
}

// queueEdit holds an edit of held messages to its shape (NIP-HOST, task.queue).
// Members that the action does not have must be empty, so that nothing a caller
// set is dropped in silence.
func (v *validator) queueEdit(e QueueEdit) {
	command, text, commands := false, false, false
	switch e.Action {
	case "list", "lease", "release":
	case "edit":
		command, text = true, true
	case "remove", "send_now":
		command = true
	case "reorder":
		commands = true
	default:
		v.must(false, Malformed, "edit.action is not known")
	}
	v.must(command || e.Command == "", Malformed, "edit.command stands with another action")
	v.must(text || e.Text == "", Malformed, "edit.text stands with another action")
	v.must(commands || len(e.Commands) == 0, Malformed, "edit.commands stands with another action")
	if command {
		v.id(string(e.Command), "edit.command")
	}
	if text {
		v.prose(e.Text, maxPrompt, "edit.text")
	}
	if commands {
		v.must(len(e.Commands) >= 1 && len(e.Commands) <= maxHeld, Bounds, "edit.commands is not 1 to 64 long")
		seen := make(map[CommandID]bool)
		for _, c := range e.Commands {
			v.id(string(c), "edit.commands")
			v.must(!seen[c], Malformed, "edit.commands names a message twice")
			seen[c] = true
		}
	}
}

func queueEditMembers(e QueueEdit) members {
	m := members{"action": e.Action}
	if e.Command != "" {
		m["command"] = e.Command
	}
	if e.Action == "edit" {
		m["text"] = e.Text
	}
	if e.Action == "reorder" {
		m["commands"] = e.Commands
	}
	return m
}
