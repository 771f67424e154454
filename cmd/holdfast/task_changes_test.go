package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/owner"
)

// TestTaskChanges: what a turn changed comes out of the store by two verbs when its workspace is gone.
func TestTaskChanges(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	if err := s.stepHome(ctx); err != nil {
		t.Fatal(err)
	}
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, v any) string {
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
	submit := write("submit.json", map[string]any{
		"schema": "openagents.coder.task-command.v1", "command_id": "submit-changes", "task_id": "changes", "expected_revision": nil,
		"action": map[string]any{"kind": "submit", "intent": map[string]any{
			"title": "changes", "prompt": "change something", "workspace": map[string]any{"path": s.repo},
			"configuration": map[string]any{"adapter": "bounded-command", "model": nil},
		}},
	})
	var task owner.Task
	if err := s.operator(ctx, nil, "task", "submit", "--file", submit); err != nil {
		t.Fatal(err)
	}
	if code, _ := exitOf(t, s, ctx, "task", "diff", "changes", "--home", s.home); code != exitFailed {
		t.Errorf("a task without a turn: exit %d", code)
	}
	if err := s.operator(ctx, &task, "task", "show", "changes"); err != nil {
		t.Fatal(err)
	}
	grant := write("grant.json", map[string]any{
		"schema": "openagents.coder.task-execution-grant.v1", "task_id": "changes", "intent_digest": task.IntentDigest,
		"expected_revision": task.Revision, "program": shell, "arguments": []string{"-c", "echo new >made; mkfifo pipe"},
		"write_workspace": true, "wall_seconds": 60, "stream_bytes": 65536, "memory_bytes": 268435456,
	})
	if err := s.operator(ctx, &task, "task", "execute", "--grant", grant); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(task.Worktree.Path); err != nil {
		t.Fatal(err)
	}
	var file artifactDocument
	if err := s.operator(ctx, &file, "task", "artifact", "changes", "--path", "made"); err != nil || string(file.Bytes) != "new\n" {
		t.Fatalf("%q, %v", file.Bytes, err)
	}
	var diff diffDocument
	if err := s.operator(ctx, &diff, "task", "diff", "changes", "--turn", "1"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(diff.Patch), "+++ b/made\n") || diff.Changes.Complete {
		t.Errorf("complete %v, %s", diff.Changes.Complete, diff.Patch)
	}
	out := filepath.Join(s.dir, "patch")
	if err := s.operator(ctx, nil, "task", "diff", "changes", "--output", out); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(out); err != nil || string(b) != string(diff.Patch) {
		t.Errorf("the file has %q, %v", b, err)
	}
	if code, _ := exitOf(t, s, ctx, "task", "diff", "changes", "--output", out, "--home", s.home); code != exitFailed {
		t.Errorf("a file was written over: exit %d", code)
	}
	for _, row := range []struct {
		want int
		args []string
	}{
		{exitUsage, []string{"task", "artifact", "changes"}},
		{exitUsage, []string{"task", "diff", "changes", "--turn", "-1"}},
		{exitFailed, []string{"task", "artifact", "changes", "--path", "pipe"}},
		{exitFailed, []string{"task", "artifact", "changes", "--path", "../made"}},
		{exitFailed, []string{"task", "diff", "changes", "--turn", "2"}},
	} {
		if code, msg := exitOf(t, s, ctx, append(row.args, "--home", s.home)...); code != row.want {
			t.Errorf("%v: exit %d, %s", row.args, code, msg)
		}
	}
}
