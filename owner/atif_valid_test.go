package owner

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// validATIF holds a document against every rule of ATIF-v1.7: closed objects, required members and their types, and
// what is allowed on which step. nil where it is valid.
func validATIF(doc []byte) error {
	root, err := atifObject(doc, "root", "schema_version:string steps:array agent:object", "session_id:string trajectory_id:string notes:string final_metrics:object extra:object")
	if err != nil {
		return err
	}
	if got := string(root["schema_version"]); got != `"ATIF-v1.7"` {
		return fmt.Errorf("schema_version is %s", got)
	}
	if _, err := atifObject(root["agent"], "agent", "name:string version:string", "model_name:string tool_definitions:array extra:object"); err != nil {
		return err
	}
	if m, ok := root["final_metrics"]; ok {
		if _, err := atifObject(m, "final_metrics", "", "total_prompt_tokens:count total_completion_tokens:count total_cached_tokens:count total_cost_usd:number total_steps:count extra:object"); err != nil {
			return err
		}
	}
	var steps []jsontext.Value
	if err := json.Unmarshal(root["steps"], &steps); err != nil || len(steps) == 0 {
		return fmt.Errorf("no steps: %v", err)
	}
	for i, raw := range steps {
		if err := validATIFStep(raw, i+1); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// isoTime is a date and a time of ISO 8601 with its offset.
var isoTime = regexp.MustCompile(`^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)

func validATIFStep(raw []byte, number int) error {
	step, err := atifObject(raw, "step", "step_id:count source:string message:string",
		"timestamp:string model_name:string reasoning_effort:any reasoning_content:string tool_calls:array observation:object metrics:object llm_call_count:count extra:object")
	if err != nil {
		return err
	}
	if string(step["step_id"]) != fmt.Sprint(number) {
		return fmt.Errorf("step_id is %s", step["step_id"])
	}
	source := strings.Trim(string(step["source"]), `"`)
	if source != "system" && source != "user" && source != "agent" {
		return fmt.Errorf("source is %s", source)
	}
	if at, ok := step["timestamp"]; ok && !isoTime.MatchString(strings.Trim(string(at), `"`)) {
		return fmt.Errorf("timestamp is %s", at)
	}
	for _, name := range []string{"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"} {
		if _, ok := step[name]; ok && source != "agent" {
			return fmt.Errorf("%s on a step of the %s", name, source)
		}
	}
	if _, ok := step["observation"]; ok && source == "user" {
		return fmt.Errorf("an observation on a step of the user")
	}
	if m, ok := step["metrics"]; ok {
		if string(step["llm_call_count"]) == "0" {
			return fmt.Errorf("metrics without a model call")
		}
		members, err := atifObject(m, "metrics", "", "prompt_tokens:count completion_tokens:count cached_tokens:count cost_usd:number extra:object")
		if err != nil {
			return err
		}
		var prompt, cached float64
		if p, ok := members["prompt_tokens"]; ok && members["cached_tokens"] != nil {
			if json.Unmarshal(p, &prompt) != nil || json.Unmarshal(members["cached_tokens"], &cached) != nil || cached > prompt {
				return fmt.Errorf("prompt_tokens does not include the cached ones")
			}
		}
	}
	return validATIFCalls(step)
}

func validATIFCalls(step map[string]jsontext.Value) error {
	calls := map[string]bool{}
	var list []jsontext.Value
	if raw, ok := step["tool_calls"]; ok {
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
	}
	for _, raw := range list {
		call, err := atifObject(raw, "tool call", "tool_call_id:string function_name:string arguments:object", "")
		if err != nil {
			return err
		}
		calls[string(call["tool_call_id"])] = true
	}
	raw, ok := step["observation"]
	if !ok {
		return nil
	}
	o, err := atifObject(raw, "observation", "results:array", "")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(o["results"], &list); err != nil {
		return err
	}
	for _, raw := range list {
		r, err := atifObject(raw, "result", "", "source_call_id:string content:any subagent_trajectory_ref:any")
		if err != nil {
			return err
		}
		if id, ok := r["source_call_id"]; ok && !calls[string(id)] {
			return fmt.Errorf("a result of call %s, which is not of this step", id)
		}
	}
	return nil
}

// atifObject decodes a closed object; required and optional list its members as name:type.
func atifObject(raw []byte, what, required, optional string) (map[string]jsontext.Value, error) {
	var m map[string]jsontext.Value
	if err := json.Unmarshal(raw, &m); err != nil || m == nil {
		return nil, fmt.Errorf("%s is no object: %v", what, err)
	}
	types := map[string]string{}
	for _, w := range strings.Fields(required) {
		name, kind, _ := strings.Cut(w, ":")
		if types[name] = kind; m[name] == nil {
			return nil, fmt.Errorf("%s has no %s", what, name)
		}
	}
	for _, w := range strings.Fields(optional) {
		name, kind, _ := strings.Cut(w, ":")
		types[name] = kind
	}
	for name, v := range m {
		kind, ok := types[name]
		if !ok {
			return nil, fmt.Errorf("%s has an unknown member %s", what, name)
		}
		good := map[string]bool{
			"any": true, "string": v.Kind() == '"', "object": v.Kind() == '{', "array": v.Kind() == '[', "number": v.Kind() == '0',
			"count": regexp.MustCompile(`^(0|[1-9]\d*)$`).Match(v),
		}[kind]
		if !good {
			return nil, fmt.Errorf("%s: %s is %.40s and no %s", what, name, v, kind)
		}
	}
	return m, nil
}

// The validator takes what the rules allow and refuses each thing that they do not.
func TestValidATIF(t *testing.T) {
	const good = `{"schema_version":"ATIF-v1.7","session_id":"s","trajectory_id":"t","agent":{"name":"a","version":"1","model_name":"m","tool_definitions":[],"extra":{}},` +
		`"steps":[{"step_id":1,"timestamp":"2026-01-02T03:04:05.678Z","source":"user","message":""},` +
		`{"step_id":2,"source":"system","message":"x","observation":{"results":[{"content":"c"}]}},` +
		`{"step_id":3,"source":"agent","message":"m","model_name":"m","reasoning_effort":"high","reasoning_content":"r","llm_call_count":1,` +
		`"tool_calls":[{"tool_call_id":"c1","function_name":"f","arguments":{}}],"observation":{"results":[{"source_call_id":"c1","content":null}]},` +
		`"metrics":{"prompt_tokens":9,"completion_tokens":0,"cached_tokens":9,"cost_usd":0.5,"extra":{}},"extra":{}}],` +
		`"notes":"n","final_metrics":{"total_prompt_tokens":9,"total_completion_tokens":0,"total_cached_tokens":9,"total_cost_usd":0.5,"total_steps":3,"extra":{}},"extra":{}}`
	if err := validATIF([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ name, from, to, says string }{
		{"no JSON", `{"schema_version"`, `{{"schema_version"`, "no object"},
		{"a member twice", `"session_id":"s"`, `"session_id":"s","session_id":"s"`, "no object"},
		{"another version", `ATIF-v1.7`, `ATIF-v1.6`, "schema_version"},
		{"no version", `"schema_version":"ATIF-v1.7",`, ``, "no schema_version"},
		{"root is open", `"session_id":"s"`, `"session":"s"`, "unknown member session"},
		{"a session of another type", `"session_id":"s"`, `"session_id":1`, "no string"},
		{"no agent", `"agent":{"name":"a","version":"1","model_name":"m","tool_definitions":[],"extra":{}},`, ``, "no agent"},
		{"an agent without a name", `"name":"a",`, ``, "no name"},
		{"an agent without a version", `"version":"1",`, ``, "agent has no version"},
		{"agent is open", `"tool_definitions":[]`, `"tools":[]`, "unknown member tools"},
		{"no steps", good[strings.Index(good, `"steps"`) : strings.Index(good, `"notes"`)-1], `"steps":[]`, "no steps"},
		{"notes are no text", `"notes":"n"`, `"notes":["n"]`, "no string"},
		{"step is open", `"message":""`, `"message":"","at":1`, "unknown member at"},
		{"a step without a number", `"step_id":2,`, ``, "no step_id"},
		{"steps from 0", `"step_id":1`, `"step_id":0`, "step_id is 0"},
		{"a gap in the numbers", `"step_id":3`, `"step_id":4`, "step_id is 4"},
		{"a number that is text", `"step_id":1`, `"step_id":"1"`, "no count"},
		{"a source of its own", `"source":"user"`, `"source":"tool"`, "source is tool"},
		{"no source", `"source":"user",`, ``, "no source"},
		{"a time of its own", `2026-01-02T03:04:05.678Z`, `02.01.2026`, "timestamp"},
		{"a time as a number", `"2026-01-02T03:04:05.678Z"`, `1`, "no string"},
		{"no message", `"message":"x",`, ``, "no message"},
		{"a message that is null", `"message":"x"`, `"message":null`, "no string"},
		{"a model of the user", `"message":""`, `"message":"","model_name":"m"`, "model_name on a step of the user"},
		{"an effort of the user", `"message":""`, `"message":"","reasoning_effort":"low"`, "reasoning_effort on a step"},
		{"reasoning of the system", `"message":"x"`, `"message":"x","reasoning_content":"r"`, "reasoning_content on a step"},
		{"calls of the system", `"message":"x"`, `"message":"x","tool_calls":[]`, "tool_calls on a step"},
		{"metrics of the system", `"message":"x"`, `"message":"x","metrics":{}`, "metrics on a step"},
		{"metrics without a call", `"llm_call_count":1`, `"llm_call_count":0`, "without a model call"},
		{"half a call", `"llm_call_count":1`, `"llm_call_count":0.5`, "no count"},
		{"a call without an ID", `"tool_call_id":"c1",`, ``, "no tool_call_id"},
		{"a call of nothing", `"function_name":"f",`, ``, "no function_name"},
		{"a call without arguments", `,"arguments":{}`, ``, "no arguments"},
		{"arguments as text", `"arguments":{}`, `"arguments":"{}"`, "no object"},
		{"call is open", `"arguments":{}`, `"arguments":{},"x":1`, "unknown member x"},
		{"an observation of the user", `"message":""`, `"message":"","observation":{"results":[]}`, "observation on a step of the user"},
		{"an observation without results", `{"results":[{"content":"c"}]}`, `{}`, "no results"},
		{"observation is open", `{"results":[{"content":"c"}]}`, `{"results":[],"x":1}`, "unknown member x"},
		{"result is open", `{"content":"c"}`, `{"text":"c"}`, "unknown member text"},
		{"a result of a call elsewhere", `"source_call_id":"c1"`, `"source_call_id":"c2"`, "not of this step"},
		{"metrics are open", `"completion_tokens":0,"cached_tokens":9,"cost_usd"`, `"tokens":0,"cost_usd"`, "unknown member tokens"},
		{"half a token", `"prompt_tokens":9,"completion`, `"prompt_tokens":9.5,"completion`, "no count"},
		{"cached ones not included", `"prompt_tokens":9,"completion`, `"prompt_tokens":8,"completion`, "include the cached"},
		{"cost as text", `"cost_usd":0.5,"extra":{}},"extra"`, `"cost_usd":"0.5"},"extra"`, "no number"},
		{"final metrics are open", `"total_steps":3`, `"steps":3`, "unknown member steps"},
		{"final metrics of null", `"total_prompt_tokens":9`, `"total_prompt_tokens":null`, "no count"},
		{"extra is no object", `"total_steps":3,"extra":{}},"extra":{}}`, `"total_steps":3},"extra":[]}`, "no object"},
	} {
		t.Run(row.name, func(t *testing.T) {
			bad := strings.Replace(good, row.from, row.to, 1)
			if bad == good {
				t.Fatal("the row changes nothing")
			}
			if err := validATIF([]byte(bad)); err == nil || !strings.Contains(err.Error(), row.says) {
				t.Fatalf("%v, want %q", err, row.says)
			}
		})
	}
}
