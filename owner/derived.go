package owner

import (
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// EffectivePrompt is the newest instruction of the current turn: the later of
// the last correction and the last follow-up, else the intent's prompt.
func (t *Task) EffectivePrompt() string {
	prompt, at := t.Intent.Prompt, int64(0)
	if n := len(t.FollowUps); n > 0 {
		prompt, at = t.FollowUps[n-1].Prompt, t.FollowUps[n-1].Revision
	}
	if n := len(t.Corrections); n > 0 && t.Corrections[n-1].Revision > at {
		prompt = t.Corrections[n-1].Prompt
	}
	return prompt
}

// Unconsumed are the corrections that no turn has read: those newer than what
// the current run read, or the last earlier one while the current turn has
// none. Accepted is not consumed; a turn consumes what it reads when admitted.
func (t *Task) Unconsumed() []Correction {
	var read int64
	if t.Run != nil {
		read = t.Run.Admission.ReadRevision
	} else if n := len(t.Earlier); n > 0 {
		read = t.Earlier[n-1].Admission.ReadRevision
	}
	i := slices.IndexFunc(t.Corrections, func(c Correction) bool { return c.Revision > read })
	if i < 0 {
		return nil
	}
	return slices.Clone(t.Corrections[i:])
}

// Ended reports whether nothing of the task can still be running: finished or
// cancelled, no checks, and no run or one whose process group is proven gone.
func (t *Task) Ended() bool {
	return (t.Status == Finished || t.Status == Cancelled) && t.Checks != ChecksRunning &&
		(t.Run == nil || t.Run.Clear())
}

// Pending is "question", "approval" or "": what the last turn ended by asking.
// Any follow-up clears it, because the current turn then has no run.
func (t *Task) Pending() string {
	if t.Status != Finished || t.Run == nil || t.Run.Result == nil {
		return ""
	}
	switch t.Run.Result.Ending {
	case EndingAskedQuestion:
		return "question"
	case EndingAskedApproval:
		return "approval"
	}
	return ""
}

// Summary is the pure mapping to the activity summary's phase, headline and
// attention; the first rule that matches wins. The headline is not yet
// redacted nor cut: that is the publisher's, with the summary's other bounds.
func (t *Task) Summary() (phase, headline, attention string) {
	if t.Run != nil && t.Run.Result != nil && t.Run.Result.Ending == EndingOwnerEnded {
		return "cancelled", "Coder's process ended unexpectedly", "none"
	}
	switch t.Pending() {
	case "question":
		return "waiting", "Coder asked a question", "input"
	case "approval":
		return "waiting", "Coder asked for approval", "approval"
	}
	switch {
	case t.NotStarted != "":
		return "cancelled", "Couldn't start: " + t.NotStarted, "none"
	case t.Status == Queued:
		return "queued", "Task queued", "none"
	case t.Status == Running || t.Status == CancelRequested:
		return "running", "Task running", "none"
	case t.Status == Cancelled || t.Status == Finished && t.Execution == ExecStopped:
		return "cancelled", "Task cancelled", "none"
	case t.Status == Finished && t.Execution == ExecFailed:
		return "failed", "Task failed", "failed"
	case t.Status == Finished:
		return "completed", "Task finished", "completed"
	}
	return "unknown", "Task status unknown", "none"
}

// clone is a copy that shares nothing writable with t.
func (t *Task) clone() Task {
	n := *t
	n.Corrections = slices.Clone(t.Corrections)
	n.FollowUps = slices.Clone(t.FollowUps)
	n.Earlier = make([]Run, len(t.Earlier))
	for i := range t.Earlier {
		n.Earlier[i] = *t.Earlier[i].clone()
	}
	if t.Run != nil {
		n.Run = t.Run.clone()
	}
	if t.Worktree != nil {
		w := *t.Worktree
		n.Worktree = &w
	}
	if t.Archived != nil {
		a := *t.Archived
		n.Archived = &a
	}
	if t.Applied != nil {
		a := *t.Applied
		n.Applied = &a
	}
	if m := t.Intent.Configuration.Model; m != nil {
		c := *m
		n.Intent.Configuration.Model = &c
	}
	return n
}

// fork is clone for a transition, which adds to the lists and changes nothing
// in them: they are shared, and an addition makes its own copy. Without that a
// task of a thousand corrections would be copied whole for each event.
func (t *Task) fork() Task {
	rest := *t
	rest.Corrections, rest.FollowUps, rest.Earlier = nil, nil, nil
	n := rest.clone()
	n.Corrections, n.FollowUps, n.Earlier = slices.Clip(t.Corrections), slices.Clip(t.FollowUps), slices.Clip(t.Earlier)
	return n
}

func (r *Run) clone() *Run {
	n := *r
	n.Admission.Network = slices.Clone(r.Admission.Network)
	if r.Process != nil {
		p := *r.Process
		n.Process = &p
	}
	if r.Result != nil {
		n.Result = r.Result.clone()
	}
	if p := r.Admission.Checks; p != nil {
		c := *p
		c.Suites = slices.Clone(p.Suites)
		n.Admission.Checks = &c
	}
	if r.Report != nil {
		n.Report = r.Report.clone()
	}
	if r.Cleared != nil {
		c := *r.Cleared
		n.Cleared = &c
	}
	return &n
}

func (r *Result) clone() *Result {
	n := *r
	if r.ExitCode != nil {
		c := *r.ExitCode
		n.ExitCode = &c
	}
	n.Confinement = slices.Clone(r.Confinement)
	n.Cleanup = slices.Clone(r.Cleanup)
	n.Egress = slices.Clone(r.Egress)
	return &n
}

// document reports whether raw is one JSON value within maxDocument bytes.
func document(raw json.RawMessage, required bool) bool {
	if len(raw) == 0 {
		return !required
	}
	return len(raw) <= maxDocument && json.Valid(raw)
}

// replyText reports whether a reply can be kept as it is. Control characters
// are allowed: it is what the program said, and shown as data.
func replyText(s string) bool { return len(s) <= maxReply && utf8.ValidString(s) }
