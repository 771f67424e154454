package relay

import (
	"fmt"
	"testing"
	"time"

	"holdfast/nip"
)

// TestMemoryIsBounded: the last 4,096 IDs are remembered, never more than twice
// as many, however many come.
func TestMemoryIsBounded(t *testing.T) {
	var m memory
	at := time.Now()
	id := func(i int) nip.EventID { return nip.EventID(fmt.Sprintf("%064x", i)) }
	for i := range 50_000 {
		m.note(id(i), at)
		if n := len(m.young) + len(m.old); n > 2*maxSeen {
			t.Fatalf("%d IDs remembered", n)
		}
		if _, known := m.last(id(max(0, i-maxSeen+1))); !known {
			t.Fatalf("one of the last %d was forgotten at %d", maxSeen, i)
		}
	}
	if _, known := m.last(id(0)); known {
		t.Error("nothing is ever forgotten")
	}
	m.note(id(49_000), at.Add(time.Second))
	if last, _ := m.last(id(49_000)); !last.Equal(at.Add(time.Second)) {
		t.Error("a repetition kept its first time")
	}
}
