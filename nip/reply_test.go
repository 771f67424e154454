package nip_test

import (
	"encoding/base64"
	"errors"
	"reflect"
	"strings"
	"testing"

	"holdfast/nip"
)

func replyObject(result any) obj {
	return obj{
		"v": nip.SchemaReply, "requires": []any{}, "request": id("a"), "request_event": id("b"), "host": host,
		"issued_at": issued + 1, "expires_at": issued + 60, "result": result,
	}
}

func ok(outcome any) obj { return obj{"status": "ok", "outcome": outcome} }

func refused(code string, missing any) obj {
	return obj{"status": "refused", "code": code, "missing": missing}
}

func deviceObject() obj {
	return obj{
		"device": device, "grant": id("1"), "rights": []any{"observe"}, "epoch": 1, "origin": "invitation",
		"issued_at": issued, "expires_at": issued + 60, "state": "active", "last_seen": nil,
	}
}

func queueObject() obj {
	return obj{
		"task": fixTask, "revision": 4, "lease": obj{"device": device, "expires_at": issued + 60},
		"items": []any{
			obj{"command": id("6"), "device": device, "text": "mine", "priority": true},
			obj{"command": id("6"), "device": second, "text": nil, "priority": false},
		},
	}
}

func listingObject() obj {
	return obj{
		"workspace": "W", "snapshot_digest": fixDigest, "more_available": true,
		"rows": []any{
			obj{"task": fixTask, "revision": 3, "title": "A", "phase": "running", "attempt": 1},
			obj{"task": "local.1", "revision": 1, "title": "", "phase": "queued", "attempt": nil},
		},
		"next": obj{"workspace": "W", "snapshot_digest": fixDigest, "next": 2},
	}
}

func pageObject() obj {
	ref := originalRefObject()
	return obj{
		"scope": scopeObject(), "title": "A", "prompt": "P\nQ", "phase": "completed", "execution": "exited",
		"verification": "unknown", "integration": "none", "termination": "exit", "delivery": "none", "cleanup": "done",
		"cost_microusd": nil, "cost_status": "unknown",
		"evidence": obj{
			"state": "complete", "original": ref, "total_steps": 9,
			"steps": []any{
				obj{"kind": "original", "index": 3, "step": obj{"cost_usd": 0.25, "n": []any{1, 2.5e-7}}},
				obj{"kind": "gap", "index": 4, "reason": "oversized", "original": ref},
			},
			"faults": []any{obj{"line": 7, "kind": "not_json"}}, "more_faults": false,
		},
		"artifacts": []any{obj{"label": "out.txt", "state": "retained", "original": with(ref, obj{"source": "artifact:" + id("c")})},
			obj{"label": "gone", "state": "missing", "original": nil}},
		"children": []any{
			obj{"source_step": 3, "call_id": "c1", "agent": "a", "reference": "r", "state": "reference_only"},
			obj{"source_step": 3, "call_id": "c2", "agent": "a", "reference": nil, "state": "unavailable"},
		},
		"more_children": false, "next": with(pageCursorObject(), obj{"next_step": 5}), "more_available": true,
	}
}

func chunkObject() obj {
	return obj{
		"scope": scopeObject(), "original": originalRefObject(), "start": 0,
		"data": base64.StdEncoding.EncodeToString([]byte("abcd")), "next": chunkCursorObject(), "more_available": true,
	}
}

func outcomes(t testing.TB) map[string]obj {
	return map[string]obj{
		"granted":    {"kind": "granted", "authorization": eventObject(t, sealedGrant(t))},
		"devices":    {"kind": "devices", "devices": []any{deviceObject(), with(deviceObject(), obj{"last_seen": issued, "state": "revoked", "origin": "approval"})}},
		"no devices": {"kind": "devices", "devices": []any{}},
		"revoked":    {"kind": "revoked", "device": device, "epoch": 2, "grants": []any{id("1")}},
		"dispatched": {"kind": "dispatched", "receipt": obj{"operation": "task.command", "reference": fixTask}},
		"queue":      {"kind": "queue", "queue": queueObject()},
		"free queue": {"kind": "queue", "queue": with(queueObject(), obj{"lease": nil, "items": []any{}})},
		"workspaces": {"kind": "workspaces", "workspaces": []any{"a", "b"}},
		"tasks":      {"kind": "tasks", "tasks": listingObject()},
		"task":       {"kind": "task", "task": pageObject()},
		"original":   {"kind": "task_original", "original": chunkObject()},

		"denied":      {"kind": "denied"},
		"invitation":  invitedObject(t),
		"cancelled":   {"kind": "cancelled", "invitation": id("2")},
		"exact queue": {"kind": "queue_at_revision", "queue": queueObject(), "revision": 4, "queue_digest": fixDigest},
		"recorded dispatch": recordedObject(ok(obj{"kind": "dispatched",
			"receipt": obj{"operation": "task.create", "reference": fixTask}})),
		"recorded refusal": recordedObject(refused("missing_right", "operate")),
		"nothing recorded": recordedObject(nil),
		"artifact":         progressObject(nil),
	}
}

func recordedObject(result any) obj {
	return obj{"kind": "request_operation", "request": id("a"), "request_event": id("b"), "result": result}
}

func progressObject(change obj) obj {
	return obj{"kind": "artifact", "artifact": with(obj{"digest": fixDigest, "received": 10, "complete": true}, change)}
}

func invitedObject(t testing.TB) obj {
	s, err := nip.EncodeInvitation(fixtureInvitation(), nip.Profile{})
	if err != nil {
		t.Fatal(err)
	}
	return obj{"kind": "invitation", "invitation": id("2"), "code": s, "expires_at": issued + 300}
}

func eventObject(t testing.TB, ev *nip.Event) obj {
	return obj{
		"id": ev.ID, "pubkey": ev.PubKey, "created_at": ev.CreatedAt, "kind": ev.Kind, "tags": ev.Tags,
		"content": ev.Content, "sig": ev.Sig,
	}
}

func TestValidReplies(t *testing.T) {
	results := map[string]any{
		"reply_refused_missing_right": refused("missing_right", "operate"),
		"reply_refused_revoked":       refused("revoked", nil),
		"refused bounds":              refused("bounds", nil),
	}
	for name, o := range outcomes(t) {
		results["reply_"+name] = ok(o)
	}
	for name, result := range results {
		t.Run(name, func(t *testing.T) {
			in, err := nip.Canonical(bytesOf(t, replyObject(result)))
			if name == "reply_task" { // a step's fractions are the one exception
				in = bytesOf(t, replyObject(result))
			} else if err != nil {
				t.Fatal(err)
			}
			p, err := nip.ParseReply(in)
			if err != nil {
				t.Fatal(err)
			}
			a, err := nip.EncodeReply(p)
			if err != nil || name != "reply_task" && string(a.Inline) != string(in) {
				t.Fatalf("%s %v\nwant %s", a.Inline, err, in)
			}
			again, err := nip.ParseReply(a.Inline)
			if err != nil || !reflect.DeepEqual(again, p) {
				t.Errorf("%+v %v\nwant %+v", again, err, p)
			}
			ev, err := nip.Seal(hostKey, device, nip.Mailbox(p.Request), a, nil)
			if err != nil {
				t.Fatal(err)
			}
			v, err := nip.VerifyEvent(ev)
			if err != nil {
				t.Fatal(err)
			}
			if o, err := nip.Open(v, deviceKey); err != nil || string(o.Inline) != string(a.Inline) {
				t.Error(err)
			}
		})
	}
}

func TestInvalidReplies(t *testing.T) {
	entry := func(change obj) any {
		return ok(obj{"kind": "devices", "devices": []any{with(deviceObject(), change)}})
	}
	queue := func(change obj) any { return ok(obj{"kind": "queue", "queue": with(queueObject(), change)}) }
	tasks := func(change obj) any { return ok(obj{"kind": "tasks", "tasks": with(listingObject(), change)}) }
	page := func(change obj) any { return ok(obj{"kind": "task", "task": with(pageObject(), change)}) }
	evidence := func(change obj) any {
		return page(obj{"evidence": with(pageObject()["evidence"].(obj), change)})
	}
	chunk := func(change obj) any { return ok(obj{"kind": "task_original", "original": with(chunkObject(), change)}) }
	works := func(w ...any) any { return ok(obj{"kind": "workspaces", "workspaces": w}) }
	ref := originalRefObject()
	var many []any
	for range 65 {
		many = append(many, "w")
	}
	for _, row := range []struct {
		name   string
		result any
		change obj
		code   nip.Code
	}{
		{"an unknown outcome", ok(obj{"kind": "spends", "spends": []any{}}), nil, nip.Unsupported},
		{"an outcome without kind", ok(obj{}), nil, nip.Malformed},
		{"an unknown status", obj{"status": "maybe"}, nil, nip.Malformed},
		{"ok with a code", with(ok(outcomes(t)["revoked"]), obj{"code": "stale"}), nil, nip.Malformed},
		{"refused with an outcome", with(refused("stale", nil), obj{"outcome": outcomes(t)["revoked"]}), nil, nip.Malformed},
		{"an unknown code", refused("transport", nil), nil, nip.Malformed},
		{"missing_right without one", refused("missing_right", nil), nil, nip.Malformed},
		{"a right with another code", refused("stale", "operate"), nil, nip.Malformed},
		{"an unknown right", refused("missing_right", "admin"), nil, nip.Malformed},
		{"another version", refused("stale", nil), obj{"v": "openagents.host-reply.v2"}, nip.Unsupported},
		{"a required feature", refused("stale", nil), obj{"requires": []any{"x"}}, nip.Unsupported},
		{"an unknown member", refused("stale", nil), obj{"x": 1}, nip.Malformed},
		{"no lifetime", refused("stale", nil), obj{"expires_at": issued + 1}, nip.Malformed},
		{"a bad request ID", refused("stale", nil), obj{"request": "a"}, nip.Malformed},
		{"a host off the curve", refused("stale", nil), obj{"host": id("0")}, nip.Malformed},

		{"granted without an event", ok(obj{"kind": "granted", "authorization": nil}), nil, nip.Malformed},
		{"granted with a note", ok(obj{"kind": "granted", "authorization": with(eventObject(t, sealedGrant(t)), obj{"kind": 1})}), nil, nip.Malformed},
		{"granted with more in the event", ok(obj{"kind": "granted", "authorization": with(eventObject(t, sealedGrant(t)), obj{"x": 1})}), nil, nip.Malformed},
		{"a device in an unknown state", entry(obj{"state": "lost"}), nil, nip.Malformed},
		{"a device of unknown origin", entry(obj{"origin": "found"}), nil, nip.Malformed},
		{"a device with rights out of order", entry(obj{"rights": []any{"operate", "observe"}}), nil, nip.Malformed},
		{"a receipt without reference", ok(obj{"kind": "dispatched", "receipt": obj{"operation": "task.create", "reference": ""}}), nil, nip.Bounds},
		{"a receipt with a long reference", ok(obj{"kind": "dispatched", "receipt": obj{"operation": "task.create", "reference": strings.Repeat("a", 129)}}), nil, nip.Bounds},
		{"a held message twice", queue(obj{"items": []any{queueObject()["items"].([]any)[0], queueObject()["items"].([]any)[0]}}), nil, nip.Malformed},
		{"a held message without text", queue(obj{"items": []any{obj{"command": id("6"), "device": device, "text": "", "priority": true}}}), nil, nip.Bounds},
		{"a lease without end", queue(obj{"lease": obj{"device": device}}), nil, nip.Malformed},
		{"65 held messages", queue(obj{"items": many}), nil, nip.Bounds},
		{"workspaces unsorted", works("b", "a"), nil, nip.Malformed},
		{"a workspace twice", works("a", "a"), nil, nip.Malformed},
		{"65 workspaces", works(many...), nil, nip.Bounds},
		{"a workspace with a control", works("a\u0007"), nil, nip.Bounds},

		{"a task twice", tasks(obj{"rows": []any{listingObject()["rows"].([]any)[0], listingObject()["rows"].([]any)[0]}}), nil, nip.Malformed},
		{"65 rows", tasks(obj{"rows": many}), nil, nip.Bounds},
		{"more without a cursor", tasks(obj{"next": nil}), nil, nip.Malformed},
		{"a cursor of another snapshot", tasks(obj{"next": obj{"workspace": "W", "snapshot_digest": "sha256:" + id("0"), "next": 2}}), nil, nip.Malformed},
		{"an unknown phase", page(obj{"phase": "done"}), nil, nip.Malformed},
		{"an empty fact", page(obj{"execution": ""}), nil, nip.Bounds},
		{"a cost below zero", page(obj{"cost_microusd": -1}), nil, nip.Malformed},
		{"a page's cursor of another scope", page(obj{"next": with(pageCursorObject(), obj{"scope": with(scopeObject(), obj{"attempt": 3})})}), nil, nip.Malformed},
		{"a page with more and no cursor", page(obj{"next": nil}), nil, nip.Malformed},
		{"steps that skip", evidence(obj{"steps": []any{obj{"kind": "original", "index": 0, "step": obj{}}, obj{"kind": "original", "index": 2, "step": obj{}}}}), nil, nip.Malformed},
		{"a step past the total", evidence(obj{"total_steps": 4}), nil, nip.Malformed},
		{"a step that is a list", evidence(obj{"steps": []any{obj{"kind": "original", "index": 0, "step": []any{}}}}), nil, nip.Malformed},
		{"a step over 16 KiB", evidence(obj{"steps": []any{obj{"kind": "original", "index": 0, "step": obj{"a": strings.Repeat("a", 16_384)}}}}), nil, nip.Bounds},
		{"a gap for another reason", evidence(obj{"steps": []any{obj{"kind": "gap", "index": 0, "reason": "lost", "original": ref}}}), nil, nip.Malformed},
		{"a gap without its original", evidence(obj{"steps": []any{obj{"kind": "gap", "index": 0, "reason": "oversized", "original": nil}}}), nil, nip.Malformed},
		{"a child that claims a reference", page(obj{"children": []any{obj{"source_step": 0, "call_id": "c", "agent": "a", "reference": nil, "state": "reference_only"}}}), nil, nip.Malformed},
		{"data that is base64url", chunk(obj{"data": "_-_-"}), nil, nip.Malformed},
		{"data with a line end", chunk(obj{"data": "YWJj\nZA=="}), nil, nip.Malformed},
		{"data of 16,385 bytes", chunk(obj{"data": base64.StdEncoding.EncodeToString(make([]byte, 16_387))}), nil, nip.Bounds},
		{"data past the end", chunk(obj{"start": 99_999}), nil, nip.Malformed},
		{"the end denied", chunk(obj{"more_available": false}), nil, nip.Malformed},
		{"a chunk's cursor elsewhere", chunk(obj{"next": with(chunkCursorObject(), obj{"next_byte": 5})}), nil, nip.Malformed},
		{"no data and more", chunk(obj{"data": "", "next": with(chunkCursorObject(), obj{"next_byte": 0})}), nil, nip.Malformed},
		{"an outcome over 49 KiB", ok(obj{"kind": "workspaces", "x": strings.Repeat("a", 50_200)}), nil, nip.Bounds},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := nip.ParseReply(bytesOf(t, with(replyObject(row.result), row.change)))
			wantFault(t, err, row.code, "schema")
			if !reflect.DeepEqual(p, nip.Reply{}) {
				t.Error("a reply came with an error")
			}
		})
	}
	// An old host leaves last_seen out.
	p, err := nip.ParseReply(bytesOf(t, replyObject(entry(obj{"last_seen": absent}))))
	if err != nil || p.Outcome.(nip.Devices).Devices[0].LastSeen != nil {
		t.Error(err)
	}
}

func TestEncodeReplyRefuses(t *testing.T) {
	good := nip.Reply{
		Request: nip.RequestID(id("a")), RequestEvent: nip.EventID(id("b")), Host: host,
		IssuedAt: issued, ExpiresAt: issued + 60, Refusal: &nip.Refusal{Code: nip.Stale},
	}
	if _, err := nip.EncodeReply(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*nip.Reply){
		"both":            func(p *nip.Reply) { p.Outcome = nip.Devices{} },
		"neither":         func(p *nip.Reply) { p.Refusal = nil },
		"an unknown code": func(p *nip.Reply) { p.Refusal = &nip.Refusal{Code: "transport"} },
		"a missing right": func(p *nip.Reply) { p.Refusal = &nip.Refusal{Code: nip.MissingRight} },
		"no event":        func(p *nip.Reply) { p.Refusal, p.Outcome = nil, nip.Granted{} },
		"too late":        func(p *nip.Reply) { p.IssuedAt = p.ExpiresAt },
	} {
		p := good
		change(&p)
		var e *nip.Error
		if a, err := nip.EncodeReply(p); !errors.As(err, &e) || a.Inline != nil {
			t.Errorf("%s: %s %v", name, a.Inline, err)
		}
	}
}

func TestAnswers(t *testing.T) {
	parse := func(o obj) nip.Outcome {
		p, err := nip.ParseReply(bytesOf(t, replyObject(ok(o))))
		if err != nil {
			t.Fatal(err)
		}
		return p.Outcome
	}
	op := func(o obj) nip.Operation {
		op, _, err := nip.ParseOperation(bytesOf(t, o))
		if err != nil {
			t.Fatal(err)
		}
		return op
	}
	ops, outs := validOperations(), outcomes(t)
	receipt := func(kind, ref string) obj {
		return obj{"kind": "dispatched", "receipt": obj{"operation": kind, "reference": ref}}
	}
	read := func(change obj) obj { return obj{"kind": "task.read", "query": with(readObject(), change)} }
	tail := func(change obj) obj { return obj{"kind": "task", "task": with(pageObject(), change)} }
	steps := func(list ...any) obj {
		return tail(obj{"evidence": with(pageObject()["evidence"].(obj), obj{"steps": append([]any{}, list...)})})
	}
	for _, row := range []struct {
		name string
		op   obj
		out  obj
		want bool
	}{
		{"redeem", ops["request_redeem"], outs["granted"], true},
		{"devices", ops["request_list_devices"], outs["devices"], true},
		{"revoke", ops["request_revoke"], outs["revoked"], true},
		{"revoke of another", obj{"kind": "device.revoke", "device": second}, outs["revoked"], false},
		{"create", ops["request_task_create"], receipt("task.create", fixTask), true},
		{"create, no task ID", ops["request_task_create"], receipt("task.create", "1"), false},
		{"create, another's receipt", ops["request_task_create"], receipt("task.steer", fixTask), false},
		{"steer", ops["request_task_steer"], receipt("task.steer", "2"), true},
		{"cancel", ops["request_task_cancel"], receipt("task.cancel", "2"), true},
		{"archive", ops["request_task_archive"], receipt("task.archive", fixTask), true},
		{"archive, a cancel's receipt", ops["request_task_archive"], receipt("task.cancel", fixTask), false},
		{"command", ops["request_task_command"], receipt("task.command", fixTask), true},
		{"command, another task", ops["request_task_command"], receipt("task.command", id("5")), false},
		{"queue", ops["request_task_queue"], outs["queue"], true},
		{"queue of another task", obj{"kind": "task.queue", "task": id("5"), "edit": obj{"action": "list"}}, outs["queue"], false},
		{"workspaces", ops["request_workspace_list"], outs["workspaces"], true},
		{"workspaces, devices", ops["request_workspace_list"], outs["devices"], false},
		{"list", ops["request_task_list"], outs["tasks"], true},
		{"list over the limit", obj{"kind": "task.list", "query": obj{"workspace": "W", "limit": 1}}, outs["tasks"], false},
		{"list of another workspace", obj{"kind": "task.list", "query": obj{"workspace": "X", "limit": 64}}, outs["tasks"], false},
		{"list that jumps", obj{"kind": "task.list", "query": obj{"workspace": "W", "limit": 64,
			"cursor": obj{"workspace": "W", "snapshot_digest": fixDigest, "next": 64}}}, outs["tasks"], false},
		{"list of another snapshot", obj{"kind": "task.list", "query": obj{"workspace": "W", "limit": 64,
			"cursor": obj{"workspace": "W", "snapshot_digest": "sha256:" + id("0"), "next": 0}}}, outs["tasks"], false},
		{"read on", read(obj{"cursor": pageCursorObject()}), outs["task"], true},
		{"read from the start, steps from 3", read(obj{}), outs["task"], false},
		{"read from the start", read(obj{}), steps(obj{"kind": "original", "index": 0, "step": obj{}}), true},
		{"read, no steps", read(obj{}), steps(), true},
		{"read over the limit", read(obj{"cursor": pageCursorObject(), "limit": 1}), outs["task"], false},
		{"read of another revision", read(obj{"revision": 8}), steps(), false},
		{"read of any revision", read(obj{"revision": nil}), steps(), true},
		{"read of another task", read(obj{"task": "t"}), steps(), false},
		{"read on, another turn", read(obj{"cursor": with(pageCursorObject(), obj{"scope": with(scopeObject(), obj{"attempt": 1})})}), outs["task"], false},
		{"original", ops["request_task_original"], outs["original"], true},
		{"original on", ops["task original on"], outs["original"], false},
		{"original, another source", obj{"kind": "task.original", "query": with(originalObject(), obj{"original": with(originalRefObject(), obj{"source": "trace:1"})})}, outs["original"], false},
		{"original over the limit", obj{"kind": "task.original", "query": with(originalObject(), obj{"limit": 3})}, outs["original"], false},
		{"an unserved kind", obj{"kind": "thread.list"}, outs["devices"], false},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := nip.Answers(op(row.op), parse(row.out)); got != row.want {
				t.Errorf("%v, want %v", got, row.want)
			}
		})
	}
	if nip.Answers(nil, parse(outs["devices"])) || nip.Answers(nip.DeviceList{}, nil) {
		t.Error("nothing answers")
	}
}
