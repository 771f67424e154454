package embedded

import (
	"testing"
	"time"

	"holdfast/nip"
	"holdfast/relay/relaytest"
)

// TestOverlapOfReplayAndLive: an event that comes in live during a replay and
// is part of it too is sent by one of the two, whichever came first.
func TestOverlapOfReplayAndLive(t *testing.T) {
	for _, liveFirst := range []bool{true, false} {
		k := relaytest.Key(t)
		v, err := nip.VerifyEvent(relaytest.Event(t, k, k.Public(), relaytest.Mailbox('a'), 1, "x"))
		if err != nil {
			t.Fatal(err)
		}
		rec, ok := newRecord(v, "")
		if !ok {
			t.Fatal("no record")
		}
		g := newRegistry(time.Now)
		taken := 0
		l := &listener{key: k.Public(), filters: []nip.Filter{{}}, take: func(*live) { taken++ }, drop: func(string) {}}
		g.add(l)
		if liveFirst {
			g.fanout(rec, v)
		}
		if !g.sending(l, rec.id) || g.sending(l, rec.id) {
			t.Fatal("the replay must send it, once")
		}
		if !liveFirst {
			g.fanout(rec, v)
		}
		if late := g.settle(l); late != nil {
			t.Fatalf("sent twice (live first: %v)", liveFirst)
		}
		g.fanout(rec, v)
		if taken != 0 {
			t.Fatal("sent again within the window")
		}
	}
}

// TestExpiresInLine: a live event that expires while a replay runs is not shown
// after it.
func TestExpiresInLine(t *testing.T) {
	at := time.Now()
	g := newRegistry(func() time.Time { return at })
	k := relaytest.Key(t)
	l := &listener{key: k.Public(), filters: []nip.Filter{{}}, take: func(*live) { t.Error("shown during a replay") }}
	g.add(l)
	v, err := nip.VerifyEvent(relaytest.Event(t, k, k.Public(), relaytest.Mailbox('a'), at.Unix(), "x"))
	if err != nil {
		t.Fatal(err)
	}
	rec, ok := newRecord(v, "")
	if !ok {
		t.Fatal("no record")
	}
	rec.expires = uint64(at.Unix() + 10)
	g.fanout(rec, v)
	at = at.Add(10 * time.Second)
	if late := g.settle(l); late != nil {
		t.Error("an expired event was shown after the replay")
	}
}
