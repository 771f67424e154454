package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestBench runs the cheap measurements: what comes out is complete, and the
// throw-away home is gone afterwards. It judges no figure.
func TestBench(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names := []string{"command-latency", "decide-commit-1000-vs-1000000", "append-10000", "start-up"}
	var out, progress bytes.Buffer
	args := append([]string{"bench", "--quick", "--json", "--dir", dir, "--home", filepath.Join(dir, "home")}, names...)
	if exit := run(args, nil, &out, &progress); exit != exitOK {
		t.Fatalf("exit %d: %s", exit, progress.String())
	}
	var doc struct {
		Results []map[string]any
		Missing []benchMissing
		Quick   bool
		Version string
		Machine struct {
			OS, Arch, Go string
			Processors   int
		}
	}
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatalf("not one JSON document: %v\n%s", err, out.String())
	}
	if len(doc.Missing) > 0 || !doc.Quick || doc.Version == "" || doc.Machine.Processors < 1 || doc.Machine.Go == "" {
		t.Errorf("the document says %s", out.String())
	}
	var got, want []string
	for _, m := range benchMeasures {
		if slices.Contains(names, m.name) {
			want = append(want, m.rows...)
		}
	}
	for _, r := range doc.Results {
		name, _ := r["name"].(string)
		got = append(got, name)
		value, floor, ratio := number(r["value"]), number(r["floor"]), number(r["ratio"])
		if !(value > 0 && floor > 0 && ratio > 0) || math.Abs(ratio-value/floor) > 1e-9*ratio {
			t.Errorf("%s: value %v, floor %v, ratio %v", name, r["value"], r["floor"], r["ratio"])
		}
		if unit, _ := r["unit"].(string); unit == "" {
			t.Errorf("%s has no unit", name)
		}
		if detail, _ := r["detail"].(string); detail == "" {
			t.Errorf("%s does not say what its floor is", name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("rows %v, not %v", got, want)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func number(v any) float64 {
	f, _ := v.(float64)
	return f
}

// TestBenchNames: a name is never used twice, each measurement can be asked for
// by its own and by its rows' names, and the page for people has them all.
func TestBenchNames(t *testing.T) {
	page, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range benchMeasures {
		for _, row := range m.rows {
			if seen[row] {
				t.Errorf("two rows are called %s", row)
			}
			seen[row] = true
			if !bytes.Contains(page, []byte("`"+row+"`")) {
				t.Errorf("docs/performance.md does not name %s", row)
			}
			for _, name := range []string{m.name, row} {
				if list, err := chooseMeasures([]string{name}); err != nil || len(list) != 1 || list[0].name != m.name {
					t.Errorf("%s chooses %d measurements: %v", name, len(list), err)
				}
			}
		}
	}
	var out, errs bytes.Buffer
	if exit := run([]string{"bench", "nothing-like-it"}, nil, &out, &errs); exit != exitUsage {
		t.Errorf("an unknown name exits %d: %s", exit, errs.String())
	}
}

func TestBenchBar(t *testing.T) {
	for _, row := range []struct {
		name  string
		ratio float64
		want  string
	}{
		{"the floor itself", 1, "........|........"},
		{"twice the floor", 2, "........|#......."},
		{"a quarter of it", 0.25, "......##|........"},
		{"beyond the scale", 1e9, "........|########"},
		{"hardly anything", 1e-9, "########|........"},
	} {
		if got := bar(row.ratio); got != row.want {
			t.Errorf("%s: %s, not %s", row.name, got, row.want)
		}
	}
}

func TestBenchSamples(t *testing.T) {
	var s samples
	for i := 100; i >= 1; i-- {
		s = append(s, time.Duration(i))
	}
	for _, row := range []struct {
		name string
		q    float64
		want time.Duration
	}{{"least", 0, 1}, {"median", 0.5, 51}, {"p99", 0.99, 100}, {"most", 1, 100}} {
		if got := s.at(row.q); got != row.want {
			t.Errorf("%s: %d, not %d", row.name, got, row.want)
		}
	}
	if s[0] != 100 {
		t.Error("the samples were sorted in place")
	}
}

// TestBenchDir: without --dir the throw-away home lies where the home would be
// made, as far up as folders are there.
func TestBenchDir(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := benchDir(filepath.Join(base, "not", "yet", "home"), "")
	if err != nil || filepath.Dir(dir) != base {
		t.Errorf("made %s: %v", dir, err)
	}
	if _, err := benchDir("", filepath.Join(base, "absent")); err == nil {
		t.Error("a folder that is not there was taken")
	}
}
