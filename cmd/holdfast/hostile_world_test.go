package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/host"
	"holdfast/internal/runnable"
	"holdfast/nip"
	"holdfast/owner"
	"holdfast/relay/relaytest"
)

// hostileWorld is a machine that changed under a host that serves: what a
// policy or a label names is gone or something else. The device is told, and
// nothing runs.
func hostileWorld(t *testing.T) {
	s, ctx := stage(t)
	if err := s.operator(ctx, nil, "init"); err != nil {
		t.Fatal(err)
	}
	type row struct {
		label nip.Label
		// spoil gets the workspace's root and the program's path.
		spoil func(root, program string) error
	}
	rows := []row{
		{"vanished", func(root, _ string) error { return os.RemoveAll(root) }},
		{"moved-and-linked", func(root, _ string) error {
			if err := os.Rename(root, root+"-moved"); err != nil {
				return err
			}
			return os.Symlink(root+"-moved", root)
		}},
		{"a-file", func(root, _ string) error {
			if err := os.RemoveAll(root); err != nil {
				return err
			}
			return os.WriteFile(root, nil, 0o600)
		}},
		{"no-repository", func(root, _ string) error { return os.RemoveAll(filepath.Join(root, ".git")) }},
		{"no-commit", func(root, _ string) error { return os.RemoveAll(filepath.Join(root, ".git", "refs", "heads")) }},
		{"no-program", func(_, program string) error { return os.Remove(program) }},
		{"program-not-executable", func(_, program string) error { return os.Chmod(program, 0o600) }},
		{"program-is-a-link", func(_, program string) error {
			if err := os.Remove(program); err != nil {
				return err
			}
			return os.Symlink("/bin/sh", program)
		}},
		{"program-is-a-pipe", func(_, program string) error {
			if err := os.Remove(program); err != nil {
				return err
			}
			return syscall.Mkfifo(program, 0o700)
		}},
		{"program-is-a-folder", func(_, program string) error {
			if err := os.Remove(program); err != nil {
				return err
			}
			return os.Mkdir(program, 0o700)
		}},
	}
	const changing = nip.Label("changing")
	script := func(says string) []byte {
		return []byte("#!/bin/sh\ncat > prompt.txt\nprintf '{\"reply\":\"" + says + "\",\"ask\":null}' > \"$HOLDFAST_REPLY\"\n")
	}
	policy := host.Policy{V: host.PolicyVersion, Enabled: true, MaxRunning: 2}
	root := func(l nip.Label) string { return filepath.Join(s.dir, "work-"+string(l)) }
	program := func(l nip.Label) string { return filepath.Join(s.dir, "bin-"+string(l)) }
	for _, r := range append(rows, row{label: changing}) {
		if err := makeDemoRepository(ctx, root(r.label)); err != nil {
			t.Fatal(err)
		}
		if err := runnable.Write(program(r.label), script("A"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := s.operator(ctx, nil, "workspace", "add", string(r.label), root(r.label)); err != nil {
			t.Fatal(err)
		}
		policy.Rules = append(policy.Rules, host.Rule{
			Workspaces: []nip.Label{r.label}, Adapter: "prompt-command", Program: program(r.label),
			Write: true, Git: "read", WallSeconds: 60, StreamBytes: 64 << 10, MemoryBytes: 256 << 20,
		})
	}
	raw, err := json.Marshal(policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.verbWith(ctx, raw, nil, "policy", "set", "-", "--home", s.home); err != nil {
		t.Fatal(err)
	}
	p, ready := up(t, s, ctx, "--listen", freePort(t))
	a := &attacked{tour: s, ctx: ctx, process: p, host: nip.PubKey(ready["host"].(string)), g: &globals{home: s.home, log: zerolog.Nop()}}
	phone := a.device(t, "phone", "")
	create := func(l nip.Label) nip.TaskID {
		t.Helper()
		id, err := phone.Create(ctx, nip.TaskCreate{Title: "a title", Prompt: "do it", Workspace: l})
		if err != nil {
			t.Fatal("create:", err)
		}
		return id
	}
	tasks := map[nip.Label]nip.TaskID{}
	for _, r := range rows {
		if err := r.spoil(root(r.label), program(r.label)); err != nil {
			t.Fatal(err)
		}
		tasks[r.label] = create(r.label)
	}
	for _, r := range rows {
		t.Run(string(r.label), func(t *testing.T) {
			task := a.turnEnded(t, tasks[r.label], 1)
			if task.Status != owner.Cancelled || task.Run != nil || task.NotStarted == "" {
				t.Errorf("status %s, run %+v, %q", task.Status, task.Run, task.NotStarted)
			}
			var sum nip.Summary
			relaytest.Eventually(t, "the device to be told", func() bool {
				if err := phone.Refresh(ctx); err != nil {
					t.Fatal(err)
				}
				sum, _, err = phone.Known(tasks[r.label])
				return err == nil && sum.Sequence == task.Revision
			})
			if sum.Phase != nip.PhaseCancelled || !strings.HasPrefix(sum.Headline, "Couldn't start: ") || strings.Contains(sum.Headline, s.dir) {
				t.Errorf("told %+v", sum)
			}
			if found, _ := filepath.Glob(filepath.Join(s.home, "worktrees", string(tasks[r.label]), "*", "prompt.txt")); len(found) != 0 {
				t.Error("something ran")
			}
			t.Log(sum.Headline)
		})
	}

	// A program that changes all the time: a turn refuses, or runs exactly the
	// bytes that its admission names.
	t.Run(string(changing), func(t *testing.T) {
		var stop atomic.Bool
		var churn sync.WaitGroup
		churn.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for i := 0; !stop.Load(); i++ {
				<-tick.C
				if runnable.Write(program(changing), script(string("AB"[i%2])), 0o755) != nil {
					return
				}
			}
		})
		var ids []nip.TaskID
		for range 6 {
			ids = append(ids, create(changing))
		}
		ran := 0
		for _, id := range ids {
			task := a.turnEnded(t, id, 1)
			if task.Run == nil || task.Run.Process == nil {
				phase, headline, _ := task.Summary()
				if phase == string(nip.PhaseCompleted) || task.Run != nil && (task.Run.Result == nil || task.Run.Result.ExitCode != nil) {
					t.Errorf("nothing ran, and the device is told %s, %s", phase, headline)
				}
				t.Logf("%s: %s", phase, headline)
				continue
			}
			ran++
			r := task.Run.Result
			if r == nil || r.Reply == "" {
				t.Errorf("ran and said nothing: %+v", r)
				continue
			}
			if got := owner.DigestOf(script(r.Reply)); got != task.Run.Admission.ProgramDigest {
				t.Errorf("%s ran, admitted was %s", r.Reply, task.Run.Admission.ProgramDigest)
			}
		}
		stop.Store(true)
		churn.Wait()
		t.Logf("%d of %d ran", ran, len(ids))
	})
	if st := a.state(t); len(st.Tasks) != len(rows)+6 {
		t.Errorf("%d tasks", len(st.Tasks))
	}
}
