package relay

import (
	"fmt"
	"testing"
	"time"

	"holdfast/nip"
)

func TestLimiter(t *testing.T) {
	at := time.Now()
	var l limiter
	count := func(n int, step time.Duration, take func(i int) bool) (taken int) {
		for i := range n {
			if take(i) {
				taken++
			}
			at = at.Add(step)
		}
		return taken
	}
	one := func(int) bool { return l.stranger("one", at) }
	fresh := func(i int) bool { return l.stranger(fmt.Sprint(at.UnixNano(), i), at) }
	for _, row := range []struct {
		name string
		got  func() int
		want int
	}{
		{"one stranger at once", func() int { return count(1000, 0, one) }, 16},
		{"one stranger left the others their room", func() int { return count(1000, 0, fresh) }, 48},
		{"nothing is left", func() int { return count(1000, 0, fresh) }, 0},
		{"fresh keys for ten seconds", func() int { at = at.Add(time.Minute); return count(10_000, time.Millisecond, fresh) }, 64 + 200},
		{"one stranger for ten seconds", func() int { at = at.Add(time.Minute); return count(10_000, time.Millisecond, one) }, 16 + 20},
		{"a known author's replay", func() int {
			return count(1024, 0, func(int) bool { return l.member(nip.PubKey("known"), at) })
		}, 1024},
		{"and not without end", func() int {
			return count(1000, 0, func(int) bool { return l.member(nip.PubKey("known"), at) })
		}, 0},
		{"another known author", func() int {
			return count(100, 0, func(int) bool { return l.member(nip.PubKey("other"), at) })
		}, 100},
	} {
		if got := row.got(); got < row.want-1 || got > row.want+1 {
			t.Errorf("%s: %d, want %d", row.name, got, row.want)
		}
	}
	count(100_000, 50*time.Millisecond, fresh)
	for i := range 100_000 {
		l.member(nip.PubKey(fmt.Sprint(i)), at)
	}
	if len(l.strangers) > maxBuckets || len(l.known) > maxBuckets {
		t.Errorf("%d and %d authors remembered", len(l.strangers), len(l.known))
	}
}

func TestClaimedAuthor(t *testing.T) {
	author := fmt.Sprintf("%064x", 7)
	for _, row := range []struct{ name, event, want string }{
		{"plain", `{"id":"x","pubkey":"` + author + `","kind":1}`, author},
		{"a name inside the content", `{"content":"\"pubkey\":\"` + fmt.Sprintf("%064x", 8) + `","pubkey":"` + author + `"}`, author},
		{"spaces", `{"pubkey": "` + author + `"}`, ""},
		{"cut short", `{"pubkey":"ab"}`, ""},
		{"nothing", ``, ""},
	} {
		if got := claimedAuthor([]byte(row.event)); got != row.want {
			t.Errorf("%s: %q", row.name, got)
		}
	}
}

func TestMessageLimit(t *testing.T) {
	for _, row := range []struct {
		name, doc string
		limit     int64
		ok        bool
	}{
		{"a limit", `{"name":"x","limitation":{"max_message_length":65536,"auth_required":true}}`, 65536, true},
		{"none", `{"name":"x"}`, 0, true},
		{"no document", `<html>`, 0, false},
		{"a list", `[]`, 0, false},
		{"a negative one", `{"limitation":{"max_message_length":-1}}`, 0, false},
		{"words", `{"limitation":{"max_message_length":"big"}}`, 0, false},
		{"beyond 64 bits", `{"limitation":{"max_message_length":99999999999999999999}}`, 0, false},
	} {
		if got, ok := messageLimit([]byte(row.doc)); got != row.limit || ok != row.ok {
			t.Errorf("%s: %d, %v", row.name, got, ok)
		}
	}
}
