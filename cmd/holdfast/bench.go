package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"holdfast/sandbox"
)

// benchRow is one published measurement: a value, and the floor that the same
// run measured for it on the same machine. No row is a promise in seconds.
type benchRow struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Floor  float64 `json:"floor"`
	Ratio  float64 `json:"ratio"` // value over floor
	Aim    string  `json:"aim"`   // of the ratio; "" where there is none
	Detail string  `json:"detail"`
}

// benchMissing is a measurement that this run has no figures for.
type benchMissing struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// benchMeasure makes the rows of one measurement.
type benchMeasure struct {
	name string
	rows []string
	what string
	run  func(*bench, context.Context) ([]benchRow, error)
}

// The measurements in the order in which they run: the quiet ones last, so that
// what the machine still writes back does not count as theirs.
var benchMeasures = []benchMeasure{
	{"command-latency", []string{"command-latency-p50", "command-latency-p99"}, "one command, from its publication to its verified reply", (*bench).commandLatency},
	{"commands-64", []string{"commands-per-second-64", "command-cpu-64"}, "64 devices at once", (*bench).commandRate},
	{"decide-commit-1000-vs-1000000", []string{"decide-commit-1000-vs-1000000"}, "a decision in a long journal and in a short one", (*bench).longJournal},
	{"full-store", []string{"store-open-100000", "store-submit-100000", "store-identity-100000", "store-overlap-100000", "list-100000-first", "list-100000-middle", "list-100000-last", "status-100000", "host-start-100000"}, "a store of 100,000 tasks and one of 1,000", (*bench).fullStore},
	{"append-10000", []string{"append-10000"}, "one more event in a task with 10,000", (*bench).longTask},
	{"backlog-10000-100", []string{"backlog-10000-100"}, "a host that finds 10,000 commands waiting", (*bench).backlog},
	{"stranger-flood", []string{"stranger-flood"}, "a paired device during a flood of strangers", (*bench).strangerFlood},
	{"start-up", []string{"start-up"}, "the host's start", (*bench).startUp},
	{"sandbox-start", []string{"sandbox-start", "sandbox-start-prepared"}, "a turn of /bin/true in the sandbox", (*bench).sandboxStart},
	{"idle", []string{"idle-cpu", "idle-memory"}, "an idle host with one connection", (*bench).idle},
}

// errNotHere is wrapped where this machine has no means for a measurement.
var errNotHere = errors.New("cannot be measured here")

// bench is one run. One goroutine owns it.
type bench struct {
	g     *globals
	dir   string // everything of the run, removed at its end
	quick bool
	homes int
}

func benchCommand(g *globals) *cobra.Command {
	var o struct {
		quick, idle  bool
		dir, profile string
	}
	c := &cobra.Command{
		Use: "bench [NAME...]", Short: "Measure, each figure against a floor of the same run",
		Long: "Each row is a value, a floor measured in the same run on the same machine, and\n" +
			"their ratio; docs/performance.md says what each means. It works in a throw-away\n" +
			"home on the file system of the home, and touches nothing of yours.\n\n" + benchNames(),
		RunE: func(c *cobra.Command, names []string) error {
			if o.idle {
				_, err := io.Copy(io.Discard, g.stdin)
				return err
			}
			list, err := chooseMeasures(names)
			if err != nil {
				return err
			}
			stop, err := cpuProfile(o.profile)
			if err != nil {
				return err
			}
			return errors.Join(g.bench(c.Context(), list, o.dir, o.quick), stop())
		},
	}
	c.Flags().BoolVar(&o.quick, "quick", false, "fewer and smaller samples: figures for a first look")
	c.Flags().StringVar(&o.dir, "dir", "", "make the throw-away home in this folder (default: beside the home)")
	c.Flags().StringVar(&o.profile, "cpu-profile", "", "write a CPU profile of the run to this file")
	c.Flags().BoolVar(&o.idle, "idle-process", false, "")
	_ = c.Flags().MarkHidden("idle-process") // the floor of the idle rows
	return c
}

func benchNames() string {
	var b strings.Builder
	for _, m := range benchMeasures {
		fmt.Fprintf(&b, "  %-30s %s\n", m.name, m.what)
	}
	return b.String()
}

// chooseMeasures takes the names of measurements and of their rows; none is all.
func chooseMeasures(names []string) ([]benchMeasure, error) {
	if len(names) == 0 {
		return benchMeasures, nil
	}
	for _, n := range names {
		if !slices.ContainsFunc(benchMeasures, func(m benchMeasure) bool { return m.named(n) }) {
			return nil, usage("there is no measurement %q; holdfast bench --help names them", n)
		}
	}
	var out []benchMeasure
	for _, m := range benchMeasures {
		if slices.ContainsFunc(names, m.named) {
			out = append(out, m)
		}
	}
	return out, nil
}

func (m benchMeasure) named(n string) bool { return n == m.name || slices.Contains(m.rows, n) }

func cpuProfile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("write the profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error { pprof.StopCPUProfile(); return f.Close() }, nil
}

// bench runs the measurements and prints what it has, also where one failed.
func (g *globals) bench(ctx context.Context, list []benchMeasure, under string, quick bool) error {
	dir, err := benchDir(g.home, under)
	if err != nil {
		return err
	}
	b := &bench{g: g, dir: dir, quick: quick}
	rows, missing := []benchRow{}, []benchMissing{}
	var failed error
	for i, m := range list {
		fmt.Fprintf(g.stderr, "%d/%d  %s: %s\n", i+1, len(list), m.name, m.what)
		began := time.Now()
		got, err := m.run(b, ctx)
		if ctx.Err() != nil {
			failed = errors.Join(failed, context.Cause(ctx))
			break // what was measured until here is printed all the same
		}
		if err != nil {
			missing = append(missing, benchMissing{m.name, err.Error()})
			fmt.Fprintf(g.stderr, "     %s\n", err)
			if !errors.Is(err, errNotHere) && !errors.Is(err, sandbox.ErrNotEnforceable) {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", m.name, err))
			}
			continue
		}
		for j := range got {
			r := &got[j]
			r.Ratio = r.Value / r.Floor
			b.say("%s %s, floor %s, ratio %.2f", r.Name, amount(r.Value, r.Unit), amount(r.Floor, r.Unit), r.Ratio)
		}
		b.say("took %.1f s", time.Since(began).Seconds())
		rows = append(rows, got...)
	}
	err = g.emit(map[string]any{
		"results": rows, "missing": missing, "quick": quick, "version": version,
		"machine": map[string]any{"os": runtime.GOOS, "arch": runtime.GOARCH, "processors": runtime.GOMAXPROCS(0), "go": runtime.Version()},
	}, func(w io.Writer) { writeBench(w, rows, missing, quick) })
	return errors.Join(failed, err, os.RemoveAll(dir))
}

// say is progress within a measurement, for whoever waits.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.g.stderr, "     "+format+"\n", args...)
}

// size is how many of something a run takes.
func (b *bench) size(whole, quick int) int {
	if b.quick {
		return quick
	}
	return whole
}
