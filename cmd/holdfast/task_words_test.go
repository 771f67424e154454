package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTaskWordsFirst: wrong words are exit 2 before any store is looked for, and right ones get as far as that.
func TestTaskWordsFirst(t *testing.T) {
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	cancel := filepath.Join(dir, "cancel.json")
	if err := os.WriteFile(cancel, []byte(`{"schema":"openagents.coder.task-command.v1","command_id":"c","task_id":"t","expected_revision":1,"action":{"type":"cancel","reason":"r"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 40_000)
	for _, row := range []struct {
		want  int
		stdin string
		args  []string
	}{
		{exitUsage, "", []string{"new"}},
		{exitUsage, "", []string{"new", "--workspace", "w"}},
		{exitUsage, "", []string{"new", "--workspace", "a/b", "--prompt", "p"}},
		{exitUsage, "", []string{"new", "--workspace", "w", "--prompt", " \n"}},
		{exitUsage, "", []string{"new", "--workspace", "w", "--prompt", "a\x1bb"}},
		{exitUsage, "", []string{"new", "--workspace", "w", "--prompt", long}},
		{exitUsage, long, []string{"new", "--workspace", "w", "--prompt", "-"}},
		{exitUsage, "", []string{"new", "--workspace", "w", "--prompt", "p", "--title", "two\nlines"}},
		{exitUsage, "", []string{"stop", "../t"}},
		{exitUsage, "", []string{"stop", "t", "--reason", "a\x00b"}},
		{exitUsage, "", []string{"show", ""}},
		{exitUsage, "", []string{"view", "-t-"}},
		{exitUsage, "", []string{"view", "t", "--limit", "201"}},
		{exitUsage, "", []string{"artifact", "t"}},
		{exitUsage, "", []string{"artifact", "a b", "--path", "p"}},
		{exitUsage, "", []string{"diff", strings.Repeat("t", 129)}},
		{exitUsage, "", []string{"apply", "t"}},
		{exitUsage, "", []string{"recover", "t/u"}},
		{exitUsage, "", []string{"restore", ".t"}},
		{exitUsage, "", []string{"archive", "t"}},
		{exitUsage, "", []string{"archive", "t", "--reason", strings.Repeat("x", 513)}},
		{exitUsage, "", []string{"submit", "--file", cancel}},
		{exitUsage, "", []string{"continue", "--file", cancel}},
		{exitFailed, "{}", []string{"submit", "--file", "-"}},
		{exitFailed, "{}", []string{"execute", "--grant", "-"}},
		{exitFailed, "", []string{"cancel", "--file", cancel}},
		{exitFailed, "do it\n", []string{"new", "--workspace", "w", "--prompt", "-"}},
		{exitFailed, "", []string{"stop", "t"}},
		{exitFailed, "", []string{"archive", "t", "--reason", "done"}},
		{exitFailed, "", []string{"show", "t"}},
	} {
		var out, errs bytes.Buffer
		args := append(append([]string{"task"}, row.args...), "--home", home)
		if code := run(args, strings.NewReader(row.stdin), &out, &errs); code != row.want {
			t.Errorf("%.80q: exit %d, %.200s", row.args, code, errs.String())
		}
		if _, err := os.Lstat(home); err == nil {
			t.Fatalf("%.80q made a home", row.args)
		}
	}
}
