package owner

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Knowledge is one document of the workspace that a grant's requirements name: which one, in which version, with
// which bytes, and what its author says that it was written from.
type Knowledge struct {
	ID      string   `json:"id"`
	Version int64    `json:"version"`
	Digest  Digest   `json:"digest"` // of the document's bytes
	Path    string   `json:"path"`   // relative to the workspace
	Sources []string `json:"sources"`
}

// Bounds of knowledge: documents, and bytes of one and of all together.
const (
	maxKnowledge      = 16
	maxKnowledgeFile  = 64 << 10
	maxKnowledgeTotal = 256 << 10
)

// sound holds one pin against its bounds. own are the sources that the task itself comes from.
func (k *Knowledge) sound(own map[string]bool) string {
	switch {
	case !entryID(k.ID):
		return "knowledge has an ID of at most 128 lowercase letters, digits, dots and hyphens, a letter first"
	case k.Version < 1 || k.Version > 1<<32-1 || !k.Digest.valid():
		return "knowledge " + k.ID + " has no positive version, or no digest"
	case !inTree(k.Path):
		return "knowledge " + k.ID + " has no plain path below the workspace"
	case len(k.Sources) == 0 || !sources(k.Sources):
		return "knowledge " + k.ID + " has no 1 to 256 sources, each once"
	}
	for _, s := range k.Sources {
		if own[s] || own[withoutRun(s)] {
			return "knowledge " + k.ID + " comes from a source of the task"
		}
	}
	return ""
}

// tells says why a document is not the one that is pinned; "" where it is. It looks at everything but the digest.
func (k *Knowledge) tells(b []byte) string {
	e, err := parseEntry(b)
	switch {
	case err != nil:
		return "is no knowledge entry: " + err.Error()
	case e.id != k.ID || e.version != k.Version:
		return "has another ID or version than was pinned"
	case e.status == "withdrawn":
		return "was withdrawn"
	case len(e.sources) != len(k.Sources) || !sources(e.sources):
		return "was written from other sources than was pinned"
	}
	for _, s := range e.sources {
		if !slices.Contains(k.Sources, s) {
			return "was written from other sources than was pinned"
		}
	}
	return ""
}

// knowledgeEntry is what is asked of a document.
type knowledgeEntry struct {
	id      string
	version int64
	status  string   // candidate, admitted or withdrawn
	sources []string // provenance.written_from
}

// The members of an entry's front matter, and what two of them may say.
var (
	entryTexts    = []string{"id", "version", "kind", "title", "summary", "applies_when", "status", "author"}
	entryLists    = []string{"tags", "evidence"}
	entryKinds    = []string{"method", "edge-case", "slip", "environment", "tool"}
	entryStatuses = []string{"candidate", "admitted", "withdrawn"}
)

// parseEntry reads a knowledge entry: UTF-8, front matter between two lines ---, and some Markdown after it. The front
// matter is the part of YAML that such entries use: `key: value` with plain and quoted text, blocks (| and >), lists in
// brackets or by dashes, and one map, provenance. What it does not know, or could take in two ways, it refuses: an
// anchor, a tag, an escape, a tab for indentation, a member that is unknown or stands twice. Errors quote nothing of
// the document.
func parseEntry(b []byte) (e knowledgeEntry, err error) {
	if !utf8.Valid(b) {
		return e, errors.New("it is not UTF-8")
	}
	front, body, found := cutFront(string(b))
	if !found {
		return e, errors.New("it does not begin with front matter between two lines ---")
	}
	if strings.TrimSpace(body) == "" {
		return e, errors.New("nothing follows its front matter")
	}
	members, err := membersOf(front, 0)
	if err != nil {
		return e, err
	}
	said := map[string]string{}
	for _, m := range members {
		switch {
		case slices.Contains(entryTexts, m.key):
			said[m.key], err = m.text()
		case slices.Contains(entryLists, m.key):
			_, err = m.list()
		case m.key == "provenance":
			e.sources, err = m.provenance()
		default:
			err = errors.New("it has an unknown member")
		}
		if err != nil {
			return knowledgeEntry{}, err
		}
	}
	for _, key := range entryTexts {
		if said[key] == "" {
			return knowledgeEntry{}, errors.New(key + " is missing or empty")
		}
	}
	e.id, e.status = said["id"], said["status"]
	// Without a sign and leading zeros a number is written in one way.
	e.version, err = strconv.ParseInt(said["version"], 10, 64)
	switch {
	case !entryID(e.id):
		err = errors.New("id is not lowercase letters, digits, dots and hyphens")
	case err != nil || e.version < 1 || e.version > 1<<32-1 || strconv.FormatInt(e.version, 10) != said["version"]:
		err = errors.New("version is no positive whole number")
	case !slices.Contains(entryKinds, said["kind"]) || !slices.Contains(entryStatuses, e.status):
		err = errors.New("kind or status is an unknown word")
	}
	if err != nil {
		return knowledgeEntry{}, err
	}
	return e, nil
}

// entryID is the grammar of an entry's ID.
func entryID(s string) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '.' && c != '-') {
			return false
		}
	}
	return s != "" && len(s) <= maxID
}

// cutFront splits a document into the lines of its front matter and what follows.
func cutFront(doc string) (front []string, body string, found bool) {
	first, rest, _ := strings.Cut(doc, "\n")
	if strings.TrimSuffix(first, "\r") != "---" {
		return nil, "", false
	}
	for rest != "" {
		var l string
		l, rest, _ = strings.Cut(rest, "\n")
		if l = strings.TrimRight(l, " \t\r"); l == "---" {
			return front, rest, true
		}
		front = append(front, l)
	}
	return nil, "", false
}

// member is one key of a map: what stands behind the colon, and the lines below it that are indented deeper.
type member struct {
	key, value string
	below      []string
	depth      int // spaces before the key
}

var errIndent = errors.New("its indentation is not that of a map or a list")

// membersOf reads a map whose keys are indented by depth spaces.
func membersOf(lines []string, depth int) (members []member, err error) {
	for _, l := range lines {
		trimmed := strings.TrimLeft(l, " ")
		at := len(l) - len(trimmed)
		blank := trimmed == "" || trimmed[0] == '#'
		switch {
		case trimmed != "" && trimmed[0] == '\t':
			return nil, errIndent
		case len(members) > 0 && (at > depth || trimmed == ""):
			m := &members[len(members)-1]
			m.below = append(m.below, l)
		case blank:
		case at != depth:
			return nil, errIndent
		default:
			key, value, found := strings.Cut(trimmed, ":")
			if !found || value != "" && value[0] != ' ' {
				return nil, errors.New("a line is not a key, a colon and a value")
			}
			if slices.ContainsFunc(members, func(m member) bool { return m.key == key }) {
				return nil, errors.New("a member stands twice")
			}
			members = append(members, member{key: key, value: strings.TrimSpace(value), depth: depth})
		}
	}
	return members, nil
}

// content is the lines below a member that are neither blank nor a comment.
func (m *member) content() (lines []string) {
	for _, l := range m.below {
		if t := strings.TrimSpace(l); t != "" && t[0] != '#' {
			lines = append(lines, l)
		}
	}
	return lines
}

// text is a scalar, or a block, of which only whether it is empty is asked by anybody.
func (m *member) text() (string, error) {
	switch m.value {
	case ">", ">-", ">+", "|", "|-", "|+":
		// In a block a # is text like any other.
		return strings.TrimSpace(strings.Join(m.below, "\n")), nil
	}
	if len(m.content()) > 0 {
		return "", errIndent
	}
	return scalar(m.value)
}

// list is [a, "b"], or dashes on lines of their own.
func (m *member) list() (items []string, err error) {
	below := m.content()
	if strings.HasPrefix(m.value, "[") {
		if len(below) > 0 {
			return nil, errIndent
		}
		return flow(m.value)
	}
	if m.value != "" && m.value[0] != '#' {
		return nil, errors.New("a list is not [a, b], nor one of dashes")
	}
	for _, l := range below {
		trimmed := strings.TrimLeft(l, " ")
		if !strings.HasPrefix(trimmed, "- ") || len(l)-len(trimmed) != indentOf(below[0]) {
			return nil, errIndent
		}
		item, err := scalar(strings.TrimSpace(trimmed[2:]))
		if err != nil {
			return nil, err
		}
		if item == "" {
			return nil, errItem
		}
		items = append(items, item)
	}
	return items, nil
}

func indentOf(l string) int { return len(l) - len(strings.TrimLeft(l, " ")) }

// provenance is the map with what an entry was written from, and what it cites.
func (m *member) provenance() (from []string, err error) {
	below := m.content()
	if m.value != "" && m.value[0] != '#' || len(below) == 0 || indentOf(below[0]) <= m.depth {
		return nil, errors.New("provenance is no map of written_from and cites")
	}
	inner, err := membersOf(below, indentOf(below[0]))
	if err != nil {
		return nil, err
	}
	for i := range inner {
		items, err := inner[i].list()
		switch {
		case err != nil:
			return nil, err
		case inner[i].key == "written_from":
			from = items
		case inner[i].key != "cites":
			return nil, errors.New("provenance has an unknown member")
		}
	}
	return from, nil
}

var (
	errScalar = errors.New("a value is not plain or quoted text")
	errItem   = errors.New("an item of a list is empty")
)

// scalar is text as it stands, or in quotes; a comment may follow.
func scalar(s string) (string, error) {
	if s == "" || s[0] == '#' {
		return "", nil
	}
	if s[0] == '"' || s[0] == '\'' {
		inner, rest, found := strings.Cut(s[1:], s[:1])
		rest = strings.TrimSpace(rest)
		if !found || strings.Contains(inner, `\`) || rest != "" && rest[0] != '#' {
			return "", errScalar
		}
		return strings.TrimSpace(inner), nil
	}
	if strings.ContainsRune("&*!|>%@`{}[],?", rune(s[0])) || strings.HasPrefix(s, "- ") {
		return "", errScalar
	}
	if at := strings.Index(s, " #"); at >= 0 {
		s = s[:at]
	}
	return strings.TrimSpace(s), nil
}

// flow is a list in brackets on one line. Quotes stand around a whole item or nowhere.
func flow(s string) (items []string, err error) {
	s = s[1:]
	for more := false; ; more = true {
		s = strings.TrimLeft(s, " ")
		var item, rest string
		if s != "" && (s[0] == '"' || s[0] == '\'') {
			inner, after, found := strings.Cut(s[1:], s[:1])
			if !found {
				return nil, errScalar
			}
			item, rest = s[:len(inner)+2], strings.TrimLeft(after, " ")
		} else {
			end := strings.IndexAny(s, ",]")
			if end < 0 || strings.ContainsAny(s[:end], `"'[{}#`) {
				return nil, errScalar
			}
			item, rest = strings.TrimSpace(s[:end]), s[end:]
		}
		if rest == "" || rest[0] != ',' && rest[0] != ']' {
			return nil, errScalar
		}
		last := rest[0] == ']'
		if last && item == "" && !more {
			return nil, afterFlow(rest[1:])
		}
		value, err := scalar(item)
		if err != nil {
			return nil, err
		}
		if value == "" {
			return nil, errItem
		}
		items = append(items, value)
		if last {
			return items, afterFlow(rest[1:])
		}
		s = rest[1:]
	}
}

// afterFlow lets only a comment follow a list.
func afterFlow(s string) error {
	if t := strings.TrimSpace(s); t != "" && (t[0] != '#' || s[0] != ' ') {
		return errScalar
	}
	return nil
}
