package nip_test

import (
	"strings"
	"testing"

	"holdfast/nip"
)

func TestCheckRelay(t *testing.T) {
	const good = nip.Code("")
	for _, row := range []struct {
		url            nip.RelayURL
		code, loopback nip.Code
	}{
		{"wss://relay.example.com", good, good},
		{"wss://relay.example.com/", good, good},
		{"wss://relay.example.com:8443/a/b", good, good},
		{"wss://127.0.0.1/", good, good},
		{"WSS://relay.example.com/", good, good},
		{"wss://[::1]:7447/", good, good},
		{"ws://127.0.0.1:7447/", nip.Forbidden, good},
		{"ws://127.9.9.9/", nip.Forbidden, good},
		{"ws://[::1]:7447/", nip.Forbidden, good},
		{"ws://localhost:7447/", nip.Forbidden, nip.Forbidden},
		{"ws://localhost.example/", nip.Forbidden, nip.Forbidden},
		{"ws://127.0.0.1.example.com/", nip.Forbidden, nip.Forbidden},
		{"ws://128.0.0.1/", nip.Forbidden, nip.Forbidden},
		{"ws://0.0.0.0/", nip.Forbidden, nip.Forbidden},
		{"ws://127.1/", nip.Forbidden, nip.Forbidden},
		{"ws://2130706433/", nip.Forbidden, nip.Forbidden},
		{"ws://[::ffff:127.0.0.1]/", nip.Forbidden, nip.Forbidden},
		{"ws://[::1%25lo]/", nip.Forbidden, nip.Forbidden},
		{"ws://10.0.0.1/", nip.Forbidden, nip.Forbidden},
		{"http://127.0.0.1/", nip.Forbidden, nip.Forbidden},
		{"https://relay.example.com/", nip.Forbidden, nip.Forbidden},
		{"", nip.Malformed, nip.Malformed},
		{"relay.example.com", nip.Malformed, nip.Malformed},
		{"://relay.example.com", nip.Malformed, nip.Malformed},
		{"wss:relay.example.com", nip.Malformed, nip.Malformed},
		{"wss:///path", nip.Forbidden, nip.Forbidden},
		{"wss://:443/", nip.Forbidden, nip.Forbidden},
		{"wss://u@relay.example.com/", nip.Forbidden, nip.Forbidden},
		{"wss://u:p@relay.example.com/", nip.Forbidden, nip.Forbidden},
		{"wss://@relay.example.com/", nip.Forbidden, nip.Forbidden},
		{"wss://relay.example.com/?", nip.Forbidden, nip.Forbidden},
		{"wss://relay.example.com/?token=x", nip.Forbidden, nip.Forbidden},
		{"wss://relay.example.com/#", nip.Forbidden, nip.Forbidden},
		{"wss://relay.example.com/#a", nip.Forbidden, nip.Forbidden},
		{"wss://relay.example.com/a b", nip.Forbidden, nip.Forbidden},
		{" wss://relay.example.com/", nip.Forbidden, nip.Forbidden},
		{"wss://relay.example.com/\n", nip.Forbidden, nip.Forbidden},
		{"wss://relay.exämple.com/", nip.Forbidden, nip.Forbidden},
		{`wss://relay.example.com\@evil/`, nip.Forbidden, nip.Forbidden},
		{"wss://relay.example.com:99999/", nip.Malformed, nip.Malformed},
		{"wss://relay.example.com:port/", nip.Malformed, nip.Malformed},
		{"wss://relay.example.com/%zz", nip.Malformed, nip.Malformed},
		{"wss://[::1/", nip.Malformed, nip.Malformed},
		{nip.RelayURL("wss://relay.example.com/" + strings.Repeat("a", 2_024)), good, good},
		{nip.RelayURL("wss://relay.example.com/" + strings.Repeat("a", 2_025)), nip.Forbidden, nip.Forbidden},
	} {
		for loopback, want := range map[bool]nip.Code{false: row.code, true: row.loopback} {
			err := nip.CheckRelay(row.url, loopback)
			if want == good && err != nil {
				t.Errorf("%q, loopback %v: %v", row.url, loopback, err)
			}
			if want != good {
				t.Run(string(row.url), func(t *testing.T) { wantFault(t, err, want, "policy") })
			}
		}
	}
}

func TestRights(t *testing.T) {
	all := []string{"observe", "operate", "terminal", "review", "access_read", "access_admin"}
	// Every subset in canonical order passes, except the empty one.
	for mask := range 1 << len(all) {
		var list []string
		for i, s := range all {
			if mask&(1<<i) != 0 {
				list = append(list, s)
			}
		}
		r, err := nip.ParseRights(list)
		if (err == nil) != (mask != 0) {
			t.Errorf("%v: %v", list, err)
		}
		for i, s := range all {
			if r.Has(nip.Right(s)) != (mask&(1<<i) != 0) {
				t.Errorf("%v has %s wrongly", list, s)
			}
		}
		if !r.Within(nip.PairingRights()) {
			t.Errorf("%v is not within all six", list)
		}
	}
	for _, list := range [][]string{nil, {}, {""}, {"operate", "observe"}, {"observe", "observe"}, {"Observe"}, {"observe", "admin"}} {
		r, err := nip.ParseRights(list)
		wantFault(t, err, nip.Malformed, "schema")
		if r != nil {
			t.Errorf("%v gives %v", list, r)
		}
	}
	if nip.PairingRights().Within(nip.StandardRights()) || !nip.StandardRights().Within(nip.PairingRights()) {
		t.Error("the named sets do not lie within each other as they should")
	}
	s := nip.StandardRights()
	s[0] = nip.AccessAdmin
	if nip.StandardRights()[0] != nip.Observe {
		t.Error("a caller can change the standard set")
	}
}
