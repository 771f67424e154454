package host

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/skip"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/sandbox"
)

// A turn of the policy whose folder a turn of the person at the machine has to
// itself: it waits, takes its second launch when the place is free, and says who
// has it where that takes too long. With real owners.
func TestWorkspaceTaken(t *testing.T) {
	for _, row := range []struct {
		name  string
		frees bool
	}{{"and given back", true}, {"for too long", false}} {
		t.Run(row.name, func(t *testing.T) {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			r := newRigIn(t, dir)
			r.launch = owner.Launch
			r.policy(func(p *Policy) { p.Rules[0].Write = false }) // the folder is no repository
			if able := sandbox.Probe(); able.Mechanism == "" {
				skip.Mounts(t, "no turn can be confined on this machine: "+fmt.Sprint(able.Gaps))
			}
			by := owner.TaskID("by-hand")
			r.startByHand(by, "echo started; sleep 600")
			t.Cleanup(func() {
				if err := owner.StopOwners(context.Background(), r.c.store, "the test ends"); err != nil {
					t.Error(err)
				}
			})
			r.until("the turn by hand runs", func() bool {
				b, err := os.ReadFile(filepath.Join(r.c.store.TaskDir(by), owner.TraceName(1)))
				return err == nil && strings.Contains(string(b), "started")
			})
			byHand := r.launches.Load()
			d := r.pair(nip.PairingRights())
			r.serve()
			task := r.createOverWire(d, "p")
			r.until("its owner to find the place taken", func() bool {
				r.h.starter.mu.Lock()
				defer r.h.starter.mu.Unlock()
				return r.h.starter.taken[owner.TaskID(task)].holder == by
			})
			if got := r.task(task); got.Status != owner.Queued || got.Revision != 1 || r.launches.Load() != byHand+1 {
				t.Fatalf("%s at %d after %d launches", got.Status, got.Revision, r.launches.Load()-byHand)
			}
			if !row.frees {
				r.clock.add(takenFor)
				r.h.starter.wake()
				r.until("the turn to give up", func() bool { return r.task(task).NotStarted != "" })
				got := r.task(task)
				_, headline, _ := got.Summary()
				if want := "Couldn't start: another turn has its workspace, that of task by-hand"; nip.Headline(headline, "") != want {
					t.Fatalf("%q", nip.Headline(headline, ""))
				}
				return
			}
			if err := r.c.Operate(t.Context(), "task.stop", mustRaw(t, TaskArgs{Task: by, Reason: "enough"}), func(any) error { return nil }); err != nil {
				t.Fatal(err)
			}
			r.until("the turn to run", func() bool { got := r.task(task); return got.Ended() })
			if got := r.task(task); got.Execution != owner.ExecFinished || r.launches.Load() != byHand+2 {
				t.Fatalf("%s, not started %q, %d launches", got.Execution, got.NotStarted, r.launches.Load()-byHand)
			}
		})
	}
}

// startByHand submits a task of the person at the machine in the demo folder
// and starts its turn by a grant of theirs.
func (r *rig) startByHand(id owner.TaskID, script string) {
	r.t.Helper()
	none := func(any) error { return nil }
	raw, err := owner.EncodeCommand(owner.Command{CommandID: "submit-" + string(id), TaskID: id, Action: owner.Action{Submit: &owner.Intent{
		Title: "t", Prompt: "p", Workspace: owner.Workspace{Path: r.repo}, Configuration: owner.Configuration{Adapter: owner.BoundedCommand}}}})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.c.Operate(r.t.Context(), "task.apply", mustRaw(r.t, TaskArgs{Request: raw, Verb: "submit"}), none); err != nil {
		r.t.Fatal(err)
	}
	t, err := r.c.store.Get(id)
	if err != nil {
		r.t.Fatal(err)
	}
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		r.t.Fatal(err)
	}
	grant, err := owner.EncodeGrant(owner.Grant{TaskID: id, IntentDigest: t.IntentDigest, ExpectedRevision: t.Revision, Program: sh,
		Arguments: []string{"-c", script}, WallSeconds: 900, StreamBytes: 64 << 10, MemoryBytes: 1 << 30,
		Adapter: owner.BoundedCommand, Network: json.RawMessage(`"none"`), Git: "read"})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.c.Operate(r.t.Context(), "task.start", mustRaw(r.t, TaskArgs{Grant: grant}), none); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) createOverWire(d device, prompt string) nip.TaskID {
	r.t.Helper()
	p := r.overWire(d, nip.TaskCreate{Title: "t", Prompt: prompt, Workspace: "demo"})
	o, ok := p.Outcome.(nip.Dispatched)
	if !ok {
		r.t.Fatalf("not created: %+v", p.Refusal)
	}
	return nip.TaskID(o.Reference)
}

// A whole ID of a device's task would be redacted as a secret; its start is said.
func TestTakenCause(t *testing.T) {
	w := taken{since: time.Now().Unix(), holder: owner.TaskID(strings.Repeat("ab", 32))}
	if got := nip.Headline("Couldn't start: "+w.cause(), ""); got != "Couldn't start: another turn has its workspace, that of task abababababab" {
		t.Fatal(got)
	}
}
