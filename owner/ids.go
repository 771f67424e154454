package owner

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of the task command document and of what events carry, in bytes
// unless said otherwise.
const (
	MaxCommand   = 64 << 10 // a task command, whitespace included
	maxID        = 128
	maxTitle     = 256
	maxPrompt    = 32 << 10
	maxReason    = 2 << 10
	maxPath      = 4096
	maxArchive   = 512 // reason of archiving, cause of "Couldn't start"
	maxReply     = 32 << 10
	maxEnding    = 512
	maxDocument  = 16 << 10 // confinement, cleanup and network of an event
	MaxTurns     = 64
	maxCommands  = 2048     // task commands in one log
	maxOddEvents = 16384    // events after which those that end no turn are refused
	maxLog       = 64 << 20 // bytes of a log after which it takes no command
)

// DigestOf is the SHA-256 of b.
func DigestOf(b []byte) Digest {
	h := sha256.Sum256(b)
	return Digest("sha256:" + hex.EncodeToString(h[:]))
}

func (d Digest) valid() bool {
	h, ok := strings.CutPrefix(string(d), "sha256:")
	return ok && lowerHex(h, 64)
}

// EffectID names the one effect of a task's turn.
func EffectID(id TaskID, turn int) string {
	return string(id) + ":" + strconv.Itoa(turn) + ":command"
}

// TraceName is the file of a turn's transcript inside the task's folder.
func TraceName(turn int) string { return "turn-" + strconv.Itoa(turn) + ".atif.jsonl" }

// dirName is the folder of a task: the ID itself where it is 64 lowercase hex,
// as every ID made by a device is, else the hex SHA-256 of the ID. Two IDs
// cannot meet in one folder unless one of them is the other's hash; the log's
// header names the ID, so even that is noticed.
func dirName(id TaskID) string {
	if lowerHex(string(id), 64) {
		return string(id)
	}
	h := sha256.Sum256([]byte(id))
	return hex.EncodeToString(h[:])
}

func lowerHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// identifier is 1 to 128 bytes: ASCII alphanumeric, then also . _ - and extra.
func identifier(s, extra string) bool {
	if len(s) == 0 || len(s) > maxID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !alnum && (i == 0 || !strings.ContainsRune("._-"+extra, rune(c))) {
			return false
		}
	}
	return true
}

// ValidTaskID reports whether s can name a task: 1 to 128 ASCII letters, digits, '.', '_' and '-', the first one a
// letter or a digit.
func ValidTaskID(s string) bool { return identifier(s, "") }

// ValidTitle reports whether a task can have s as its title: one line of 1 to
// 256 bytes, not blank, without control characters.
func ValidTitle(s string) bool { return line(s, maxTitle) }

// ValidPrompt reports whether a turn can be asked for with s: text of 1 to
// 32,768 bytes, not blank, without control characters other than line feed,
// carriage return and tab.
func ValidPrompt(s string) bool { return lines(s, maxPrompt) }

// ValidReason reports whether s can be the reason of a task command: as a
// prompt, of at most 2,048 bytes.
func ValidReason(s string) bool { return lines(s, maxReason) }

// line is text on one line: not blank, within max bytes, no control character.
func line(s string, max int) bool { return text(s, max, "") }

// lines is text that may span lines.
func lines(s string, max int) bool { return text(s, max, "\n\r\t") }

func text(s string, max int, allowed string) bool {
	if len(s) > max || !utf8.ValidString(s) || strings.TrimSpace(s) == "" {
		return false
	}
	for _, r := range s {
		if unicode.IsControl(r) && !strings.ContainsRune(allowed, r) {
			return false
		}
	}
	return true
}

// plainPath is absolute, at most 4,096 bytes, without "." or ".." components.
func plainPath(p string) bool {
	if !line(p, maxPath) || p[0] != '/' {
		return false
	}
	for _, c := range strings.Split(p, "/") {
		if c == "." || c == ".." {
			return false
		}
	}
	return true
}

// revisionName is a full Git object name of either hash.
func revisionName(s string) bool { return lowerHex(s, 40) || lowerHex(s, 64) }
