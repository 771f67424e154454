package owner

import (
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"holdfast/owner/snapshot"
)

// ChangesSchema names the manifest of what a turn changed.
const ChangesSchema = "holdfast.retained-changes.v1"

// Bounds of what is retained of one turn.
const (
	maxChanges      = 4096
	maxChangeNames  = 4 << 20  // bytes of all paths and link targets
	maxRetainedFile = 1 << 20  // bytes of one file
	maxRetained     = 8 << 20  // bytes of all files as the turn left them, and as many as they were before
	maxManifest     = 32 << 20 // bytes of JSON
)

// States of a change. With the first four it is in the patch, or needs nothing there.
const (
	StateRetained    = "retained"    // a file; its bytes are blobs
	StateRemoved     = "removed"     // a file or a link that is gone
	StateDirectory   = "directory"   // a folder that came or went; a patch shows what is in it
	StateSymlink     = "symlink"     // a link that stays in the tree
	StateOverLimit   = "over_limit"  // a file, or all of them, beyond the bounds
	StateUnavailable = "unavailable" // the bytes, after or before, could not be had as the snapshot saw them
	StateHardLink    = "hard_link"   // a file with a second name, which may be anywhere
	StateSpecial     = "special"     // a pipe, a socket or a device
	StateLinkOut     = "link_out"    // a link that leads out of the tree, or may
	StateUnsafeName  = "unsafe_name" // control characters, a line feed, or no UTF-8
	StateNestedGit   = "nested_git"  // in a folder named .git, which git takes from no patch
)

// Changes is the manifest: what is different in the candidate. It is a blob, so its name carries its digest.
type Changes struct {
	V         string   `json:"v"`
	TaskID    TaskID   `json:"task_id"`
	Turn      int      `json:"turn"`
	Source    Digest   `json:"source_snapshot"`
	Candidate Digest   `json:"candidate_snapshot"`
	Complete  bool     `json:"complete"`        // the patch is all of the change
	Omitted   int      `json:"omitted_changes"` // beyond the bounds, and not listed
	Changes   []Change `json:"changes"`         // in the order of the bytes of their paths
}

// Change is one path. A rename is a removal and an addition.
type Change struct {
	Path   string `json:"path"`
	Raw    []byte `json:"raw,omitempty"` // the exact bytes of an unsafe name, of which Path is what can be shown
	Kind   string `json:"change"`        // added, edited, removed
	State  string `json:"state"`
	Before *Side  `json:"before,omitempty"`
	After  *Side  `json:"after,omitempty"`
}

// Side is what one of the two trees has at a path.
type Side struct {
	Kind   string `json:"kind"` // directory, file, symlink, fifo, socket, device
	Exec   bool   `json:"executable,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
	Digest Digest `json:"digest,omitempty"` // of a file
	Kept   bool   `json:"kept,omitempty"`   // the bytes are a blob of that digest
	Target string `json:"target,omitempty"` // of a link
}

// differences lists the differences of two complete trees, classed, with nothing kept yet. It is pure.
func differences(a, b *snapshot.Tree) (changes []Change, omitted int) {
	names := 0
	add := func(x, y *snapshot.Entry) {
		c := classed(x, y)
		names += len(c.Path) + len(c.Raw)
		for _, s := range []*Side{c.Before, c.After} {
			if s != nil {
				names += len(s.Target)
			}
		}
		if len(changes) == maxChanges || names > maxChangeNames {
			omitted++
			return
		}
		changes = append(changes, c)
	}
	x, y := a.Entries, b.Entries
	for len(x) > 0 || len(y) > 0 {
		switch {
		case len(y) == 0 || len(x) > 0 && x[0].Path < y[0].Path:
			add(&x[0], nil)
			x = x[1:]
		case len(x) == 0 || y[0].Path < x[0].Path:
			add(nil, &y[0])
			y = y[1:]
		default:
			if snapshot.Differ(&x[0], &y[0]) {
				add(&x[0], &y[0])
			}
			x, y = x[1:], y[1:]
		}
	}
	return changes, omitted
}

// classed says what kind of change it is, and whether it is one that can be retained at all. At least one is not nil.
func classed(before, after *snapshot.Entry) Change {
	c := Change{Before: sideOf(before), After: sideOf(after)}
	e := after
	switch {
	case before == nil:
		c.Kind = "added"
	case after == nil:
		c.Kind, e = "removed", before
	default:
		c.Kind = "edited"
	}
	c.Path = e.Path
	switch {
	case !safeName(e.Path) || !targetIsText(before) || !targetIsText(after):
		c.State = StateUnsafeName
		c.Path, c.Raw = shown(e.Path), []byte(e.Path)
	case nestedGit(e.Path):
		c.State = StateNestedGit
	case after == nil && before.Kind == snapshot.Directory:
		c.State = StateDirectory
	case after == nil && before.Kind == snapshot.Special, after != nil && after.Kind == snapshot.Special:
		c.State = StateSpecial
	case after == nil:
		c.State = StateRemoved
	case after.Kind == snapshot.Directory:
		c.State = StateDirectory
	case after.Kind == snapshot.Link && snapshot.Outward(after.Path, after.Target):
		c.State = StateLinkOut
	case after.Kind == snapshot.Link:
		c.State = StateSymlink
	case after.Names != 1:
		c.State = StateHardLink
	case after.Size > maxRetainedFile:
		c.State = StateOverLimit
	default:
		c.State = StateRetained
	}
	return c
}

func sideOf(e *snapshot.Entry) *Side {
	if e == nil {
		return nil
	}
	switch e.Kind {
	case snapshot.Directory:
		return &Side{Kind: "directory"}
	case snapshot.Link:
		return &Side{Kind: "symlink", Target: shown(e.Target)}
	case snapshot.Special:
		return &Side{Kind: e.Target}
	}
	return &Side{Kind: "file", Exec: e.Exec, Bytes: e.Size, Digest: hexDigest(e.Sum[:])}
}

// safeName accepts UTF-8 without control characters: what a patch, a manifest and a terminal show as it is.
func safeName(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

func targetIsText(e *snapshot.Entry) bool {
	return e == nil || e.Kind != snapshot.Link || safeName(e.Target)
}

// shown is s with what is not text replaced.
func shown(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(s, string(utf8.RuneError)))
}

// nestedGit reports a component that some file system takes for .git. Inside such a folder stand hooks and
// configuration of a repository that the turn made; git takes no such path from a patch.
func nestedGit(p string) bool {
	for c := range strings.SplitSeq(p, "/") {
		if strings.EqualFold(c, ".git") || strings.EqualFold(c, "git~1") {
			return true
		}
	}
	return false
}

// whole reports whether a change needs nothing more to be in the patch.
func (c *Change) whole() bool {
	switch c.State {
	case StateRetained, StateRemoved, StateDirectory, StateSymlink:
		return true
	}
	return false
}

// valid holds a manifest against its run. What it says came from a blob of the digest that the result names, so this
// is for a manifest that some other version wrote.
func (m *Changes) valid(id TaskID, r *Run) bool {
	ok := m.V == ChangesSchema && m.TaskID == id && m.Turn == r.Turn && m.Omitted >= 0 && len(m.Changes) <= maxChanges &&
		m.Source == r.Admission.SourceSnapshot && m.Candidate == r.Result.Candidate
	for i := range m.Changes {
		c := &m.Changes[i]
		ok = ok && (c.Before != nil || c.After != nil) && (i == 0 || c.Raw != nil || m.Changes[i-1].Raw != nil || m.Changes[i-1].Path < c.Path)
		ok = ok && (c.State == StateUnsafeName || safeName(c.Path) && c.Path == path.Clean(c.Path) && !path.IsAbs(c.Path) && c.Path != ".." && !strings.HasPrefix(c.Path, "../"))
		for _, s := range []*Side{c.Before, c.After} {
			ok = ok && (s == nil || !s.Kept || s.Digest.valid() && s.Bytes >= 0 && s.Bytes <= maxRetainedFile)
		}
	}
	return ok
}
