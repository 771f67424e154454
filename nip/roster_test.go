package nip_test

import (
	"strings"
	"testing"

	"holdfast/nip"
)

// The wire's invalid fixtures by number: the code of each and who refuses it.
//
//	decode     the body cannot be read: malformed, whatever else is wrong
//	validate   it can be read and does not hold
//	operation  the outer members hold, so a host signs the code
//	admission  only the kind is read here, and a host answers unavailable
func TestInvalidFixtures(t *testing.T) {
	op := func(m obj) obj { return requestObject(m) }
	steer := obj{"kind": "task.steer", "task": fixTask, "revision": 1, "prompt": "   "}
	queue := func(edit obj) obj { return op(obj{"kind": "task.queue", "task": fixTask, "edit": edit}) }
	rows := []struct {
		name  string
		body  obj
		code  nip.Code
		layer string
	}{
		{"rights out of canonical order", with(grantObject(), obj{"rights": []any{"operate", "observe"}}), nip.Malformed, "decode"},
		{"empty rights", with(grantObject(), obj{"rights": []any{}}), nip.Malformed, "decode"},
		{"unknown right", with(grantObject(), obj{"rights": []any{"admin"}}), nip.Malformed, "decode"},
		{"unknown field", with(grantObject(), obj{"bearer": true}), nip.Malformed, "decode"},
		{"unsupported version", with(grantObject(), obj{"v": "openagents.host-grant.v2"}), nip.Unsupported, "validate"},
		{"required feature", with(grantObject(), obj{"requires": []any{"openagents.future.v1"}}), nip.Unsupported, "validate"},
		{"host is the owner", with(grantObject(), obj{"owner": host}), nip.Forbidden, "validate"},
		{"lifetime over 30 days", with(grantObject(), obj{"expires_at": 1792678400}), nip.Malformed, "validate"},
		{"plain ws relay in production", with(grantObject(), obj{"relay": "ws://relay.example.com/"}), nip.Forbidden, "validate"},
		{"relay with a query", with(grantObject(), obj{"relay": fixRelay + "?token=x"}), nip.Forbidden, "validate"},
		{"enrollment host is the owner", with(enrollmentObject(), obj{"owner": host}), nip.Forbidden, "validate"},
		{"enrollment over five minutes", with(enrollmentObject(), obj{"expires_at": issued + 301}), nip.Malformed, "validate"},
		{"redemption names a grant", op(obj{"kind": "enroll.redeem", "invitation": id("2"), "capability": id("5")}), nip.Malformed, "validate"},
		{"grant without epoch", with(op(obj{"kind": "device.list"}), obj{"epoch": nil}), nip.Malformed, "validate"},
		{"request over 60 seconds", with(op(obj{"kind": "device.list"}), obj{"expires_at": issued + 61}), nip.Malformed, "validate"},
		{"terminal size zero", op(obj{"kind": "terminal.open", "cols": 0, "rows": 24}), nip.Unavailable, "admission"},
		{"empty steering prompt", op(steer), nip.Bounds, "operation"},
		{"approval digest without prefix", op(with(approveObject(), obj{"request_digest": id("a")})), nip.Malformed, "operation"},
		{"unknown operation", op(obj{"kind": "host.shutdown"}), nip.Malformed, "operation"},
		{"uppercase identity", with(op(obj{"kind": "device.list"}), obj{"request": id("A")}), nip.Malformed, "validate"},
		{"task command choosing emulation for a send", op(obj{"kind": "task.command", "command": with(commandObject(), obj{"emulate": true})}), nip.Malformed, "operation"},
		{"queue reorder naming a message twice", queue(obj{"action": "reorder", "commands": []any{id("6"), id("6")}}), nip.Malformed, "operation"},
		{"queue edit with empty text", queue(obj{"action": "edit", "command": id("6"), "text": " "}), nip.Bounds, "operation"},
		{"queue edit with an unknown action", queue(obj{"action": "promote_all"}), nip.Malformed, "operation"},
		{"spend grant in sats", op(obj{"kind": "spend.list", "grant": obj{"unit": "sat"}}), nip.Unavailable, "admission"},
		{"refused receipt without a code", op(obj{"kind": "spend.settle", "receipt": obj{"outcome": "refused", "code": nil}}), nip.Unavailable, "admission"},
		{"thread ID that is not 32 lowercase hex", op(obj{"kind": "thread.read", "thread": strings.Repeat("A", 32), "before": nil}), nip.Unavailable, "admission"},
		{"blank thread message", op(obj{"kind": "thread.send", "thread": strings.Repeat("a", 32), "request": strings.Repeat("b", 32), "text": "  "}), nip.Unavailable, "admission"},
		{"thread send without a send ID", op(obj{"kind": "thread.send", "thread": strings.Repeat("a", 32), "text": "x"}), nip.Unavailable, "admission"},
		{"thread stop with a send ID that is not 32 lowercase hex", op(obj{"kind": "thread.stop", "thread": strings.Repeat("a", 32), "request": "reply"}), nip.Unavailable, "admission"},
	}
	if len(rows) != 30 {
		t.Fatalf("%d fixtures", len(rows))
	}
	parse := func(body obj) (code nip.Code, layer string) {
		schema, _ := body["v"].(string)
		var err error
		switch {
		case strings.HasPrefix(schema, "openagents.host-grant."):
			_, err = nip.ParseGrant(bytesOf(t, body), nip.Profile{})
		case strings.HasPrefix(schema, "openagents.host-enrollment-request."):
			_, err = nip.ParseEnrollment(bytesOf(t, body), nip.Profile{})
		default:
			q, reason := nip.ParseRequest(bytesOf(t, body), nip.Profile{})
			if other, ok := q.Op.(nip.Other); ok {
				return other.Answer, "admission"
			}
			if reason == nil {
				return q.OpRefusal, "operation"
			}
			err = reason
		}
		e, ok := err.(*nip.Error)
		if !ok {
			return "", ""
		}
		return e.Code, "decode or validate"
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			code, layer := parse(row.body)
			if code != row.code || layer != row.layer && !(layer == "decode or validate" && (row.layer == "decode" || row.layer == "validate")) {
				t.Fatalf("%s by %s, want %s by %s", code, layer, row.code, row.layer)
			}
			// What cannot be decoded is malformed beside any other fault; what
			// is judged waits for the judgement that comes first.
			if _, ok := row.body["op"]; ok || layer != "decode or validate" {
				return
			}
			v := row.body["v"].(string)
			code, _ = parse(with(row.body, obj{"v": strings.TrimSuffix(v, "1") + "2"}))
			if want := map[string]nip.Code{"decode": nip.Malformed, "validate": nip.Unsupported}[row.layer]; code != want {
				t.Errorf("of another version: %s, want %s", code, want)
			}
		})
	}
}

// Every valid fixture of the wire by name: kinds with a shape make the round
// trip in TestValidRequests and its likes, of the others the kind is read.
func TestValidFixtureNames(t *testing.T) {
	have := map[string]bool{
		"grant": true, "grant_approval": true, "enrollment": true, // TestValidGrants, TestEnrollments
		"reply_refused_missing_right": true, "reply_refused_revoked": true, // TestValidReplies
	}
	for name := range validOperations() {
		have[name] = true
	}
	for name := range outcomes(t) {
		have["reply_"+name] = true
	}
	for _, name := range strings.Fields(`grant grant_approval enrollment
		request_redeem request_approve request_deny request_invite request_cancel_invite request_list_devices request_revoke
		request_task_create request_task_steer request_task_cancel request_task_command request_task_queue request_task_answer
		request_workspace_list request_task_list request_task_read request_task_original
		reply_devices reply_workspaces reply_queue reply_dispatched reply_revoked reply_refused_missing_right reply_refused_revoked`) {
		if !have[name] {
			t.Errorf("no test reads the fixture %s", name)
		}
	}
	thread, send := strings.Repeat("a", 32), strings.Repeat("b", 32)
	for name, op := range map[string]obj{
		"request_terminal_open":       {"kind": "terminal.open", "cols": 80, "rows": 24},
		"request_chats_invite":        {"kind": "chats.invite"},
		"request_thread_list":         {"kind": "thread.list"},
		"request_thread_read":         {"kind": "thread.read", "thread": thread, "before": nil},
		"request_thread_send":         {"kind": "thread.send", "thread": thread, "request": send, "text": "hello"},
		"request_thread_stop":         {"kind": "thread.stop", "thread": thread, "request": nil},
		"request_thread_run":          {"kind": "thread.run", "thread": thread},
		"request_spend_list":          {"kind": "spend.list", "grant": obj{}},
		"request_spend_list_standing": {"kind": "spend.list", "grant": obj{}},
		"request_spend_settle":        {"kind": "spend.settle", "receipt": obj{}},
		"request_task_terminal_open":  {"kind": "task.terminal.open", "task": "a", "cols": 80, "rows": 24},
	} {
		t.Run(name, func(t *testing.T) {
			q, err := nip.ParseRequest(bytesOf(t, requestObject(op)), nip.Profile{})
			if want := (nip.Other{Name: op["kind"].(string), Answer: nip.Unavailable}); err != nil || q.Op != want {
				t.Errorf("%+v %v", q.Op, err)
			}
		})
	}
}
