package nip_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"holdfast/nip"
)

func nudgeObject() obj {
	return obj{
		"v": nip.SchemaNudge, "requires": []any{}, "host": host, "device": device,
		"issued_at": issued, "expires_at": issued + 86_400,
	}
}

func TestNudges(t *testing.T) {
	for _, row := range []struct {
		name   string
		change obj
		code   nip.Code
	}{
		{"nudge", nil, ""},
		{"a second too long", obj{"expires_at": issued + 86_401}, nip.Malformed},
		{"a second too short", obj{"expires_at": issued + 86_399}, nip.Malformed},
		{"to itself", obj{"device": host}, nip.Forbidden},
		{"a device off the curve", obj{"device": id("0")}, nip.Malformed},
		{"a message", obj{"text": "wake"}, nip.Malformed},
		{"another version", obj{"v": "openagents.host-nudge.v2"}, nip.Unsupported},
		{"a required feature", obj{"requires": []any{"x"}}, nip.Unsupported},
	} {
		t.Run(row.name, func(t *testing.T) {
			n, err := nip.ParseNudge(bytesOf(t, with(nudgeObject(), row.change)))
			if row.code != "" {
				wantFault(t, err, row.code, "schema")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantRecode(t, nudgeObject(), func() (nip.Artifact, error) { return nip.EncodeNudge(n) })
		})
	}
	n := nip.Nudge{Host: host, Device: device, IssuedAt: issued, ExpiresAt: issued + 86_400}
	for now, want := range map[int64]bool{
		issued - 301: false, issued - 300: true, issued: true, issued + 86_399: true, issued + 86_400: false,
	} {
		if n.Current(now) != want {
			t.Errorf("current %d s after it was issued: %v", now-issued, !want)
		}
	}
	n.ExpiresAt++
	_, err := nip.EncodeNudge(n)
	wantFault(t, err, nip.Malformed, "schema")
}

func hintObject(change obj) obj {
	return with(obj{"class": "relay", "transport": "nostr", "address": fixRelay, "status": "unknown", "observed_at": issued}, change)
}

func hintsObject(hints ...any) obj {
	return obj{
		"v": nip.SchemaHints, "requires": []any{}, "host": host, "generation": 3,
		"issued_at": issued, "expires_at": issued + 3_600, "hints": append([]any{}, hints...),
	}
}

func TestHints(t *testing.T) {
	tcp := func(address string) obj {
		return hintsObject(hintObject(obj{"class": "lan", "transport": "tcp", "address": address}))
	}
	web := func(address string) obj {
		return hintsObject(hintObject(obj{"class": "tailnet", "transport": "websocket", "address": address}))
	}
	one := func(change obj) obj { return hintsObject(hintObject(change)) }
	var sixteen []any
	for i := range 16 {
		sixteen = append(sixteen, hintObject(obj{"address": fmt.Sprintf("wss://r%d.example.com/", i)}))
	}
	for _, row := range []struct {
		name  string
		in    obj
		code  nip.Code
		layer string
	}{
		{"a relay", one(nil), "", ""},
		{"none", hintsObject(), "", ""},
		{"sixteen", hintsObject(sixteen...), "", ""},
		{"24 hours", with(one(nil), obj{"expires_at": issued + 86_400}), "", ""},
		{"host and port", tcp("192.168.1.7:7447"), "", ""},
		{"name and port", tcp("box.lan:1"), "", ""},
		{"IPv6 and port", tcp("[fd00::1]:7447"), "", ""},
		{"a websocket", web("ws://box.lan:7447/a?b=c"), "", ""},
		{"one address on two ways", hintsObject(hintObject(nil),
			hintObject(obj{"class": "public", "transport": "websocket"})), "", ""},

		{"over 24 hours", with(one(nil), obj{"expires_at": issued + 86_401}), nip.Malformed, "schema"},
		{"no life", with(one(nil), obj{"expires_at": issued}), nip.Malformed, "schema"},
		{"seventeen", hintsObject(append(sixteen, hintObject(nil))...), nip.Bounds, "schema"},
		{"a hint twice", hintsObject(hintObject(nil), hintObject(obj{"status": "reachable"})), nip.Malformed, "schema"},
		{"an unknown class", one(obj{"class": "moon"}), nip.Malformed, "schema"},
		{"an unknown transport", one(obj{"transport": "iroh"}), nip.Malformed, "schema"},
		{"an unknown status", one(obj{"status": "maybe"}), nip.Malformed, "schema"},
		{"a nostr hint that is public", one(obj{"class": "public"}), nip.Malformed, "schema"},
		{"a plain relay", one(obj{"address": "ws://relay.example.com/"}), nip.Forbidden, "policy"},
		{"a loopback relay", one(obj{"address": "ws://127.0.0.1:7447/"}), nip.Forbidden, "policy"},
		{"seen later", one(obj{"observed_at": issued + 1}), nip.Malformed, "schema"},
		{"no port", tcp("box.lan"), nip.Malformed, "schema"},
		{"no host", tcp(":7447"), nip.Malformed, "schema"},
		{"port 0", tcp("box.lan:0"), nip.Malformed, "schema"},
		{"port 65536", tcp("box.lan:65536"), nip.Malformed, "schema"},
		{"a path behind the port", tcp("box.lan:1/a"), nip.Malformed, "schema"},
		{"a user before the host", tcp("a@box.lan:1"), nip.Malformed, "schema"},
		{"a space in the host", tcp("box lan:1"), nip.Malformed, "schema"},
		{"a host that is not ASCII", tcp("böx:1"), nip.Malformed, "schema"},
		{"a web page", web("https://box.lan/"), nip.Malformed, "schema"},
		{"a websocket with a password", web("wss://u:p@box.lan/"), nip.Malformed, "schema"},
		{"a websocket with a fragment", web("wss://box.lan/#a"), nip.Malformed, "schema"},
		{"a websocket to nowhere", web("wss:///a"), nip.Malformed, "schema"},
		{"a long address", web("wss://box.lan/" + strings.Repeat("a", 2_048)), nip.Bounds, "schema"},
		{"an unknown member", one(obj{"port": 1}), nip.Malformed, "schema"},
		{"version 2", with(one(nil), obj{"v": "openagents.reach-hints.v2"}), nip.Unsupported, "schema"},
	} {
		t.Run(row.name, func(t *testing.T) {
			h, err := nip.ParseHints(bytesOf(t, row.in), nip.Profile{})
			if row.code != "" {
				wantFault(t, err, row.code, row.layer)
				if !reflect.DeepEqual(h, nip.Hints{}) {
					t.Error("hints came with an error")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantRecode(t, row.in, func() (nip.Artifact, error) { return nip.EncodeHints(h) })
		})
	}
	h := nip.Hints{Host: host, IssuedAt: issued, ExpiresAt: issued + 1, Hints: []nip.Hint{
		{Class: "relay", Transport: "nostr", Address: "ws://127.0.0.1:7447/", Status: "reachable", ObservedAt: issued},
	}}
	if _, err := nip.EncodeHints(h); err != nil {
		t.Error(err)
	}
	h.Hints[0].Transport = "carrier pigeon"
	_, err := nip.EncodeHints(h)
	wantFault(t, err, nip.Malformed, "schema")
}

func TestRenewal(t *testing.T) {
	old := fixtureGrant()
	renewed := old
	renewed.ID = nip.GrantID(id("9"))
	renewed.IssuedAt, renewed.ExpiresAt = issued+80_000, issued+80_000+86_400
	if err := nip.CheckRenewal(old, renewed); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name   string
		change func(g *nip.Grant)
		code   nip.Code
	}{
		{"another host", func(g *nip.Grant) { g.Host = second }, nip.Forbidden},
		{"another owner", func(g *nip.Grant) { g.Owner = second }, nip.Forbidden},
		{"another device", func(g *nip.Grant) { g.Device = second }, nip.Forbidden},
		{"another relay", func(g *nip.Grant) { g.Relay += "x" }, nip.Forbidden},
		{"more rights", func(g *nip.Grant) { g.Rights = nip.PairingRights() }, nip.Forbidden},
		{"fewer rights", func(g *nip.Grant) { g.Rights = g.Rights[:1] }, nip.Forbidden},
		{"another epoch", func(g *nip.Grant) { g.Epoch++ }, nip.Forbidden},
		{"another origin", func(g *nip.Grant) { g.Origin.ID = id("3") }, nip.Forbidden},
		{"another origin's kind", func(g *nip.Grant) { g.Origin.Kind = "approval" }, nip.Forbidden},
		{"another issuer", func(g *nip.Grant) { g.Origin.Issuer = owner }, nip.Forbidden},
		{"the same grant", func(g *nip.Grant) { g.ID = old.ID }, nip.Stale},
		{"issued earlier", func(g *nip.Grant) { g.IssuedAt = issued - 1 }, nip.Stale},
		{"ends with the old one", func(g *nip.Grant) { g.ExpiresAt = old.ExpiresAt }, nip.Stale},
	} {
		g := renewed
		row.change(&g)
		var e *nip.Error
		if err := nip.CheckRenewal(old, g); !errors.As(err, &e) || e.Code != row.code || e.Layer != "policy" {
			t.Errorf("%s: %v, want %s", row.name, err, row.code)
		}
	}
	for now, want := range map[int64]bool{
		issued: false, issued + 64_799: false, issued + 64_800: true, issued + 86_399: true,
		issued + 86_400: false, issued + 90_000: false,
	} {
		if nip.RenewalDue(old, now) != want {
			t.Errorf("due %d s after the issue: %v", now-issued, !want)
		}
	}
}

func taskPageObject() obj {
	return obj{
		"v": nip.SchemaTaskPage, "requires": []any{}, "host": host,
		"issued_at": issued, "expires_at": issued + 86_400, "page": pageObject(),
	}
}

func TestTaskPages(t *testing.T) {
	page := func(change obj) obj { return obj{"page": with(pageObject(), change)} }
	for _, row := range []struct {
		name   string
		change obj
		code   nip.Code
	}{
		{"a page", nil, ""},
		{"seven days", obj{"expires_at": issued + 604_800}, ""},
		{"over seven days", obj{"expires_at": issued + 604_801}, nip.Malformed},
		{"no life", obj{"expires_at": issued}, nip.Malformed},
		{"no page", obj{"page": nil}, nip.Malformed},
		{"a page with an empty fact", page(obj{"delivery": ""}), nip.Bounds},
		{"a page with more", page(obj{"x": 1}), nip.Malformed},
		{"a page over 48 KiB", page(obj{"prompt": strings.Repeat("a", 51_000)}), nip.Bounds},
		{"an outcome in its place", obj{"page": obj{"kind": "task", "task": pageObject()}}, nip.Malformed},
		{"another version", obj{"v": "holdfast.task-page.v2"}, nip.Unsupported},
		{"a required feature", obj{"requires": []any{"x"}}, nip.Unsupported},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := nip.ParseTaskPage(bytesOf(t, with(taskPageObject(), row.change)))
			if row.code != "" {
				wantFault(t, err, row.code, "schema")
				if !reflect.DeepEqual(p, nip.PublishedPage{}) {
					t.Error("a page came with an error")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			a, err := nip.EncodeTaskPage(p)
			if err != nil || a.Schema != nip.SchemaTaskPage || a.IssuedAt != p.IssuedAt || a.RetainUntil != p.ExpiresAt {
				t.Fatal(err)
			}
			if again, err := nip.ParseTaskPage(a.Inline); err != nil || !reflect.DeepEqual(again, p) {
				t.Errorf("%+v %v, want %+v", again, err, p)
			}
		})
	}
	// What task.read may say is more than what is published.
	p, err := nip.ParseTaskPage(bytesOf(t, taskPageObject()))
	if err != nil {
		t.Fatal(err)
	}
	p.Page.Prompt = strings.Repeat("a", 40_000)
	if _, err := nip.EncodeOutcome(nip.TaskPage{Task: p.Page}); err != nil {
		t.Error(err)
	}
	_, err = nip.EncodeTaskPage(p)
	wantFault(t, err, nip.Bounds, "envelope")
}
