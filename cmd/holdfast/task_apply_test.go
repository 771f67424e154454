package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/host"
	"holdfast/owner"
)

// written is the path of v, for a verb to read.
func written(t *testing.T, s *tour, name string, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// byHandTask submits a task of a bounded command by its exact document.
func byHandTask(t *testing.T, s *tour, ctx context.Context, id string) (task owner.Task) {
	t.Helper()
	submit := written(t, s, id+".json", map[string]any{
		"schema": "openagents.coder.task-command.v1", "command_id": "submit-" + id, "task_id": id, "expected_revision": nil,
		"action": map[string]any{"type": "submit", "intent": map[string]any{
			"title": id, "prompt": "change something", "workspace": map[string]any{"path": s.repo},
			"configuration": map[string]any{"adapter": "bounded-command", "model": nil},
		}},
	})
	if err := s.operator(ctx, nil, "task", "submit", "--file", submit); err != nil {
		t.Fatal(err)
	}
	if err := s.operator(ctx, &task, "task", "show", id); err != nil {
		t.Fatal(err)
	}
	return task
}

// byHandTurn owns one turn of it in the foreground.
func byHandTurn(t *testing.T, s *tour, ctx context.Context, task owner.Task, script string) owner.Task {
	t.Helper()
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	grant := written(t, s, "grant.json", map[string]any{
		"schema": "openagents.coder.task-execution-grant.v1", "task_id": task.ID, "intent_digest": task.IntentDigest,
		"expected_revision": task.Revision, "program": shell, "arguments": []string{"-c", script},
		"write_workspace": true, "wall_seconds": 60, "stream_bytes": 65536, "memory_bytes": 268435456,
	})
	if err := s.operator(ctx, &task, "task", "execute", "--grant", grant); err != nil {
		t.Fatal(err)
	}
	return task
}

// TestTaskApply: a person's word makes the candidate a branch, the view and the journal say so, and bad words and
// refusals make nothing.
func TestTaskApply(t *testing.T) {
	s, ctx := stage(t)
	if err := s.stepHome(ctx); err != nil {
		t.Fatal(err)
	}
	task := byHandTurn(t, s, ctx, byHandTask(t, s, ctx, "made"), "echo new >made")
	byHandTurn(t, s, ctx, byHandTask(t, s, ctx, "pipe"), "mkfifo pipe")
	nowhere := filepath.Join(s.dir, "nowhere")
	for _, row := range []struct {
		want int
		args []string
	}{
		{exitUsage, []string{"task", "apply", "made", "--home", nowhere}},
		{exitUsage, []string{"task", "apply", "made", "--branch", "a..b", "--home", nowhere}},
		{exitUsage, []string{"task", "apply", "../made", "--branch", "b", "--home", nowhere}},
		{exitFailed, []string{"task", "apply", "pipe", "--branch", "b", "--home", s.home}},
		{exitFailed, []string{"task", "apply", "never", "--branch", "b", "--home", s.home}},
	} {
		if code, msg := exitOf(t, s, ctx, row.args...); code != row.want {
			t.Errorf("%v: exit %d, %s", row.args, code, msg)
		}
	}
	if _, err := os.Lstat(nowhere); err == nil {
		t.Error("bad words made a home")
	}
	var out host.Integrated
	if err := s.operator(ctx, &out, "task", "apply", "made", "--branch", "holdfast/made"); err != nil {
		t.Fatal(err)
	}
	head, err := exec.CommandContext(ctx, "git", "-C", s.repo, "show", "--format=%H", "holdfast/made").Output()
	if err != nil || !strings.HasPrefix(string(head), out.Commit+"\n") || !strings.HasSuffix(string(head), "+new\n") || out.Base != task.Worktree.Base || out.Turn != 1 {
		t.Fatalf("%+v, %s, %v", out, head, err)
	}
	var view viewDocument
	if err := s.operator(ctx, &view, "task", "view", "made"); err != nil || view.Integration != "applied" || view.Task.Applied.Commit != out.Commit {
		t.Fatalf("%q, %+v, %v", view.Integration, view.Task.Applied, err)
	}
	var journal struct {
		Entries []struct{ Kind, Outcome, Reason string }
	}
	if err := s.operator(ctx, &journal, "journal", "list"); err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]int{}
	for _, e := range journal.Entries {
		if e.Kind == "task.integrate" {
			outcomes[e.Outcome+" "+e.Reason]++
		}
	}
	if outcomes["applied "] != 1 || outcomes["rejected invalid_transition"] != 1 {
		t.Errorf("the journal says %v of %+v", outcomes, journal.Entries)
	}
}
