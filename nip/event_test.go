package nip_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"

	"holdfast/nip"
)

func sealedGrant(t testing.TB) *nip.Event {
	t.Helper()
	a, err := nip.EncodeGrant(fixtureGrant())
	if err != nil {
		t.Fatal(err)
	}
	ev, err := nip.Seal(hostKey, device, nip.Mailbox(fixtureGrant().ID), a, nil)
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

func TestVerifyEvent(t *testing.T) {
	ev := sealedGrant(t)
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		t.Fatal(err)
	}
	ev.Content, ev.Tags[0][1] = "changed", "changed"
	if v.Event().Content == "changed" || v.Event().Tags[0][1] == "changed" {
		t.Error("a verified event changes with the one it was made from")
	}
	auth := &nip.Event{Kind: 22242, CreatedAt: 1790000000, Tags: nostr.Tags{{"relay", "wss://relay.example.com/"}, {"challenge", "\"\\\n\x01\u2028"}}}
	if err := deviceKey.Sign(auth); err != nil {
		t.Fatal(err)
	}
	if _, err := nip.VerifyEvent(auth); err != nil {
		t.Error(err)
	}
	if ok, err := auth.CheckSignature(); !ok || err != nil || !auth.CheckID() {
		t.Error("the codec's own check disagrees")
	}
}

func TestVerifyEventRefuses(t *testing.T) {
	resign := func(ev *nip.Event) {
		// The fields may be out of bounds, so that Sign refuses; the signature
		// then does not matter, since the bounds come first.
		_ = hostKey.Sign(ev)
	}
	for _, row := range []struct {
		name   string
		change func(*nip.Event)
		code   nip.Code
	}{
		{"another id", func(ev *nip.Event) { ev.ID = strings.Repeat("0", 64) }, nip.Malformed},
		{"an upper case id", func(ev *nip.Event) { ev.ID = strings.ToUpper(ev.ID) }, nip.Malformed},
		{"an empty id", func(ev *nip.Event) { ev.ID = "" }, nip.Malformed},
		{"another signature", func(ev *nip.Event) { ev.Sig = strings.Repeat("0", 128) }, nip.Malformed},
		{"a signature of ones", func(ev *nip.Event) { ev.Sig = strings.Repeat("f", 128) }, nip.Malformed},
		{"a cut signature", func(ev *nip.Event) { ev.Sig = ev.Sig[:126] }, nip.Malformed},
		{"another author", func(ev *nip.Event) { ev.PubKey = string(owner) }, nip.Malformed},
		{"an author off the curve", func(ev *nip.Event) { ev.PubKey = strings.Repeat("0", 63) + "5"; ev.ID = ev.GetID() }, nip.Malformed},
		{"an author that injects", func(ev *nip.Event) { ev.PubKey = `","` }, nip.Malformed},
		{"another content", func(ev *nip.Event) { ev.Content += "A" }, nip.Malformed},
		{"another time", func(ev *nip.Event) { ev.CreatedAt++ }, nip.Malformed},
		{"another mailbox", func(ev *nip.Event) { ev.Tags[1][1] = strings.Repeat("a", 64) }, nip.Malformed},
		{"a negative time", func(ev *nip.Event) { ev.CreatedAt = -1 }, nip.Malformed},
		{"a time beyond 2^53-1", func(ev *nip.Event) { ev.CreatedAt = 1 << 53 }, nip.Malformed},
		{"a negative kind", func(ev *nip.Event) { ev.Kind = -1 }, nip.Malformed},
		{"a kind over 65,535", func(ev *nip.Event) { ev.Kind = 65_536 }, nip.Malformed},
		{"content too long", func(ev *nip.Event) { ev.Content = strings.Repeat("A", 409_601) }, nip.Bounds},
		{"content that is not UTF-8", func(ev *nip.Event) { ev.Content = "\xff" }, nip.Malformed},
		{"65 tags", func(ev *nip.Event) { ev.Tags = make(nostr.Tags, 65) }, nip.Bounds},
		{"a tag of 17", func(ev *nip.Event) { ev.Tags = nostr.Tags{make(nostr.Tag, 17)} }, nip.Bounds},
		{"a long tag", func(ev *nip.Event) { ev.Tags = nostr.Tags{{strings.Repeat("a", 4097)}} }, nip.Bounds},
		{"a tag that is not UTF-8", func(ev *nip.Event) { ev.Tags = nostr.Tags{{"\xff"}} }, nip.Malformed},
		{"no tags", func(ev *nip.Event) { ev.Tags = nil; resign(ev) }, nip.Malformed},
		{"an empty tag", func(ev *nip.Event) { ev.Tags[2] = nostr.Tag{}; resign(ev) }, nip.Malformed},
		{"two tags", func(ev *nip.Event) { ev.Tags = ev.Tags[:2]; resign(ev) }, nip.Malformed},
		{"a fourth tag", func(ev *nip.Event) { ev.Tags = append(ev.Tags, nostr.Tag{"e", "1"}); resign(ev) }, nip.Malformed},
		{"two expirations", func(ev *nip.Event) {
			ev.Tags = append(ev.Tags, nostr.Tag{"expiration", "1"}, nostr.Tag{"expiration", "1"})
			resign(ev)
		}, nip.Malformed},
		{"an expiration in place of a tag", func(ev *nip.Event) { ev.Tags[0] = nostr.Tag{"expiration", "1"}; resign(ev) }, nip.Malformed},
		{"an expiration that is no time", func(ev *nip.Event) { ev.Tags = append(ev.Tags, nostr.Tag{"expiration", "soon"}); resign(ev) }, nip.Malformed},
		{"a negative expiration", func(ev *nip.Event) { ev.Tags = append(ev.Tags, nostr.Tag{"expiration", "-1"}); resign(ev) }, nip.Malformed},
		{"an expiration with a sign", func(ev *nip.Event) { ev.Tags = append(ev.Tags, nostr.Tag{"expiration", "+1"}); resign(ev) }, nip.Malformed},
		{"an expiration of three", func(ev *nip.Event) { ev.Tags = append(ev.Tags, nostr.Tag{"expiration", "1", "2"}); resign(ev) }, nip.Malformed},
		{"an expiration beyond 2^53-1", func(ev *nip.Event) {
			ev.Tags = append(ev.Tags, nostr.Tag{"expiration", "9007199254740992"})
			resign(ev)
		}, nip.Malformed},
		{"a third element", func(ev *nip.Event) { ev.Tags[0] = append(ev.Tags[0], "wss://x/"); resign(ev) }, nip.Malformed},
		{"a repeated tag", func(ev *nip.Event) { ev.Tags[2] = ev.Tags[0]; resign(ev) }, nip.Malformed},
		{"another tag", func(ev *nip.Event) { ev.Tags[2] = nostr.Tag{"e", "oa:artifact:v1"}; resign(ev) }, nip.Malformed},
		{"another marker", func(ev *nip.Event) { ev.Tags[2] = nostr.Tag{"t", "oa:artifact:v2"}; resign(ev) }, nip.Malformed},
		{"a mailbox that is no ID", func(ev *nip.Event) { ev.Tags[1] = nostr.Tag{"h", "room"}; resign(ev) }, nip.Malformed},
	} {
		t.Run(row.name, func(t *testing.T) {
			ev := sealedGrant(t)
			row.change(ev)
			v, err := nip.VerifyEvent(ev)
			wantFault(t, err, row.code, "event")
			if v.Event() != nil {
				t.Error("an event came with an error")
			}
		})
	}
	_, err := nip.VerifyEvent(nil)
	wantFault(t, err, nip.Malformed, "event")
}

func TestVerifyEventTagsInAnyOrder(t *testing.T) {
	ev := sealedGrant(t)
	ev.Tags[0], ev.Tags[2] = ev.Tags[2], ev.Tags[0]
	if err := hostKey.Sign(ev); err != nil {
		t.Fatal(err)
	}
	v, err := nip.VerifyEvent(ev)
	if err != nil {
		t.Fatal(err)
	}
	if o, err := nip.Open(v, deviceKey); err != nil || o.Recipient != device {
		t.Error(err)
	}
}

// TestExpirationIsForRelays: a relay may verify an artifact with an expiration,
// wherever the tag stands; a reader refuses it.
func TestExpirationIsForRelays(t *testing.T) {
	for place := range 4 {
		ev := sealedGrant(t)
		ev.Tags = slices.Insert(ev.Tags, place, nostr.Tag{"expiration", "1790000000"})
		if err := hostKey.Sign(ev); err != nil {
			t.Fatal(err)
		}
		v, err := nip.VerifyEvent(ev)
		if err != nil {
			t.Fatal(err)
		}
		if at, ok := nip.Expiration(v.Event()); !ok || at != 1790000000 || len(v.Event().Tags) != 4 {
			t.Errorf("expiration %d, %v, tags %v", at, ok, v.Event().Tags)
		}
		_, err = nip.Open(v, deviceKey)
		wantFault(t, err, nip.Malformed, "event")
	}
	if _, ok := nip.Expiration(sealedGrant(t)); ok {
		t.Error("an expiration out of nothing")
	}
}

func TestParseEvent(t *testing.T) {
	ev := sealedGrant(t)
	b := nip.EncodeEvent(ev)
	got, err := nip.ParseEvent(b)
	if err != nil || string(nip.EncodeEvent(got)) != string(b) {
		t.Fatal(err)
	}
	if _, err := nip.VerifyEvent(got); err != nil {
		t.Error(err)
	}
	for _, row := range []struct {
		name   string
		change func(map[string]any)
		code   nip.Code
	}{
		{"an unknown member", func(m map[string]any) { m["seen_on"] = "x" }, nip.Malformed},
		{"a missing member", func(m map[string]any) { delete(m, "sig") }, nip.Malformed},
		{"null tags", func(m map[string]any) { m["tags"] = nil }, nip.Malformed},
		{"a tag that is no list", func(m map[string]any) { m["tags"] = []any{"p"} }, nip.Malformed},
		{"a tag with a number", func(m map[string]any) { m["tags"] = []any{[]any{"p", 1}} }, nip.Malformed},
		{"a kind with a fraction", func(m map[string]any) { m["kind"] = json.Number("3188.0") }, nip.Malformed},
		{"a kind with an exponent", func(m map[string]any) { m["kind"] = json.Number("3e3") }, nip.Malformed},
		{"a kind as text", func(m map[string]any) { m["kind"] = "3188" }, nip.Malformed},
		{"a negative time", func(m map[string]any) { m["created_at"] = -5 }, nip.Malformed},
		{"a short id", func(m map[string]any) { m["id"] = "ab" }, nip.Malformed},
		{"content too long", func(m map[string]any) { m["content"] = strings.Repeat("a", 409_601) }, nip.Bounds},
		{"65 tags", func(m map[string]any) { m["tags"] = make([][]string, 65) }, nip.Bounds},
		{"a name in capitals", func(m map[string]any) { m["Kind"] = m["kind"]; delete(m, "kind") }, nip.Malformed},
	} {
		t.Run(row.name, func(t *testing.T) {
			var m map[string]any
			if err := json.Unmarshal(b, &m); err != nil {
				t.Fatal(err)
			}
			row.change(m)
			in, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			_, err = nip.ParseEvent(in)
			wantFault(t, err, row.code, "event")
		})
	}
	_, err = nip.ParseEvent([]byte(strings.Replace(string(b), `{"content"`, `{"kind":1,"content"`, 1)))
	wantFault(t, err, nip.Malformed, "json")
	_, err = nip.ParseEvent([]byte("[" + string(b) + "]"))
	wantFault(t, err, nip.Malformed, "event")
}

func TestSignRefusesWhatVerifyWould(t *testing.T) {
	ev := &nip.Event{Kind: 70_000}
	wantFault(t, hostKey.Sign(ev), nip.Malformed, "event")
	if ev.ID != "" || ev.PubKey != "" || ev.Sig != "" {
		t.Error("a refused event was changed")
	}
}
