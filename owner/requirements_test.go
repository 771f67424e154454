package owner

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// someRequirements is what a grant may say, as JSON that a row can change.
func someRequirements() map[string]any {
	return map[string]any{
		"schema": requirementsSchema, "version": 1,
		"requirements": []any{map[string]any{"id": "r", "statement": "it works", "checks": []any{"c"}}},
		"plan": map[string]any{"schema": planSchema, "input_digest": candidatePlace, "seconds": 60,
			"allow_unrestricted_reads": true, "allow_network": true,
			"checks": []any{map[string]any{"id": "c", "manifest": "/suites/c.json", "manifest_digest": aDigest, "arguments": []any{candidatePlace},
				"seconds": 60, "output_bytes": 4096,
				"acceptance": map[string]any{"kind": "suite", "suite_digest": aDigest, "input_digest": candidatePlace}}}},
		"instruction_targets": []any{}, "source_exclusions": []any{"issue-6-12"}, "task_sources": []any{"issue-5"},
		"check_lineage": []any{map[string]any{"check": "c", "sources": []any{"by-hand"}}}, "knowledge": []any{},
	}
}

func TestParseRequirements(t *testing.T) {
	plan := func(r map[string]any) map[string]any { return r["plan"].(map[string]any) }
	check := func(r map[string]any) map[string]any { return plan(r)["checks"].([]any)[0].(map[string]any) }
	accept := func(r map[string]any) map[string]any { return check(r)["acceptance"].(map[string]any) }
	lineage := func(s ...any) func(map[string]any) {
		return func(r map[string]any) { r["check_lineage"] = []any{map[string]any{"check": "c", "sources": s}} }
	}
	for _, row := range []struct {
		name, code string
		change     func(r map[string]any)
	}{
		{"as it is", "", func(map[string]any) {}},
		{"another schema", "unsupported_schema", func(r map[string]any) { r["schema"] = "openagents.coder.task-requirements.v1" }},
		{"another plan's schema", "unsupported_schema", func(r map[string]any) { plan(r)["schema"] = "x" }},
		{"unknown member", "invalid_command", func(r map[string]any) { r["extra"] = 1 }},
		{"unknown member of a check", "invalid_command", func(r map[string]any) { check(r)["extra"] = 1 }},
		{"no version", "invalid_command", func(r map[string]any) { r["version"] = 0 }},
		{"a list is missing", "invalid_command", func(r map[string]any) { delete(r, "knowledge") }},
		{"no requirement", "invalid_command", func(r map[string]any) { r["requirements"] = []any{} }},
		{"a requirement twice", "invalid_command", func(r map[string]any) {
			q := r["requirements"].([]any)
			r["requirements"] = append(q, q[0])
		}},
		{"a blank statement", "invalid_command", func(r map[string]any) { r["requirements"].([]any)[0].(map[string]any)["statement"] = " " }},
		{"a check that covers nothing", "invalid_command", func(r map[string]any) { check(r)["id"] = "d" }},
		{"a check that is not planned", "invalid_command", func(r map[string]any) { r["requirements"].([]any)[0].(map[string]any)["checks"] = []any{"c", "d"} }},
		{"no check", "invalid_command", func(r map[string]any) { plan(r)["checks"] = []any{} }},
		{"a plan of another input", "invalid_command", func(r map[string]any) { plan(r)["input_digest"] = aDigest }},
		{"an hour and a second", "invalid_command", func(r map[string]any) { plan(r)["seconds"] = 3601 }},
		{"restricted reads", "invalid_command", func(r map[string]any) { plan(r)["allow_unrestricted_reads"] = false }},
		{"no network", "invalid_command", func(r map[string]any) { plan(r)["allow_network"] = false }},
		{"a check longer than its plan", "invalid_command", func(r map[string]any) { check(r)["seconds"] = 61 }},
		{"too much output", "invalid_command", func(r map[string]any) { check(r)["output_bytes"] = 1<<20 + 1 }},
		{"a relative manifest", "invalid_command", func(r map[string]any) { check(r)["manifest"] = "c.json" }},
		{"no manifest digest", "invalid_command", func(r map[string]any) { check(r)["manifest_digest"] = "" }},
		{"another argument", "invalid_command", func(r map[string]any) { check(r)["arguments"] = []any{"-c", candidatePlace} }},
		{"exit code as a proof", "invalid_command", func(r map[string]any) { accept(r)["kind"] = "exit-success" }},
		{"a suite label", "invalid_command", func(r map[string]any) { accept(r)["suite_digest"] = "suite-1" }},
		{"a suite of another input", "invalid_command", func(r map[string]any) { accept(r)["input_digest"] = aDigest }},
		{"no task source", "invalid_command", func(r map[string]any) { r["task_sources"] = []any{} }},
		{"no lineage", "invalid_command", func(r map[string]any) { r["check_lineage"] = []any{} }},
		{"lineage of nothing", "invalid_command", lineage()},
		{"lineage of the task's source", "invalid_command", lineage("by-hand", "issue-5")},
		{"lineage of another run of the task's source", "invalid_command", lineage("issue-5-7")},
		{"lineage of another run of what is excluded", "invalid_command", lineage("issue-6-13")},
		{"lineage of the task itself", "invalid_command", lineage("t")},
		{"a source twice", "invalid_command", lineage("a", "a")},
		{"a source of two lines", "invalid_command", lineage("a\nb")},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := someRequirements()
			row.change(r)
			g, err := ParseGrant(publicGrant(t, map[string]any{"task_id": "t", "requirements": r}))
			wantCode(t, err, row.code)
			if err != nil {
				return
			}
			// What was read is written in our own schema, and read as the same.
			b, err := EncodeGrant(g)
			if err != nil {
				t.Fatal(err)
			}
			again, err := ParseGrant(b)
			if err != nil || DigestOf(mustJSON(again.Requirements)) != DigestOf(mustJSON(g.Requirements)) {
				t.Fatalf("%v: %s", err, b)
			}
		})
	}
	t.Run("a member of knowledge twice", func(t *testing.T) {
		r := someRequirements()
		r["knowledge"] = []any{someKnowledge()}
		b := strings.Replace(string(mustJSON(r)), `"id":"git.recovery"`, `"id":"git.recovery","id":"git.recovery"`, 1)
		_, err := parseRequirements([]byte(b), "t")
		wantCode(t, err, "invalid_command")
	})
	t.Run("a member twice", func(t *testing.T) {
		b, err := json.Marshal(someRequirements())
		if err != nil {
			t.Fatal(err)
		}
		_, err = parseRequirements([]byte(strings.Replace(string(b), `"version":1`, `"version":1,"version":1`, 1)), "t")
		wantCode(t, err, "invalid_command")
	})
	t.Run("65 requirements", func(t *testing.T) {
		r := someRequirements()
		var all []any
		for i := range 65 {
			all = append(all, map[string]any{"id": fmt.Sprintf("r%d", i), "statement": "x", "checks": []any{"c"}})
		}
		r["requirements"] = all
		_, err := ParseGrant(publicGrant(t, map[string]any{"task_id": "t", "requirements": r}))
		wantCode(t, err, "invalid_command")
	})
}

// someKnowledge is a pin as a grant may spell it.
func someKnowledge() map[string]any {
	return map[string]any{"id": "git.recovery", "version": 1, "digest": aDigest, "path": "docs/git.recovery.md", "sources": []any{"reference"}}
}

// TestParseReading: what a turn is to be given to read, as a grant names it.
func TestParseReading(t *testing.T) {
	knows := func(change func(k map[string]any)) func(map[string]any) {
		return func(r map[string]any) {
			k := someKnowledge()
			change(k)
			r["knowledge"] = []any{k}
		}
	}
	set := func(name string, v any) func(map[string]any) {
		return knows(func(k map[string]any) { k[name] = v })
	}
	target := func(names ...any) func(map[string]any) {
		return func(r map[string]any) { r["instruction_targets"] = names }
	}
	many := func(n int) (all []any) {
		for i := range n {
			all = append(all, fmt.Sprintf("s%d", i))
		}
		return all
	}
	for _, row := range []struct {
		name, code string
		change     func(r map[string]any)
	}{
		{"knowledge", "", knows(func(map[string]any) {})},
		{"the highest version", "", set("version", uint32(1<<32-1))},
		{"256 sources", "", set("sources", many(256))},
		{"targets", "", target("src", "src/a.go", "a/b c/ü", "src", "..x")},
		{"64 targets", "", target(many(64)...)},
		{"65 targets", "invalid_command", target(many(65)...)},
		{"no list of targets", "invalid_command", func(r map[string]any) { r["instruction_targets"] = nil }},
		{"no list of knowledge", "invalid_command", func(r map[string]any) { r["knowledge"] = nil }},
		{"null for knowledge", "invalid_command", func(r map[string]any) { r["knowledge"] = []any{nil} }},
		{"null for a target", "invalid_command", target(nil)},
		{"an empty target", "invalid_command", target("")},
		{"the workspace as a target", "invalid_command", target(".")},
		{"an absolute target", "invalid_command", target("/src")},
		{"a target that climbs", "invalid_command", target("../src")},
		{"a target that climbs later", "invalid_command", target("a/../../src")},
		{"a target with a dot", "invalid_command", target("./src")},
		{"a target with a slash at the end", "invalid_command", target("src/")},
		{"a target with two slashes", "invalid_command", target("a//b")},
		{"a target of two lines", "invalid_command", target("a\nb")},
		{"a target in git's folder", "invalid_command", target(".git/hooks")},
		{"a target in a nested git folder", "invalid_command", target("a/.GIT")},
		{"a target that is too long", "invalid_command", target(strings.Repeat("a/", maxPath/2) + "a")},
		{"an unknown member", "invalid_command", set("extra", 1)},
		{"no ID", "invalid_command", set("id", "")},
		{"an ID with a capital", "invalid_command", set("id", "Git")},
		{"an ID with a digit first", "invalid_command", set("id", "1git")},
		{"an ID with a slash", "invalid_command", set("id", "git/recovery")},
		{"an ID that is too long", "invalid_command", set("id", strings.Repeat("a", 129))},
		{"no version", "invalid_command", set("version", 0)},
		{"a version that is too high", "invalid_command", set("version", 1<<32)},
		{"a broken version", "invalid_command", set("version", 1.5)},
		{"a bare digest", "invalid_command", set("digest", strings.TrimPrefix(aDigest, "sha256:"))},
		{"no path", "invalid_command", set("path", "")},
		{"a path that climbs", "invalid_command", set("path", "../docs.md")},
		{"an absolute path", "invalid_command", set("path", "/docs.md")},
		{"a path in git's folder", "invalid_command", set("path", ".git/docs.md")},
		{"no sources", "invalid_command", set("sources", []any{})},
		{"257 sources", "invalid_command", set("sources", many(257))},
		{"a source twice", "invalid_command", set("sources", []any{"a", "a"})},
		{"a long source", "invalid_command", set("sources", []any{strings.Repeat("a", 1025)})},
		{"a source of the task", "invalid_command", set("sources", []any{"reference", "issue-5"})},
		{"another run of a source of the task", "invalid_command", set("sources", []any{"issue-5-7"})},
		{"a source that is excluded", "invalid_command", set("sources", []any{"issue-6"})},
		{"the task as a source", "invalid_command", set("sources", []any{"t-12"})},
		{"knowledge twice", "invalid_command", func(r map[string]any) {
			other := someKnowledge()
			other["path"] = "other.md"
			r["knowledge"] = []any{someKnowledge(), other}
		}},
		{"17 pieces of knowledge", "invalid_command", func(r map[string]any) {
			var all []any
			for i := range 17 {
				k := someKnowledge()
				k["id"] = fmt.Sprintf("k%d", i)
				all = append(all, k)
			}
			r["knowledge"] = all
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := someRequirements()
			row.change(r)
			g, err := ParseGrant(publicGrant(t, map[string]any{"task_id": "t", "requirements": r}))
			wantCode(t, err, row.code)
			if err != nil {
				return
			}
			b, err := EncodeGrant(g)
			if err != nil {
				t.Fatal(err)
			}
			again, err := ParseGrant(b)
			if err != nil || DigestOf(mustJSON(again.Requirements)) != DigestOf(mustJSON(g.Requirements)) {
				t.Fatalf("%v: %s", err, b)
			}
		})
	}
}

func TestWithoutRun(t *testing.T) {
	for in, want := range map[string]string{"issue-5-7": "issue-5", "a:1": "a", "run12": "run12", "plain": "plain", "12": "12", "-12": "-12", "": ""} {
		if got := withoutRun(in); got != want {
			t.Errorf("%q gives %q, want %q", in, got, want)
		}
	}
}
