package nip

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const redactedWord = "[redacted]"

// credentialPrefixes begin the tokens that services hand out, in lower case.
var credentialPrefixes = []string{
	"sk-", "sk_", "pk_", "rk_", "nsec1", "ncryptsec", "oak_", "sess_", "ghp_", "gho_", "ghs_", "ghu_",
	"github_pat_", "xoxb-", "xoxp-", "akia", "npub1",
}

// Headline makes s fit for a summary: words that may be a path, an address, a
// secret or an identifier become [redacted], runs of them one, white space is
// single, and more than 160 bytes end at a whole word with an ellipsis. Where
// nothing is left it is fallback, which the caller wrote and vouches for.
// Headline(Headline(s)) is Headline(s).
func Headline(s string, fallback string) string {
	words := strings.FieldsFunc(s, func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) || c == utf8.RuneError })
	var kept []string
	said := false
	for _, w := range words {
		if w == redactedWord || sensitive(w) {
			if n := len(kept); n == 0 || kept[n-1] != redactedWord {
				kept = append(kept, redactedWord)
			}
			continue
		}
		kept, said = append(kept, w), true
	}
	out := strings.Join(kept, " ")
	if len(out) > maxHeadline {
		out, said = cutHeadline(out)
	}
	if !said {
		return fallback
	}
	return out
}

// cutHeadline drops the word that would not fit whole before an ellipsis.
func cutHeadline(s string) (string, bool) {
	const ellipsis = "…"
	end := maxHeadline - len(ellipsis)
	for !utf8.RuneStart(s[end]) {
		end--
	}
	if s[end] != ' ' {
		end = strings.LastIndexByte(s[:end], ' ')
	}
	if end <= 0 {
		return "", false
	}
	return s[:end] + ellipsis, true
}

func sensitive(word string) bool {
	if strings.ContainsAny(word, "/\\=@`") || strings.ContainsAny(word[:1], "~$%") {
		return true
	}
	core := strings.TrimFunc(word, func(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsNumber(c) })
	lower := strings.ToLower(core)
	for _, p := range credentialPrefixes {
		if strings.HasPrefix(lower, p) {
			return true
		}
	}
	hex, letter, digit, n := true, false, false, 0
	for _, c := range lower {
		n++
		hex = hex && (c >= '0' && c <= '9' || c >= 'a' && c <= 'f')
		letter = letter || unicode.IsLetter(c)
		digit = digit || unicode.IsNumber(c)
	}
	return n >= 16 && hex || n >= 20 && letter && digit
}
