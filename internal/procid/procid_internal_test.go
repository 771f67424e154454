package procid

import (
	"strings"
	"testing"
)

func TestParseStat(t *testing.T) {
	tail := " S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2"
	for _, row := range []struct {
		name, line string
		state      byte
		start      uint64
		bad        bool
	}{
		{"plain", "7 (cat)" + tail, 'S', 98765, false},
		{"spaces", "7 (a b c)" + tail, 'S', 98765, false},
		{"parentheses", "7 (a) Z 1 (b)" + tail, 'S', 98765, false},
		{"forged fields", "7 () S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 5 ()" + tail, 'S', 98765, false},
		{"newline", "7 (a\nb)" + tail, 'S', 98765, false},
		{"empty", "", 0, 0, true},
		{"no parenthesis", "7 cat S 1", 0, 0, true},
		{"cut short", "7 (cat) S 1 2 3", 0, 0, true},
		{"bad number", "7 (cat)" + strings.Replace(tail, "98765", "x", 1), 0, 0, true},
		{"negative", "7 (cat)" + strings.Replace(tail, "98765", "-1", 1), 0, 0, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := parseStat(row.line)
			if (err != nil) != row.bad {
				t.Fatalf("error %v, want error %v", err, row.bad)
			}
			if got.state != row.state || got.start != row.start || !row.bad && got.threads != 1 {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// A process goes on when only its first thread has ended.
func TestOver(t *testing.T) {
	for _, row := range []struct {
		name string
		stat stat
		over bool
	}{
		{"running", stat{state: 'R', threads: 1}, false},
		{"zombie", stat{state: 'Z', threads: 1}, true},
		{"zombie that was let go", stat{state: 'X'}, true},
		{"first thread ended, others run", stat{state: 'Z', threads: 2}, false},
	} {
		if got := row.stat.over(); got != row.over {
			t.Errorf("%s: over %v", row.name, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("7 (a) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2")
	f.Add(")")
	f.Fuzz(func(t *testing.T, line string) {
		if _, err := parseStat(line); err == nil && !strings.Contains(line, ")") {
			t.Error("accepted a line without a command field")
		}
	})
}
