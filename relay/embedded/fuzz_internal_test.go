package embedded

import (
	"bytes"
	"testing"

	"holdfast/nip"
)

func FuzzMessage(f *testing.F) {
	for _, s := range []string{
		`["EVENT","`, `["EVENT",{"id":"x"}]`, `["REQ","s",{"ids":[],"limit":0,"#p":["x"],"since":1}]`, `["CLOSE","s"]`, `["COUNT","s",{}]`,
		`["AUTH",{"kind":22242}]`, `["REQ","s",{"kinds":[3188],"until":1e3}]`, `[]`, `[[[`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMessage(b)
		if err != nil {
			return
		}
		if len(m.sub) > maxSubID || len(m.id) > 64 {
			t.Fatalf("a member beyond its bound: %+v", m)
		}
		for _, v := range m.filters {
			filter, err := parseFilter(v)
			if err != nil {
				continue
			}
			if len(filter.IDs) > maxListed || filter.Limit > maxLimit || filter.Limit < 0 || filter.LimitZero != (filter.Limit == 0) {
				t.Fatalf("filter %+v", filter)
			}
			for _, id := range filter.IDs {
				if !nip.ValidID(id) {
					t.Fatalf("id %q", id)
				}
			}
		}
	})
}

func FuzzRecord(f *testing.F) {
	id := bytes.Repeat([]byte{7}, 32)
	f.Add(encodeRecord(&record{created: 1, ends: 2, via: "ws://127.0.0.1:7447/", json: []byte(`{}`)}))
	f.Add(make([]byte, recordHead))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(id, b)
		if err == nil && !bytes.Equal(encodeRecord(r), b) {
			t.Fatal("another encoding")
		}
	})
}
