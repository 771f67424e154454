package nip_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"holdfast/nip"
)

func fixtureInvitation() nip.Invitation {
	return nip.Invitation{
		Host: host, ID: nip.InvitationID(id("2")), Capability: id("5"),
		IssuedAt: issued, ExpiresAt: issued + 300, Relay: fixRelay,
	}
}

func TestParseInvitationRefuses(t *testing.T) {
	good, err := nip.EncodeInvitation(fixtureInvitation(), nip.Profile{})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.TrimPrefix(good, "coder-host:")
	reframe := func(change func([]byte) []byte) string {
		b, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return "coder-host:" + base64.RawURLEncoding.EncodeToString(change(b))
	}
	relay := func(s string) string {
		return reframe(func(b []byte) []byte {
			b[113], b[114] = byte(len(s)>>8), byte(len(s))
			return append(b[:115], s...)
		})
	}
	for _, row := range []struct {
		name, in string
		now      int64
		code     nip.Code
		layer    string
	}{
		{"too long", good + strings.Repeat("A", 640), issued, nip.Bounds, "schema"},
		{"empty", "", issued, nip.Malformed, "schema"},
		{"the other prefix", "coder-pair:" + text, issued, nip.Malformed, "schema"},
		{"capital prefix", "CODER-HOST:" + text, issued, nip.Malformed, "schema"},
		{"white space in front", " " + good, issued, nip.Malformed, "schema"},
		{"a line end behind", good + "\n", issued, nip.Malformed, "schema"},
		{"a line end inside", good[:40] + "\n" + good[40:], issued, nip.Malformed, "schema"},
		{"padding", good + "=", issued, nip.Malformed, "schema"},
		{"standard alphabet", strings.ReplaceAll(strings.ReplaceAll(good, "_", "/"), "Zn7", "+n7"), issued, nip.Malformed, "schema"},
		{"not canonical", good[:len(good)-1] + "x", issued, nip.Malformed, "schema"},
		{"version 2", reframe(func(b []byte) []byte { b[0] = 2; return b }), issued, nip.Malformed, "schema"},
		{"version 0", reframe(func(b []byte) []byte { b[0] = 0; return b }), issued, nip.Malformed, "schema"},
		{"cut in the header", reframe(func(b []byte) []byte { return b[:114] }), issued, nip.Malformed, "schema"},
		{"cut in the relay", reframe(func(b []byte) []byte { return b[:len(b)-1] }), issued, nip.Malformed, "schema"},
		{"a byte behind", reframe(func(b []byte) []byte { return append(b, 'x') }), issued, nip.Malformed, "schema"},
		{"a host off the curve", reframe(func(b []byte) []byte { clear(b[1:33]); return b }), issued, nip.Malformed, "schema"},
		{"no relay", relay(""), issued, nip.Bounds, "schema"},
		{"a relay of 257 bytes", relay("wss://" + strings.Repeat("a", 251)), issued, nip.Bounds, "schema"},
		{"a relay that is ws", relay("ws://relay.example.com/"), issued, nip.Forbidden, "policy"},
		{"a loopback relay", relay("ws://127.0.0.1:7447/"), issued, nip.Forbidden, "policy"},
		{"a relay with a query", relay("wss://relay.example.com/?a"), issued, nip.Forbidden, "policy"},
		{"a relay that is not UTF-8", relay("wss://relay.example.com/\xff"), issued, nip.Forbidden, "policy"},
		{"301 seconds", reframe(func(b []byte) []byte { b[112]++; return b }), issued, nip.Malformed, "schema"},
		{"ends before it begins", reframe(func(b []byte) []byte { b[111]--; return b }), issued, nip.Malformed, "schema"},
		{"times beyond 2^53", reframe(func(b []byte) []byte { b[97], b[105] = 0xff, 0xff; return b }), issued, nip.Malformed, "schema"},
		{"over", good, issued + 300, nip.Expired, "schema"},
		{"long over", good, issued + 1_000_000, nip.Expired, "schema"},
		{"not yet", good, issued - 61, nip.Expired, "schema"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := nip.ParseInvitation(row.in, nip.Profile{}, row.now)
			wantFault(t, err, row.code, row.layer)
			if got != (nip.Invitation{}) {
				t.Error("an invitation came with an error")
			}
			if strings.Contains(err.Error(), "5555") {
				t.Error("the error shows the capability")
			}
		})
	}
	for _, now := range []int64{issued - 60, issued, issued + 299} {
		if _, err := nip.ParseInvitation(good, nip.Profile{}, now); err != nil {
			t.Errorf("at %d: %v", now, err)
		}
	}
	if _, err := nip.ParseInvitation(relay("ws://127.0.0.1:7447/"), nip.Profile{Loopback: true}, issued); err != nil {
		t.Error(err)
	}
}

func TestEncodeInvitationRefuses(t *testing.T) {
	for name, change := range map[string]func(*nip.Invitation){
		"host":       func(i *nip.Invitation) { i.Host = "x" },
		"id":         func(i *nip.Invitation) { i.ID = "x" },
		"capability": func(i *nip.Invitation) { i.Capability = "" },
		"life":       func(i *nip.Invitation) { i.ExpiresAt++ },
		"before":     func(i *nip.Invitation) { i.IssuedAt, i.ExpiresAt = -300, 0 },
		"relay":      func(i *nip.Invitation) { i.Relay = "ws://127.0.0.1:7447/" },
		"long":       func(i *nip.Invitation) { i.Relay = nip.RelayURL("wss://" + strings.Repeat("a", 300)) },
	} {
		i := fixtureInvitation()
		change(&i)
		if s, err := nip.EncodeInvitation(i, nip.Profile{}); err == nil {
			t.Errorf("%s: %s", name, s)
		}
	}
	i := fixtureInvitation()
	i.Relay = nip.RelayURL("wss://" + strings.Repeat("a", 250))
	s, err := nip.EncodeInvitation(i, nip.Profile{})
	if err != nil || len(s) > 640 {
		t.Fatal(err)
	}
	if got, err := nip.ParseInvitation(s, nip.Profile{}, issued); err != nil || got != i {
		t.Error(err)
	}
}
