package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nbd-wtf/go-nostr"

	"holdfast/host/client"
	"holdfast/nip"
	"holdfast/relay"
	"holdfast/relay/relaytest"
)

// What becomes of a bad event.
const (
	atRelay = "the relay refuses it"
	silence = "silence"
	answers = "an outcome" // of something that is odd and allowed
)

// hostileRow is one bad event of a paired device, and its end: one of the
// above, or the code of a signed refusal.
type hostileRow struct {
	name  string
	op    string // the default is a harmless read
	spoil func(f *foe, d *draft)
	want  string
}

func member(name string, v any) func(*foe, *draft) {
	return func(_ *foe, d *draft) { d.body[name] = v }
}

func shifted(issued, life int64) func(*foe, *draft) {
	return func(_ *foe, d *draft) {
		at := d.body["issued_at"].(int64) + issued
		d.body["issued_at"], d.body["expires_at"] = at, at+life
	}
}

func inline(old, new string) func(*foe, *draft) {
	return func(_ *foe, d *draft) { d.inline = func(s string) string { return strings.Replace(s, old, new, 1) } }
}

func plaintext(old, new string) func(*foe, *draft) {
	return func(_ *foe, d *draft) {
		d.envelope = func(s string) string { return strings.Replace(s, old, new, 1) }
	}
}

func whole(plain string) func(*foe, *draft) {
	return func(_ *foe, d *draft) { d.envelope = func(string) string { return plain } }
}

func tags(change func(nostr.Tags) nostr.Tags) func(*foe, *draft) {
	return func(_ *foe, d *draft) { d.tags = change }
}

func signedAs(change func(f *foe, ev *nip.Event)) func(*foe, *draft) {
	return func(f *foe, d *draft) { d.after = func(ev *nip.Event) { change(f, ev) } }
}

func hostileRows(a *attacked, other *foe) []hostileRow {
	create := func(title, prompt, workspace string) string {
		return fmt.Sprintf(`{"kind":"task.create","task":{"title":%q,"prompt":%q,"workspace":%q}}`, title, prompt, workspace)
	}
	command := func(change string) string {
		return fmt.Sprintf(`{"kind":"task.command","command":{"command":%q,"task":%q,"action":"send","based_on":1,"text":"x","emulate":false,"issued_at":%d%s}}`,
			strings.Repeat("ab", 32), a.task, time.Now().Unix(), change)
	}
	anyID := strings.Repeat("1f", 32)
	return []hostileRow{
		// The event.
		{"a wrong signature", "", signedAs(func(_ *foe, ev *nip.Event) { ev.Sig = strings.Repeat("0", 128) }), atRelay},
		{"another event's id", "", signedAs(func(_ *foe, ev *nip.Event) { ev.ID = anyID }), atRelay},
		{"changed after it was signed", "", signedAs(func(_ *foe, ev *nip.Event) { ev.CreatedAt++ }), atRelay},
		{"in the honest device's name", "", signedAs(func(f *foe, ev *nip.Event) { ev.PubKey = string(f.a.phone.PubKey()) }), atRelay},
		{"in the host's name", "", signedAs(func(f *foe, ev *nip.Event) { ev.PubKey = string(f.a.host) }), atRelay},
		{"signed by another key than the connection's", "", func(_ *foe, d *draft) { d.signer = other.key }, atRelay},
		{"another kind", "", func(f *foe, d *draft) {
			d.after = func(ev *nip.Event) { ev.Kind = 1; _ = f.key.Sign(ev) }
		}, atRelay},
		{"a fourth tag", "", tags(func(t nostr.Tags) nostr.Tags { return append(t, nostr.Tag{"e", anyID}) }), atRelay},
		{"a third element of a tag", "", tags(func(t nostr.Tags) nostr.Tags { t[0] = append(t[0], "wss://x"); return t }), atRelay},
		{"two recipients", "", tags(func(t nostr.Tags) nostr.Tags { t[1] = t[0]; return t }), atRelay},
		{"no mark", "", tags(func(t nostr.Tags) nostr.Tags { return t[:2] }), atRelay},
		{"an expiration", "", tags(func(t nostr.Tags) nostr.Tags { t[2] = nostr.Tag{"expiration", "1"}; return t }), atRelay},
		{"an hour ahead", "", func(_ *foe, d *draft) { d.created = time.Now().Unix() + 3600 }, atRelay},
		{"a mailbox that is no ID", "", func(_ *foe, d *draft) { d.mailbox = "inbox" }, atRelay},

		// The envelope.
		{"content that is no base64", "", func(_ *foe, d *draft) { d.content = func(string) string { return "junk" } }, silence},
		{"no content", "", func(_ *foe, d *draft) { d.content = func(string) string { return "" } }, silence},
		{"100 KiB of content", "", func(_ *foe, d *draft) { d.content = func(string) string { return strings.Repeat("A", 100<<10) } }, silence},
		{"a flipped bit of the ciphertext", "", func(_ *foe, d *draft) {
			d.content = func(s string) string { return s[:60] + string(s[60]^1) + s[61:] }
		}, silence},
		{"sealed to another key", "", func(f *foe, d *draft) { d.sealTo = f.a.phone.PubKey() }, silence},
		{"NIP-44 of junk", "", whole("junk"), silence},
		{"NIP-44 of an empty object", "", whole("{}"), silence},
		{"NIP-44 of a list nested deep", "", whole(strings.Repeat("[", 30_000)), silence},
		{"NIP-44 of what is no UTF-8", "", whole("\xff\xfe{}"), silence},
		{"a byte order mark", "", func(_ *foe, d *draft) { d.envelope = func(s string) string { return "\ufeff" + s } }, silence},
		{"data after the value", "", func(_ *foe, d *draft) { d.envelope = func(s string) string { return s + "{}" } }, silence},
		{"a member of the envelope twice", "", plaintext(`"requires":[]`, `"requires":[],"requires":[]`), silence},
		{"an unknown member of the envelope", "", plaintext(`"requires":[]`, `"requires":[],"bearer":true`), silence},
		{"a requirement", "", plaintext(`"requires":[],"retain`, `"requires":["x"],"retain`), silence},
		{"another envelope version", "", plaintext("artifact-envelope.v1", "artifact-envelope.v2"), silence},
		{"another media type", "", plaintext("application/json", "text/plain"), silence},
		{"another digest", "", func(_ *foe, d *draft) { d.digestOf = func(s string) string { return strings.ToUpper(s) } }, silence},
		{"another size", "", plaintext(`"size":`, `"size":1`), silence},
		{"retained longer than the body says", "", plaintext(`"retain_until":1`, `"retain_until":2`), silence},
		{"created_at is not issued_at", "", func(_ *foe, d *draft) { d.created = d.body["issued_at"].(int64) - 1 }, silence},
		{"the schema of a reply", "", func(_ *foe, d *draft) { d.schema, d.body["v"] = nip.SchemaReply, nip.SchemaReply }, silence},
		{"the schema of a later version", "", func(_ *foe, d *draft) {
			d.schema, d.body["v"] = "openagents.host-request.v2", "openagents.host-request.v2"
		}, silence},
		{"a schema that the body does not name", "", func(_ *foe, d *draft) { d.schema = nip.SchemaReply }, silence},

		// The request.
		{"a member twice", "", inline(`"op":`, `"op":{"kind":"device.list"},"op":`), silence},
		{"a member twice, escaped", "", inline(`"op":`, `"\u006fp":{"kind":"device.list"},"op":`), silence},
		{"another order of members, the digest canonical", "", func(_ *foe, d *draft) {
			d.digestOf = func(s string) string { b, _ := nip.Canonical([]byte(s)); return string(b) }
			d.inline = func(s string) string {
				v := `"v":"` + nip.SchemaRequest + `"`
				return "{" + v + "," + strings.Replace(strings.TrimPrefix(s, "{"), ","+v, "", 1)
			}
		}, answers},
		{"white space, the digest of the bytes", "", inline(`"op":`, `"op": `), silence},
		{"a float for an integer", "", inline(`"epoch":0`, `"epoch":0.0`), silence},
		{"an integer beyond 2^53", "", inline(`"epoch":0`, `"epoch":9007199254740993`), silence},
		{"a lone surrogate", "", inline(`"op":{"kind":"`, `"op":{"kind":"\ud800`), silence},
		{"an unknown member", "", member("bearer", true), silence},
		{"a missing member", "", func(_ *foe, d *draft) { delete(d.body, "relay") }, silence},
		{"a body requirement", "", member("requires", []string{"x"}), silence},
		{"no request ID", "", func(_ *foe, d *draft) { d.mailbox, d.body["request"] = anyID, "1" }, silence},
		{"another mailbox", "", func(_ *foe, d *draft) { d.mailbox = anyID }, silence},
		{"another host", "", member("host", a.phone.PubKey()), silence},
		{"a host that is no key", "", member("host", strings.Repeat("0", 64)), silence},
		{"another relay's name", "", member("relay", "wss://relay.example.org/"), silence},
		{"the relay's name, not byte for byte", "", member("relay", strings.TrimSuffix(string(a.url), "/")), silence},
		{"a life of 61 s", "", shifted(0, 61), silence},
		{"no life", "", shifted(0, 0), silence},
		// A minute is allowed; the clock goes on before the host reads it.
		{"issued four minutes ahead", "", shifted(240, 60), silence},
		{"issued 55 s ahead", "", shifted(55, 60), answers},
		{"expired", "", shifted(-61, 60), silence},
		{"an hour old", "", shifted(-3600, 60), silence},
		{"a grant without its epoch", "", member("epoch", nil), silence},

		// The principal.
		{"the owner's standing", "", func(_ *foe, d *draft) { d.body["grant"], d.body["epoch"] = nil, nil }, "forbidden"},
		{"a grant that is none", "", member("grant", anyID), "forbidden"},
		{"the honest device's grant", "", func(f *foe, d *draft) { g, _ := f.a.phone.Grant(); d.body["grant"] = g.ID }, "forbidden"},
		{"a later epoch", "", member("epoch", int64(1)), "stale"},
		{"a right that it does not hold", `{"kind":"device.list"}`, nil, "missing_right"},
		{"a revocation that it may not make", fmt.Sprintf(`{"kind":"device.revoke","device":%q}`, a.phone.PubKey()), nil, "missing_right"},

		// The operation.
		{"an operation that nobody knows", `{"kind":"host.shutdown"}`, nil, "malformed"},
		{"an operation without a kind", `{}`, nil, "malformed"},
		{"an operation that is a list", `[]`, nil, "malformed"},
		{"a member too many", `{"kind":"workspace.list","path":"/"}`, nil, "malformed"},
		{"a command of no task", command(`,"x":1`), nil, "malformed"},
		{"a path for a workspace", create("t", "p", "../../etc"), nil, "forbidden"},
		{"an unknown workspace", create("t", "p", "elsewhere"), nil, "forbidden"},
		{"a prompt of 20 KiB", create("t", strings.Repeat("p", 20<<10), "demo"), nil, "bounds"},
		{"a title with a control character", create("t\n", "p", "demo"), nil, "bounds"},
		{"an operation not served yet", `{"kind":"terminal.open","cols":80,"rows":24}`, nil, "unavailable"},
		{"a foreign operation", `{"kind":"studio.snapshot"}`, nil, "unsupported"},
		{"a command for a task that is not there", strings.Replace(command(""), string(a.task), anyID, 1), nil, "forbidden"},
		{"an edit of another's message", fmt.Sprintf(`{"kind":"task.queue","task":%q,"edit":{"action":"remove","command":%q}}`, a.task, anyID), nil, "conflict"},
	}
}

// journalled rows are decided by the journal or noted in it: a refused command
// of a paired device is not silence, and its record is the proof.
var journalled = map[string]bool{
	"a path for a workspace": true, "an unknown workspace": true, "a command for a task that is not there": true, "an edit of another's message": true,
}

// hostileDevice is a paired device that sends everything but what it
// should, to a real host. Nothing of it may change what the host keeps, and
// the honest device is answered after each.
func hostileDevice(t *testing.T) {
	a := attack(t)
	f := a.pairedFoe(t, "foe")
	other := a.pairedFoe(t, "other")
	f.settle(t)
	for _, row := range hostileRows(a, other) {
		t.Run(row.name, func(t *testing.T) {
			if row.op == "" {
				row.op = `{"kind":"workspace.list"}`
			}
			before := a.state(t)
			ev := f.event(t, row.op, func(d *draft) {
				if row.spoil != nil {
					row.spoil(f, d)
				}
			})
			heard := f.count()
			err := f.publish(ev)
			var refused *relay.RefusedError
			switch {
			case row.want == atRelay:
				if !errors.As(err, &refused) {
					t.Errorf("the relay said %v", err)
				}
			case err != nil:
				t.Fatal("publish:", err)
			}
			f.settle(t)
			if row.want != atRelay && row.want != silence {
				// The host hands its answers to several senders: the first need
				// not arrive first.
				relaytest.Eventually(t, "an answer", func() bool { return len(f.replies(ev)) > 0 })
			}
			got := f.replies(ev)
			switch row.want {
			case atRelay, silence:
				if f.count() != heard+1 {
					t.Errorf("answered: %+v", f.got[heard:])
				}
			case answers:
				if len(got) != 1 || got[0].reply.Outcome == nil {
					t.Errorf("answered %+v", got)
				}
			default:
				if len(got) != 1 || got[0].reply.Refusal == nil || string(got[0].reply.Refusal.Code) != row.want {
					t.Errorf("answered %+v", got)
				}
			}
			after := a.state(t)
			if journalled[row.name] {
				after.Records, after.Entries = before.Records, before.Entries
			}
			unchanged(t, before, after)
			a.honest(t)
		})
	}
}

// hostileFrames writes what is no NIP-01 to the relay's port, with and
// without a key.
func hostileFrames(t *testing.T) {
	a := attack(t)
	f := a.pairedFoe(t, "foe")
	good := string(nip.EncodeEvent(f.event(t, `{"kind":"workspace.list"}`, nil)))
	frames := []struct {
		name  string
		kind  websocket.MessageType
		frame string
	}{
		{"nothing", websocket.MessageText, ""},
		{"binary", websocket.MessageBinary, "\x00\x01\x02"},
		{"no JSON", websocket.MessageText, "EVENT"},
		{"half an event", websocket.MessageText, `["EVENT",` + good[:len(good)/2]},
		{"no event", websocket.MessageText, `["EVENT"]`},
		{"an event that is a number", websocket.MessageText, `["EVENT",1]`},
		{"an event with a member twice", websocket.MessageText, `["EVENT",` + strings.Replace(good, `"kind":`, `"kind":1,"kind":`, 1) + `]`},
		{"an event with a member too many", websocket.MessageText, `["EVENT",` + strings.Replace(good, `"kind":`, `"x":1,"kind":`, 1) + `]`},
		{"a kind that wraps", websocket.MessageText, `["EVENT",` + strings.Replace(good, `"kind":3188`, `"kind":4294970484`, 1) + `]`},
		{"nested deep", websocket.MessageText, strings.Repeat("[", 100_000)},
		{"a filter that is none", websocket.MessageText, `["REQ","a",[]]`},
		{"a subscription without a name", websocket.MessageText, `["REQ","",{}]`},
		{"a thousand filters", websocket.MessageText, `["REQ","a"` + strings.Repeat(",{}", 1000) + `]`},
		{"a filter for everything", websocket.MessageText, `["REQ","a",{}]`},
		{"a filter for another's mail", websocket.MessageText, `["REQ","b",{"kinds":[3188],"#p":["` + string(a.phone.PubKey()) + `"]}]`},
		{"a count", websocket.MessageText, `["COUNT","a",{}]`},
		{"an unknown message", websocket.MessageText, `["SHUTDOWN","now"]`},
		{"another authentication", websocket.MessageText, `["AUTH",` + good + `]`},
		{"200 KiB", websocket.MessageText, `["EVENT",{"content":"` + strings.Repeat("x", 200<<10) + `"}]`},
	}
	for _, auth := range []struct {
		name string
		key  *nip.SecretKey
	}{{"without a key", nil}, {"as a paired device", &f.key}} {
		for _, fr := range frames {
			t.Run(auth.name+"/"+fr.name, func(t *testing.T) {
				before := a.state(t)
				ws := a.raw(t, auth.key)
				// The relay may hang up in the middle of it. Then a question that has
				// an answer: what came before it was handled.
				_ = ws.Write(a.ctx, fr.kind, []byte(fr.frame))
				_ = ws.Write(a.ctx, websocket.MessageText, []byte(`["COUNT","done",{}]`))
				for {
					_, b, err := ws.Read(a.ctx)
					if err != nil || bytes.Contains(b, []byte(`"done"`)) {
						break
					}
					// A device sees what it sent and what was sent to it.
					if bytes.HasPrefix(b, []byte(`["EVENT"`)) && !bytes.Contains(b, []byte(f.key.Public())) {
						t.Errorf("the relay showed %s", b)
					}
					if bytes.HasPrefix(b, []byte(`["OK"`)) && bytes.Contains(b, []byte("true")) {
						t.Errorf("the relay took it: %s", b)
					}
				}
				ws.CloseNow()
				unchanged(t, before, a.state(t))
				a.honest(t)
			})
		}
	}
	// One connection that never stops.
	ws := a.raw(t, nil)
	for ws.Write(a.ctx, websocket.MessageText, []byte("[]")) == nil {
	}
	a.honest(t)
}

// hostileReplay sends what was right once, again.
func hostileReplay(t *testing.T) {
	a := attack(t)
	f := a.pairedFoe(t, "foe")
	task := a.finished(t, mustOpen(t, a, "foe"), "work of the other")
	command := func(id, text string) string {
		raw, err := nip.EncodeOperation(nip.TaskCommand{Command: nip.Command{ID: nip.CommandID(id), Task: task, Action: nip.Send, BasedOn: 1, Text: text, IssuedAt: time.Now().Unix()}})
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	id := testID(t)
	op := command(id, "once")
	first := f.event(t, op, nil)
	began := time.Now()
	if r := f.asks(t, first); r.Outcome == nil {
		t.Fatalf("the command got %+v", r)
	}
	// The same event within 5 s: the host says nothing more than it said, and
	// on a machine that takes longer no more than once in 5 s.
	again := func() {
		for range 20 {
			if err := f.publish(first); err != nil {
				t.Fatal(err)
			}
		}
	}
	again()
	f.settle(t)
	said := f.replies(first)
	if most := 1 + int(time.Since(began)/(5*time.Second)); len(said) > most {
		t.Errorf("%d replies within %s", len(said), time.Since(began))
	}
	a.turnEnded(t, task, 2)
	before := a.state(t)
	again()
	// The same request ID in another event, and in another's.
	request := func(d *draft) { d.body["request"] = first.Tags[1][1] }
	if r := f.asks(t, f.event(t, `{"kind":"workspace.list"}`, request)); r.Refusal == nil || r.Refusal.Code != nip.Conflict {
		t.Errorf("the same request ID with another event: %+v", r)
	}
	// The same command in a new request: its first outcome. With other words: conflict.
	if r := f.asks(t, f.event(t, op, nil)); r.Outcome == nil {
		t.Errorf("the same command again: %+v", r)
	}
	if r := f.asks(t, f.event(t, command(id, "twice"), nil)); r.Refusal == nil || r.Refusal.Code != nip.Conflict {
		t.Errorf("the same command ID with other content: %+v", r)
	}
	f.settle(t)
	unchanged(t, before, a.state(t))

	// Later the retained reply comes again, byte for byte, and nothing else.
	relaytest.Eventually(t, "the retained reply", func() bool {
		if err := f.publish(first); err != nil {
			t.Fatal(err)
		}
		return len(f.replies(first)) > 1
	})
	for _, again := range f.replies(first) {
		if again.event != said[0].event {
			t.Errorf("another reply to the same event: %+v", again.reply)
		}
	}
	unchanged(t, before, a.state(t))
	s := *a.tour
	s.task = string(task)
	if err := s.notes("work of the other", "once"); err != nil {
		t.Error(err)
	}
	a.honest(t)

	// The honest device's command ID in this device's hand is a command of its own.
	entries := a.state(t).Entries
	last := entries[len(entries)-1]
	if r := f.asks(t, f.event(t, command(last.Command, "mine"), nil)); r.Outcome == nil {
		t.Errorf("another device's command ID: %+v", r)
	}
	for _, e := range a.state(t).Entries {
		if e.Command == last.Command && e.Device == last.Device && (e.Outcome != last.Outcome || e.Task != last.Task) {
			t.Errorf("another device's command changed %+v", e)
		}
	}
}

func mustOpen(t *testing.T, a *attacked, name string) *client.Device {
	t.Helper()
	d, err := client.Open(a.profile(name), client.Options{Loopback: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// hostileStranger is a key that was never paired.
func hostileStranger(t *testing.T) {
	a := attack(t)
	x := a.foe(t, testKey(t), "")
	var before state
	settled := func(t *testing.T, heard int) {
		t.Helper()
		x.settle(t)
		if x.count() != heard+1 {
			t.Errorf("a stranger learnt %+v", x.got[heard:])
		}
		unchanged(t, before, a.state(t))
	}
	redeem := func(inv, capability string) string {
		return fmt.Sprintf(`{"kind":"enroll.redeem","invitation":%q,"capability":%q}`, inv, capability)
	}
	noGrant := func(d *draft) { d.body["grant"], d.body["epoch"] = nil, nil }
	live, err := ask[struct{ Invitation string }](a.ctx, a.g, "invite", map[string]any{"rights": nip.StandardRights(), "days": 1})
	if err != nil {
		t.Fatal(err)
	}
	before = a.state(t)
	for _, row := range []struct {
		name  string
		op    string
		spoil func(*draft)
	}{
		{"an operation that does not hold", `{"kind":"host.shutdown"}`, nil},
		{"an unknown invitation", redeem(testID(t), testID(t)), noGrant},
		{"a wrong capability", redeem(live.Invitation, testID(t)), noGrant},
		{"a redemption that names a grant", redeem(live.Invitation, testID(t)), nil},
		{"another host", `{"kind":"workspace.list"}`, func(d *draft) { d.body["host"] = a.phone.PubKey() }},
		{"junk", `{}`, func(d *draft) { d.envelope = func(string) string { return "junk" } }},
	} {
		t.Run(row.name, func(t *testing.T) {
			heard := x.count()
			if err := x.publish(x.event(t, row.op, row.spoil)); err != nil {
				t.Fatal("publish:", err)
			}
			settled(t, heard)
		})
	}
	t.Run("mail to a device", func(t *testing.T) {
		heard := x.count()
		var refused *relay.RefusedError
		ev := x.event(t, `{}`, func(d *draft) { d.to = a.phone.PubKey() })
		if err := x.publish(ev); !errors.As(err, &refused) {
			t.Errorf("the relay said %v", err)
		}
		settled(t, heard)
	})
	t.Run("an event of 20 KiB", func(t *testing.T) {
		heard := x.count()
		var refused *relay.RefusedError
		ev := x.event(t, `{}`, func(d *draft) { d.content = func(string) string { return strings.Repeat("A", 20<<10) } })
		if err := x.publish(ev); !errors.As(err, &refused) {
			t.Errorf("the relay said %v", err)
		}
		settled(t, heard)
	})
	t.Run("the honest device's request ID", func(t *testing.T) {
		// A lying relay can show a stranger the mailbox of a request. It is told
		// that the ID is taken, and the device's reply is not disturbed.
		f := a.pairedFoe(t, "seen")
		before = a.state(t)
		ev := f.event(t, `{"kind":"workspace.list"}`, nil)
		f.asks(t, ev)
		r := x.asks(t, x.event(t, `{"kind":"workspace.list"}`, func(d *draft) { d.body["request"] = ev.Tags[1][1] }))
		if r.Refusal == nil || r.Refusal.Code != nip.Conflict {
			t.Errorf("told %+v", r)
		}
		if got := f.replies(ev); len(got) != 1 {
			t.Errorf("the device has %d replies", len(got))
		}
		unchanged(t, before, a.state(t))
	})
	a.honest(t)
}
