// Package faulttest is the frame of tests that fail every call of a story on
// its way to the disk, one at a time and in every way.
//
// Its nouns are the Story, which opens stores in a folder, lets a life happen in
// them, mends itself after a failure as the product and its devices would, and
// says how it ended; and the Loop, which plays it undisturbed first and then
// once for each Plan of package diskfault: every call in every way, or a sample.
//
// A test hands its Loop to Run and does nothing else. Run starts the test binary
// again for that test alone, because the filter under which calls fail stays
// with a process for good; TestMain must let it reach the tests, and goleak must
// ignore IgnoreLeak. Where the system has no such filter the test is skipped
// (package skip).
//
// HOLDFAST_FAULTS chooses what is played: "all" plays every plan, in as many
// processes as there are processors; a number is the seed of a sample, to play
// the one that a failed test printed; a kind alone, such as "power cut", plays
// that one at every call, and "power cut@120" plays one plan. Only tests import
// this package.
package faulttest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/diskfault"
	"holdfast/internal/skip"
)

const (
	// Choice is the variable that chooses the plans.
	Choice = "HOLDFAST_FAULTS"
	// IgnoreLeak names, for goleak, the goroutine that answers for a failing
	// disk: it lives as long as its process.
	IgnoreLeak = "holdfast/internal/diskfault.(*Disk).serve"

	childEnv = "HOLDFAST_TEST_FAULTS" // "number/processes" of a child
	absent   = "no disk faults: "
)

// Story plays once in dir, which it makes and which is removed afterwards, under
// a plan that it hands to Begin. It fails t where what must hold does not. told
// is how it ended: a story that a failure must not change tells the same
// whatever the plan.
type Story func(t *testing.T, disk *diskfault.Disk, dir string, plan diskfault.Plan) (told string, calls int)

// Loop says how often a story is played.
type Loop struct {
	// Least is how many calls the story has at least: fewer mean that the disk
	// is not seen.
	Least int
	// Sample is how many plans are played without Choice; 0 is all of them.
	Sample int
}

// Run plays the story in a process of its own. The story must not call
// t.Parallel.
func (l Loop) Run(t *testing.T, story Story) {
	t.Helper()
	share := os.Getenv(childEnv)
	if share == "" {
		t.Parallel()
		l.start(t)
		return
	}
	disk, err := diskfault.Install()
	if err != nil {
		skip.Missing(t, absent+err.Error())
	}
	var mine, of int
	if _, err := fmt.Sscanf(share, "%d/%d", &mine, &of); err != nil {
		t.Fatal(err)
	}
	dir := memDir(t)
	play := func(p diskfault.Plan) (string, int) {
		where := filepath.Join(dir, fmt.Sprint(p.Kind, " ", p.At))
		defer os.RemoveAll(where)
		return story(t, disk, where, p)
	}
	want, calls := play(diskfault.Plan{})
	if calls < l.Least {
		t.Fatalf("the story has only %d calls", calls)
	}
	if past := disk.Unseen(); len(past) > 0 {
		t.Fatalf("written by calls that no plan can fail: %q", past)
	}
	plans, what := l.plans(t, calls)
	began := time.Now()
	played, missed := 0, 0
	for i, p := range plans {
		if i%of != mine {
			continue
		}
		played++
		got, made := play(p)
		call, _ := disk.Struck()
		if sampled := 1 < len(plans) && len(plans) < calls*len(diskfault.Kinds); sampled && call == "" && made < p.At {
			// One story has not always as many calls as the next: commits of several commands are joined or not, as they
			// come. A sample still strikes where it was to, as far into the story.
			p.At = max(1, p.At*made/calls)
			got, made = play(p)
			call, _ = disk.Struck()
		}
		if got != want {
			t.Errorf("%v\nundisturbed\n%s", got, want)
		}
		switch {
		case call == "" && made >= p.At:
			t.Errorf("the story made %d calls, and none was struck", made)
		case call == "":
			missed++ // of all plans, those for an end that this story had not
		}
		if t.Failed() {
			t.Fatalf("%v at call %d of %d (%s=%s; alone: %s=%q)", p.Kind, p.At, calls, Choice, what, Choice, fmt.Sprintf("%v@%d", p.Kind, p.At))
		}
	}
	if missed*4 > played {
		t.Errorf("%d of %d plans struck no call (%s=%s): the story has not %d calls each time", missed, played, Choice, what, calls)
	}
	t.Logf("%d calls, %d of %d plans in %d ways, %d of them struck (%s=%s), %v", calls, played, calls*len(diskfault.Kinds), len(diskfault.Kinds), played-missed, Choice, what, time.Since(began).Round(time.Millisecond))
}

// plans lists what to play, and says which choice it was.
func (l Loop) plans(t *testing.T, calls int) ([]diskfault.Plan, string) {
	t.Helper()
	choice := os.Getenv(Choice)
	if kind, at, ok := strings.Cut(choice, "@"); ok {
		n, err := strconv.Atoi(at)
		if k, known := kindOf(kind); known && err == nil {
			return []diskfault.Plan{{Kind: k, At: n}}, choice
		}
		t.Fatalf("%s=%q: the kinds are %v", Choice, choice, diskfault.Kinds)
	}
	var all []diskfault.Plan
	for at := 1; at <= calls; at++ {
		for _, k := range diskfault.Kinds {
			all = append(all, diskfault.Plan{Kind: k, At: at})
		}
	}
	if k, alone := kindOf(choice); alone {
		all = slices.DeleteFunc(all, func(p diskfault.Plan) bool { return p.Kind != k })
		return all, choice
	}
	if choice == "all" || choice == "" && (l.Sample == 0 || l.Sample >= len(all)) {
		return all, "all"
	}
	seed := rand.Uint64N(1_000_000)
	if choice != "" {
		var err error
		if seed, err = strconv.ParseUint(choice, 10, 64); err != nil {
			t.Fatalf("%s is all, a seed, KIND or KIND@CALL: %v", Choice, err)
		}
	}
	n := l.Sample
	if n == 0 {
		n = len(all)
	}
	// One of each stretch of the story, so that no part of it is left out.
	dice := rand.New(rand.NewPCG(seed, 0))
	var some []diskfault.Plan
	for i := range n {
		from, to := i*len(all)/n, (i+1)*len(all)/n
		if to > from {
			some = append(some, all[from+dice.IntN(to-from)])
		}
	}
	return some, strconv.FormatUint(seed, 10)
}

// kindOf is the kind of that name.
func kindOf(name string) (diskfault.Kind, bool) {
	for _, k := range diskfault.Kinds {
		if k.String() == name {
			return k, true
		}
	}
	return diskfault.None, false
}

// start runs the test's children and takes over how they ended.
func (l Loop) start(t *testing.T) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	of := 1
	if _, alone := kindOf(os.Getenv(Choice)); alone || os.Getenv(Choice) == "all" {
		of = runtime.NumCPU()
	}
	outs := make([][]byte, of)
	errs := make([]error, of)
	var children sync.WaitGroup
	for i := range of {
		children.Go(func() {
			c := exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=0")
			c.Env = append(os.Environ(), fmt.Sprintf("%s=%d/%d", childEnv, i, of))
			outs[i], errs[i] = c.CombinedOutput()
		})
	}
	children.Wait()
	for i, out := range outs {
		if errs[i] != nil {
			t.Errorf("%v\n%s", errs[i], out)
			continue
		}
		if at := bytes.Index(out, []byte(absent)); at >= 0 {
			line, _, _ := strings.Cut(string(out[at:]), "\n")
			skip.Missing(t, line)
		}
		if !bytes.Contains(out, []byte("--- PASS: "+t.Name()+" ")) {
			t.Errorf("the test did not run in a process of its own:\n%s", out)
		}
		t.Logf("%s", out)
	}
}

// memDir is a folder in memory where there is one: nothing here waits for a
// disk, and what a power cut takes is taken by the filter.
func memDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-faults-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
