package owner

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The two schemas of an execution grant.
const (
	PublicGrantSchema = "openagents.coder.task-execution-grant.v1"
	GrantSchema       = "holdfast.execution-grant.v1"
)

// Bounds of a grant. Bytes are of the whole document, white space included.
const (
	maxGrantBytes     = 64 << 10
	maxGrantArguments = 128
	maxGrantList      = 32
	maxGrantPath      = 4096
	maxWallBounded    = 3600
	maxWallPrompt     = 86_400
	minStreamBytes    = 1 << 10
	maxStreamBytes    = 1 << 20
	minMemoryBytes    = 64 << 20
	maxMemoryBytes    = 8 << 30
)

// grantDocument has the members of both schemas; a nil value is an absent member.
type grantDocument struct {
	Schema           jsontext.Value `json:"schema"`
	TaskID           jsontext.Value `json:"task_id"`
	IntentDigest     jsontext.Value `json:"intent_digest"`
	ExpectedRevision jsontext.Value `json:"expected_revision"`
	ExpectedSnapshot jsontext.Value `json:"expected_source_snapshot"`
	Program          jsontext.Value `json:"program"`
	Arguments        jsontext.Value `json:"arguments"`
	WriteWorkspace   jsontext.Value `json:"write_workspace"`
	WallSeconds      jsontext.Value `json:"wall_seconds"`
	StreamBytes      jsontext.Value `json:"stream_bytes"`
	MemoryBytes      jsontext.Value `json:"memory_bytes"`
	Requirements     jsontext.Value `json:"requirements"`
	Configuration    jsontext.Value `json:"adapter_configuration"`
	Adapter          jsontext.Value `json:"adapter"`
	Network          jsontext.Value `json:"network"`
	Read             jsontext.Value `json:"read"`
	Environment      jsontext.Value `json:"environment"`
	Git              jsontext.Value `json:"git"`
	Degraded         jsontext.Value `json:"degraded"`
	PolicyDigest     jsontext.Value `json:"policy_digest"`
}

// optional members of the public schema may be absent or null.
func (d *grantDocument) optional() []*jsontext.Value {
	return []*jsontext.Value{&d.ExpectedSnapshot, &d.Requirements, &d.Configuration}
}

// ours are the members that the public schema does not know.
func (d *grantDocument) ours() []*jsontext.Value {
	return []*jsontext.Value{&d.Adapter, &d.Network, &d.Read, &d.Environment, &d.Git, &d.Degraded, &d.PolicyDigest}
}

// ParseGrant reads an execution grant of either schema: strict JSON (no duplicate or unknown member, valid UTF-8),
// closed, at most 64 KiB. Of our own schema every member is required, null where unused. The error is an *Error:
// invalid_command, or unsupported_schema for another schema and for what this version cannot do (adapters
// with a configuration). It opens nothing: whether the named program and paths exist is
// asked at admission.
func ParseGrant(b []byte) (Grant, error) {
	if len(b) > maxGrantBytes {
		return Grant{}, invalidGrant("longer than %d bytes", maxGrantBytes)
	}
	var d grantDocument
	if err := jsonv2.Unmarshal(b, &d, jsonv2.RejectUnknownMembers(true)); err != nil {
		return Grant{}, invalidGrant("not a closed JSON object of known members")
	}
	r := grantReader{}
	g := Grant{Schema: r.text("schema", d.Schema, 1, 128)}
	if r.err != nil {
		return Grant{}, r.err
	}
	switch g.Schema {
	case PublicGrantSchema:
		for _, v := range d.ours() {
			if *v != nil {
				return Grant{}, invalidGrant("a member that the public schema does not have")
			}
		}
		for _, v := range d.optional() {
			if *v == nil {
				*v = jsontext.Value("null")
			}
		}
		d.fillPublic()
	case GrantSchema:
	default:
		return Grant{}, refuse("unsupported_schema", "execution grant of an unknown schema")
	}
	r.read(&g, &d)
	if r.err != nil {
		return Grant{}, r.err
	}
	return g, nil
}

// fillPublic says what a public grant means in our members: the reference's boundary without any widening.
func (d *grantDocument) fillPublic() {
	d.Adapter = jsontext.Value(`"` + BoundedCommand + `"`)
	d.Network = jsontext.Value(`"none"`)
	d.Read, d.Environment = jsontext.Value(`[]`), jsontext.Value(`[]`)
	d.Git = jsontext.Value(`"read"`)
	d.Degraded = jsontext.Value(`false`)
	d.PolicyDigest = jsontext.Value(`null`)
}

func (r *grantReader) read(g *Grant, d *grantDocument) {
	g.TaskID = TaskID(r.text("task_id", d.TaskID, 1, 128))
	r.must(identifier(string(g.TaskID), ""), "task_id is no identifier")
	g.IntentDigest = r.digest("intent_digest", d.IntentDigest)
	g.ExpectedRevision = r.number("expected_revision", d.ExpectedRevision, 1, 1<<53-1)
	if string(d.ExpectedSnapshot) != "null" {
		g.ExpectedSnapshot = r.digest("expected_source_snapshot", d.ExpectedSnapshot)
	}
	g.Requirements = r.requirements(d.Requirements, g.TaskID)
	r.unsupported("adapter_configuration", d.Configuration)
	g.Program = r.text("program", d.Program, 2, maxGrantPath)
	r.must(canonicalText(g.Program), "program is no canonical absolute path")
	g.Arguments = r.list("arguments", d.Arguments, maxGrantArguments)
	for _, a := range g.Arguments {
		r.must(!strings.Contains(a, "\x00"), "an argument holds a NUL")
	}
	g.Write = r.boolean("write_workspace", d.WriteWorkspace)
	g.Adapter = r.text("adapter", d.Adapter, 1, 128)
	r.must(g.Adapter == BoundedCommand || g.Adapter == PromptCommand, "adapter is neither bounded-command nor prompt-command")
	wall := int64(maxWallBounded)
	if g.Adapter == PromptCommand {
		wall = maxWallPrompt
	}
	g.WallSeconds = r.number("wall_seconds", d.WallSeconds, 1, wall)
	g.StreamBytes = r.number("stream_bytes", d.StreamBytes, minStreamBytes, maxStreamBytes)
	g.MemoryBytes = r.number("memory_bytes", d.MemoryBytes, minMemoryBytes, maxMemoryBytes)
	g.Network = r.network(d.Network)
	g.Read = r.list("read", d.Read, maxGrantList)
	for _, p := range g.Read {
		r.must(len(p) <= maxGrantPath && canonicalText(p), "read holds a path that is not canonical and absolute")
	}
	g.Environment = r.list("environment", d.Environment, maxGrantList)
	for i, name := range g.Environment {
		r.must(variableName(name), "environment holds a name that no shell accepts")
		r.must(!slices.Contains(g.Environment[:i], name), "environment holds a name twice")
	}
	g.Git = r.text("git", d.Git, 1, 16)
	r.must(g.Git == "hidden" || g.Git == "read", "git is neither hidden nor read")
	g.Degraded = r.boolean("degraded", d.Degraded)
	if string(d.PolicyDigest) != "null" {
		g.PolicyDigest = r.digest("policy_digest", d.PolicyDigest)
	}
}

// EncodeGrant writes g as holdfast.execution-grant.v1 in RFC 8785 canonical form, whatever schema it was read
// from. The error is that of ParseGrant: what it would refuse is not written.
func EncodeGrant(g Grant) ([]byte, error) {
	orEmpty := func(l []string) []string { return append([]string{}, l...) }
	doc := map[string]any{
		"schema": GrantSchema, "task_id": g.TaskID, "intent_digest": g.IntentDigest,
		"expected_revision": g.ExpectedRevision, "expected_source_snapshot": nil,
		"program": g.Program, "arguments": orEmpty(g.Arguments), "write_workspace": g.Write,
		"wall_seconds": g.WallSeconds, "stream_bytes": g.StreamBytes, "memory_bytes": g.MemoryBytes,
		"requirements": g.Requirements, "adapter_configuration": nil,
		"adapter": g.Adapter, "network": jsontext.Value(g.Network), "read": orEmpty(g.Read),
		"environment": orEmpty(g.Environment), "git": g.Git, "degraded": g.Degraded, "policy_digest": nil,
	}
	if g.ExpectedSnapshot != "" {
		doc["expected_source_snapshot"] = g.ExpectedSnapshot
	}
	if g.PolicyDigest != "" {
		doc["policy_digest"] = g.PolicyDigest
	}
	b, err := jsonv2.Marshal(doc)
	if err != nil {
		return nil, invalidGrant("it holds text that is not UTF-8, or no network")
	}
	v := jsontext.Value(b)
	if err := v.Canonicalize(); err != nil {
		return nil, invalidGrant("it has no canonical form")
	}
	if _, err := ParseGrant(v); err != nil {
		return nil, err
	}
	return v, nil
}

// grantReader decodes members and keeps the first error.
type grantReader struct{ err error }

func (r *grantReader) must(ok bool, detail string) {
	if !ok && r.err == nil {
		r.err = invalidGrant("%s", detail)
	}
}

func (r *grantReader) decode(name string, v jsontext.Value, kind jsontext.Kind, into any) {
	switch {
	case r.err != nil:
	case v == nil:
		r.err = invalidGrant("%s is missing", name)
	case v.Kind() != kind && (kind != 't' || v.Kind() != 'f'):
		r.err = invalidGrant("%s has another type", name)
	default:
		if err := jsonv2.Unmarshal(v, into); err != nil {
			r.err = invalidGrant("%s has another type", name)
		}
	}
}

func (r *grantReader) text(name string, v jsontext.Value, lo, hi int) (s string) {
	r.decode(name, v, '"', &s)
	r.must(len(s) >= lo && len(s) <= hi, name+" is empty or too long")
	return s
}

func (r *grantReader) boolean(name string, v jsontext.Value) (b bool) {
	r.decode(name, v, 't', &b)
	return b
}

func (r *grantReader) number(name string, v jsontext.Value, lo, hi int64) (n int64) {
	r.decode(name, v, '0', &n)
	r.must(n >= lo && n <= hi, fmt.Sprintf("%s is outside %d to %d", name, lo, hi))
	return n
}

func (r *grantReader) list(name string, v jsontext.Value, most int) []string {
	var values []jsontext.Value
	r.decode(name, v, '[', &values)
	r.must(len(values) <= most, fmt.Sprintf("%s has more than %d entries", name, most))
	out := make([]string, len(values))
	for i := range values {
		r.decode(name, values[i], '"', &out[i])
	}
	return out
}

// digest accepts 64 hex characters with or without the prefix and returns it with.
func (r *grantReader) digest(name string, v jsontext.Value) Digest {
	s := strings.TrimPrefix(r.text(name, v, 64, 71), "sha256:")
	r.must(lowerHex(s, 64), name+" is no SHA-256 digest")
	return Digest("sha256:" + s)
}

// requirements are absent where the member is null.
func (r *grantReader) requirements(v jsontext.Value, task TaskID) (q *Requirements) {
	switch {
	case r.err != nil || string(v) == "null":
	case v == nil:
		r.err = invalidGrant("requirements is missing")
	default:
		q, r.err = parseRequirements(v, task)
	}
	return q
}

// unsupported refuses a member that says something; nothing it asks for exists here.
func (r *grantReader) unsupported(name string, v jsontext.Value) {
	switch {
	case r.err != nil:
	case v == nil:
		r.err = invalidGrant("%s is missing", name)
	case v.Kind() != 'n':
		r.err = refuse("unsupported_schema", "this version does not support %s", name)
	}
}

// network keeps the value as it is spelled canonically. The entries of an allow list are name:port with an exact DNS
// name, or address:port: a literal is the only way to a private network, and none leads to what no turn may reach.
func (r *grantReader) network(v jsontext.Value) json.RawMessage {
	if v == nil || v.Kind() == '"' {
		s := r.text("network", v, 1, 16)
		r.must(s == "none" || s == "host", "network is neither none, host nor an allow list")
		return json.RawMessage(strconv.Quote(s))
	}
	var list struct {
		Allow jsontext.Value `json:"allow"`
	}
	if r.err == nil && jsonv2.Unmarshal(v, &list, jsonv2.RejectUnknownMembers(true)) != nil {
		r.err = invalidGrant("network is neither none, host nor an allow list")
	}
	names := r.list("network.allow", list.Allow, maxGrantList)
	r.must(len(names) > 0, "network.allow is empty; say none")
	for _, n := range names {
		why := endpoint(n)
		r.must(why == "", "network.allow: "+why)
	}
	b, err := json.Marshal(map[string][]string{"allow": names})
	r.must(err == nil, "network.allow has no canonical form")
	return b
}

// canonicalText says whether p can be its own canonical path; the disk is asked at admission.
func canonicalText(p string) bool {
	return filepath.IsAbs(p) && filepath.Clean(p) == p && p != "/" && !strings.Contains(p, "\x00")
}

// variableName accepts what every shell accepts as a variable's name, at most 128 bytes.
func variableName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

func invalidGrant(format string, args ...any) error {
	return refuse("invalid_command", "execution grant: "+format, args...)
}
