package owner

import (
	"slices"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
)

// The schemas of what an execution grant asks to be checked afterwards.
const (
	requirementsSchema = "openagents.coder.task-requirements.v2"
	planSchema         = "openagents.verification.v1"
)

// candidatePlace stands where the host puts the digest of the candidate, once it has seen it.
const candidatePlace = "{candidate_digest}"

// Bounds of requirements, beside those of a grant as a whole.
const (
	maxRequired     = 64
	maxStatement    = 8 << 10
	maxCheckSeconds = 3600
	maxCheckOutput  = 1 << 20
	maxSources      = 256
	maxSourceID     = 1 << 10
)

// Requirements are what a turn must come to and how that is found out, by suites that its program cannot touch.
type Requirements struct {
	Schema             string        `json:"schema"`
	Version            int64         `json:"version"`
	Requirements       []Requirement `json:"requirements"`
	Plan               Plan          `json:"plan"`
	InstructionTargets []string      `json:"instruction_targets"` // files and folders whose AGENTS.md are frozen
	SourceExclusions   []string      `json:"source_exclusions"`
	TaskSources        []string      `json:"task_sources"`
	CheckLineage       []Lineage     `json:"check_lineage"`
	Knowledge          []Knowledge   `json:"knowledge"`
}

// Requirement is one of them, with the checks that cover it.
type Requirement struct {
	ID        string   `json:"id"`
	Statement string   `json:"statement"`
	Checks    []string `json:"checks"`
}

// Plan is the checks, run one after the other.
type Plan struct {
	Schema      string      `json:"schema"`
	InputDigest string      `json:"input_digest"`
	Seconds     int64       `json:"seconds"` // for all of them
	Reads       bool        `json:"allow_unrestricted_reads"`
	Network     bool        `json:"allow_network"`
	Checks      []PlanCheck `json:"checks"`
}

// PlanCheck is one check. Manifest names a file that names the program.
type PlanCheck struct {
	ID             string     `json:"id"`
	Manifest       string     `json:"manifest"`
	ManifestDigest Digest     `json:"manifest_digest"` // of the file's bytes
	Arguments      []string   `json:"arguments"`
	Seconds        int64      `json:"seconds"`
	OutputBytes    int64      `json:"output_bytes"`
	Acceptance     Acceptance `json:"acceptance"`
}

// Acceptance says what counts: a suite that binds itself and its input. An exit code alone does not.
type Acceptance struct {
	Kind        string `json:"kind"`
	SuiteDigest Digest `json:"suite_digest"` // of the program's bytes
	InputDigest string `json:"input_digest"`
}

// Lineage says what a check was made from, which must be nothing that the task was made from.
type Lineage struct {
	Check   string   `json:"check"`
	Sources []string `json:"sources"`
}

// parseRequirements reads the member of a grant: strict JSON, closed, with every member. The error is an *Error,
// unsupported_schema for another version.
func parseRequirements(b []byte, task TaskID) (*Requirements, error) {
	var r Requirements
	if err := jsonv2.Unmarshal(b, &r, jsonv2.RejectUnknownMembers(true)); err != nil {
		return nil, invalidGrant("requirements are not a closed JSON object of known members")
	}
	if r.Schema != requirementsSchema || r.Plan.Schema != planSchema {
		return nil, refuse("unsupported_schema", "requirements are not %s with a plan of %s", requirementsSchema, planSchema)
	}
	for _, why := range []string{r.bounds(), r.Plan.bounds(), r.coverage(), r.lineage(task), r.reading(task)} {
		if why != "" {
			return nil, invalidGrant("requirements: %s", why)
		}
	}
	return &r, nil
}

func (r *Requirements) bounds() string {
	if r.Version < 1 || len(r.Requirements) < 1 || len(r.Requirements) > maxRequired {
		return "a positive version and 1 to 64 requirements"
	}
	if r.InstructionTargets == nil || r.SourceExclusions == nil || r.Knowledge == nil {
		return "a list is missing; an empty one says none"
	}
	var ids []string
	for _, q := range r.Requirements {
		if !identifier(q.ID, "") || slices.Contains(ids, q.ID) || !lines(q.Statement, maxStatement) || len(q.Checks) < 1 || len(q.Checks) > maxRequired {
			return "each has an ID of its own, a statement of at most 8 KiB and 1 to 64 checks"
		}
		ids = append(ids, q.ID)
	}
	return ""
}

func (p *Plan) bounds() string {
	if p.InputDigest != candidatePlace || p.Seconds < 1 || p.Seconds > maxCheckSeconds || len(p.Checks) < 1 || len(p.Checks) > maxRequired {
		return "a plan checks " + candidatePlace + " in 1 to 3600 seconds by 1 to 64 checks"
	}
	if !p.Reads || !p.Network {
		// The public form cannot ask for less. Checks get less all the same: a view of their own, and no network.
		return "a plan says that reads and network are allowed"
	}
	var ids []string
	for _, c := range p.Checks {
		switch {
		case !identifier(c.ID, "") || slices.Contains(ids, c.ID):
			return "each check has an ID of its own"
		case len(c.Manifest) > maxGrantPath || !canonicalText(c.Manifest) || !c.ManifestDigest.valid():
			return "a manifest has a canonical absolute path and a digest"
		case len(c.Arguments) != 1 || c.Arguments[0] != candidatePlace:
			return "a check has the one argument " + candidatePlace
		case c.Seconds < 1 || c.Seconds > p.Seconds || c.OutputBytes < 1 || c.OutputBytes > maxCheckOutput:
			return "a check has 1 to the plan's seconds, and 1 byte to 1 MiB of output"
		case c.Acceptance.Kind != "suite" || !c.Acceptance.SuiteDigest.valid() || c.Acceptance.InputDigest != candidatePlace:
			return "a check accepts a suite's word about " + candidatePlace + " only, never an exit code"
		}
		ids = append(ids, c.ID)
	}
	return ""
}

// coverage: every check is for something, and every one that is named exists.
func (r *Requirements) coverage() string {
	named := map[string]bool{}
	for _, q := range r.Requirements {
		for _, c := range q.Checks {
			named[c] = true
		}
	}
	for _, c := range r.Plan.Checks {
		if !named[c.ID] {
			return "check " + c.ID + " covers no requirement"
		}
		delete(named, c.ID)
	}
	for c := range named {
		return "check " + c + " is not in the plan"
	}
	return ""
}

// lineage: a check that was made from what the task was made from proves nothing.
func (r *Requirements) lineage(task TaskID) string {
	if len(r.TaskSources) == 0 || !sources(r.TaskSources) || !sources(r.SourceExclusions) {
		return "sources are 1 to 256 IDs of at most 1 KiB, each once"
	}
	own := r.own(task)
	if len(r.CheckLineage) != len(r.Plan.Checks) {
		return "there is one lineage for each check"
	}
	for _, c := range r.Plan.Checks {
		i := slices.IndexFunc(r.CheckLineage, func(l Lineage) bool { return l.Check == c.ID })
		if i < 0 || len(r.CheckLineage[i].Sources) == 0 || !sources(r.CheckLineage[i].Sources) {
			return "check " + c.ID + " has no lineage of 1 to 256 sources"
		}
		for _, s := range r.CheckLineage[i].Sources {
			if own[s] || own[withoutRun(s)] {
				return "check " + c.ID + " comes from a source of the task"
			}
		}
	}
	return ""
}

// own is what the task comes from, in every spelling that counts as the same.
func (r *Requirements) own(task TaskID) map[string]bool {
	own := map[string]bool{}
	for _, s := range slices.Concat(r.TaskSources, r.SourceExclusions, []string{string(task)}) {
		own[s], own[withoutRun(s)] = true, true
	}
	return own
}

// reading: what is to be frozen for the turn to read is named by plain paths, within bounds.
func (r *Requirements) reading(task TaskID) string {
	if len(r.InstructionTargets) > maxTargets || len(r.Knowledge) > maxKnowledge {
		return "at most 64 instruction targets and 16 pieces of knowledge"
	}
	for _, t := range r.InstructionTargets {
		if !inTree(t) {
			return "an instruction target is a plain path below the workspace, outside of any .git"
		}
	}
	own := r.own(task)
	for i := range r.Knowledge {
		k := &r.Knowledge[i]
		if why := k.sound(own); why != "" {
			return why
		}
		if slices.ContainsFunc(r.Knowledge[:i], func(other Knowledge) bool { return other.ID == k.ID }) {
			return "knowledge " + k.ID + " stands twice"
		}
	}
	return ""
}

func sources(l []string) bool {
	seen := map[string]bool{}
	for _, s := range l {
		if seen[s] || !line(s, maxSourceID) {
			return false
		}
		seen[s] = true
	}
	return len(l) <= maxSources
}

// withoutRun strips the number of a run from a source's ID: two runs of one thing are one source.
func withoutRun(s string) string {
	cut := strings.TrimRight(s, "0123456789")
	if rest := strings.TrimRight(cut, "-._:/#"); cut != s && cut != rest && rest != "" {
		return rest
	}
	return s
}
