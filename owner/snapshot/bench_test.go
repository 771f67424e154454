package snapshot

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkWarm compares a warm snapshot of 100,000 files with `git status` of the same tree in the same run, turn by
// turn, and prints the ratio of their medians. -short takes 5,000 files.
func BenchmarkWarm(b *testing.B) {
	folders := 1000
	if testing.Short() {
		folders = 50
	}
	dir := folder(b)
	git := func(args ...string) {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1"}
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "-q")
	for i := range folders {
		d := filepath.Join(dir, fmt.Sprintf("group%02d/folder%04d", i%37, i))
		must(b, os.MkdirAll(d, 0o755))
		for j := range 100 {
			must(b, os.WriteFile(filepath.Join(d, fmt.Sprintf("file-%03d.go", j)), fmt.Appendf(nil, "package p%d\n\nconst c = %d\n", i, j), 0o644))
		}
	}
	git("add", "-A")
	git("status", "--porcelain", "-uno") // refreshes what git remembers of racy files
	o := Options{Exclude: []string{".git"}, At: time.Now()}
	first, err := Take(context.Background(), dir, o)
	must(b, err)
	o.Cache = ParseCache(first.Cache().Encode())
	var ours, theirs []time.Duration
	status := func() {
		cmd := exec.Command("git", "status", "--porcelain")
		cmd.Dir = dir
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_OPTIONAL_LOCKS=0"}
		begun := time.Now()
		must(b, cmd.Run())
		theirs = append(theirs, time.Since(begun))
	}
	b.ResetTimer()
	for b.Loop() {
		status()
		o.At = time.Now()
		tree, err := Take(context.Background(), dir, o)
		ours = append(ours, time.Since(o.At))
		must(b, err)
		if tree.Digest() != first.Digest() || tree.Reread != 0 {
			b.Fatalf("not warm: %d files read, faults %v", tree.Reread, tree.Faults)
		}
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2].Microseconds()) / 1000
	}
	b.ReportMetric(median(ours), "ms/snapshot")
	b.ReportMetric(median(theirs), "ms/git-status")
	b.ReportMetric(median(ours)/median(theirs), "snapshot/git-status")
}
