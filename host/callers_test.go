package host

import (
	"testing"

	"holdfast/commands"
	"holdfast/internal/procid"
	"holdfast/internal/skip"
	"holdfast/nip"
	"holdfast/owner"
)

// A turn that a person owned by hand, whose process died: its act ends while the
// host lives, and at the next opening, also where the pid is this process's own
// by now. One whose process is there stays open.
func TestCallerDied(t *testing.T) {
	self, err := procid.Self()
	if err != nil {
		skip.Missing(t, "no process identities: "+err.Error())
	}
	earlier := self
	earlier.StartTime--
	for _, row := range []struct {
		name   string
		caller procid.ID
		want   commands.Outcome
	}{
		{"alive", self, commands.OutcomeNone},
		{"an earlier process of this pid", earlier, commands.OutcomeUnknown},
		{"of another boot", procid.ID{PID: self.PID, StartTime: self.StartTime, BootID: "another"}, commands.OutcomeUnknown},
		{"one that cannot name itself", procid.ID{PID: self.PID}, commands.OutcomeNone},
	} {
		for how, settle := range map[string]func(r *rig) error{
			"host lives": func(r *rig) error { return r.c.settleCallers(t.Context()) },
			"opened":     func(r *rig) error { r.restart(); return nil },
		} {
			t.Run(row.name+", "+how, func(t *testing.T) {
				r := newRig(t)
				task := owner.TaskID(r.create(r.pair(nip.PairingRights()), "p"))
				if _, err := r.c.intend(t.Context(), act{Kind: "task.execute", Task: task, Caller: row.caller}, "a note", nil); err != nil {
					t.Fatal(err)
				}
				if err := settle(r); err != nil {
					t.Fatal(err)
				}
				if e := r.find("task.execute"); e.Outcome != row.want {
					t.Fatalf("%s %s, want %s", e.State, e.Outcome, row.want)
				}
			})
		}
	}
}
