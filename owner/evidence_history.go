package owner

import (
	"strings"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
)

// Bounds of what a turn is told about the turns before it.
const (
	historyTurns = 8
	historyText  = 4 << 10 // bytes of one prompt or reply
)

// history is the content of HOLDFAST_HISTORY: one JSON line for each of the last 8 earlier turns, oldest first,
// {"turn","prompt","reply","ending","cut"}. A text over 4 KiB is cut on a character boundary and cut is true. It is
// empty, and not absent, in the first turn, so that programs need not ask.
func history(t *Task) []byte {
	out := []byte{}
	for i := max(0, len(t.Earlier)-historyTurns); i < len(t.Earlier); i++ {
		run := &t.Earlier[i]
		line := struct {
			Turn   int    `json:"turn"`
			Prompt string `json:"prompt"`
			Reply  string `json:"reply"`
			Ending string `json:"ending"`
			Cut    bool   `json:"cut"`
		}{Turn: run.Turn}
		var cutPrompt, cutReply bool
		line.Prompt, cutPrompt = cutText(promptAt(t, run.Admission.ReadRevision), historyText)
		if r := run.Result; r != nil {
			line.Reply, cutReply = cutText(r.Reply, historyText)
			line.Ending = r.Ending
		}
		line.Cut = cutPrompt || cutReply
		b, err := jsonv2.Marshal(line)
		if err != nil {
			panic("owner: texts of the log are UTF-8: " + err.Error())
		}
		out = append(append(out, b...), '\n')
	}
	return out
}

// promptAt is the newest instruction that a context read at revision knew.
func promptAt(t *Task, revision int64) string {
	prompt, at := t.Intent.Prompt, int64(0)
	for _, f := range t.FollowUps {
		if f.Revision <= revision && f.Revision > at {
			prompt, at = f.Prompt, f.Revision
		}
	}
	for _, c := range t.Corrections {
		if c.Revision <= revision && c.Revision > at {
			prompt, at = c.Prompt, c.Revision
		}
	}
	return prompt
}

// cutText is s within max bytes, cut where a character ends.
func cutText(s string, max int) (string, bool) {
	if len(s) <= max {
		return s, false
	}
	for max > 0 && !utf8.RuneStart(s[max]) {
		max--
	}
	return strings.Clone(s[:max]), true
}
