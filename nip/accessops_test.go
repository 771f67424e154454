package nip_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"reflect"
	"strings"
	"testing"

	"holdfast/nip"
)

func TestRefusedAccessOperations(t *testing.T) {
	approve := func(change obj) obj { return with(approveObject(), change) }
	deny := func(change obj) obj {
		return with(obj{"kind": "enroll.deny", "enrollment": fixTask, "request_digest": fixDigest}, change)
	}
	invite := func(change obj) obj {
		return with(obj{"kind": "invite.create", "rights": []any{"observe"}, "grant_expires_at": issued}, change)
	}
	exact := func(change obj) obj { return with(exactCommandObject(), change) }
	queue := func(change obj) obj { return with(exactQueueObject(), change) }
	data := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for _, row := range []struct {
		name string
		op   any
		code nip.Code
	}{
		{"18 approval digest without prefix", approve(obj{"request_digest": id("a")}), nip.Malformed},
		{"approve an enrollment of 63 characters", approve(obj{"enrollment": fixTask[1:]}), nip.Malformed},
		{"approve without a code", approve(obj{"code": ""}), nip.Bounds},
		{"approve by a code of 33 bytes", approve(obj{"code": strings.Repeat("A", 33)}), nip.Bounds},
		{"approve by a code that is not ASCII", approve(obj{"code": "7K3M–Q9TX"}), nip.Bounds},
		{"approve by a code with a line end", approve(obj{"code": "7K3M-Q9TX\n"}), nip.Bounds},
		{"approve nobody", approve(obj{"device": absent}), nip.Malformed},
		{"approve a key off the curve", approve(obj{"device": id("0")}), nip.Malformed},
		{"approve rights out of order", approve(obj{"rights": []any{"operate", "observe"}}), nip.Malformed},
		{"approve no rights", approve(obj{"rights": []any{}}), nip.Malformed},
		{"approve until a fraction", approve(obj{"grant_expires_at": 1.5}), nip.Malformed},
		{"approve with a note", approve(obj{"note": ""}), nip.Malformed},
		{"deny without a digest", deny(obj{"request_digest": absent}), nip.Malformed},
		{"deny a bare digest", deny(obj{"request_digest": id("a")}), nip.Malformed},
		{"deny a number", deny(obj{"enrollment": 4}), nip.Malformed},
		{"deny by a code", deny(obj{"code": "7K3MQ9TX"}), nip.Malformed},
		{"invite to nothing", invite(obj{"rights": []any{}}), nip.Malformed},
		{"invite to an unknown right", invite(obj{"rights": []any{"admin"}}), nip.Malformed},
		{"invite without end", invite(obj{"grant_expires_at": nil}), nip.Malformed},
		{"invite a device", invite(obj{"device": device}), nip.Malformed},
		{"cancel a short invitation", obj{"kind": "invite.cancel", "invitation": "22"}, nip.Malformed},
		{"cancel nothing", obj{"kind": "invite.cancel"}, nip.Malformed},

		{"exact command at another revision", exact(obj{"revision": 4}), nip.Malformed},
		{"exact command without a revision", exact(obj{"revision": absent}), nip.Malformed},
		{"exact command with blank text", exact(obj{"command": with(commandObject(), obj{"text": " "})}), nip.Bounds},
		{"exact queue, a lease without a digest", queue(obj{"edit": obj{"action": "lease"}, "queue_digest": nil}), nip.Malformed},
		{"exact queue, a removal without a digest", queue(obj{"queue_digest": nil}), nip.Malformed},
		{"exact queue, a bare digest", queue(obj{"queue_digest": id("a")}), nip.Malformed},
		{"exact queue, a list with a bare digest", queue(obj{"edit": obj{"action": "list"}, "queue_digest": id("a")}), nip.Malformed},
		{"exact queue, blank text", queue(obj{"edit": obj{"action": "edit", "command": id("6"), "text": " "}}), nip.Bounds},
		{"exact queue without a revision", queue(obj{"revision": nil}), nip.Malformed},
		{"exact queue of a short task", queue(obj{"task": "4"}), nip.Malformed},

		{"recovery without an event", obj{"kind": "request.operation", "request": id("a")}, nip.Malformed},
		{"recovery of an uppercase request", obj{"kind": "request.operation", "request": id("A"), "request_event": id("b")}, nip.Malformed},
		{"recovery of a short event", obj{"kind": "request.operation", "request": id("a"), "request_event": "b"}, nip.Malformed},

		{"put a gif", putObject(obj{"media_type": "image/gif"}), nip.Unsupported},
		{"put nothing", putObject(obj{"size": 0}), nip.Bounds},
		{"put 8 MiB and a byte", putObject(obj{"size": 8<<20 + 1}), nip.Bounds},
		{"put an empty piece", putObject(obj{"data": ""}), nip.Bounds},
		{"put 32 KiB and a byte", putObject(obj{"size": 1 << 20, "data": data(32_769)}), nip.Bounds},
		{"put much more", putObject(obj{"size": 1 << 20, "data": data(40_000)}), nip.Bounds},
		{"put past the end", putObject(obj{"offset": 3}), nip.Malformed},
		{"put far past the end", putObject(obj{"offset": 1<<53 - 1}), nip.Malformed},
		{"put before the start", putObject(obj{"offset": -1}), nip.Malformed},
		{"put base64url", putObject(obj{"data": "_-_-"}), nip.Malformed},
		{"put a bare digest", putObject(obj{"digest": id("a")}), nip.Malformed},
		{"put with a name", putObject(obj{"name": "a.png"}), nip.Malformed},
	} {
		t.Run(row.name, func(t *testing.T) { wantRefusedOperation(t, row.op, row.code) })
	}
}

func TestPutChunkFits(t *testing.T) {
	put := nip.ArtifactPut{Digest: fixDigest, MediaType: "image/jpeg", Size: 8 << 20, Offset: 7 << 20, Data: make([]byte, nip.PutChunk)}
	q := nip.Request{
		ID: nip.RequestID(id("a")), Host: host, Grant: nip.GrantID(id("1")), Epoch: 1<<53 - 1,
		Relay: nip.RelayURL("wss://" + strings.Repeat("a", 2_000)), IssuedAt: issued, ExpiresAt: issued + 60, Op: put,
	}
	if _, err := nip.EncodeRequest(q); err != nil {
		t.Error(err)
	}
	// What the wire allows is read and, being too large for common relays, not written.
	put.Data = make([]byte, 32_768)
	b, err := nip.EncodeOperation(put)
	if err != nil {
		t.Fatal(err)
	}
	if op, _, err := nip.ParseOperation(b); err != nil || !reflect.DeepEqual(op, put) {
		t.Error(err)
	}
	q.Op = put
	_, err = nip.EncodeRequest(q)
	wantFault(t, err, nip.Bounds, "envelope")
}

func TestInvalidAccessReplies(t *testing.T) {
	invited := func(change obj) any { return ok(with(invitedObject(t), change)) }
	recorded := func(result any) any { return ok(recordedObject(result)) }
	queue := func(change obj) any { return ok(with(outcomes(t)["exact queue"], change)) }
	progress := func(change obj) any { return ok(progressObject(change)) }
	other := invitedObject(t)["code"].(string)
	for _, row := range []struct {
		name   string
		result any
		code   nip.Code
	}{
		{"denied with a reason", ok(obj{"kind": "denied", "reason": ""}), nip.Malformed},
		{"cancelled nothing", ok(obj{"kind": "cancelled"}), nip.Malformed},
		{"cancelled a short ID", ok(obj{"kind": "cancelled", "invitation": "2"}), nip.Malformed},
		{"a code of another invitation", invited(obj{"invitation": id("3")}), nip.Malformed},
		{"a code that ends at another time", invited(obj{"expires_at": issued + 301}), nip.Malformed},
		{"a code that is no invitation", invited(obj{"code": "coder-pair:" + strings.TrimPrefix(other, "coder-host:")}), nip.Malformed},
		{"a code too long", invited(obj{"code": other + strings.Repeat("A", 640)}), nip.Bounds},
		{"a queue of another revision", queue(obj{"revision": 5}), nip.Malformed},
		{"a queue without a digest", queue(obj{"queue_digest": nil}), nip.Malformed},
		{"a queue with a bare digest", queue(obj{"queue_digest": id("a")}), nip.Malformed},
		{"a record without an event", ok(obj{"kind": "request_operation", "request": id("a"), "result": nil}), nip.Malformed},
		{"a record of an unknown status", recorded(obj{"status": "maybe"}), nip.Malformed},
		{"a record of both", recorded(with(refused("stale", nil), obj{"outcome": obj{"kind": "denied"}})), nip.Malformed},
		{"a record of an unknown code", recorded(refused("transport", nil)), nip.Malformed},
		{"a record of missing_right without one", recorded(refused("missing_right", nil)), nip.Malformed},
		{"a record of a bad receipt", recorded(ok(obj{"kind": "dispatched", "receipt": obj{"operation": "a", "reference": ""}})), nip.Bounds},
		{"a record of an unknown outcome", recorded(ok(obj{"kind": "merged"})), nip.Unsupported},
		{"a record of a record", recorded(ok(recordedObject(nil))), nip.Malformed},
		{"a record of a record of a record", recorded(ok(recordedObject(ok(recordedObject(nil))))), nip.Malformed},
		{"progress beyond 8 MiB", progress(obj{"received": 8<<20 + 1}), nip.Bounds},
		{"progress below zero", progress(obj{"received": -1}), nip.Malformed},
		{"progress of a bare digest", progress(obj{"digest": id("a")}), nip.Malformed},
		{"progress without an end", progress(obj{"complete": nil}), nip.Malformed},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := nip.ParseReply(bytesOf(t, replyObject(row.result)))
			wantFault(t, err, row.code, "schema")
			if !reflect.DeepEqual(p, nip.Reply{}) {
				t.Error("a reply came with an error")
			}
			if strings.Contains(err.Error(), "VVVV") {
				t.Error("the error shows the capability")
			}
		})
	}
	// A result beside both or neither cannot be written either.
	for _, res := range []nip.Result{{}, {Outcome: nip.DeniedEnrollment{}, Refusal: &nip.Refusal{Code: nip.Stale}}} {
		if b, err := nip.EncodeResult(res); err == nil || b != nil {
			t.Errorf("%s %v", b, err)
		}
		out := nip.RecordedOperation{Request: nip.RequestID(id("a")), RequestEvent: nip.EventID(id("b")), Result: &res}
		var e *nip.Error
		if b, err := nip.EncodeOutcome(out); !errors.As(err, &e) || b != nil {
			t.Errorf("%s %v", b, err)
		}
	}
}

func TestAccessAnswers(t *testing.T) {
	granted := outcomes(t)["granted"] // sealed to device
	queue := outcomes(t)["exact queue"]
	list := with(exactQueueObject(), obj{"edit": obj{"action": "list"}})
	receipt := func(kind, ref string) obj {
		return obj{"kind": "dispatched", "receipt": obj{"operation": kind, "reference": ref}}
	}
	recovery := validOperations()["recovery"]
	for _, row := range []struct {
		name string
		op   obj
		out  obj
		want bool
	}{
		{"approve", approveObject(), granted, true},
		{"approve, a grant to another", with(approveObject(), obj{"device": second}), granted, false},
		{"approve, denied", approveObject(), obj{"kind": "denied"}, false},
		{"deny", validOperations()["request_deny"], obj{"kind": "denied"}, true},
		{"deny, granted", validOperations()["request_deny"], granted, false},
		{"invite", validOperations()["request_invite"], invitedObject(t), true},
		{"invite, cancelled", validOperations()["request_invite"], outcomes(t)["cancelled"], false},
		{"cancel", validOperations()["request_cancel_invite"], outcomes(t)["cancelled"], true},
		{"cancel another", obj{"kind": "invite.cancel", "invitation": id("3")}, outcomes(t)["cancelled"], false},
		{"exact command", exactCommandObject(), receipt("task.command.at_revision", fixTask), true},
		{"exact command, a plain receipt", exactCommandObject(), receipt("task.command", fixTask), false},
		{"exact command, another task", exactCommandObject(), receipt("task.command.at_revision", id("5")), false},
		{"exact queue", exactQueueObject(), queue, true},
		{"exact queue moved on", with(exactQueueObject(), obj{"revision": 3}), queue, true},
		{"exact queue moved back", with(exactQueueObject(), obj{"revision": 5}), queue, false},
		{"exact queue of another task", with(exactQueueObject(), obj{"task": id("5")}), queue, false},
		{"exact queue, a plain queue", exactQueueObject(), outcomes(t)["queue"], false},
		{"exact list", list, queue, true},
		{"exact list moved on", with(list, obj{"revision": 3}), queue, false},
		{"plain queue, an exact answer", validOperations()["request_task_queue"], queue, false},
		{"recovery", recovery, recordedObject(nil), true},
		{"recovery of another request", with(recovery, obj{"request": id("c")}), recordedObject(nil), false},
		{"recovery of another event", with(recovery, obj{"request_event": id("c")}), recordedObject(nil), false},
		{"put", putObject(nil), progressObject(nil), true},
		{"put, more to come", putObject(obj{"size": 11}), progressObject(obj{"complete": false}), true},
		{"put, complete too soon", putObject(obj{"size": 11}), progressObject(nil), false},
		{"put, never complete", putObject(nil), progressObject(obj{"complete": false}), false},
		{"put, more than there is", putObject(nil), progressObject(obj{"received": 11, "complete": false}), false},
		{"put of another", putObject(obj{"digest": "sha256:" + id("0")}), progressObject(nil), false},
	} {
		t.Run(row.name, func(t *testing.T) {
			op, _, err := nip.ParseOperation(bytesOf(t, row.op))
			if err != nil {
				t.Fatal(err)
			}
			p, err := nip.ParseReply(bytesOf(t, replyObject(ok(row.out))))
			if err != nil {
				t.Fatal(err)
			}
			if got := nip.Answers(op, p.Outcome); got != row.want {
				t.Errorf("%v, want %v", got, row.want)
			}
		})
	}
}

func enrollmentObject() obj {
	return obj{
		"v": nip.SchemaEnrollment, "requires": []any{}, "enrollment": fixTask, "host": host, "owner": owner,
		"relay": fixRelay, "rights": []any{"observe", "operate", "terminal", "review"},
		"issued_at": issued, "expires_at": issued + 300,
	}
}

func TestEnrollments(t *testing.T) {
	for _, row := range []struct {
		name   string
		change obj
		code   nip.Code
		layer  string
	}{
		{"enrollment", nil, "", ""},
		{"a short life", obj{"expires_at": issued + 1}, "", ""},
		{"11 enrollment host is the owner", obj{"owner": host}, nip.Forbidden, "schema"},
		{"12 enrollment over five minutes", obj{"expires_at": issued + 301}, nip.Malformed, "schema"},
		{"no life", obj{"expires_at": issued}, nip.Malformed, "schema"},
		{"rights out of order", obj{"rights": []any{"review", "observe"}}, nip.Malformed, "schema"},
		{"no rights", obj{"rights": []any{}}, nip.Malformed, "schema"},
		{"a plain relay", obj{"relay": "ws://relay.example.com/"}, nip.Forbidden, "policy"},
		{"a loopback relay", obj{"relay": "ws://127.0.0.1:7447/"}, nip.Forbidden, "policy"},
		{"a short ID", obj{"enrollment": "4"}, nip.Malformed, "schema"},
		{"a host off the curve", obj{"host": id("0")}, nip.Malformed, "schema"},
		{"the code in it", obj{"code": "7K3MQ9TX"}, nip.Malformed, "schema"},
		{"another version", obj{"v": "openagents.host-enrollment-request.v2"}, nip.Unsupported, "schema"},
		{"a required feature", obj{"requires": []any{"x"}}, nip.Unsupported, "schema"},
	} {
		t.Run(row.name, func(t *testing.T) {
			e, err := nip.ParseEnrollment(bytesOf(t, with(enrollmentObject(), row.change)), nip.Profile{})
			if row.code != "" {
				wantFault(t, err, row.code, row.layer)
				if !reflect.DeepEqual(e, nip.Enrollment{}) {
					t.Error("an enrollment came with an error")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantRecode(t, with(enrollmentObject(), row.change), func() (nip.Artifact, error) { return nip.EncodeEnrollment(e) })
		})
	}
	bad := nip.Enrollment{ID: fixTask, Host: host, Owner: host, Relay: fixRelay, Rights: nip.StandardRights(), IssuedAt: issued, ExpiresAt: issued + 1}
	_, err := nip.EncodeEnrollment(bad)
	wantFault(t, err, nip.Forbidden, "schema")
}

// wantRecode demands the canonical bytes of in, sealed and opened again.
func wantRecode(t *testing.T, in obj, encode func() (nip.Artifact, error)) {
	t.Helper()
	want, err := nip.Canonical(bytesOf(t, in))
	if err != nil {
		t.Fatal(err)
	}
	a, err := encode()
	if err != nil || string(a.Inline) != string(want) {
		t.Fatalf("%s %v, want %s", a.Inline, err, want)
	}
	ev, err := nip.Seal(hostKey, device, nip.Mailbox(id("a")), a, nil)
	if err != nil {
		t.Fatal(err)
	}
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		t.Fatal(err)
	}
	if o, err := nip.Open(v, deviceKey); err != nil || string(o.Inline) != string(want) || o.Digest != nip.DigestOf(want) {
		t.Error(err)
	}
}

func TestEnrollmentCode(t *testing.T) {
	for _, row := range []struct{ in, want string }{
		{"7K3M-Q9TX", "7K3MQ9TX"},
		{"7k3mq9tx", "7K3MQ9TX"},
		{" 7 K 3 M -- q 9 t x ", "7K3MQ9TX"},
		{"oOiI-lL00", "00111100"},
		{"ZZZZZZZZ", "ZZZZZZZZ"},
		{strings.Repeat("-", 24) + "7K3MQ9TX", "7K3MQ9TX"},
		{strings.Repeat("-", 25) + "7K3MQ9TX", ""}, // 33 bytes
		{"", ""},
		{"7K3MQ9T", ""},
		{"7K3MQ9TXX", ""},
		{"7K3MQ9TU", ""}, // U is not of the alphabet
		{"7K3MQ9T\t", ""},
		{"7K3MQ9TX\n", ""},
		{"7K3MQ9Tſ", ""}, // raised by Unicode it would be S
		{"7K3MQ9T\xff", ""},
		{"7K3M–Q9TX", ""},
	} {
		got, err := nip.NormalizeEnrollmentCode(row.in)
		if got != row.want {
			t.Errorf("%q: %q, want %q", row.in, got, row.want)
		}
		if row.want == "" {
			wantFault(t, err, nip.WrongCode, "operation")
			if row.in != "" && strings.Contains(err.Error(), row.in) {
				t.Errorf("the error shows %q", row.in)
			}
			_, err = nip.EnrollmentCodeDigest(fixTask, row.in)
			wantFault(t, err, nip.WrongCode, "operation")
		} else if err != nil {
			t.Errorf("%q: %v", row.in, err)
		}
	}
	if _, err := nip.EnrollmentCodeDigest("4", "7K3MQ9TX"); err == nil {
		t.Error("a digest without an enrollment")
	}
}

func TestNewEnrollmentCode(t *testing.T) {
	for _, row := range []struct {
		random []byte
		want   string
	}{
		{[]byte{0, 0, 0, 0, 0}, "0000-0000"},
		{[]byte{0xff, 0xff, 0xff, 0xff, 0xff}, "ZZZZ-ZZZZ"},
		{[]byte{0x00, 0x44, 0x32, 0x14, 0xc7}, "0123-4567"}, // 0 to 7, five bits each
		{[]byte{0xf8, 0, 0, 0, 0x01}, "Z000-0001"},
	} {
		got, err := nip.NewEnrollmentCode(bytes.NewReader(row.random))
		if err != nil || got != row.want {
			t.Errorf("%x: %s %v, want %s", row.random, got, err, row.want)
		}
		if n, err := nip.NormalizeEnrollmentCode(got); err != nil || n != strings.ReplaceAll(got, "-", "") {
			t.Errorf("%s normalises to %s (%v)", got, n, err)
		}
	}
	if _, err := nip.NewEnrollmentCode(bytes.NewReader([]byte{1, 2, 3, 4})); err == nil {
		t.Error("a short source passes")
	}
}
