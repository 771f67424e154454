package host

import (
	"strings"
	"testing"

	"holdfast/owner"
)

// Every prompt that a task takes gives a title that it takes.
func TestTitleOf(t *testing.T) {
	for prompt, want := range map[string]string{
		"do it": "do it", "\n\n do it\nand more": "do it", "a\tb\rc": "a b c", strings.Repeat("é", 100): strings.Repeat("é", 40),
	} {
		if got := titleOf(prompt); got != want || !owner.ValidTitle(got) {
			t.Errorf("%q: %q", prompt, got)
		}
	}
}
