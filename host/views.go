package host

import (
	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

// EntryView is one journalled entry as the operator sees it.
type EntryView struct {
	Seq        uint64       `json:"seq"`
	Device     nip.PubKey   `json:"device"`
	Kind       string       `json:"kind"`
	Command    string       `json:"command"`
	Task       nip.TaskID   `json:"task"`
	Action     nip.Action   `json:"action"`
	State      string       `json:"state"`
	Outcome    string       `json:"outcome"`
	Reason     nip.Code     `json:"reason"`
	Revision   int64        `json:"revision"`
	ReceivedAt int64        `json:"received_at"`
	DecidedAt  int64        `json:"decided_at"`
	Grant      nip.GrantID  `json:"grant"`
	Epoch      int64        `json:"epoch"`
	BasedOn    int64        `json:"based_on"`
	IssuedAt   int64        `json:"issued_at"`
	Emulate    bool         `json:"emulate,omitempty"`
	Exact      bool         `json:"exact,omitempty"`    // at the revision that it is based on, or not at all
	Priority   bool         `json:"priority,omitempty"` // it runs, or ran, ahead of queued ones
	Edited     bool         `json:"edited"`
	Text       string       `json:"text,omitempty"`     // as it runs
	Original   string       `json:"original,omitempty"` // as it was sent, where it was edited since
	Note       string       `json:"note,omitempty"`
	History    []HistoryRow `json:"history,omitempty"`
}

// HistoryRow is one transition of an entry.
type HistoryRow struct {
	Seq     uint64   `json:"seq"`
	At      int64    `json:"at"`
	What    string   `json:"what"`
	State   string   `json:"state"`
	Outcome string   `json:"outcome,omitempty"`
	Reason  nip.Code `json:"reason,omitempty"`
}

// entryView leaves the text out where noText: logs and event lines never carry
// a prompt.
func entryView(e commands.Entry, noText bool) *EntryView {
	v := &EntryView{
		Seq: e.Seq, Device: e.Key.Principal, Kind: e.Key.Kind, Command: e.Key.ID, Task: e.Task, Action: e.Command.Action,
		State: e.State.String(), Outcome: e.Outcome.String(), Reason: e.Reason, Revision: e.Revision,
		ReceivedAt: e.ReceivedAt, DecidedAt: e.DecidedAt, Grant: e.Sender.Grant, Epoch: e.Sender.Epoch,
		BasedOn: e.Command.BasedOn, IssuedAt: e.Command.IssuedAt, Emulate: e.Command.Emulate, Exact: e.Exact, Priority: e.Priority,
		Edited: e.Edited, Note: e.Note,
	}
	if !noText {
		v.Text = e.Text
		if e.Edited {
			v.Original = e.Command.Text
		}
	}
	return v
}

// TaskLine is a task in one line.
type TaskLine struct {
	Task       owner.TaskID    `json:"task"`
	Revision   int64           `json:"revision"`
	Phase      string          `json:"phase"`
	Headline   string          `json:"headline"`
	Attention  string          `json:"attention"`
	Status     owner.Status    `json:"status"`
	Execution  owner.Execution `json:"execution"`
	Turn       int             `json:"turn"`
	Ending     string          `json:"ending,omitempty"`
	NotStarted string          `json:"not_started,omitempty"`
	UpdatedAt  int64           `json:"updated_at"`
}

func taskLine(t *owner.Task) *TaskLine {
	phase, headline, attention := t.Summary()
	l := &TaskLine{
		Task: t.ID, Revision: t.Revision, Phase: phase, Headline: headline, Attention: attention, Status: t.Status,
		Execution: t.Execution, Turn: t.Turn(), NotStarted: t.NotStarted, UpdatedAt: t.UpdatedAt,
	}
	if t.Run != nil && t.Run.Result != nil {
		l.Ending = t.Run.Result.Ending
	}
	return l
}

// Status is what status shows.
type Status struct {
	Host    nip.PubKey     `json:"host"`
	Owner   nip.PubKey     `json:"owner"`
	Serving bool           `json:"serving"`
	Relays  []RelayHealth  `json:"relays"`
	Devices int            `json:"devices"`
	Tasks   map[string]int `json:"tasks"`
	Journal struct {
		Entries   int `json:"entries"`
		Undecided int `json:"undecided"`
		// Ahead is by how many seconds the last record is later than this clock,
		// after one that was wrong: commands and leases are judged by the later.
		Ahead int64 `json:"ahead"`
	} `json:"journal"`
	Outbox int `json:"outbox"` // publications that no relay took yet
	Policy struct {
		Enabled bool   `json:"enabled"`
		Fault   string `json:"fault,omitempty"`
	} `json:"policy"`
	Sandbox struct {
		Mechanism string   `json:"mechanism"`
		Gaps      []string `json:"gaps"`
	} `json:"sandbox"`
	Disk    Disk   `json:"disk"`
	Version string `json:"version"`
}
