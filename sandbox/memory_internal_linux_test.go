package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// What is over the limit, of a /proc as it might be.
func TestOverMemory(t *testing.T) {
	type process struct {
		resident, shared int64 // MiB
		share            int64 // MiB of smaps_rollup; -1: it cannot be read
	}
	page := int64(os.Getpagesize())
	for _, r := range []struct {
		name string
		of   map[string]process
		over bool
	}{
		{"nothing", nil, false},
		{"below", map[string]process{"2": {99, 0, 99}}, false},
		{"at the limit", map[string]process{"2": {100, 0, 100}}, false},
		{"one process", map[string]process{"2": {101, 0, 101}}, true},
		{"many processes", map[string]process{"2": {40, 0, 40}, "3": {40, 0, 40}, "4": {40, 0, 40}}, true},
		{"files and shared memory do not count", map[string]process{"2": {500, 450, 50}}, false},
		{"pages shared since a fork count once", map[string]process{"2": {80, 0, 27}, "3": {80, 0, 27}, "4": {80, 0, 27}}, false},
		{"who hides its shares counts in full", map[string]process{"2": {80, 0, 27}, "3": {80, 0, -1}}, true},
		{"init does not count", map[string]process{"1": {500, 0, 500}, "2": {10, 0, 10}}, false},
		{"no process", map[string]process{"self": {500, 0, 500}, "sys": {500, 0, 500}}, false},
	} {
		t.Run(r.name, func(t *testing.T) {
			proc := t.TempDir()
			for name, p := range r.of {
				dir := filepath.Join(proc, name)
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				statm := fmt.Sprintf("%d %d %d 1 0 1 0\n", p.resident<<21/page, p.resident<<20/page, p.shared<<20/page)
				rollup := fmt.Sprintf("0-1 ---p 0 00:00 0 [rollup]\nRss: 1 kB\nPss: 999999999 kB\nPss_Anon: %10d kB\nPss_File: 5 kB\n", p.share<<10)
				if p.share < 0 {
					rollup = ""
				}
				for file, text := range map[string]string{"statm": statm, "smaps_rollup": rollup} {
					if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got := overMemory(proc, 100<<20); got != r.over {
				t.Fatalf("over: %v", got)
			}
		})
	}
}

// The real one agrees about this process.
func TestShareOfThisProcess(t *testing.T) {
	whole, share := residentOf("/proc/self"), shareOf("/proc/self")
	if whole < 1<<20 || share < whole/4 || share > 4*whole {
		t.Fatalf("resident %d, share %d", whole, share)
	}
}
