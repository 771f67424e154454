package client

import (
	"cmp"
	"slices"

	"holdfast/nip"
)

// CommandStatus is where one of the device's own commands stands, as far as
// this device has been told. What the host published about a command outranks
// its reply to it, which says only that the host has it or will not have it.
type CommandStatus struct {
	Command  nip.CommandID
	Task     nip.TaskID
	Action   nip.Action // "" of a command that only the host's words told of
	IssuedAt int64      // host time; 0 as above
	// State is "waiting" (to be sent, or to be answered), "received", "held",
	// "dispatching", "applied", "refused", "expired", "superseded", "removed",
	// or "unknown": it left the outbox without a signed word.
	State    string
	Position *int     // held: messages ahead of it
	Revision *int64   // applied: the task's revision after it, where it was said
	Reason   nip.Code // refused: why
	At       int64    // host time of the signed word; 0 without one
	// Queued tells that the command is in the outbox: the host's reply to it has
	// not been seen, whatever was published since.
	Queued    bool
	Tries     int    // with Queued
	LastError string // with Queued
}

// Commands lists the commands that this profile gave to the host it is turned
// to, oldest first; of one task where task is not empty. The last 4,096 are
// remembered. It reads the profile alone; Refresh, RefreshCommands and Watch bring
// what the host published since.
func (d *Device) Commands(task nip.TaskID) ([]CommandStatus, error) {
	g, err := d.standing()
	if err != nil {
		return nil, err
	}
	rows, err := d.store.rows()
	if err != nil {
		return nil, err
	}
	waiting := map[nip.CommandID]row{}
	for _, r := range rows {
		if c, ok := r.command(); ok && r.Host == g.Host {
			waiting[c.ID] = r
		}
	}
	var list []CommandStatus
	err = d.store.sent(g.Host, func(id nip.CommandID, r sentRow) {
		s := r.status(id)
		if w, ok := waiting[id]; ok {
			s.wait(w)
			delete(waiting, id)
		}
		list = append(list, s)
	})
	if err != nil {
		return nil, err
	}
	for id, w := range waiting { // of a profile from before commands were remembered
		c, _ := w.command()
		s := sentRow{Task: c.Task, Action: c.Action, IssuedAt: c.IssuedAt}.status(id)
		s.wait(w)
		list = append(list, s)
	}
	if task != "" {
		list = slices.DeleteFunc(list, func(s CommandStatus) bool { return s.Task != task })
	}
	slices.SortFunc(list, func(a, b CommandStatus) int {
		return cmp.Or(cmp.Compare(a.IssuedAt, b.IssuedAt), cmp.Compare(a.Command, b.Command))
	})
	return list, nil
}

// status is what a remembered command says without the outbox.
func (r sentRow) status(id nip.CommandID) CommandStatus {
	s := CommandStatus{Command: id, Task: r.Task, Action: r.Action, IssuedAt: r.IssuedAt, State: "unknown"}
	refused := r.Reply != "" && r.Reply != replyTaken
	switch {
	// A refusal of the standing may come for a command that the host holds.
	case refused && (r.State == "" || rank(r.State) < 3 && r.RepliedAt >= r.StatedAt):
		s.State, s.Reason, s.At = "refused", nip.Code(r.Reply), r.RepliedAt
	case r.State != "":
		s.State, s.Position, s.Revision, s.Reason, s.At = r.State, r.Position, r.Revision, r.Reason, r.StatedAt
		if r.State == "rejected" {
			s.State = "refused"
		}
	case r.Reply == replyTaken:
		s.State, s.At = "received", r.RepliedAt
	}
	return s
}

// wait adds what the outbox says of it.
func (s *CommandStatus) wait(w row) {
	s.Queued, s.Tries, s.LastError = true, w.Tries, w.LastError
	if s.At == 0 {
		s.State = "waiting"
	}
}
