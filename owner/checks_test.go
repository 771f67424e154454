package owner

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/runnable"
)

// emit is what an honest suite writes: emit VERDICT CANDIDATE.
const emit = `emit() { printf '{"schema":"openagents.verification.v1","suite_digest":"sha256:%s","input_digest":"%s","verdict":"%s"}' \
	"$(sha256sum "$0" | cut -d ' ' -f 1)" "$2" "$1"; }
`

// suite writes a suite and its manifest beside the home, and returns the manifest's path.
func (w *workbench) suite(name, script string) string {
	w.t.Helper()
	return w.suiteAt(filepath.Join(w.dir, name), filepath.Join(w.dir, name+".json"), script)
}

func (w *workbench) suiteAt(program, manifest, script string) string {
	w.t.Helper()
	if err := runnable.Write(program, []byte("#!/bin/sh\n"+emit+script+"\n"), 0o755); err != nil {
		w.t.Fatal(err)
	}
	b, err := json.Marshal(map[string]any{"v": 1, "slug": "suite", "transport": "subprocess", "detect": map[string]any{"binary": program}})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(manifest, b, 0o644); err != nil {
		w.t.Fatal(err)
	}
	return manifest
}

// requiring puts requirements with a check by each manifest into a grant.
func (w *workbench) requiring(manifests ...string) func(*Grant) {
	w.t.Helper()
	r := Requirements{Schema: requirementsSchema, Version: 1,
		Plan:               Plan{Schema: planSchema, InputDigest: candidatePlace, Seconds: 30, Reads: true, Network: true},
		InstructionTargets: []string{}, SourceExclusions: []string{}, TaskSources: []string{"issue-5"}, Knowledge: []Knowledge{}}
	for i, m := range manifests {
		b := readFile(w.t, m)
		var names struct {
			Detect struct{ Binary string }
		}
		if err := json.Unmarshal(b, &names); err != nil {
			w.t.Fatal(err)
		}
		id := fmt.Sprintf("check-%d", i+1)
		r.Requirements = append(r.Requirements, Requirement{ID: "r-" + id, Statement: "it works", Checks: []string{id}})
		r.CheckLineage = append(r.CheckLineage, Lineage{Check: id, Sources: []string{"written-by-the-operator"}})
		r.Plan.Checks = append(r.Plan.Checks, PlanCheck{ID: id, Manifest: m, ManifestDigest: DigestOf(b), Arguments: []string{candidatePlace},
			Seconds: 20, OutputBytes: 4096, Acceptance: Acceptance{"suite", DigestOf(readFile(w.t, names.Detect.Binary)), candidatePlace}})
	}
	return func(g *Grant) { g.Write, g.Requirements = true, &r }
}

// turn runs a turn that changes a file, with these suites.
func (w *workbench) turn(change func(*Grant)) Task {
	w.t.Helper()
	w.submit("t", PromptCommand)
	task := w.execute("t", w.grant("t", "echo changed > file", change), nil)
	wantEnding(w.t, task, Finished, ExecFinished, "exit 0")
	if task.Checks != NotRun || task.Run.Admission.Checks == nil {
		w.t.Fatalf("checks %s, frozen %v", task.Checks, task.Run.Admission.Checks)
	}
	return task
}

func (w *workbench) check() Task {
	w.t.Helper()
	task, err := runChecks(context.Background(), w.s, "t", testParts(nil))
	if err != nil {
		w.t.Fatal(err)
	}
	return task
}

func TestChecks(t *testing.T) {
	const forged = `{"schema":"openagents.verification.v1","suite_digest":"` + aDigest + `","input_digest":"%s","verdict":"passed"}`
	for _, r := range []struct {
		name    string
		suites  []string
		verdict Checks
		ran     int
	}{
		{"passed", []string{`grep -q changed file && emit passed "$1"`}, ChecksPassed, 1},
		{"failed", []string{`emit failed "$1"`}, ChecksFailed, 1},
		{"unverifiable", []string{`emit unverifiable "$1"`}, ChecksUnavailable, 1},
		{"two, both pass", []string{`emit passed "$1"`, `emit passed "$1"`}, ChecksPassed, 2},
		{"none after one that fails", []string{`emit failed "$1"`, `emit passed "$1"`}, ChecksFailed, 1},
		{"a pass and a bad exit", []string{`emit passed "$1"; exit 1`}, ChecksFailed, 1},
		{"a pass and a signal", []string{`emit passed "$1"; kill -KILL $$`}, ChecksFailed, 1},
		{"a good exit and no word", []string{`exit 0`}, ChecksUnavailable, 1},
		{"forged pass: another suite's", []string{fmt.Sprintf(`printf '`+forged+`' "$1"`, "%s")}, ChecksUnavailable, 1},
		{"forged pass: of another candidate", []string{`emit passed ` + aDigest}, ChecksUnavailable, 1},
		{"forged pass: two words", []string{`emit failed "$1"; emit passed "$1"`}, ChecksUnavailable, 1},
		{"forged pass: a member too many", []string{`emit passed "$1" | sed 's/}$/,"checks":"passed"}/'`}, ChecksUnavailable, 1},
		{"too much output", []string{`head -c 5000 /dev/zero; emit passed "$1"`}, ChecksUnavailable, 1},
		{"the candidate and the home are out of reach", []string{`echo x > file; ls ` + "HOME" + ` >/dev/null 2>&1 || grep -q changed file && emit passed "$1"`}, ChecksPassed, 1},
		{"timeout", []string{`emit passed "$1"; sleep 60`}, ChecksFailed, 1},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			var manifests []string
			for i, s := range r.suites {
				manifests = append(manifests, w.suite(fmt.Sprintf("suite-%d", i), strings.ReplaceAll(s, "HOME", w.home)))
			}
			require := w.requiring(manifests...)
			ended := w.turn(func(g *Grant) {
				require(g)
				if r.name == "timeout" {
					g.Requirements.Plan.Checks[0].Seconds = 1
				}
			})
			task := w.check()
			report := task.Run.Report
			if task.Checks != r.verdict || report == nil || report.Verdict != r.verdict || report.Attempt != 1 || report.Evidence == nil {
				t.Fatalf("checks %s, report %+v", task.Checks, report)
			}
			if ev := report.Evidence; len(ev.Suites) != r.ran || ev.Before != ended.Run.Result.Candidate || ev.After != ev.Before {
				t.Fatalf("evidence %+v", ev)
			}
			// The axes are apart: what the process did is what it did.
			if task.Status != Finished || task.Execution != ExecFinished || task.Run.Epoch != ended.Run.Epoch+1 {
				t.Fatalf("task %+v", task)
			}
			reread := openStore(t, w.home, false)
			if again, err := reread.Get("t"); err != nil || again.Checks != r.verdict {
				t.Fatalf("read again: %s, %v", again.Checks, err)
			}
			if r.verdict != ChecksUnavailable {
				_, err := runChecks(context.Background(), w.s, "t", testParts(nil))
				wantCode(t, err, "invalid_transition")
			}
		})
	}
}

// A suite that the turn's program could write, or that is not the pinned one, does not admit the turn.
func TestSuiteRefusedAtAdmission(t *testing.T) {
	for _, r := range []struct {
		name, cause string
		make        func(w *workbench) (manifest string, after func())
	}{
		{"suite inside the workspace", "the suite of check check-1 lies inside the workspace", func(w *workbench) (string, func()) {
			return w.suiteAt(w.repo+"/suite", w.dir+"/suite.json", `emit passed "$1"`), nil
		}},
		{"manifest inside the workspace", "the manifest of check check-1 lies inside the workspace", func(w *workbench) (string, func()) {
			return w.suiteAt(w.dir+"/suite", w.repo+"/suite.json", `emit passed "$1"`), nil
		}},
		{"suite changed", "the suite of check check-1 is not the one that was pinned", func(w *workbench) (string, func()) {
			m := w.suite("suite", `emit failed "$1"`)
			return m, func() { w.suite("suite", `emit passed "$1"`) }
		}},
		{"manifest is a link", "the manifest of check check-1 leads over a link; name its real path", func(w *workbench) (string, func()) {
			m := w.suite("suite", `emit passed "$1"`)
			if err := os.Symlink(m, w.dir+"/link.json"); err != nil {
				w.t.Fatal(err)
			}
			return w.dir + "/link.json", nil
		}},
		{"suite is missing", "the suite of check check-1 is missing", func(w *workbench) (string, func()) {
			return w.suite("suite", `emit passed "$1"`), func() { os.Remove(w.dir + "/suite") }
		}},
		{"suite that nobody may execute", "the suite of check check-1 is no executable file", func(w *workbench) (string, func()) {
			return w.suite("suite", `emit passed "$1"`), func() {
				if err := os.Chmod(w.dir+"/suite", 0o644); err != nil {
					w.t.Fatal(err)
				}
			}
		}},
		{"manifest of another transport", "the manifest of check check-1 does not name a program to run by its absolute path", func(w *workbench) (string, func()) {
			m := w.suite("suite", `emit passed "$1"`)
			writeFile(w.t, m, []byte(`{"transport":"socket","detect":{"binary":"`+w.dir+`/suite"}}`))
			return m, nil
		}},
	} {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t)
			// Read-only, so that the turn works in the repository itself.
			writeFile(t, filepath.Join(w.repo, "file"), []byte("uncommitted\n"))
			manifest, after := r.make(w)
			w.submit("t", BoundedCommand)
			require := w.requiring(manifest)
			grant := w.grant("t", "true", func(g *Grant) { require(g); g.Write = false })
			if after != nil {
				after()
			}
			task, err := execute(context.Background(), w.s, "t", grant, testParts(nil))
			if err == nil || task.NotStarted != r.cause || task.Run != nil {
				t.Fatalf("%v, cause %q", err, task.NotStarted)
			}
		})
	}
}

// What changed since the admission makes an attempt come to nothing, and only such an attempt is followed by another.
func TestCheckAttempts(t *testing.T) {
	w := newWorkbench(t)
	honest, lenient := `grep -q changed file && emit passed "$1"`, `emit passed "$1"`
	task := w.turn(w.requiring(w.suite("suite", honest)))
	file := filepath.Join(task.Worktree.Path, "file")

	w.suite("suite", lenient)
	task = w.check()
	if r := task.Run.Report; task.Checks != ChecksUnavailable || r.Attempt != 1 || r.Evidence != nil || r.Reason != "the suite of check check-1 is not the one that was pinned" {
		t.Fatalf("checks %s, report %+v", task.Checks, r)
	}
	w.suite("suite", honest)
	writeFile(t, file, []byte("changed by somebody else\n"))
	task = w.check()
	if r := task.Run.Report; task.Checks != ChecksUnavailable || r.Attempt != 2 || r.Reason != "the workspace is no longer as the turn left it" {
		t.Fatalf("checks %s, report %+v", task.Checks, r)
	}
	writeFile(t, file, []byte("changed\n"))
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	// A checker that dies while its suite runs: nothing is left of it, and the next attempt has the next number.
	w.dieAt("check-released")
	l, err := Launch(w.s, "t", "")
	if err != nil {
		t.Fatal(err)
	}
	waitDone(t, l.Done)
	if task = w.get("t"); task.Checks != ChecksRunning || task.Ended() {
		t.Fatalf("checks %s", task.Checks)
	}
	_, err = w.s.Apply(context.Background(), encoded(t, continueOf("t", "early", task.Revision)))
	wantCode(t, err, "invalid_transition")
	task, err = w.s.Recover(context.Background(), "t")
	if err != nil || task.Checks != ChecksUnavailable || task.Run.RecoveryReason != "checker_owner_lost" {
		t.Fatalf("Recover: %v, checks %s", err, task.Checks)
	}
	w.dieAt("nowhere")
	if l, err = Launch(w.s, "t", ""); err != nil {
		t.Fatal(err)
	}
	waitDone(t, l.Done)
	task = w.get("t")
	if r := task.Run.Report; task.Checks != ChecksPassed || r.Attempt != 4 || task.Run.Attempts != 4 {
		t.Fatalf("checks %s, report %+v", task.Checks, r)
	}
}

// A correction outdates what was checked: before, between and after.
func TestCorrectionsAroundChecks(t *testing.T) {
	setting := func(t *testing.T) *workbench {
		w := newWorkbench(t)
		w.turn(w.requiring(w.suite("suite", `emit passed "$1"`)))
		return w
	}
	t.Run("before", func(t *testing.T) {
		w := setting(t)
		mustApply(t, w.s, correctOf("t", "c", w.get("t").Revision))
		if task := w.get("t"); task.Checks != ChecksDisputed {
			t.Fatalf("checks %s", task.Checks)
		}
		_, err := runChecks(context.Background(), w.s, "t", testParts(nil))
		wantCode(t, err, "invalid_transition")
	})
	t.Run("while they run", func(t *testing.T) {
		w := setting(t)
		task, err := runChecks(context.Background(), w.s, "t", testParts(func(point string) {
			if point == "check-intent" {
				mustApply(t, w.s, correctOf("t", "c", w.get("t").Revision))
			}
		}))
		if err != nil || task.Checks != ChecksDisputed || task.Run.Report.Verdict != ChecksPassed {
			t.Fatalf("%v, checks %s", err, task.Checks)
		}
	})
	t.Run("after", func(t *testing.T) {
		w := setting(t)
		task := w.check()
		mustApply(t, w.s, correctOf("t", "c", task.Revision))
		if task = w.get("t"); task.Checks != ChecksDisputed || task.Run.Report.Verdict != ChecksPassed {
			t.Fatalf("checks %s", task.Checks)
		}
		mustApply(t, w.s, continueOf("t", "next", task.Revision))
		if task = w.get("t"); task.Checks != NotRun {
			t.Fatalf("checks %s", task.Checks)
		}
	})
	t.Run("no checks were asked for", func(t *testing.T) {
		w := newWorkbench(t)
		w.submit("t", BoundedCommand)
		w.execute("t", w.grant("t", "true"), nil)
		_, err := runChecks(context.Background(), w.s, "t", testParts(nil))
		wantCode(t, err, "invalid_transition")
	})
}

// A verdict that its evidence does not give is refused where it is recorded, and is damage where it is read.
func TestForgedVerdict(t *testing.T) {
	w := newWorkbench(t)
	task := w.turn(w.requiring(w.suite("suite", `emit failed "$1"`), w.suite("other", `emit passed "$1"`)))
	candidate, plan := task.Run.Result.Candidate, task.Run.Admission.Checks
	task = mustAppend(t, w.s, "t", task.NextEpoch(), Event{CheckIntent: &CheckIntent{Attempt: 1, Candidate: candidate}})
	run := func(i int, verdict string) SuiteRun {
		return SuiteRun{Check: plan.Suites[i].Check, Ending: "exit 0", StdoutDigest: DigestOf(nil),
			Said: &SuiteSays{planSchema, plan.Suites[i].ProgramDigest, candidate, verdict}}
	}
	report := func(change func(r *CheckReport)) Event {
		r := CheckReport{Attempt: 1, Context: task.Run.Admission.Context, Verdict: ChecksPassed,
			Evidence: &CheckEvidence{Before: candidate, After: candidate, Suites: []SuiteRun{run(0, "passed"), run(1, "passed")}}}
		change(&r)
		return Event{Checked: &r}
	}
	for _, r := range []struct {
		name   string
		change func(*CheckReport)
	}{
		{"passed without evidence", func(r *CheckReport) { r.Evidence, r.Reason = nil, "trust me" }},
		{"passed, but one failed", func(r *CheckReport) { r.Evidence.Suites[1] = run(1, "failed") }},
		{"passed, but one was not run", func(r *CheckReport) { r.Evidence.Suites = r.Evidence.Suites[:1] }},
		{"passed over another workspace", func(r *CheckReport) { r.Evidence.After = aDigest }},
		{"a suite twice", func(r *CheckReport) { r.Evidence.Suites[1] = run(0, "passed") }},
		{"one more after a failure", func(r *CheckReport) { r.Verdict, r.Evidence.Suites[0] = ChecksFailed, run(0, "failed") }},
		{"in no time that was planned", func(r *CheckReport) { r.Evidence.ElapsedMS = (plan.Seconds + 61) * 1000 }},
		{"about another context", func(r *CheckReport) { r.Context = aDigest }},
		{"about no context", func(r *CheckReport) { r.Context = "" }},
		{"another attempt", func(r *CheckReport) { r.Attempt = 2 }},
		{"not run, but failed", func(r *CheckReport) { r.Evidence, r.Reason, r.Verdict = nil, "x", ChecksFailed }},
	} {
		t.Run(r.name, func(t *testing.T) {
			if _, err := NextEvent(&task, task.Run.Epoch, report(r.change), 1<<40); err == nil {
				t.Fatal("taken")
			}
		})
	}
	// The same rules judge a log that is read.
	st := &state{id: "t", task: &task, sequence: 1}
	forged := mustJSON(eventRecord{2, task.Run.Epoch, report(func(r *CheckReport) { r.Evidence.Suites[0] = run(0, "failed") }), 1 << 40})
	if err := st.apply(frame{kind: frameEvent, payload: forged}); err == nil || !strings.Contains(err.Error(), ErrCorrupt.Error()) {
		t.Fatalf("a forged verdict was read: %v", err)
	}
	if _, err := NextEvent(&task, task.Run.Epoch, report(func(*CheckReport) {}), 1<<40); err != nil {
		t.Fatal(err)
	}
}
