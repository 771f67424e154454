package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
	"holdfast/nip"
	"holdfast/owner"
)

// PolicyVersion is the schema of policy.json.
const PolicyVersion = "holdfast.policy.v1"

const policyLimit = 256 << 10

// Policy is the operator's auto-start policy. A device can neither read nor
// change it; the first rule that names the task's label applies, no rule means
// no start.
type Policy struct {
	V                 string `json:"v"`
	Enabled           bool   `json:"enabled"`
	MaxRunning        int    `json:"max_running"`
	KeepWorktreesDays *int   `json:"keep_worktrees_days,omitzero"`
	Rules             []Rule `json:"rules"`
}

// Rule admits turns of some labels to one program.
type Rule struct {
	Workspaces  []nip.Label    `json:"workspaces"`
	Adapter     string         `json:"adapter"`
	Program     string         `json:"program"`
	Arguments   []string       `json:"arguments"`
	Write       bool           `json:"write"`
	Network     jsontext.Value `json:"network,omitzero"`
	Read        []string       `json:"read,omitzero"`
	Environment []string       `json:"environment,omitzero"`
	Git         string         `json:"git,omitzero"`
	Degraded    bool           `json:"degraded,omitzero"`
	WallSeconds int64          `json:"wall_seconds"`
	StreamBytes int64          `json:"stream_bytes"`
	MemoryBytes int64          `json:"memory_bytes"`
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

// ParsePolicy decodes and bounds a policy. known reports whether a label
// exists. Paths are resolved once, so what it returns is what will run; a path
// that cannot be resolved is refused here and not at the next start.
func ParsePolicy(raw []byte, known func(nip.Label) bool) (Policy, error) {
	p, err := decodePolicy(raw)
	if err != nil {
		return p, err
	}
	for i := range p.Rules {
		r := &p.Rules[i]
		for _, l := range r.Workspaces {
			if !known(l) {
				return p, fmt.Errorf("%w: rule %d names the workspace %q; run holdfast workspace add first", ErrUsage, i+1, l)
			}
		}
		if r.Program, err = resolvePath(r.Program); err != nil {
			return p, fmt.Errorf("%w: rule %d, program: %s", ErrUsage, i+1, err)
		}
		for j := range r.Read {
			if r.Read[j], err = resolvePath(r.Read[j]); err != nil {
				return p, fmt.Errorf("%w: rule %d, read: %s", ErrUsage, i+1, err)
			}
		}
	}
	return p, nil
}

func resolvePath(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s is not an absolute path", path)
	}
	return filepath.EvalSymlinks(path)
}

// decodePolicy is the closed, bounded document alone.
func decodePolicy(raw []byte) (Policy, error) {
	var p Policy
	if len(raw) > policyLimit {
		return p, fmt.Errorf("%w: a policy has at most %d bytes", ErrUsage, policyLimit)
	}
	if err := json.Unmarshal(raw, &p, json.RejectUnknownMembers(true)); err != nil {
		return Policy{}, fmt.Errorf("%w: policy: %s", ErrUsage, err)
	}
	bad := func(format string, args ...any) (Policy, error) {
		return Policy{}, fmt.Errorf("%w: policy: %s", ErrUsage, fmt.Sprintf(format, args...))
	}
	switch {
	case p.V != PolicyVersion:
		return bad("v is %q, this holdfast reads %q", p.V, PolicyVersion)
	case p.MaxRunning < 1 || p.MaxRunning > 8:
		return bad("max_running must be 1 to 8")
	case len(p.Rules) < 1 || len(p.Rules) > 64:
		return bad("rules must be 1 to 64")
	case p.KeepWorktreesDays != nil && (*p.KeepWorktreesDays < 0 || *p.KeepWorktreesDays > 365):
		return bad("keep_worktrees_days must be 0 to 365")
	}
	for i, r := range p.Rules {
		if why := r.fault(); why != "" {
			return bad("rule %d: %s", i+1, why)
		}
	}
	return p, nil
}

// fault says what is out of bounds in a rule, "" when nothing is.
func (r *Rule) fault() string {
	wallMax := int64(86_400)
	if r.Adapter == owner.BoundedCommand {
		wallMax = 3600
	}
	switch {
	case len(r.Workspaces) < 1 || len(r.Workspaces) > 64:
		return "workspaces must name 1 to 64 labels"
	case r.Adapter != owner.PromptCommand && r.Adapter != owner.BoundedCommand:
		return "adapter must be prompt-command or bounded-command"
	case !filepath.IsAbs(r.Program):
		return "program must be an absolute path"
	case len(r.Arguments) > 128:
		return "at most 128 arguments"
	case r.WallSeconds < 1 || r.WallSeconds > wallMax:
		return fmt.Sprintf("wall_seconds must be 1 to %d", wallMax)
	case r.StreamBytes < 1024 || r.StreamBytes > 1<<20:
		return "stream_bytes must be 1024 to 1048576"
	case r.MemoryBytes < 64<<20 || r.MemoryBytes > 8<<30:
		return "memory_bytes must be 67108864 to 8589934592"
	case len(r.Read) > 32:
		return "read names at most 32 paths"
	case len(r.Environment) > 32:
		return "environment names at most 32 variables"
	case r.Git != "" && r.Git != "hidden" && r.Git != "read":
		return `git must be "hidden" or "read"`
	}
	for _, a := range r.Arguments {
		if strings.ContainsRune(a, 0) {
			return "an argument holds a NUL byte"
		}
	}
	for _, n := range r.Environment {
		if !envName.MatchString(n) {
			return "environment holds what is no variable name"
		}
	}
	// The grant that the rule will make has the last word, so that a policy is
	// refused when it is set and not at the first start.
	probe := owner.Task{ID: "probe", Revision: 1, IntentDigest: owner.DigestOf(nil)}
	if _, err := owner.EncodeGrant(grantOf(&probe, r, nip.DigestOf(nil))); err != nil {
		return err.Error()
	}
	return ""
}

func (r *Rule) network() jsontext.Value {
	if len(r.Network) == 0 {
		return jsontext.Value(`"none"`)
	}
	return bytes.TrimSpace(r.Network)
}

func (r *Rule) git() string {
	if r.Git == "" {
		return "read"
	}
	return r.Git
}

// ruleFor is the first rule that names the label.
func (p *Policy) ruleFor(label nip.Label) (Rule, bool) {
	for _, r := range p.Rules {
		for _, l := range r.Workspaces {
			if l == label {
				return r, true
			}
		}
	}
	return Rule{}, false
}

// loadPolicy reads the policy as it stands. Missing is off; unreadable is off
// with an error that status shows.
func loadPolicy(home string) (Policy, nip.Digest, error) {
	raw, err := saferead.Read(filepath.Join(home, "policy.json"), policyLimit)
	if errors.Is(err, os.ErrNotExist) {
		return Policy{V: PolicyVersion, MaxRunning: 1}, "", nil
	}
	if err != nil {
		return Policy{}, "", fmt.Errorf("read policy: %w", err)
	}
	p, err := decodePolicy(raw)
	if err != nil {
		return Policy{}, "", err
	}
	return p, nip.DigestOf(raw), nil
}

// checkedPolicy is the policy as it would be kept.
func checkedPolicy(home string, raw []byte) (Policy, error) {
	ws, err := loadWorkspaces(home)
	if err != nil {
		return Policy{}, err
	}
	return ParsePolicy(raw, func(l nip.Label) bool { _, ok := ws.find(l); return ok })
}

func writePolicy(home string, p Policy) error {
	out, err := policyFile(p)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(home, "policy.json"), out)
}

// policyFile is policy.json whole.
func policyFile(p Policy) ([]byte, error) {
	out, err := EncodePolicy(p)
	return append(out, '\n'), err
}

// EncodePolicy is the document as policy show prints it.
func EncodePolicy(p Policy) ([]byte, error) {
	out, err := json.Marshal(p, jsontext.WithIndent("  "))
	if err != nil {
		return nil, fmt.Errorf("encode policy: %w", err)
	}
	return out, nil
}
