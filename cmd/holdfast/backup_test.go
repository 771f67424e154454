package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/host"
)

// A backup is taken of a host that serves, and put back once it does not.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	p, first := up(t, s, ctx, "--listen", freePort(t))
	file := filepath.Join(s.dir, "backup")
	var b host.Backup
	if err := s.operator(ctx, &b, "backup", file); err != nil || b.Backup != file || b.Files == 0 {
		t.Fatalf("%+v %v", b, err)
	}
	if code, msg := exitOf(t, s, ctx, "backup", "--home", s.home, file); code != exitUsage || !strings.Contains(msg, "replaces nothing") {
		t.Errorf("over a backup: exit %d, %s", code, msg)
	}
	if code, msg := exitOf(t, s, ctx, "restore-backup", "--home", s.home, "--replace", file); code != exitBusy || !strings.Contains(msg, "host.lock") {
		t.Errorf("under a host: exit %d, %s", code, msg)
	}
	p.end()
	if code, msg := exitOf(t, s, ctx, "restore-backup", "--home", s.home, file); code != exitUsage || !strings.Contains(msg, "--replace") {
		t.Errorf("over a home: exit %d, %s", code, msg)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".cut", raw[:len(raw)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _ := exitOf(t, s, ctx, "restore-backup", "--home", s.home, "--replace", file+".cut"); code != exitCorrupt {
		t.Errorf("half of a backup: exit %d", code)
	}
	var out host.Restored
	if err := s.operator(ctx, &out, "restore-backup", "--replace", file); err != nil || out.RestoredAt < b.MadeAt || out.Files != b.Files || out.Bytes != b.Bytes {
		t.Fatalf("%+v %v", out, err)
	}
	if _, err := os.Stat(filepath.Join(out.Kept, "host.key")); err != nil {
		t.Error("the home before was not kept:", err)
	}
	if code, msg := exitOf(t, s, ctx, "check", "--home", s.home); code != 0 {
		t.Errorf("check: exit %d, %s", code, msg)
	}
	_, second := up(t, s, ctx)
	for _, k := range []string{"host", "owner", "relay"} {
		if first[k] != second[k] {
			t.Errorf("%s was %v, is %v", k, first[k], second[k])
		}
	}
}
