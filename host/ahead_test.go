package host

import (
	"testing"

	"holdfast/nip"
)

// What is sealed ahead is the reply where the commit comes to the same answer,
// byte for byte and after a restart too, and nothing where it does not.
func TestSealedAhead(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.StandardRights())
	task := r.create(d, "look")
	for _, row := range []struct {
		name   string
		action nip.Action
		want   nip.Code
	}{
		{"accepted", nip.Steer, ""},
		{"refused", nip.Send, nip.Conflict},
	} {
		in := r.sealed(d, r.req(d, nip.TaskCommand{Command: r.command(task, row.action, "again")}))
		first := r.give(in)
		if len(first) != 1 {
			t.Fatalf("%s: %d replies", row.name, len(first))
		}
		r.wantCode(r.read(d, first[0]), row.want)
		r.clock.add(repeatWindow)
		r.restart()
		again := r.give(in)
		if len(again) != 1 || string(nip.EncodeEvent(again[0])) != string(nip.EncodeEvent(first[0])) {
			t.Errorf("%s: the retained reply is not the one that was sent", row.name)
		}
	}
}

// What is sealed ahead holds one outcome and is taken for no other.
func TestSealedAheadIsOneAnswer(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.StandardRights())
	in := r.sealed(d, r.req(d, nip.WorkspaceList{}))
	o, err := nip.Open(in.Event, d.key)
	if err != nil {
		t.Fatal(err)
	}
	req, err := nip.ParseRequest(o.Inline, nip.Profile{Loopback: true})
	if err != nil {
		t.Fatal(err)
	}
	k := &call{in: in, opened: o, req: req}
	yes := nip.Dispatched{Operation: "task.command", Reference: newID(t)}
	a := r.h.sealAhead(k, yes)
	for _, row := range []struct {
		name  string
		reply nip.Reply
		want  bool
	}{
		{"the same", nip.Reply{Outcome: yes}, true},
		{"another task", nip.Reply{Outcome: nip.Dispatched{Operation: yes.Operation, Reference: newID(t)}}, false},
		{"another kind", nip.Reply{Outcome: nip.Devices{Devices: []nip.DeviceEntry{}}}, false},
		{"a refusal", nip.Reply{Refusal: &nip.Refusal{Code: nip.Stale}}, false},
		{"a refusal beside it", nip.Reply{Outcome: yes, Refusal: &nip.Refusal{Code: nip.Stale}}, false},
		{"nothing", nip.Reply{}, false},
	} {
		if _, ok := a.take(row.reply); ok != row.want {
			t.Errorf("%s: taken %v", row.name, ok)
		}
	}
	if _, ok := (*aheadReply)(nil).take(nip.Reply{Outcome: yes}); ok {
		t.Error("nothing was sealed, and it was taken")
	}
}
