package host

import (
	"holdfast/nip"
	"holdfast/owner"
)

// sayable reports whether a task can be told what the operation says. The wire
// lets a title be blank and a prompt hold any control character; a task does
// not (its commands are text that can be shown), so such words are refused as
// the wire refuses text: `bounds`, signed and retained, before anything is
// journalled. Every later step may then count on words that compile.
func sayable(op nip.Operation) bool {
	switch op := op.(type) {
	case nip.TaskCreate:
		return owner.ValidTitle(op.Title) && owner.ValidPrompt(op.Prompt)
	case nip.TaskSteer:
		return owner.ValidPrompt(op.Prompt)
	case nip.TaskCancel:
		return owner.ValidReason(op.Reason)
	case nip.TaskCommand:
		return commandSayable(op.Command)
	case nip.TaskCommandAt:
		return commandSayable(op.Command)
	case nip.TaskQueue:
		return editSayable(op.Edit)
	case nip.TaskQueueAt:
		return editSayable(op.Edit)
	}
	return true
}

func commandSayable(c nip.Command) bool {
	if c.Action == nip.Interrupt {
		return owner.ValidReason(c.Text)
	}
	return owner.ValidPrompt(c.Text)
}

func editSayable(e nip.QueueEdit) bool { return e.Action != "edit" || owner.ValidPrompt(e.Text) }
