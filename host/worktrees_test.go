package host

import (
	"os"
	"path/filepath"
	"testing"

	"holdfast/internal/runnable"
	"holdfast/internal/skip"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/sandbox"
)

// TestKeepWorktrees: what the policy says, to the day, and nothing without one.
func TestKeepWorktrees(t *testing.T) {
	if able := sandbox.Probe(); able.Mechanism == "" {
		skip.Mounts(t, "no turn can be confined on this machine")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := newRigIn(t, dir)
	r.git()
	r.launch = owner.Launch
	prog := filepath.Join(r.dir, "program")
	if err := runnable.Write(prog, []byte("#!/bin/sh\necho made >made\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	set := func(days int) {
		r.policy(func(p *Policy) {
			p.Rules[0].Program, p.Rules[0].Write, p.KeepWorktreesDays = prog, true, &days
			if days < 0 {
				p.KeepWorktreesDays = nil
			}
		})
	}
	set(-1)
	d := r.pair(nip.PairingRights())
	id := r.create(d, "p")
	r.sweep()
	r.until("the turn ends", func() bool { t := r.task(id); return t.Ended() })
	r.h.crew.Wait()
	task := r.task(id)
	if task.Run == nil || task.Run.Result.Candidate == "" {
		t.Fatalf("%q", task.NotStarted)
	}
	round := func(dry bool) (got owner.Worked) {
		t.Helper()
		n := 0
		if err := r.c.letWorktreesGo(t.Context(), dry, nil, func(w owner.Worked, err error) {
			n++
			if got = w; err != nil {
				t.Error(err)
			}
		}); err != nil || n != 1 {
			t.Fatalf("%d reports, %v", n, err)
		}
		return got
	}
	r.clock.at.Store(task.UpdatedAt)
	const day = 24 * 3600
	for _, row := range []struct {
		name  string
		days  int // -1 is absent, -2 no policy
		after int64
		kept  string
	}{
		{"no policy", -2, 400 * day, "there is no policy"},
		{"the default, one second early", -1, 14*day - 1, "its time is not over"},
		{"a year", 365, 364 * day, "its time is not over"},
		{"none, dry", 0, 0, ""},
		{"the default, dry", -1, 14 * day, ""},
	} {
		if row.days == -2 {
			if err := os.Rename(filepath.Join(r.home, "policy.json"), filepath.Join(r.dir, "policy")); err != nil {
				t.Fatal(err)
			}
		} else {
			set(row.days)
		}
		r.clock.at.Store(task.UpdatedAt + row.after)
		if got := round(true); got.Kept != row.kept || got.Task != task.ID {
			t.Errorf("%s: %+v", row.name, got)
		}
	}
	r.write("policy.json", "{")
	if err := r.c.letWorktreesGo(t.Context(), false, nil, func(owner.Worked, error) {}); err == nil {
		t.Error("a policy that cannot be read lets worktrees go")
	}
	if _, err := os.Stat(filepath.Join(task.Worktree.Path, "made")); err != nil {
		t.Fatal(err)
	}
	set(0)
	if got := round(false); got.Kept != "" || got.Bytes == 0 {
		t.Fatalf("%+v", got)
	}
	if _, err := os.Lstat(task.Worktree.Path); !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if got := r.task(id); got.WorktreeGone == 0 || got.Revision != task.Revision {
		t.Fatalf("%+v", got)
	}
}

// TestWorktreesDue: a round looks at those whose time is over, and at one that stays all the same once a day, or when
// its task moved.
func TestWorktreesDue(t *testing.T) {
	r := newRig(t)
	d := r.pair(nip.PairingRights())
	waiting, ended := owner.TaskID(r.create(d, "one")), owner.TaskID(r.create(d, "two"))
	if _, err := r.c.StopTask(t.Context(), ended, "enough"); err != nil {
		t.Fatal(err)
	}
	r.h.taskChanged(waiting)
	r.h.taskChanged(ended)
	rounds := &worktreeRounds{h: r.h}
	var now int64
	look := func(id owner.TaskID) bool {
		rounds.previous, rounds.stayed = rounds.stayed, map[owner.TaskID]stayed{}
		due := rounds.due(id, now)
		if due {
			rounds.looked(owner.Worked{Task: id, Kept: "somebody worked in it"}, nil)
		}
		return due
	}
	if now = r.c.now() - 1; look(ended) || look(waiting) {
		t.Fatal("looked at before its time")
	}
	if now = r.c.now() + 1; look(waiting) {
		t.Fatal("looked at one that has not ended")
	}
	if !look("unknown") || !look(ended) || look(ended) || look(ended) {
		t.Fatal("one that stays is looked at once")
	}
	r.append(ended, owner.Event{Archived: &owner.Archived{Reason: "done", By: "owner", At: r.c.now()}})
	r.h.taskChanged(ended)
	if !look(ended) || look(ended) {
		t.Fatal("what moved is looked at again")
	}
	r.clock.at.Add(worktreesAgain)
	if now = r.c.now(); !look(ended) {
		t.Fatal("not looked at again after a day")
	}
}
