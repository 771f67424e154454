package owner

import (
	"strings"
	"testing"
)

func TestParseCommand(t *testing.T) {
	const good = `{"schema":"openagents.coder.task-command.v1","command_id":"c1","task_id":"t1","expected_revision":null,` +
		`"action":{"type":"submit","intent":{"title":"T","prompt":"P\nQ","workspace":{"path":"/w"},"configuration":{"adapter":"bounded-command","model":null}}}}`
	const cancel = `{"schema":"openagents.coder.task-command.v1","command_id":"c1","task_id":"t1","expected_revision":3,"action":{"type":"cancel","reason":"r"}}`
	for _, row := range []struct{ name, from, old, new, code string }{
		{"submit", good, "", "", ""},
		{"whitespace", good, `{"schema"`, " \n{ \"schema\"", ""},
		{"model absent", good, `,"model":null`, ``, ""},
		{"model", good, `null}}}}`, `"a/b-1.2"}}}}`, ""},
		{"source revision", good, `"/w"`, `"/w","source_revision":"` + strings.Repeat("0", 40) + `"`, ""},
		{"cancel", cancel, "", "", ""},
		{"source revision null", good, `"/w"`, `"/w","source_revision":null`, ""},
		{"action by kind, as before", cancel, `"type":`, `"kind":`, ""},
		{"submit by kind", good, `"type":`, `"kind":`, ""},
		{"action by both", cancel, `"type":`, `"kind":"cancel","type":`, "invalid_command"},
		{"action by neither", cancel, `"type":"cancel",`, ``, "invalid_command"},
		{"other schema", good, "command.v1", "command.v2", "unsupported_schema"},
		{"no schema", good, `"schema":"openagents.coder.task-command.v1",`, "", "invalid_command"},
		{"duplicate member", good, `"task_id":"t1"`, `"task_id":"t1","task_id":"t1"`, "invalid_command"},
		{"duplicate deep", good, `"title":"T"`, `"title":"T","title":"U"`, "invalid_command"},
		{"unknown member", good, `"task_id"`, `"x":1,"task_id"`, "invalid_command"},
		{"unknown member of the intent", good, `"title"`, `"images":[],"title"`, "invalid_command"},
		{"unknown member of the workspace", good, `"path"`, `"x":1,"path"`, "invalid_command"},
		{"unknown member of the action", cancel, `"reason"`, `"x":1,"reason"`, "invalid_command"},
		{"member in other case", good, `"task_id"`, `"Task_id"`, "invalid_command"},
		{"no revision member", good, `"expected_revision":null,`, ``, "invalid_command"},
		{"submit at a revision", good, `"expected_revision":null`, `"expected_revision":1`, "invalid_command"},
		{"cancel at none", cancel, `"expected_revision":3`, `"expected_revision":null`, "invalid_command"},
		{"revision 0", cancel, `"expected_revision":3`, `"expected_revision":0`, "invalid_command"},
		{"revision 3.0", cancel, `"expected_revision":3`, `"expected_revision":3.0`, "invalid_command"},
		{"revision as text", cancel, `"expected_revision":3`, `"expected_revision":"3"`, "invalid_command"},
		{"same IDs", good, `"c1"`, `"t1"`, "invalid_command"},
		{"ID starts with a dot", good, `"c1"`, `".c"`, "invalid_command"},
		{"ID with a slash", good, `"t1"`, `"t/1"`, "invalid_command"},
		{"ID of 129", good, `"t1"`, `"` + strings.Repeat("t", 129) + `"`, "invalid_command"},
		{"unknown action", cancel, `"cancel"`, `"steer"`, "invalid_command"},
		{"no reason", cancel, `,"reason":"r"`, ``, "invalid_command"},
		{"blank reason", cancel, `"r"`, `" \t"`, "invalid_command"},
		{"control character", cancel, `"r"`, `"r\u0007"`, "invalid_command"},
		{"title of two lines", good, `"T"`, `"T\nU"`, "invalid_command"},
		{"title of 257", good, `"T"`, `"` + strings.Repeat("x", 257) + `"`, "invalid_command"},
		{"prompt of 32 KiB", good, `"P\nQ"`, `"` + strings.Repeat("x", 32<<10) + `"`, ""},
		{"prompt of 32 KiB and 1", good, `"P\nQ"`, `"` + strings.Repeat("x", 32<<10+1) + `"`, "invalid_command"},
		{"relative path", good, `"/w"`, `"w"`, "invalid_command"},
		{"path with dots", good, `"/w"`, `"/w/../x"`, "invalid_command"},
		{"empty source revision", good, `"/w"`, `"/w","source_revision":""`, "invalid_command"},
		{"lone surrogate", cancel, `"r"`, `"\ud800"`, "invalid_command"},
		{"invalid UTF-8", cancel, `"r"`, "\"\xff\"", "invalid_command"},
		{"something behind", good, `}}}}`, `}}}}x`, "invalid_command"},
		{"too long", good, `}}}}`, `}}}}` + strings.Repeat(" ", MaxCommand), "limit_exceeded"},
		{"empty", "", "", "", "invalid_command"},
		{"null", "null", "", "", "invalid_command"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := strings.Replace(row.from, row.old, row.new, 1)
			if row.old != "" && b == row.from {
				t.Fatal("the row changes nothing")
			}
			c, err := ParseCommand([]byte(b))
			wantCode(t, err, row.code)
			if err == nil {
				again, err := ParseCommand(encoded(t, c))
				if err != nil || string(encoded(t, again)) != string(encoded(t, c)) {
					t.Fatalf("encoded: %v", err)
				}
			}
		})
	}
}

func TestEncodeCommandIsCanonical(t *testing.T) {
	got := string(encoded(t, submitOf("t1", "c1")))
	want := `{"schema":"openagents.coder.task-command.v1","command_id":"c1","task_id":"t1","expected_revision":null,"action":{"type":"submit","intent":{"title":"a title","prompt":"do <it> & say so","workspace":{"path":"/w"},"configuration":{"adapter":"bounded-command","model":null}}}}`
	if got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	_, err := EncodeCommand(Command{CommandID: "c", TaskID: "t", Action: Action{Cancel: &CancelAction{"r"}}})
	wantCode(t, err, "invalid_command")
}
