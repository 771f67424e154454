package owner

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"holdfast/owner/snapshot"
)

// ContextSchema names the manifest of what was frozen for a turn to read.
const ContextSchema = "holdfast.frozen-context.v1"

// instructionName is the file that tells whoever works in its folder, and below it, how.
const instructionName = "AGENTS.md"

// Bounds of a frozen context, beside those of knowledge. Instructions are AGENTS.md files.
const (
	maxTargets          = 64
	maxInstructions     = 256
	maxInstruction      = 64 << 10  // bytes of one
	maxInstructionTotal = 256 << 10 // bytes of all
	maxContext          = 8 << 20   // bytes of the manifest
)

// FrozenContext is the manifest of what a turn with requirements was given to read: its prompt, the instructions of
// its targets, knowledge, and by what its work is to be judged. It is a blob whose digest the admission names, and each
// text in it is a blob, too. It is context and never authority, and says of no program that it read any of it.
type FrozenContext struct {
	V            string            `json:"v"`
	TaskID       TaskID            `json:"task_id"`
	Turn         int               `json:"turn"`
	Revision     int64             `json:"task_revision"` // that was read
	Prompt       Digest            `json:"prompt_digest"`
	Source       Digest            `json:"source_snapshot"` // the workspace in which these files stood
	Checks       CheckPlan         `json:"checks"`
	Lineage      ContextLineage    `json:"lineage"`
	Instructions []Instruction     `json:"instructions"` // the outermost folder first, then by path
	Knowledge    []FrozenKnowledge `json:"knowledge"`    // in the order of the grant
}

// ContextLineage is what the task and its checks come from, as the grant declares it.
type ContextLineage struct {
	TaskSources      []string  `json:"task_sources"`
	SourceExclusions []string  `json:"source_exclusions"`
	Checks           []Lineage `json:"checks"`
}

// Instruction is one AGENTS.md and the folder that it speaks for, "" the workspace.
type Instruction struct {
	Path   string `json:"path"`
	Scope  string `json:"scope"`
	Bytes  int64  `json:"bytes"`
	Digest Digest `json:"digest"`
}

// FrozenKnowledge is a piece of knowledge as the grant pins it, and how long it is.
type FrozenKnowledge struct {
	Knowledge
	Bytes int64 `json:"bytes"`
}

// frozen is a context with its texts, before anything of it is kept.
type frozen struct {
	doc   FrozenContext
	texts [][]byte
}

// inTree says whether p can name something below a workspace that a snapshot shows: relative, as short as it can be
// written, printable, and in no folder that is git's own.
func inTree(p string) bool {
	return p != "" && len(p) <= maxPath && safeName(p) && !path.IsAbs(p) && path.Clean(p) == p && p != "." && p != ".." &&
		!strings.HasPrefix(p, "../") && !nestedGit(p)
}

// freezeContext reads what the requirements let a turn read, out of the workspace and as its pinned snapshot saw it:
// over no link, from files with one name, of those very bytes. So what is frozen is part of the source that must still
// be there at dispatch. Nil where the grant has no requirements. The error is a *cannot, with the path as its detail.
func freezeContext(r *Requirements, workspace string, source *snapshot.Tree) (*frozen, error) {
	if r == nil {
		return nil, nil
	}
	root, err := snapshot.Open(workspace)
	if err != nil {
		return nil, &cannot{"unsafe_path", "the workspace cannot be opened", err}
	}
	defer root.Close()
	at, err := instructionsOf(r.InstructionTargets, source)
	if err != nil {
		return nil, err
	}
	f := &frozen{doc: FrozenContext{V: ContextSchema, Lineage: lineageOf(r), Instructions: []Instruction{}, Knowledge: []FrozenKnowledge{}}}
	room := int64(maxInstructionTotal)
	for _, e := range at {
		b, err := f.read(root, e, "an "+instructionName, maxInstruction, &room)
		if err != nil {
			return nil, err
		}
		f.doc.Instructions = append(f.doc.Instructions, Instruction{e.Path, scopeOf(e.Path), e.Size, DigestOf(b)})
	}
	room = maxKnowledgeTotal
	for _, k := range r.Knowledge {
		what := "the knowledge " + k.ID
		e := find(source, k.Path)
		if e == nil {
			return nil, &cannot{"unsafe_path", what + " is not in the workspace, or only over a link", errors.New(k.Path)}
		}
		b, err := f.read(root, e, what, maxKnowledgeFile, &room)
		if err != nil {
			return nil, err
		}
		why := k.tells(b)
		if DigestOf(b) != k.Digest {
			why = "is not the one that was pinned"
		}
		if why != "" {
			return nil, &cannot{"invalid_command", what + " " + why, errors.New(k.Path)}
		}
		f.doc.Knowledge = append(f.doc.Knowledge, FrozenKnowledge{k, e.Size})
	}
	return f, nil
}

// read takes one text, within the room that is left for its kind.
func (f *frozen) read(root *snapshot.Root, e *snapshot.Entry, what string, most int64, room *int64) ([]byte, error) {
	no := func(code, why string) error { return &cannot{code, what + " " + why, errors.New(e.Path)} }
	switch {
	case e.Kind != snapshot.File:
		return nil, no("unsafe_path", "is a link, or no file")
	case e.Names != 1:
		return nil, no("unsafe_path", "has a second name, and could be changed by it")
	case e.Size > most || e.Size > *room:
		return nil, no("limit_exceeded", "is too long, or all of its kind together are")
	}
	*room -= e.Size
	b, err := root.Read(e, most)
	if err != nil {
		return nil, no("unsafe_path", "changed while it was read")
	}
	if !utf8.Valid(b) {
		return nil, no("invalid_command", "is not UTF-8")
	}
	f.texts = append(f.texts, b)
	return b, nil
}

// instructionsOf is every AGENTS.md that applies to one of the targets: that of the workspace, of each folder on the
// way to the target, and of the target itself where that is a folder. A target need not be there yet; what is on the
// way to it must be folders, for behind a link other instructions could stand.
func instructionsOf(targets []string, source *snapshot.Tree) ([]*snapshot.Entry, error) {
	folders := map[string]bool{"": true}
	for _, target := range targets {
		for at := range upTo(target) {
			e := find(source, at)
			if e == nil {
				break
			}
			if e.Kind == snapshot.Directory {
				folders[at] = true
			} else if e.Kind != snapshot.File || at != target {
				return nil, &cannot{"unsafe_path", "an instruction target leads over a link, or over something that is no folder", errors.New(at)}
			}
		}
	}
	var all []*snapshot.Entry
	for folder := range folders {
		if e := find(source, path.Join(folder, instructionName)); e != nil {
			all = append(all, e)
		}
	}
	if len(all) > maxInstructions {
		return nil, &cannot{"limit_exceeded", "more than 256 " + instructionName + " apply to the instruction targets", nil}
	}
	slices.SortFunc(all, func(a, b *snapshot.Entry) int { return outermost(a.Path, b.Path) })
	return all, nil
}

// upTo yields every folder on the way to p, the outermost first, and p.
func upTo(p string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := range len(p) {
			if p[i] == '/' && !yield(p[:i]) {
				return
			}
		}
		yield(p)
	}
}

// outermost is the order of instructions: by depth, then by path.
func outermost(a, b string) int {
	return cmp.Or(cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")), cmp.Compare(a, b))
}

// scopeOf is the folder that an AGENTS.md speaks for.
func scopeOf(p string) string {
	return strings.TrimSuffix(strings.TrimSuffix(p, instructionName), "/")
}

// find is a snapshot's entry at a path, nil where there is none.
func find(t *snapshot.Tree, p string) *snapshot.Entry {
	i, there := slices.BinarySearchFunc(t.Entries, p, func(e snapshot.Entry, p string) int { return cmp.Compare(e.Path, p) })
	if !there {
		return nil
	}
	return &t.Entries[i]
}

func lineageOf(r *Requirements) ContextLineage {
	return ContextLineage{r.TaskSources, r.SourceExclusions, r.CheckLineage}
}

// bind makes the context that of an admission.
func (f *frozen) bind(id TaskID, turn int, a *Admission) {
	f.doc.TaskID, f.doc.Turn, f.doc.Revision = id, turn, a.ReadRevision
	f.doc.Prompt, f.doc.Source, f.doc.Checks = a.Prompt, a.SourceSnapshot, *a.Checks
}

// keepContext keeps the texts and then the manifest that names them, as blobs, and returns the manifest's digest for
// the admission. A crash before the admission leaves blobs that nothing names, which the next owner finds again or a
// sweep takes; one after it finds everything that the admission leads to on disk.
func (e *execution) keepContext(ctx context.Context, f *frozen) (name Digest, err error) {
	b := mustJSON(f.doc)
	if len(b) > maxContext {
		return "", &cannot{"limit_exceeded", "the paths of the instructions are too long together", nil}
	}
	for _, blob := range append(f.texts, b) {
		if err := e.wait.do(ctx, func() (err error) { name, err = e.store.PutBlob(blob); return err }); err != nil {
			return "", err
		}
	}
	return name, nil
}
