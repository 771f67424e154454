package nip_test

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"

	"holdfast/nip"
)

// The base values of the wire's fixtures.
const (
	issued    = 1790000000
	fixRelay  = "wss://relay.example.com/"
	fixTask   = "4444444444444444444444444444444444444444444444444444444444444444"
	fixDigest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

func id(c string) string { return strings.Repeat(c, 64) }

type obj = map[string]any

func fixtureGrant() nip.Grant {
	return nip.Grant{
		ID: nip.GrantID(id("1")), Origin: nip.Origin{Kind: "invitation", ID: id("2"), Issuer: host},
		Host: host, Owner: owner, Device: device, Relay: fixRelay,
		IssuedAt: issued, ExpiresAt: issued + 86_400, Rights: nip.StandardRights(),
	}
}

func grantObject() obj {
	return obj{
		"v": nip.SchemaGrant, "requires": []any{}, "grant": id("1"),
		"origin": obj{"kind": "invitation", "id": id("2"), "issuer": host},
		"host":   host, "owner": owner, "device": device, "relay": fixRelay, "epoch": 0,
		"issued_at": issued, "expires_at": issued + 86_400,
		"rights": []any{"observe", "operate", "terminal", "review"},
	}
}

func requestObject(op any) obj {
	return obj{
		"v": nip.SchemaRequest, "requires": []any{}, "request": id("a"), "host": host,
		"grant": id("1"), "epoch": 0, "relay": fixRelay,
		"issued_at": issued, "expires_at": issued + 60, "op": op,
	}
}

func commandObject() obj {
	return obj{
		"command": id("6"), "task": fixTask, "action": "send", "based_on": 3, "text": "go on",
		"emulate": false, "issued_at": issued,
	}
}

func with(m obj, change obj) obj {
	m = maps.Clone(m)
	for k, v := range change {
		if v == absent {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	return m
}

// absent as a value takes the member away.
var absent any = &struct{ x int }{1}

func bytesOf(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The invalid grants of the wire, by its numbers, and some of our own.
func TestInvalidGrants(t *testing.T) {
	g := grantObject()
	for _, row := range []struct {
		name   string
		change obj
		code   nip.Code
		layer  string
	}{
		{"1 rights out of canonical order", obj{"rights": []any{"operate", "observe"}}, nip.Malformed, "schema"},
		{"2 empty rights", obj{"rights": []any{}}, nip.Malformed, "schema"},
		{"3 unknown right", obj{"rights": []any{"observe", "admin"}}, nip.Malformed, "schema"},
		{"4 unknown field", obj{"bearer": true}, nip.Malformed, "schema"},
		{"5 unsupported version", obj{"v": "openagents.host-grant.v2"}, nip.Unsupported, "schema"},
		{"6 required feature", obj{"requires": []any{"openagents.future.v1"}}, nip.Unsupported, "schema"},
		{"7 host is the owner", obj{"owner": host}, nip.Forbidden, "schema"},
		{"8 lifetime over 30 days", obj{"expires_at": 1792678400}, nip.Malformed, "schema"},
		{"9 plain ws relay in production", obj{"relay": "ws://relay.example.com/"}, nip.Forbidden, "policy"},
		{"10 relay with a query", obj{"relay": fixRelay + "?token=x"}, nip.Forbidden, "policy"},
		{"a repeated right", obj{"rights": []any{"observe", "observe"}}, nip.Malformed, "schema"},
		{"device is the host", obj{"device": host}, nip.Forbidden, "schema"},
		{"device is the owner", obj{"device": owner}, nip.Forbidden, "schema"},
		{"a key off the curve", obj{"device": strings.Repeat("0", 63) + "5"}, nip.Malformed, "schema"},
		{"no lifetime", obj{"expires_at": issued}, nip.Malformed, "schema"},
		{"a version that is a number", obj{"v": 1}, nip.Malformed, "schema"},
		{"no version", obj{"v": absent}, nip.Malformed, "schema"},
		{"requires that is null", obj{"requires": nil}, nip.Malformed, "schema"},
		{"requires with a number", obj{"requires": []any{1}}, nip.Malformed, "schema"},
		{"an epoch with a fraction", obj{"epoch": json.Number("1.0")}, nip.Malformed, "schema"},
		{"an epoch with an exponent", obj{"epoch": json.Number("1e3")}, nip.Malformed, "schema"},
		{"a negative epoch", obj{"epoch": -1}, nip.Malformed, "schema"},
		{"an epoch beyond 2^53-1", obj{"epoch": json.Number("9007199254740992")}, nip.Malformed, "json"},
		{"an epoch that is null", obj{"epoch": nil}, nip.Malformed, "schema"},
		{"meta", obj{"meta": obj{}}, nip.Malformed, "schema"},
		{"an unknown origin", obj{"origin": obj{"kind": "gift", "id": id("2"), "issuer": host}}, nip.Malformed, "schema"},
		{"an unknown member of origin", obj{"origin": obj{"kind": "approval", "id": id("2"), "issuer": host, "x": 1}}, nip.Malformed, "schema"},
		{"a loopback relay", obj{"relay": "ws://127.0.0.1:7447/"}, nip.Forbidden, "policy"},
		// Decoding stands before every judgement.
		{"an unknown field beside another version", obj{"v": "openagents.host-grant.v2", "x": 1}, nip.Malformed, "schema"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := nip.ParseGrant(bytesOf(t, with(g, row.change)), nip.Profile{})
			wantFault(t, err, row.code, row.layer)
			if !reflect.DeepEqual(got, nip.Grant{}) {
				t.Error("a grant came with an error")
			}
		})
	}
}

func TestValidGrants(t *testing.T) {
	for name, change := range map[string]obj{
		"grant":              {},
		"grant_approval":     {"origin": obj{"kind": "approval", "id": fixTask, "issuer": owner}, "rights": []any{"observe"}},
		"thirty days":        {"expires_at": issued + 2_592_000},
		"a loopback profile": {"relay": "ws://127.0.0.1:7447/"},
	} {
		t.Run(name, func(t *testing.T) {
			in, err := nip.Canonical(bytesOf(t, with(grantObject(), change)))
			if err != nil {
				t.Fatal(err)
			}
			g, err := nip.ParseGrant(in, nip.Profile{Loopback: true})
			if err != nil {
				t.Fatal(err)
			}
			a, err := nip.EncodeGrant(g)
			if err != nil || string(a.Inline) != string(in) || a.IssuedAt != g.IssuedAt || a.RetainUntil != g.ExpiresAt {
				t.Errorf("%s %v", a.Inline, err)
			}
		})
	}
}

// Faults of the outer members end in silence, so ParseRequest gives an error.
func TestInvalidRequests(t *testing.T) {
	list := obj{"kind": "device.list"}
	redeem := obj{"kind": "enroll.redeem", "invitation": id("2"), "capability": id("5")}
	for _, row := range []struct {
		name   string
		op     any
		change obj
		code   nip.Code
		layer  string
	}{
		{"13 redemption names a grant", redeem, nil, nip.Malformed, "request"},
		{"13 and its operation is bad too", with(redeem, obj{"x": 1}), nil, nip.Malformed, "request"},
		{"14 grant without epoch", list, obj{"epoch": nil}, nip.Malformed, "request"},
		{"15 request over 60 seconds", list, obj{"expires_at": issued + 61}, nip.Malformed, "request"},
		{"20 uppercase identity", list, obj{"request": id("A")}, nip.Malformed, "request"},
		{"epoch without grant", list, obj{"grant": nil}, nip.Malformed, "request"},
		{"an empty grant", list, obj{"grant": ""}, nip.Malformed, "request"},
		{"an empty grant without epoch", list, obj{"grant": "", "epoch": nil}, nip.Malformed, "request"},
		{"no lifetime", list, obj{"expires_at": issued}, nip.Malformed, "request"},
		{"another version", list, obj{"v": "openagents.host-request.v2"}, nip.Unsupported, "request"},
		{"a required feature", list, obj{"requires": []any{"x"}}, nip.Unsupported, "request"},
		{"an unknown member", list, obj{"note": ""}, nip.Malformed, "request"},
		{"no op", list, obj{"op": absent}, nip.Malformed, "request"},
		{"a relay with a fragment", list, obj{"relay": fixRelay + "#x"}, nip.Forbidden, "policy"},
		{"a host off the curve", list, obj{"host": id("0")}, nip.Malformed, "request"},
		{"a repeated member inside op", json.RawMessage(`{"kind":"device.list","kind":"device.list"}`), nil, nip.Malformed, "json"},
		{"over 128 KiB", obj{"kind": strings.Repeat("a", 1<<17)}, nil, nip.Bounds, "json"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := nip.ParseRequest(raw(t, with(requestObject(row.op), row.change)), nip.Profile{})
			wantFault(t, err, row.code, row.layer)
			if !reflect.DeepEqual(got, nip.Request{}) {
				t.Error("a request came with an error")
			}
		})
	}
}

// raw marshals and keeps repeated members of a RawMessage.
func raw(t testing.TB, m obj) []byte {
	op, ok := m["op"].(json.RawMessage)
	if !ok {
		return bytesOf(t, m)
	}
	b := bytesOf(t, with(m, obj{"op": "OP"}))
	return []byte(strings.Replace(string(b), `"OP"`, string(op), 1))
}

// Faults of the operation alone are answered, so the Request comes with a code.
func TestRefusedOperations(t *testing.T) {
	cmd := commandObject()
	command := func(change obj) obj { return obj{"kind": "task.command", "command": with(cmd, change)} }
	queue := func(edit obj) obj { return obj{"kind": "task.queue", "task": fixTask, "edit": edit} }
	create := func(change obj) obj {
		return obj{"kind": "task.create", "task": with(obj{"title": "T", "prompt": "P", "workspace": "W"}, change)}
	}
	image := obj{"digest": fixDigest, "media_type": "image/png", "size": 1, "name": "a.png"}
	list := func(change obj) obj {
		return obj{"kind": "task.list", "query": with(obj{"workspace": "W", "cursor": nil, "limit": 1}, change)}
	}
	read := func(change obj) obj { return obj{"kind": "task.read", "query": with(readObject(), change)} }
	original := func(change obj) obj { return obj{"kind": "task.original", "query": with(originalObject(), change)} }
	var many []any
	for i := range 65 {
		many = append(many, strings.Repeat("0", 62)+string("0123456789abcdef"[i/16])+string("0123456789abcdef"[i%16]))
	}
	for _, row := range []struct {
		name string
		op   any
		code nip.Code
	}{
		{"17 empty steering prompt", obj{"kind": "task.steer", "task": fixTask, "revision": 1, "prompt": "   "}, nip.Bounds},
		{"19 unknown operation", obj{"kind": "host.shutdown"}, nip.Malformed},
		{"21 task command choosing emulation for a send", command(obj{"emulate": true}), nip.Malformed},
		{"22 queue reorder naming a message twice", queue(obj{"action": "reorder", "commands": []any{id("6"), id("6")}}), nip.Malformed},
		{"23 queue edit with empty text", queue(obj{"action": "edit", "command": id("6"), "text": " "}), nip.Bounds},
		{"24 queue edit with an unknown action", queue(obj{"action": "promote_all"}), nip.Malformed},

		{"op is a list", []any{}, nip.Malformed},
		{"op is null", nil, nip.Malformed},
		{"op without kind", obj{}, nip.Malformed},
		{"kind is a number", obj{"kind": 1}, nip.Malformed},
		{"kind in capitals", obj{"kind": "Device.List"}, nip.Malformed},
		{"an unknown member", obj{"kind": "device.list", "page": 1}, nip.Malformed},
		{"a missing member", obj{"kind": "device.revoke"}, nip.Malformed},
		{"a device off the curve", obj{"kind": "device.revoke", "device": id("0")}, nip.Malformed},

		{"title too long", create(obj{"title": strings.Repeat("a", 201)}), nip.Bounds},
		{"title with a control", create(obj{"title": "a\u0085b"}), nip.Bounds},
		{"title empty", create(obj{"title": ""}), nip.Bounds},
		{"prompt empty", create(obj{"prompt": ""}), nip.Bounds},
		{"prompt too long", create(obj{"prompt": strings.Repeat("a", 16_385)}), nip.Bounds},
		{"workspace too long", create(obj{"workspace": strings.Repeat("a", 129)}), nip.Bounds},
		{"five images", create(obj{"images": []any{image, image, image, image, image}}), nip.Bounds},
		{"an image twice", create(obj{"images": []any{image, image}}), nip.Malformed},
		{"a gif", create(obj{"images": []any{with(image, obj{"media_type": "image/gif"})}}), nip.Unsupported},
		{"an empty image", create(obj{"images": []any{with(image, obj{"size": 0})}}), nip.Bounds},
		{"an image over 8 MiB", create(obj{"images": []any{with(image, obj{"size": 8<<20 + 1})}}), nip.Bounds},
		{"an image name of 97 characters", create(obj{"images": []any{with(image, obj{"name": strings.Repeat("é", 97)})}}), nip.Bounds},
		{"null images", create(obj{"images": nil}), nip.Malformed},
		{"an unknown engine", create(obj{"engine": "emacs"}), nip.Malformed},

		{"a command of an unknown action", command(obj{"action": "stop"}), nip.Malformed},
		{"a command without text", command(obj{"text": absent}), nip.Malformed},
		{"a command with blank text", command(obj{"text": " \n"}), nip.Bounds},
		{"a command with long text", command(obj{"text": strings.Repeat("a", 16_385)}), nip.Bounds},
		{"an interrupt of two lines", command(obj{"action": "interrupt", "text": "a\nb"}), nip.Bounds},
		{"an interrupt of 513 bytes", command(obj{"action": "interrupt", "text": strings.Repeat("a", 513)}), nip.Bounds},
		{"a command based on a fraction", command(obj{"based_on": json.Number("3.0")}), nip.Malformed},
		{"a command with a flag that is text", command(obj{"emulate": "false"}), nip.Malformed},
		{"a short command ID", command(obj{"command": "66"}), nip.Malformed},

		{"a reason with a line end", obj{"kind": "task.cancel", "task": fixTask, "revision": 1, "reason": "a\nb"}, nip.Bounds},
		{"a queue edit of a list with a command", queue(obj{"action": "list", "command": id("6")}), nip.Malformed},
		{"a reorder of nothing", queue(obj{"action": "reorder", "commands": []any{}}), nip.Bounds},
		{"a reorder of 65", queue(obj{"action": "reorder", "commands": many}), nip.Bounds},

		{"a limit of 0", list(obj{"limit": 0}), nip.Bounds},
		{"a limit of 65", list(obj{"limit": 65}), nip.Bounds},
		{"a label with a slash", list(obj{"workspace": "a/b"}), nip.Malformed},
		{"a label of two dots", list(obj{"workspace": ".."}), nip.Malformed},
		{"an empty label", list(obj{"workspace": ""}), nip.Bounds},
		{"a cursor of another label", list(obj{"cursor": obj{"workspace": "X", "snapshot_digest": fixDigest, "next": 1}}), nip.Malformed},
		{"a task ID with a slash", read(obj{"task": "a/b"}), nip.Malformed},
		{"a task ID that begins with a dot", read(obj{"task": ".a"}), nip.Malformed},
		{"a cursor without a revision", read(obj{"revision": nil, "cursor": pageCursorObject()}), nip.Malformed},
		{"a cursor of another revision", read(obj{"revision": 8, "cursor": pageCursorObject()}), nip.Malformed},
		{"a cursor of another task", read(obj{"task": "other", "cursor": pageCursorObject()}), nip.Malformed},
		{"an attempt of 0", original(obj{"scope": with(scopeObject(), obj{"attempt": 0})}), nip.Malformed},
		{"an unknown source", original(obj{"original": with(originalRefObject(), obj{"source": "trace:0"})}), nip.Malformed},
		{"a source with a zero in front", original(obj{"original": with(originalRefObject(), obj{"source": "trace:01"})}), nip.Malformed},
		{"a source that climbs", original(obj{"original": with(originalRefObject(), obj{"source": "artifact:../x"})}), nip.Malformed},
		{"an original over 64 MiB", original(obj{"original": with(originalRefObject(), obj{"bytes": 64<<20 + 1})}), nip.Bounds},
		{"16,385 bytes", original(obj{"limit": 16_385}), nip.Bounds},
		{"a cursor past the end", original(obj{"cursor": with(chunkCursorObject(), obj{"next_byte": 1_000_000})}), nip.Malformed},
		{"a bare digest", original(obj{"original": with(originalRefObject(), obj{"digest": id("a")})}), nip.Malformed},
	} {
		t.Run(row.name, func(t *testing.T) { wantRefusedOperation(t, row.op, row.code) })
	}
}

// wantRefusedOperation demands that op is refused with code, in a request whose
// outer members are good and alone.
func wantRefusedOperation(t *testing.T, op any, want nip.Code) {
	t.Helper()
	q, err := nip.ParseRequest(bytesOf(t, requestObject(op)), nip.Profile{})
	if err != nil {
		t.Fatalf("the outer members are good: %v", err)
	}
	if q.Op != nil || q.OpRefusal != want {
		t.Errorf("op %v refusal %q, want %s", q.Op, q.OpRefusal, want)
	}
	got, code, err := nip.ParseOperation(bytesOf(t, op))
	if got != nil || code != want || err == nil {
		t.Errorf("alone: %v %q %v, want %s", got, code, err, want)
	}
}

// Of the kinds without a shape only the name is read, so the wire's invalid
// fixtures of those kinds decode too, and the host answers that it does not
// serve them.
func TestUnservedOperations(t *testing.T) {
	for _, row := range []struct {
		name   string
		op     obj
		answer nip.Code
		right  nip.Right
	}{
		{"16 terminal size zero (only the kind is read)", obj{"kind": "terminal.open", "cols": 0, "rows": 24}, nip.Unavailable, nip.Terminal},
		{"25 spend grant in sats (only the kind is read)", obj{"kind": "spend.list", "grant": obj{"unit": "sat"}}, nip.Unavailable, nip.Operate},
		{"26 refused receipt without a code (only the kind is read)", obj{"kind": "spend.settle", "receipt": obj{"outcome": "refused", "code": nil}}, nip.Unavailable, nip.Operate},
		{"27 thread ID that is not 32 lowercase hex (only the kind is read)", obj{"kind": "thread.read", "thread": strings.Repeat("A", 32), "before": nil}, nip.Unavailable, nip.Observe},
		{"28 blank thread message (only the kind is read)", obj{"kind": "thread.send", "text": "  "}, nip.Unavailable, nip.Operate},
		{"29 thread send without a send ID (only the kind is read)", obj{"kind": "thread.send", "text": "a"}, nip.Unavailable, nip.Operate},
		{"30 thread stop with a bad send ID (only the kind is read)", obj{"kind": "thread.stop", "request": "reply"}, nip.Unavailable, nip.Operate},
		{"chats_invite", obj{"kind": "chats.invite"}, nip.Unavailable, nip.Observe},
		{"thread_list", obj{"kind": "thread.list"}, nip.Unavailable, nip.Observe},
		{"thread_run", obj{"kind": "thread.run"}, nip.Unavailable, nip.Operate},
		{"task_terminal_open", obj{"kind": "task.terminal.open"}, nip.Unavailable, nip.Terminal},
		{"publish", obj{"kind": "task.publish"}, nip.Unsupported, nip.Operate},
		{"task review", obj{"kind": "task.review"}, nip.Unsupported, nip.Observe},
		{"computer", obj{"kind": "computer"}, nip.Unsupported, nip.Terminal},
		{"merge decision", obj{"kind": "studio.merge.decide"}, nip.Unsupported, nip.Review},
		{"agent read", obj{"kind": "studio.agent.memory.list"}, nip.Unsupported, nip.Observe},
		{"agent effect", obj{"kind": "studio.agent.ask"}, nip.Unsupported, nip.Operate},
		{"cloud read", obj{"kind": "cloud.projects"}, nip.Unsupported, nip.Observe},
		{"cloud effect", obj{"kind": "cloud.release"}, nip.Unsupported, nip.Operate},
		{"environment effect", obj{"kind": "environment.steer"}, nip.Unsupported, nip.Operate},
	} {
		t.Run(row.name, func(t *testing.T) {
			q, err := nip.ParseRequest(bytesOf(t, requestObject(row.op)), nip.Profile{})
			want := nip.Other{Name: row.op["kind"].(string), Answer: row.answer}
			if err != nil || q.Op != want || q.OpRefusal != "" || q.Kind != want.Name {
				t.Fatalf("%+v %v, want %v", q, err, want)
			}
			if want.Right() != row.right {
				t.Errorf("right %q, want %q", want.Right(), row.right)
			}
		})
	}
}

// The right that each kind needs, as the wire's table has it.
var rightOf = map[string]nip.Right{
	"enroll.redeem": "", "device.list": nip.AccessRead, "device.revoke": nip.AccessAdmin,
	"task.create": nip.Operate, "task.steer": nip.Operate, "task.cancel": nip.Operate, "task.archive": nip.Operate,
	"task.command": nip.Operate, "task.queue": nip.Operate, "workspace.list": nip.Operate,
	"enroll.approve": nip.AccessAdmin, "enroll.deny": nip.AccessAdmin,
	"invite.create": nip.AccessAdmin, "invite.cancel": nip.AccessAdmin,
	"task.command.at_revision": nip.Operate, "task.queue.at_revision": nip.Operate,
	"request.operation": nip.Observe, "artifact.put": nip.Operate,
	"task.list": nip.Observe, "task.read": nip.Observe, "task.original": nip.Observe, "thread.list": nip.Observe,
}

func TestValidRequests(t *testing.T) {
	for name, op := range validOperations() {
		t.Run(name, func(t *testing.T) {
			m := requestObject(op)
			if op["kind"] == "enroll.redeem" {
				m = with(m, obj{"grant": nil, "epoch": nil})
			}
			in, err := nip.Canonical(bytesOf(t, m))
			if err != nil {
				t.Fatal(err)
			}
			q, err := nip.ParseRequest(in, nip.Profile{})
			if err != nil || q.Op == nil || q.OpRefusal != "" || q.Kind != op["kind"] {
				t.Fatalf("%+v %v", q, err)
			}
			if right, ok := rightOf[q.Kind]; !ok || q.Op.Right() != right {
				t.Errorf("right %q, want %q", q.Op.Right(), right)
			}
			a, err := nip.EncodeRequest(q)
			if err != nil || string(a.Inline) != string(in) {
				t.Errorf("%s %v\nwant %s", a.Inline, err, in)
			}
			b, err := nip.EncodeOperation(q.Op)
			if err != nil {
				t.Fatal(err)
			}
			again, code, err := nip.ParseOperation(b)
			if err != nil || code != "" || !reflect.DeepEqual(again, q.Op) {
				t.Errorf("alone: %+v %q %v", again, code, err)
			}
		})
	}
}

// A reader takes an absent nullable member for null; what is optional may be
// left out; a writer always writes the null.
func TestAbsentNullable(t *testing.T) {
	m := with(requestObject(obj{"kind": "task.list", "query": obj{"workspace": "W", "limit": 1}}),
		obj{"grant": absent, "epoch": absent})
	q, err := nip.ParseRequest(bytesOf(t, m), nip.Profile{})
	if err != nil || q.Op == nil || q.Grant != "" || q.Epoch != -1 {
		t.Fatalf("%+v %v", q, err)
	}
	a, err := nip.EncodeRequest(q)
	if err != nil || !strings.Contains(string(a.Inline), `"epoch":null`) ||
		!strings.Contains(string(a.Inline), `"grant":null`) || !strings.Contains(string(a.Inline), `"cursor":null`) {
		t.Errorf("%s %v", a.Inline, err)
	}
}

func TestEncodeRequestRefuses(t *testing.T) {
	good := nip.Request{
		ID: nip.RequestID(id("a")), Host: host, Epoch: -1, Relay: fixRelay,
		IssuedAt: issued, ExpiresAt: issued + 60, Op: nip.DeviceList{},
	}
	if _, err := nip.EncodeRequest(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*nip.Request){
		"no operation":   func(q *nip.Request) { q.Op = nil },
		"a window of 61": func(q *nip.Request) { q.ExpiresAt++ },
		"an epoch alone": func(q *nip.Request) { q.Epoch = 0 },
		"a redemption's grant": func(q *nip.Request) {
			q.Grant, q.Epoch = nip.GrantID(id("1")), 0
			q.Op = nip.EnrollRedeem{Invitation: nip.InvitationID(id("2")), Capability: id("5")}
		},
		"a capability in caps": func(q *nip.Request) {
			q.Op = nip.EnrollRedeem{Invitation: nip.InvitationID(id("2")), Capability: id("A")}
		},
		"an unknown kind": func(q *nip.Request) { q.Op = nip.Other{Name: "host.shutdown", Answer: nip.Unsupported} },
		"another answer":  func(q *nip.Request) { q.Op = nip.Other{Name: "thread.list", Answer: nip.Forbidden} },
		"text not UTF-8":  func(q *nip.Request) { q.Op = nip.TaskSteer{Task: fixTask, Prompt: "\xff"} },
		"a dropped member": func(q *nip.Request) {
			q.Op = nip.TaskQueue{Task: fixTask, Edit: nip.QueueEdit{Action: "lease", Text: "x"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := good
			change(&q)
			a, err := nip.EncodeRequest(q)
			var e *nip.Error
			if !errors.As(err, &e) || a.Inline != nil {
				t.Errorf("%s %v", a.Inline, err)
			}
		})
	}
}

func TestEncodeCommand(t *testing.T) {
	c := nip.Command{ID: nip.CommandID(id("6")), Task: fixTask, Action: nip.Send, BasedOn: 3, Text: "go on", IssuedAt: issued}
	b, err := nip.EncodeCommand(c)
	want, _ := nip.Canonical(bytesOf(t, commandObject()))
	if err != nil || string(b) != string(want) {
		t.Errorf("%s %v, want %s", b, err, want)
	}
	c.Emulate = true
	_, err = nip.EncodeCommand(c)
	wantFault(t, err, nip.Malformed, "operation")
}
