package owner

import (
	"slices"
	"strings"
	"testing"
)

// someEntry is a knowledge entry that uses each form of the front matter.
const someEntry = `---
id: git.recovery
version: 3            # the third
kind: method
title: "Recover commits: by the reflog"
summary: >-
  Lost commits stay
    # reachable

  for a while.
tags: [git, "reflog, of HEAD", 'lost']   # three
applies_when: |
  A branch lost commits.
status: candidate
author: somebody (by hand)

provenance:
  # where it comes from
  written_from:
    - reference
    - 'another-source'
  cites: ["Pro Git, 2014"]
evidence: []
---

## Details

Body.
`

func TestParseEntry(t *testing.T) {
	was := func(old, new string) string {
		if !strings.Contains(someEntry, old) {
			t.Fatalf("%q is not in the entry", old)
		}
		return strings.Replace(someEntry, old, new, 1)
	}
	from := func(block string) string {
		at, end := strings.Index(someEntry, "provenance:"), strings.Index(someEntry, "evidence:")
		return someEntry[:at] + block + someEntry[end:]
	}
	both := []string{"reference", "another-source"}
	for _, row := range []struct {
		name, doc, why string // why: a part of what is said, "" where it is taken
		sources        []string
	}{
		{"as it is", someEntry, "", both},
		{"line ends of another system", strings.ReplaceAll(someEntry, "\n", "\r\n"), "", both},
		{"no evidence and tags", was("evidence: []\n", ""), "", both},
		{"evidence by dashes", was("evidence: []", "evidence:\n  - one  # noted\n  - \"two # kept\""), "", both},
		{"no provenance", from(""), "", nil},
		{"a flow list of sources", from("provenance:\n    written_from: [ a , \"b, c\" ]\n"), "", []string{"a", "b, c"}},
		{"an empty list of sources", from("provenance:\n  written_from:\n  cites: []\n"), "", nil},
		{"admitted", was("status: candidate", "status: admitted"), "", both},
		{"withdrawn", was("status: candidate", "status: 'withdrawn'"), "", both},

		{"no UTF-8", was("Body", "B\xffdy"), "UTF-8", nil},
		{"nothing", "", "front matter", nil},
		{"no front matter", "# Title\n", "front matter", nil},
		{"front matter without an end", "---\nid: a\n", "front matter", nil},
		{"no body", someEntry[:strings.Index(someEntry, "## Details")], "nothing follows", nil},
		{"an unknown member", was("author:", "rating: 5\nauthor:"), "unknown member", nil},
		{"a member twice", was("author:", "status: withdrawn\nauthor:"), "twice", nil},
		{"a member twice, with a space before the colon", was("author:", "status : withdrawn\nauthor:"), "unknown", nil},
		{"no colon", was("author: somebody", "author somebody"), "colon", nil},
		{"no space behind the colon", was("version: 3", "version:3"), "colon", nil},
		{"a member that is indented", was("kind: method", " kind: method"), "indentation", nil},
		{"a tab", was("  A branch", "\tA branch"), "indentation", nil},
		{"a text that goes on", was("kind: method", "kind: method\n  and more"), "indentation", nil},
		{"no title", was(`title: "Recover commits: by the reflog"`, `title: ""`), "title", nil},
		{"a summary of nothing", was("  Lost commits stay\n    # reachable\n\n  for a while.\n", ""), "summary", nil},
		{"no author", was("author: somebody (by hand)", "author: # nobody"), "author", nil},
		{"no ID", was("id: git.recovery\n", ""), "id", nil},
		{"an ID with a capital", was("git.recovery", "Git.recovery"), "id", nil},
		{"no version", was("version: 3", "version: 0"), "version", nil},
		{"a version with a sign", was("version: 3", "version: +3"), "version", nil},
		{"a version with a zero", was("version: 3", "version: 03"), "version", nil},
		{"a version that is too high", was("version: 3", "version: 4294967296"), "version", nil},
		{"another kind", was("kind: method", "kind: opinion"), "kind", nil},
		{"another status", was("status: candidate", "status: Withdrawn"), "status", nil},
		{"an anchor", was("status: candidate", "status: &s candidate"), "plain", nil},
		{"an alias", was("status: candidate", "status: *s"), "plain", nil},
		{"a tag", was("status: candidate", "status: !!str candidate"), "plain", nil},
		{"a block with an indicator", was("applies_when: |", "applies_when: |2"), "indentation", nil},
		{"an escape", was(`"Recover commits: by the reflog"`, `"Recover \"commits\""`), "plain", nil},
		{"text behind a quote", was("status: candidate", "status: 'candidate' withdrawn"), "plain", nil},
		{"a quote without an end", was("status: candidate", "status: 'candidate"), "plain", nil},
		{"a list without an end", was("'lost']", "'lost'"), "plain", nil},
		{"text behind a list", was("'lost']", "'lost'] x"), "plain", nil},
		{"a comment too near to a list", was("'lost']   #", "'lost']#"), "plain", nil},
		{"an empty item", was("[git, ", "[git, , "), "empty", nil},
		{"a comma at the end", was("'lost']", "'lost', ]"), "empty", nil},
		{"a quote in an item", was("[git, ", "[g\"it, "), "plain", nil},
		{"a list in a list", was("[git, ", "[[git], "), "plain", nil},
		{"a list that goes on", was("evidence: []", "evidence: []\n  - more"), "indentation", nil},
		{"text for a list", was("evidence: []", "evidence: none"), "a list", nil},
		{"provenance as a text", from("provenance: reference\n"), "provenance", nil},
		{"provenance of nothing", from("provenance:\n"), "provenance", nil},
		{"an unknown provenance", from("provenance:\n  written_from: [a]\n  by: [b]\n"), "provenance", nil},
		{"provenance twice", from("provenance:\n  written_from: [a]\n  written_from: [b]\n"), "twice", nil},
		{"a source that is indented otherwise", from("provenance:\n  written_from:\n    - a\n     - b\n"), "indentation", nil},
		{"a source without a dash", from("provenance:\n  written_from:\n    - a\n    b\n"), "indentation", nil},
		{"a map for a source", from("provenance:\n  written_from:\n    - {a: b}\n"), "plain", nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			e, err := parseEntry([]byte(row.doc))
			if (row.why == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), row.why) {
				t.Fatalf("%v", err)
			}
			if err == nil && (e.id != "git.recovery" || e.version != 3 || !slices.Equal(e.sources, row.sources)) {
				t.Fatalf("%+v", e)
			}
		})
	}
}

func TestKnowledgeTells(t *testing.T) {
	for _, row := range []struct {
		name, why string
		change    func(k *Knowledge, doc *string)
	}{
		{"as it is", "", func(*Knowledge, *string) {}},
		{"sources in another order", "", func(k *Knowledge, _ *string) { slices.Reverse(k.Sources) }},
		{"no entry", "is no knowledge entry", func(_ *Knowledge, doc *string) { *doc = "# Title\n" }},
		{"another ID", "another ID", func(k *Knowledge, _ *string) { k.ID = "git" }},
		{"another version", "another ID or version", func(k *Knowledge, _ *string) { k.Version = 4 }},
		{"withdrawn", "withdrawn", func(_ *Knowledge, doc *string) { *doc = strings.Replace(*doc, "candidate", "withdrawn", 1) }},
		{"a source fewer", "other sources", func(k *Knowledge, _ *string) { k.Sources = k.Sources[:1] }},
		{"a source more", "other sources", func(k *Knowledge, _ *string) { k.Sources = append(k.Sources, "third") }},
		{"another source", "other sources", func(k *Knowledge, _ *string) { k.Sources[0] = "references" }},
		{"a source twice in the entry", "other sources", func(_ *Knowledge, doc *string) {
			*doc = strings.Replace(*doc, "'another-source'", "reference", 1)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			k, doc := Knowledge{ID: "git.recovery", Version: 3, Sources: []string{"reference", "another-source"}}, someEntry
			row.change(&k, &doc)
			why := k.tells([]byte(doc))
			if (why == "") != (row.why == "") || !strings.Contains(why, row.why) || strings.ContainsAny(why, "\n/") {
				t.Fatalf("%q", why)
			}
		})
	}
}

func FuzzParseEntry(f *testing.F) {
	f.Add([]byte(someEntry))
	f.Add([]byte("---\nid: a\n---\nb"))
	f.Add([]byte("---\ntags: [a, \"b\", 'c'] # d\nprovenance:\n written_from: [\n---\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEntry(b)
		if err != nil {
			if e.id != "" || e.sources != nil || strings.ContainsAny(err.Error(), "\n/") {
				t.Fatalf("%+v with %q", e, err)
			}
			return
		}
		if !entryID(e.id) || e.version < 1 || !slices.Contains(entryStatuses, e.status) || slices.Contains(e.sources, "") {
			t.Fatalf("%+v", e)
		}
		// What stands behind the front matter says nothing about the entry.
		again, err := parseEntry(append(b, "\nmore\n"...))
		if err != nil || again.id != e.id || again.version != e.version || again.status != e.status || !slices.Equal(again.sources, e.sources) {
			t.Fatalf("%+v, then %+v, %v", e, again, err)
		}
	})
}
