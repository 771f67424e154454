package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/runnable"
	"holdfast/owner"
)

// TestTaskContext: what the requirements of a grant let a turn read comes out of the store by a verb, when the
// workspace, the repository and the suite are gone.
func TestTaskContext(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	if err := s.stepHome(ctx); err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	digest := func(b []byte) string {
		h := sha256.Sum256(b)
		return "sha256:" + hex.EncodeToString(h[:])
	}
	write := func(path string, b []byte, mode os.FileMode) string {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := runnable.Write(path, b, mode); err != nil {
			t.Fatal(err)
		}
		return digest(b)
	}
	const entry = "---\nid: making.files\nversion: 2\nkind: method\ntitle: Making files\nsummary: How files are made.\n" +
		"applies_when: A file is wanted.\nstatus: admitted\nauthor: somebody\nprovenance:\n  written_from: [reference]\n---\n\nWrite it.\n"
	// The folder is the operator's own checkout, which a read-only bounded command may look at as it is.
	files := map[string]string{"AGENTS.md": "be kind\n", "src/AGENTS.md": "be brief\n", "docs/making.files.md": entry}
	for name, text := range files {
		write(filepath.Join(s.repo, name), []byte(text), 0o644)
	}
	suite, manifest := filepath.Join(dir, "suite"), filepath.Join(dir, "suite.json")
	suiteDigest := write(suite, []byte(`#!/bin/sh
printf '{"schema":"openagents.verification.v1","suite_digest":"sha256:%s","input_digest":"%s","verdict":"passed"}' "$(sha256sum "$0" | cut -d ' ' -f 1)" "$1"
`), 0o755)
	manifestDigest := write(manifest, []byte(`{"v":1,"slug":"suite","transport":"subprocess","detect":{"binary":"`+suite+`"}}`), 0o644)
	task := byHandTask(t, s, ctx, "reads")
	if code, _ := exitOf(t, s, ctx, "task", "context", "reads", "--home", s.home); code != exitFailed {
		t.Errorf("a task without a turn: exit %d", code)
	}
	const candidate = "{candidate_digest}"
	grant := func(knowledgeVersion int) string {
		b, err := json.Marshal(map[string]any{
			"schema": "openagents.coder.task-execution-grant.v1", "task_id": "reads", "intent_digest": task.IntentDigest,
			"expected_revision": task.Revision, "program": shell, "arguments": []string{"-c", "cat AGENTS.md"},
			"write_workspace": false, "wall_seconds": 60, "stream_bytes": 65536, "memory_bytes": 268435456,
			"requirements": map[string]any{
				"schema": "openagents.coder.task-requirements.v2", "version": 1,
				"requirements": []any{map[string]any{"id": "r", "statement": "it is read", "checks": []string{"c"}}},
				"plan": map[string]any{"schema": "openagents.verification.v1", "input_digest": candidate, "seconds": 60,
					"allow_unrestricted_reads": true, "allow_network": true, "checks": []any{map[string]any{
						"id": "c", "manifest": manifest, "manifest_digest": manifestDigest, "arguments": []string{candidate}, "seconds": 60, "output_bytes": 4096,
						"acceptance": map[string]any{"kind": "suite", "suite_digest": suiteDigest, "input_digest": candidate}}}},
				"instruction_targets": []string{"src/new.go"}, "source_exclusions": []any{}, "task_sources": []string{"a-wish"},
				"check_lineage": []any{map[string]any{"check": "c", "sources": []string{"by-hand"}}},
				"knowledge": []any{map[string]any{"id": "making.files", "version": knowledgeVersion, "digest": digest([]byte(entry)),
					"path": "docs/making.files.md", "sources": []string{"reference"}}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "grant.json")
		write(path, b, 0o600)
		return path
	}
	// A pin that is not what stands there ends the turn with a cause that names no path.
	if code, msg := exitOf(t, s, ctx, "task", "execute", "--grant", grant(3), "--home", s.home); code != exitFailed ||
		!strings.Contains(msg, "the knowledge making.files has another ID or version than was pinned") {
		t.Fatalf("exit %d: %s", code, msg)
	}
	var show owner.Task
	if err := s.operator(ctx, &show, "task", "show", "reads"); err != nil || show.Status != owner.Cancelled || show.Run != nil {
		t.Fatalf("%+v, %v", show, err)
	}
	again, err := json.Marshal(map[string]any{"schema": "openagents.coder.task-command.v1", "command_id": "again", "task_id": "reads",
		"expected_revision": show.Revision, "action": map[string]any{"type": "continue", "prompt": "again"}})
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(dir, "again.json"), again, 0o600)
	if err := s.operator(ctx, nil, "task", "continue", "--file", filepath.Join(dir, "again.json")); err != nil {
		t.Fatal(err)
	}
	if err := s.operator(ctx, &task, "task", "show", "reads"); err != nil {
		t.Fatal(err)
	}
	if err := s.operator(ctx, &task, "task", "execute", "--grant", grant(2)); err != nil || task.Run == nil || task.Run.Admission.Context == "" {
		t.Fatalf("%+v, %v", task.Run, err)
	}
	var report owner.CheckReport
	if err := s.operator(ctx, &report, "task", "check", "reads"); err != nil || report.Verdict != owner.ChecksPassed || report.Context != task.Run.Admission.Context {
		t.Fatalf("%+v, %v", report, err)
	}
	for _, gone := range []string{s.repo, suite, manifest} {
		if err := os.RemoveAll(gone); err != nil {
			t.Fatal(err)
		}
	}
	var d contextDocument
	if err := s.operator(ctx, &d, "task", "context", "reads"); err != nil {
		t.Fatal(err)
	}
	if d.Digest != task.Run.Admission.Context || len(d.Context.Instructions) != 2 || len(d.Context.Knowledge) != 1 || d.Context.Turn != 1 {
		t.Fatalf("%+v", d)
	}
	for name, text := range files {
		var file contextText
		if err := s.operator(ctx, &file, "task", "context", "reads", "--path", name, "--turn", "1"); err != nil || string(file.Bytes) != text || string(file.Digest) != digest([]byte(text)) {
			t.Errorf("%s: %q, %v", name, file.Bytes, err)
		}
	}
	var v viewDocument
	if err := s.operator(ctx, &v, "task", "view", "reads"); err != nil || v.Evidence != "sealed" || v.Task.Run.Admission.Context != d.Digest {
		t.Fatalf("%+v, %v", v, err)
	}
	out := filepath.Join(dir, "kept")
	if err := s.operator(ctx, nil, "task", "context", "reads", "--path", "AGENTS.md", "--output", out); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(out); err != nil || string(b) != files["AGENTS.md"] {
		t.Errorf("%q, %v", b, err)
	}
	if err := s.operator(ctx, nil, "check"); err != nil {
		t.Errorf("check: %v", err)
	}
	for _, row := range []struct {
		want int
		args []string
	}{
		{exitUsage, []string{"task", "context"}},
		{exitUsage, []string{"task", "context", "reads", "--turn", "-1"}},
		{exitUsage, []string{"task", "context", "reads", "--output", out}},
		{exitUsage, []string{"task", "context", "reads", "--path", ""}},
		{exitFailed, []string{"task", "context", "reads", "--path", "AGENTS.md", "--output", out}},
		{exitFailed, []string{"task", "context", "reads", "--path", "../AGENTS.md"}},
		{exitFailed, []string{"task", "context", "reads", "--turn", "2"}},
	} {
		if code, msg := exitOf(t, s, ctx, append(row.args, "--home", s.home)...); code != row.want {
			t.Errorf("%v: exit %d, %s", row.args, code, msg)
		}
	}
}
