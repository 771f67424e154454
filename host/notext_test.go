package host

import (
	"strings"
	"testing"

	"holdfast/nip"
	"holdfast/owner"
)

// With no_text no verb of the journal says a word of what was asked, not even of a message that was edited; without
// it list, show and dump do. The verb that follows the journal never does.
func TestNoText(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	task := r.create(d, "secret prompt")
	end := r.begin(task)
	defer end(owner.Result{})
	held := r.command(task, nip.Queue, "secret words")
	r.wantCode(r.ask(d, nip.TaskCommand{Command: held}), "")
	for _, e := range []nip.QueueEdit{{Action: "lease"}, {Action: "edit", Command: held.ID, Text: "other secret"}} {
		r.wantCode(r.ask(d, nip.TaskQueue{Task: task, Edit: e}), "")
	}
	for _, row := range []struct {
		verb  string
		args  JournalArgs
		shows bool
	}{
		{"journal.list", JournalArgs{}, true},
		{"journal.show", JournalArgs{Device: d.pub(), ID: string(held.ID)}, true},
		{"journal.show", JournalArgs{Device: d.pub(), ID: string(task)}, false},
		{"journal.dump", JournalArgs{}, true},
		{"journal.tail", JournalArgs{}, false},
	} {
		for _, noText := range []bool{false, true} {
			row.args.NoText = noText
			var said strings.Builder
			for _, line := range r.docs(row.verb, row.args) {
				said.Write(mustRaw(t, line))
			}
			if said.Len() == 0 {
				t.Errorf("%s says nothing at all", row.verb)
			}
			if got, want := strings.Contains(said.String(), "secret"), row.shows && !noText; got != want {
				t.Errorf("%s, no_text %v: a text is shown: %v", row.verb, noText, got)
			}
		}
	}
}
