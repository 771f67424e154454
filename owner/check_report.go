package owner

import "strings"

// The states of Checks besides NotRun.
const (
	ChecksRunning     Checks = "running"
	ChecksPassed      Checks = "passed"
	ChecksFailed      Checks = "failed"
	ChecksUnavailable Checks = "unavailable" // nothing can be said
	ChecksDisputed    Checks = "disputed"    // a correction came after what was checked
)

// maxAttempts is how often the checks of one turn may be run. Only attempts that came to nothing are repeated.
const maxAttempts = 8

// CheckIntent opens an attempt at a turn's checks.
type CheckIntent struct {
	Attempt   int    `json:"attempt"` // from 1
	Candidate Digest `json:"candidate_snapshot"`
}

// CheckReport is what an attempt came to. Its verdict is believed of nobody: it must be what the evidence gives, when
// it is recorded and whenever it is read.
type CheckReport struct {
	Attempt  int            `json:"attempt"`
	Context  Digest         `json:"context_digest,omitempty"` // of the run's admission
	Verdict  Checks         `json:"verdict"`                  // passed, failed or unavailable
	Reason   string         `json:"reason,omitempty"`         // why there is no evidence
	Evidence *CheckEvidence `json:"evidence,omitempty"`       // nil: nothing was run, or nothing that ran can count
	At       int64          `json:"at"`                       // Unix milliseconds
}

// CheckEvidence is what was seen of the suites.
type CheckEvidence struct {
	Before    Digest     `json:"before_snapshot"` // of the workspace; "" where not all of it was seen
	After     Digest     `json:"after_snapshot"`
	ElapsedMS int64      `json:"elapsed_ms"`
	Suites    []SuiteRun `json:"suites"` // as many as were run: the first that does not pass is the last
}

// SuiteRun is one suite's run.
type SuiteRun struct {
	Check        string     `json:"check"`
	Ending       string     `json:"ending"` // as of a turn
	Truncated    bool       `json:"output_truncated"`
	StdoutDigest Digest     `json:"stdout_digest"` // of what was kept
	ElapsedMS    int64      `json:"elapsed_ms"`
	Said         *SuiteSays `json:"said,omitempty"` // nil where its output was not one such object
}

// SuiteSays is the one JSON object that a suite writes to standard output.
type SuiteSays struct {
	Schema      string `json:"schema"`
	SuiteDigest Digest `json:"suite_digest"`
	InputDigest Digest `json:"input_digest"`
	Verdict     string `json:"verdict"` // passed, failed, unverifiable
}

// verdict of one suite. A suite speaks for itself only where it ended well, was heard in full, and named itself and
// this candidate: what another suite, or this one about other files, would have said is nothing.
func (r *SuiteRun) verdict(s Suite, candidate Digest) Checks {
	switch said := r.Said; {
	case r.Truncated || strings.HasPrefix(r.Ending, "failed: "): // not heard in full, or not run
		return ChecksUnavailable
	case r.Ending != "exit 0":
		return ChecksFailed
	case said == nil || said.Schema != planSchema || said.SuiteDigest != s.ProgramDigest || said.InputDigest != candidate:
		return ChecksUnavailable
	case said.Verdict == string(ChecksPassed):
		return ChecksPassed
	case said.Verdict == string(ChecksFailed):
		return ChecksFailed
	}
	return ChecksUnavailable
}

// verdict of a plan.
func (e *CheckEvidence) verdict(p *CheckPlan, candidate Digest) Checks {
	if e.Before != candidate || e.After != candidate {
		return ChecksUnavailable
	}
	for i := range e.Suites {
		if v := e.Suites[i].verdict(p.Suites[i], candidate); v != ChecksPassed {
			return v
		}
	}
	if len(e.Suites) < len(p.Suites) {
		return ChecksUnavailable
	}
	return ChecksPassed
}

// sound holds evidence against the plan: the planned suites, in order, none after one that did not pass, within the
// plan's time and a minute.
func (e *CheckEvidence) sound(p *CheckPlan, candidate Digest) bool {
	if len(e.Suites) > len(p.Suites) || e.ElapsedMS < 0 || e.ElapsedMS > (p.Seconds+60)*1000 ||
		e.Before != "" && !e.Before.valid() || e.After != "" && !e.After.valid() {
		return false
	}
	for i, r := range e.Suites {
		if r.Check != p.Suites[i].Check || !line(r.Ending, maxEnding) || !r.StdoutDigest.valid() || r.ElapsedMS < 0 || r.ElapsedMS > e.ElapsedMS {
			return false
		}
		if i > 0 && e.Suites[i-1].verdict(p.Suites[i-1], candidate) != ChecksPassed {
			return false
		}
	}
	return true
}

// superseded reports whether a correction is newer than what the run read.
func superseded(t *Task) bool {
	n := len(t.Corrections)
	return n > 0 && t.Run != nil && t.Corrections[n-1].Revision > t.Run.Admission.ReadRevision
}

// Checkable says why an attempt at t's checks cannot begin: an *Error, nil where one can.
func Checkable(t *Task) error {
	switch run := t.Run; {
	case run == nil || run.Admission.Checks == nil:
		return illegal("the turn's execution grant asked for no checks")
	case t.Checks == ChecksRunning:
		return illegal("the checks run already; if their process is gone, recover the task")
	case t.Status != Finished || t.Execution != ExecFinished || run.Result.Candidate == "":
		return illegal("only a turn that finished, and left a candidate that was seen whole, can be checked")
	case superseded(t):
		return illegal("a correction came after what was checked; continue the task")
	case t.Checks != NotRun && t.Checks != ChecksUnavailable:
		return illegal("the checks came to %s, and are not run again", t.Checks)
	case run.Attempts >= maxAttempts:
		return refuse("limit_exceeded", "the checks were run %d times to no avail", maxAttempts)
	}
	return nil
}

func checkIntent(n *Task, epoch Epoch, c CheckIntent) error {
	if err := Checkable(n); err != nil {
		return err
	}
	switch {
	case epoch != n.NextEpoch():
		return illegal("the epoch is %d, not %d", n.NextEpoch(), epoch)
	case c.Attempt != n.Run.Attempts+1:
		return malformed("the next attempt is number %d", n.Run.Attempts+1)
	case c.Candidate != n.Run.Result.Candidate:
		return malformed("what is checked is the turn's candidate")
	}
	n.Run.Epoch, n.Run.Attempts, n.Checks = epoch, c.Attempt, ChecksRunning
	return nil
}

func checked(n *Task, epoch Epoch, r CheckReport) error {
	if err := inRun(n, epoch); err != nil {
		return err
	}
	plan := n.Run.Admission.Checks
	if n.Checks != ChecksRunning || r.Attempt != n.Run.Attempts {
		return illegal("no such attempt is running")
	}
	candidate := n.Run.Result.Candidate
	switch {
	case r.Context != n.Run.Admission.Context:
		return malformed("the report is about another frozen context")
	case r.Evidence == nil && (r.Verdict != ChecksUnavailable || !line(r.Reason, maxArchive) || strings.Contains(r.Reason, "/")):
		return malformed("without evidence a report is unavailable, and says why on one line without a path")
	case r.Evidence != nil && (r.Reason != "" || !r.Evidence.sound(plan, candidate)):
		return malformed("the evidence is not that of the plan")
	case r.Evidence != nil && r.Verdict != r.Evidence.verdict(plan, candidate):
		return malformed("the evidence gives %s, not %s", r.Evidence.verdict(plan, candidate), r.Verdict)
	}
	n.Run.Report = r.clone()
	n.Checks = r.Verdict
	if superseded(n) {
		n.Checks = ChecksDisputed
	}
	return nil
}

func checkOwnerLost(n *Task, epoch Epoch) error {
	switch {
	case n.Run == nil || n.Checks != ChecksRunning:
		return illegal("no checks are running")
	case epoch != n.NextEpoch():
		return illegal("the epoch is %d, not %d", n.NextEpoch(), epoch)
	}
	n.Run.Epoch, n.Run.RecoveryReason, n.Checks = epoch, "checker_owner_lost", ChecksUnavailable
	if superseded(n) {
		n.Checks = ChecksDisputed
	}
	return nil
}

func (r *CheckReport) clone() *CheckReport {
	n := *r
	if r.Evidence != nil {
		e := *r.Evidence
		e.Suites = append([]SuiteRun(nil), r.Evidence.Suites...)
		for i := range e.Suites {
			if s := e.Suites[i].Said; s != nil {
				c := *s
				e.Suites[i].Said = &c
			}
		}
		n.Evidence = &e
	}
	return &n
}
