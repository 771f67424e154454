package main

import (
	"bytes"
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

// TestTaskCheck: what an execution grant asked for is checked by a verb, in a process of its own, once the turn ended.
func TestTaskCheck(t *testing.T) {
	s, ctx := stage(t)
	if err := s.stepHome(ctx); err != nil {
		t.Fatal(err)
	}
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, v any, mode os.FileMode) (path, digest string) {
		raw, ok := v.([]byte)
		if !ok {
			var err error
			if raw, err = json.Marshal(v); err != nil {
				t.Fatal(err)
			}
		}
		path = filepath.Join(dir, name)
		if err := runnable.Write(path, raw, mode); err != nil {
			t.Fatal(err)
		}
		h := sha256.Sum256(raw)
		return path, "sha256:" + hex.EncodeToString(h[:])
	}
	submit, _ := write("submit.json", map[string]any{
		"schema": "openagents.coder.task-command.v1", "command_id": "submit-checked", "task_id": "checked", "expected_revision": nil,
		"action": map[string]any{"type": "submit", "intent": map[string]any{
			"title": "checked", "prompt": "make a file", "workspace": map[string]any{"path": s.repo},
			"configuration": map[string]any{"adapter": "bounded-command", "model": nil},
		}},
	}, 0o600)
	var task owner.Task
	if err := s.operator(ctx, nil, "task", "submit", "--file", submit); err != nil {
		t.Fatal(err)
	}
	if code, _ := exitOf(t, s, ctx, "task", "check", "checked", "--home", s.home); code != exitFailed {
		t.Errorf("a task without a turn: exit %d", code)
	}
	if err := s.operator(ctx, &task, "task", "show", "checked"); err != nil {
		t.Fatal(err)
	}
	suite, suiteDigest := write("suite", []byte(`#!/bin/sh
[ -e made ] && verdict=passed || verdict=failed
printf '{"schema":"openagents.verification.v1","suite_digest":"sha256:%s","input_digest":"%s","verdict":"%s"}' "$(sha256sum "$0" | cut -d ' ' -f 1)" "$1" $verdict
`), 0o755)
	manifest, manifestDigest := write("suite.json", map[string]any{"v": 1, "slug": "suite", "transport": "subprocess", "detect": map[string]any{"binary": suite}}, 0o644)
	const candidate = "{candidate_digest}"
	grant, _ := write("grant.json", map[string]any{
		"schema": "openagents.coder.task-execution-grant.v1", "task_id": "checked", "intent_digest": task.IntentDigest,
		"expected_revision": task.Revision, "program": shell, "arguments": []string{"-c", "echo new >made"},
		"write_workspace": true, "wall_seconds": 60, "stream_bytes": 65536, "memory_bytes": 268435456,
		"requirements": map[string]any{
			"schema": "openagents.coder.task-requirements.v2", "version": 1,
			"requirements": []any{map[string]any{"id": "made", "statement": "the file is made", "checks": []string{"made"}}},
			"plan": map[string]any{"schema": "openagents.verification.v1", "input_digest": candidate, "seconds": 60,
				"allow_unrestricted_reads": true, "allow_network": true, "checks": []any{map[string]any{
					"id": "made", "manifest": manifest, "manifest_digest": manifestDigest, "arguments": []string{candidate}, "seconds": 60, "output_bytes": 4096,
					"acceptance": map[string]any{"kind": "suite", "suite_digest": suiteDigest, "input_digest": candidate}}}},
			"instruction_targets": []any{}, "source_exclusions": []any{}, "task_sources": []string{"a-wish"},
			"check_lineage": []any{map[string]any{"check": "made", "sources": []string{"by-hand"}}}, "knowledge": []any{},
		},
	}, 0o600)
	if err := s.operator(ctx, &task, "task", "execute", "--grant", grant); err != nil {
		t.Fatal(err)
	}
	if task.Checks != owner.NotRun {
		t.Fatalf("checks %s before anybody asked", task.Checks)
	}
	var report owner.CheckReport
	if err := s.operator(ctx, &report, "task", "check", "checked"); err != nil {
		t.Fatal(err)
	}
	if report.Verdict != owner.ChecksPassed || report.Attempt != 1 || report.Evidence == nil || report.Evidence.Before != task.Run.Result.Candidate {
		t.Fatalf("report %+v", report)
	}
	if code, _ := exitOf(t, s, ctx, "task", "check", "checked", "--home", s.home); code != exitFailed {
		t.Errorf("checks that passed, again: exit %d", code)
	}
}

// An attempt that came to nothing says why, also where each suite that ran says that it passed.
func TestWriteChecks(t *testing.T) {
	candidate, other := owner.DigestOf([]byte("candidate")), owner.DigestOf([]byte("other"))
	passed := owner.SuiteRun{Check: "one", Ending: "exit 0", Said: &owner.SuiteSays{Verdict: "passed"}}
	for want, r := range map[string]struct {
		checks owner.Checks
		after  owner.Digest
		ran    []owner.SuiteRun
	}{
		"the time of the plan was over before check one":        {owner.ChecksUnavailable, candidate, nil},
		"the time of the plan was over before check two":        {owner.ChecksUnavailable, candidate, []owner.SuiteRun{passed}},
		"the workspace changed while the checks ran":            {owner.ChecksUnavailable, other, []owner.SuiteRun{passed, passed}},
		"one        exit 0 after 0 ms, said nothing that count": {owner.ChecksUnavailable, candidate, []owner.SuiteRun{{Check: "one", Ending: "exit 0"}}},
		"newer than what was checked, which came to unavail":    {owner.ChecksDisputed, candidate, nil},
	} {
		task := owner.Task{ID: "t", Checks: r.checks, Run: &owner.Run{
			Admission: owner.Admission{Checks: &owner.CheckPlan{Suites: []owner.Suite{{Check: "one"}, {Check: "two"}}}},
			Result:    &owner.Result{Candidate: candidate},
			Report:    &owner.CheckReport{Attempt: 1, Verdict: owner.ChecksUnavailable, Evidence: &owner.CheckEvidence{Before: candidate, After: r.after, Suites: r.ran}},
		}}
		var out bytes.Buffer
		writeChecks(&out, &task)
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
