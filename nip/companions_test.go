package nip_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"holdfast/nip"
)

func summaryObject() obj {
	return obj{
		"v": nip.SchemaSummary, "requires": []any{}, "host": host, "subject": obj{"kind": "task", "id": id("a")},
		"sequence": 3, "phase": "waiting", "headline": "Task waiting", "attention": "input", "updated_at": issued,
	}
}

func TestSummaries(t *testing.T) {
	env := nip.Artifact{IssuedAt: issued, RetainUntil: issued + 86_400}
	for _, row := range []struct {
		name   string
		change obj
		env    nip.Artifact
		code   nip.Code
		layer  string
	}{
		{"the fixture", nil, env, "", ""},
		{"the longest retention", nil, nip.Artifact{IssuedAt: issued, RetainUntil: issued + 604_800}, "", ""},
		{"failed", obj{"phase": "failed", "attention": "failed", "headline": "Task failed"}, env, "", ""},
		{"completed, unmarked", obj{"phase": "completed", "attention": "none", "headline": "Task finished"}, env, "", ""},
		{"completed", obj{"phase": "completed", "attention": "completed", "headline": "Task finished"}, env, "", ""},
		{"asked", obj{"headline": "Coder asked a question"}, env, "", ""},
		{"no capacity", obj{"phase": "queued", "attention": "none", "headline": "No model capacity until 2026-11-29 14:00 UTC"}, env, "", ""},
		{"retained too long", nil, nip.Artifact{IssuedAt: issued, RetainUntil: issued + 604_801}, nip.Malformed, "schema"},
		{"retained no time", nil, nip.Artifact{IssuedAt: issued, RetainUntil: issued}, nip.Malformed, "schema"},
		{"issued at another time", nil, nip.Artifact{IssuedAt: issued + 1, RetainUntil: issued + 86_400}, nip.Malformed, "schema"},
		{"a session", obj{"subject": obj{"kind": "session", "id": id("a")}}, env, nip.Unsupported, "schema"},
		{"an unknown subject", obj{"subject": obj{"kind": "world", "id": id("a")}}, env, nip.Malformed, "schema"},
		{"an unknown member", obj{"title": "secret"}, env, nip.Malformed, "schema"},
		{"an end of its own", obj{"expires_at": issued + 86_400}, env, nip.Malformed, "schema"},
		{"an unknown phase", obj{"phase": "done"}, env, nip.Malformed, "schema"},
		{"input while running", obj{"phase": "running"}, env, nip.Malformed, "schema"},
		{"failed without attention", obj{"phase": "failed", "attention": "none", "headline": "Task failed"}, env, nip.Malformed, "schema"},
		{"attention without failure", obj{"phase": "running", "attention": "failed"}, env, nip.Malformed, "schema"},
		{"failed that says why", obj{"phase": "failed", "attention": "failed", "headline": "Task failed again"}, env, nip.Malformed, "schema"},
		{"a headline with a path", obj{"headline": "reading /etc/passwd"}, env, nip.Malformed, "schema"},
		{"a headline with two spaces", obj{"headline": "Task  waiting"}, env, nip.Malformed, "schema"},
		{"a headline of 161 bytes", obj{"headline": strings.Repeat("ab ", 53) + "cd"}, env, nip.Bounds, "schema"},
		{"an empty headline", obj{"headline": ""}, env, nip.Bounds, "schema"},
		{"another version", obj{"v": "openagents.activity-summary.v2"}, env, nip.Unsupported, "schema"},
		{"over 1,024 bytes", obj{"headline": strings.Repeat("a", 1_024)}, env, nip.Bounds, "json"},
	} {
		t.Run(row.name, func(t *testing.T) {
			in := bytesOf(t, with(summaryObject(), row.change))
			s, err := nip.ParseSummary(in, row.env)
			if row.code != "" {
				wantFault(t, err, row.code, row.layer)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			a, err := nip.EncodeSummary(s)
			want, _ := nip.Canonical(in)
			if err != nil || string(a.Inline) != string(want) || a.IssuedAt != issued || a.RetainUntil != issued+86_400 {
				t.Errorf("%s %v, want %s", a.Inline, err, want)
			}
			if ev, err := nip.Seal(hostKey, device, nip.Mailbox(id("a")), a, nil); err != nil {
				t.Error(err)
			} else if v, err := nip.VerifyEvent(ev); err != nil {
				t.Error(err)
			} else if _, err := nip.Open(v, deviceKey); err != nil {
				t.Error(err)
			}
		})
	}
	_, err := nip.EncodeSummary(nip.Summary{Host: host, Task: nip.TaskID(id("a")), Phase: nip.PhaseRunning,
		Attention: "none", Headline: "see https://example.com", UpdatedAt: issued})
	wantFault(t, err, nip.Malformed, "schema")
}

func TestHeadline(t *testing.T) {
	long := strings.Repeat("word ", 40)
	for _, row := range []struct{ name, in, want string }{
		{"plain", "Task waiting", "Task waiting"},
		{"white space", "  Task\n\twaiting\u0000now ", "Task waiting now"},
		{"nothing", " \n", "fallback"},
		{"only secrets", "a/b c=d", "fallback"},
		{"URL", "see wss://x now", "see [redacted] now"},
		{"path", `open C:\x and /y`, "open [redacted] and [redacted]"},
		{"runs merge", "a x/y z=1 b", "a [redacted] b"},
		{"mail", "from a@b", "from [redacted]"},
		{"backtick", "run `ls` now", "run [redacted] now"},
		{"assignment", "set A=1 now", "set [redacted] now"},
		{"home", "in ~home now", "in [redacted] now"},
		{"variable", "echo $HOME now", "echo [redacted] now"},
		{"percent", "echo %PATH now", "echo [redacted] now"},
		{"percent behind", "at 50% now", "at 50% now"},
		{"credential", "key (SK-live) now", "key [redacted] now"},
		{"npub", "by npub1abc now", "by [redacted] now"},
		{"aws", "id AKIAX now", "id [redacted] now"},
		{"16 hex", "at deadbeefdeadbeef now", "at [redacted] now"},
		{"15 hex", "at deadbeefdeadbee now", "at deadbeefdeadbee now"},
		{"quoted hex", `at "DEADBEEFDEADBEEF", now`, "at [redacted] now"},
		{"20 with a digit", "id abcdefghijklmnopqrs1 now", "id [redacted] now"},
		{"19 with a digit", "id ghijklmnopqrstuvwx1 now", "id ghijklmnopqrstuvwx1 now"},
		{"20 letters", "a counterrevolutionaries b", "a counterrevolutionaries b"},
		{"too long", long, strings.TrimSpace(long[:155]) + "…"},
		{"one long word", strings.Repeat("x", 200), "fallback"},
		{"cut inside a character", "a " + strings.Repeat("é", 100), "a…"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := nip.Headline(row.in, "fallback")
			if got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
			if again := nip.Headline(got, "fallback"); again != got {
				t.Errorf("not stable: %q then %q", got, again)
			}
		})
	}
}

// Whatever comes in, the headline is stable, bounded and has no separator or
// credential left.
func TestHeadlineProperty(t *testing.T) {
	piece := rapid.OneOf(rapid.StringMatching(`[a-f0-9]{1,20}`), rapid.StringMatching(`[(\["']?(sk-|nsec1|ghp_)[a-z]{0,5}[.,]?`),
		rapid.String(), rapid.SampledFrom([]string{"[redacted]", "…", "a/b", "é", " ", "\xff", "—"}))
	rapid.Check(t, func(t *rapid.T) {
		in := strings.Join(rapid.SliceOfN(piece, 0, 40).Draw(t, "pieces"), rapid.SampledFrom([]string{" ", "", "\n"}).Draw(t, "gap"))
		got := nip.Headline(in, "fallback")
		if again := nip.Headline(got, "fallback"); again != got {
			t.Fatalf("not stable: %q then %q", got, again)
		}
		if got == "" || len(got) > 160 || strings.ContainsAny(got, "/\\=@`\n\x00") || strings.Contains(got, "  ") {
			t.Fatalf("%q", got)
		}
	})
}

func presenceObject() obj {
	return obj{
		"v": nip.SchemaPresence, "requires": []any{}, "host": host, "owner": owner, "generation": 7, "protocol": 1,
		"compatibility": obj{"min": 1, "max": 2}, "capabilities": []any{"task-control", "engine-ready-codex"},
		"observed_at": issued, "telemetry": nil,
	}
}

func TestPresences(t *testing.T) {
	var many []any
	for i := range 65 {
		many = append(many, fmt.Sprintf("c%d", i))
	}
	telemetry := func(a, b, c any) obj {
		return obj{"telemetry": obj{"cpu_count": a, "cpu_utilization_pct": b, "memory_available_pct": c}}
	}
	for _, row := range []struct {
		name   string
		change obj
		code   nip.Code
	}{
		{"the fixture", nil, ""},
		{"no capabilities", obj{"capabilities": []any{}}, ""},
		{"64 capabilities", obj{"capabilities": many[:64]}, ""},
		{"telemetry", telemetry(4_096, 100, 0), ""},
		{"telemetry left out", obj{"telemetry": absent}, ""},
		{"meta", obj{"meta": obj{"x": 1.5}}, ""},
		{"65 capabilities", obj{"capabilities": many}, nip.Bounds},
		{"a capability twice", obj{"capabilities": []any{"a", "a"}}, nip.Malformed},
		{"an empty capability", obj{"capabilities": []any{""}}, nip.Malformed},
		{"a capability in capitals", obj{"capabilities": []any{"Task"}}, nip.Malformed},
		{"a capability that begins with a dash", obj{"capabilities": []any{"-a"}}, nip.Malformed},
		{"a long capability", obj{"capabilities": []any{strings.Repeat("a", 65)}}, nip.Malformed},
		{"host and owner are one", obj{"owner": host}, nip.Forbidden},
		{"protocol 0", obj{"protocol": 0}, nip.Malformed},
		{"max below min", obj{"compatibility": obj{"min": 2, "max": 1}}, nip.Malformed},
		{"min 0", obj{"compatibility": obj{"min": 0, "max": 1}}, nip.Malformed},
		{"no processors", telemetry(0, 0, 0), nip.Bounds},
		{"101 percent", telemetry(1, 101, 0), nip.Bounds},
		{"telemetry below zero", telemetry(1, -1, 0), nip.Malformed},
		{"telemetry with a fraction", telemetry(1, 1.5, 0), nip.Malformed},
		{"an unknown member", obj{"name": "x"}, nip.Malformed},
		{"another version", obj{"v": "openagents.host-presence.v2"}, nip.Unsupported},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := nip.ParsePresence(bytesOf(t, with(presenceObject(), row.change)))
			if row.code != "" {
				wantFault(t, err, row.code, "schema")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			a, err := nip.EncodePresence(p, issued+240)
			if err != nil || a.IssuedAt != issued || a.RetainUntil != issued+240 {
				t.Fatal(err)
			}
			if again, err := nip.ParsePresence(a.Inline); err != nil || !reflect.DeepEqual(again, p) {
				t.Errorf("%+v %v, want %+v", again, err, p)
			}
			if ev, err := nip.Seal(hostKey, device, nip.Mailbox(id("a")), a, nil); err != nil {
				t.Error(err)
			} else if v, err := nip.VerifyEvent(ev); err != nil {
				t.Error(err)
			} else if _, err := nip.Open(v, deviceKey); err != nil {
				t.Error(err)
			}
		})
	}
	p := nip.Presence{Host: host, Owner: owner, Protocol: 1, Min: 1, Max: 1, ObservedAt: issued}
	_, err := nip.EncodePresence(p, issued) // a duration in place of a time fails too
	wantFault(t, err, nip.Malformed, "schema")
}

func statesObject() obj {
	row := func(c, state string, change obj) obj {
		return with(obj{"command": id(c), "state": state, "position": nil, "revision": nil, "reason": nil}, change)
	}
	return obj{
		"v": nip.SchemaStates, "requires": []any{}, "host": host, "issued_at": issued, "expires_at": issued + 60,
		"task": fixTask, "revision": 4, "commands": []any{
			row("1", "held", obj{"position": 0}), row("2", "applied", obj{"revision": 4}),
			row("3", "rejected", obj{"reason": "conflict"}), row("4", "expired", nil), row("5", "applied", nil),
		},
	}
}

func TestCommandStates(t *testing.T) {
	row := func(change obj) obj {
		return obj{"commands": []any{with(obj{"command": id("1"), "state": "received", "position": nil, "revision": nil, "reason": nil}, change)}}
	}
	twice := statesObject()["commands"].([]any)[0]
	for _, c := range []struct {
		name   string
		change obj
		code   nip.Code
	}{
		{"a full record", nil, ""},
		{"no commands", obj{"commands": []any{}}, ""},
		{"an unknown state", row(obj{"state": "lost"}), nip.Malformed},
		{"held nowhere", row(obj{"state": "held"}), nip.Malformed},
		{"received somewhere", row(obj{"position": 1}), nip.Malformed},
		{"rejected for nothing", row(obj{"state": "rejected"}), nip.Malformed},
		{"expired for a reason", row(obj{"state": "expired", "reason": "expired"}), nip.Malformed},
		{"an unknown reason", row(obj{"state": "rejected", "reason": "mood"}), nip.Malformed},
		{"held with a revision", row(obj{"state": "held", "position": 0, "revision": 1}), nip.Malformed},
		{"a command twice", obj{"commands": []any{twice, twice}}, nip.Malformed},
		{"65 commands", obj{"commands": make([]any, 65)}, nip.Bounds},
		{"over 7 days", obj{"expires_at": issued + 604_801}, nip.Malformed},
		{"another version", obj{"v": "holdfast.command-states.v2"}, nip.Unsupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := bytesOf(t, with(statesObject(), c.change))
			s, err := nip.ParseStates(in)
			if c.code != "" {
				wantFault(t, err, c.code, "schema")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			a, err := nip.EncodeStates(s)
			want, _ := nip.Canonical(in)
			if err != nil || string(a.Inline) != string(want) {
				t.Errorf("%s %v, want %s", a.Inline, err, want)
			}
		})
	}
}
