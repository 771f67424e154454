package main

import (
	"strings"
	"testing"

	"holdfast/owner"
)

func TestWriteReached(t *testing.T) {
	var out strings.Builder
	writeReached(&out, nil)
	if out.Len() != 0 {
		t.Fatalf("of a turn without an allow list: %q", out.String())
	}
	writeReached(&out, &owner.Reached{Up: 10, Down: 20, More: 3, Rows: []owner.ReachedRow{
		{Target: "example.org:443", Verdict: "allowed", Count: 2, Up: 10, Down: 20},
		{Verdict: "refused: not a well-formed CONNECT request", Count: 1},
	}})
	const want = "  egress     10 bytes sent, 20 received\n" +
		"             example.org:443                  allowed, 2 times, 10 bytes sent, 20 received\n" +
		"             (no target)                      refused: not a well-formed CONNECT request, once\n" +
		"             and 3 more attempts\n"
	if out.String() != want {
		t.Fatalf("%s", out.String())
	}
}
