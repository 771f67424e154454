package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/host"
)

// TestGCVerb: an ended task's worktree goes by its policy, and its patch is there after it.
func TestGCVerb(t *testing.T) {
	s, ctx := stage(t)
	if err := s.stepHome(ctx); err != nil {
		t.Fatal(err)
	}
	task := byHandTurn(t, s, ctx, byHandTask(t, s, ctx, "made"), "echo new >made")
	raw, err := os.ReadFile(filepath.Join(s.home, "policy.json"))
	if err != nil {
		t.Fatal(err)
	}
	days := filepath.Join(s.dir, "days.json")
	if err := os.WriteFile(days, bytes.Replace(raw, []byte(`"rules"`), []byte(`"keep_worktrees_days":0,"rules"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.operator(ctx, nil, "policy", "set", days); err != nil {
		t.Fatal(err)
	}
	var dry, did host.Collected
	if err := s.operator(ctx, &dry, "gc", "--dry-run"); err != nil || len(dry.Removed) != 1 || dry.Removed[0].Task != "made" {
		t.Fatalf("%+v, %v", dry, err)
	}
	if err := s.operator(ctx, &did, "gc"); err != nil || len(did.Removed) != 1 || did.Freed == 0 || did.DryRun {
		t.Fatalf("%+v, %v", did, err)
	}
	if _, err := os.Lstat(task.Worktree.Path); !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var diff diffDocument
	if err := s.operator(ctx, &diff, "task", "diff", "made"); err != nil || !strings.Contains(string(diff.Patch), "+++ b/made\n") {
		t.Errorf("%s, %v", diff.Patch, err)
	}
	var st host.Status
	if err := s.operator(ctx, &st, "status"); err != nil || st.Disk.Journal == 0 || st.Disk.Tasks == 0 || st.Disk.AtLeast {
		t.Errorf("%+v, %v", st.Disk, err)
	}
	var text bytes.Buffer
	writeStatus(&text, s.home, st)
	if !strings.Contains(text.String(), "  disk     journal ") {
		t.Errorf("%s", text.String())
	}
	text.Reset()
	did.Kept, did.More = []host.GCRow{{Kind: "worktree", Path: "/w", Why: "the task is queued"}}, 3
	writeCollected(&text, &did)
	for _, want := range []string{"removed worktree " + task.Worktree.Path, "kept worktree /w: the task is queued\n", "and 3 more\n", "freed "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in %s", want, text.String())
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 9_999: "9999 B", 10_000: "9 KiB", 20 << 20: "20 MiB", 3 << 40: "3072 GiB"} {
		if got := size(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
