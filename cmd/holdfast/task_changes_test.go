package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTaskChanges: what a turn changed comes out of the store by two verbs when its workspace is gone.
func TestTaskChanges(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	if err := s.stepHome(ctx); err != nil {
		t.Fatal(err)
	}
	task := byHandTask(t, s, ctx, "changes")
	if code, _ := exitOf(t, s, ctx, "task", "diff", "changes", "--home", s.home); code != exitFailed {
		t.Errorf("a task without a turn: exit %d", code)
	}
	task = byHandTurn(t, s, ctx, task, "echo new >made; mkfifo pipe")
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
