package owner

import (
	"bytes"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// FrozenContext is what was frozen for a turn to read, 0 the newest turn that was admitted, held against that
// admission, against the grant it was made of, and each text against its digest. It needs no workspace. *Error
// not_found where there is no such turn, or its grant had no requirements; ErrCorrupt where anything of it is missing
// or is not what it was.
func (s *Store) FrozenContext(id TaskID, turn int) (FrozenContext, Digest, error) {
	t, err := s.Get(id)
	if err != nil {
		return FrozenContext{}, "", err
	}
	r := t.admitted(turn)
	switch {
	case r == nil:
		return FrozenContext{}, "", refuse("not_found", "there is no such turn that was admitted")
	case r.Admission.Context == "":
		return FrozenContext{}, "", refuse("not_found", "nothing was frozen for turn %d: its execution grant has no requirements, or an earlier version made it", r.Turn)
	}
	c, err := s.contextWhole(id, r)
	return c, r.Admission.Context, err
}

// ContextText is the exact bytes of one file of a turn's frozen context, by its path as the manifest spells it.
// Errors as of FrozenContext, and *Error not_found for another path.
func (s *Store) ContextText(id TaskID, turn int, p string) ([]byte, error) {
	c, _, err := s.FrozenContext(id, turn)
	if err != nil {
		return nil, err
	}
	for _, part := range c.parts() {
		if part.path == p {
			return s.GetBlob(part.digest, part.bytes)
		}
	}
	return nil, refuse("not_found", "no such file was frozen for turn %d", c.Turn)
}

// admitted is the run of a turn; of 0 the newest.
func (t *Task) admitted(turn int) *Run {
	runs := append(t.Earlier[:len(t.Earlier):len(t.Earlier)], lastRun(t)...)
	for i := len(runs) - 1; i >= 0; i-- {
		if turn == 0 || runs[i].Turn == turn {
			return &runs[i]
		}
	}
	return nil
}

// part is one text of a context.
type part struct {
	path   string
	bytes  int64
	digest Digest
}

func (c *FrozenContext) parts() (all []part) {
	for _, in := range c.Instructions {
		all = append(all, part{in.Path, in.Bytes, in.Digest})
	}
	for _, k := range c.Knowledge {
		all = append(all, part{k.Path, k.Bytes, k.Digest})
	}
	return all
}

// context reads the manifest that an admission names, and holds it against that admission.
func (s *Store) context(id TaskID, r *Run) (c FrozenContext, err error) {
	b, err := s.GetBlob(r.Admission.Context, maxContext)
	if err != nil {
		return c, lostBlob(err, "the frozen context of turn %d is missing", r.Turn)
	}
	if err := closed(b, &c); err != nil {
		return c, undecodable("the frozen context", err)
	}
	if !c.valid(id, r) {
		return c, corrupt("the frozen context of turn %d is of another one", r.Turn)
	}
	return c, nil
}

// lostBlob makes damage of the absence of a blob that something names.
func lostBlob(err error, format string, args ...any) error {
	if isRefusal(err, "not_found") || isRefusal(err, "limit_exceeded") {
		return corrupt(format, args...)
	}
	return err
}

// valid holds a manifest against its run, and within its bounds. What it says came from a blob of the digest that the
// admission names, so this is for one that some other version wrote.
func (c *FrozenContext) valid(id TaskID, r *Run) bool {
	a := &r.Admission
	if c.V != ContextSchema || c.TaskID != id || c.Turn != r.Turn || c.Revision != a.ReadRevision || c.Prompt != a.Prompt ||
		c.Source != a.SourceSnapshot || a.Checks == nil || !bytes.Equal(mustJSON(c.Checks), mustJSON(a.Checks)) ||
		len(c.Instructions) > maxInstructions || len(c.Knowledge) > maxKnowledge {
		return false
	}
	total := int64(0)
	for i, in := range c.Instructions {
		if !inTree(in.Path) || path.Base(in.Path) != instructionName || in.Scope != scopeOf(in.Path) || !in.Digest.valid() ||
			in.Bytes < 0 || in.Bytes > maxInstruction || i > 0 && outermost(c.Instructions[i-1].Path, in.Path) >= 0 {
			return false
		}
		total += in.Bytes
	}
	if total > maxInstructionTotal {
		return false
	}
	total = 0
	for _, k := range c.Knowledge {
		if k.Bytes < 1 || k.Bytes > maxKnowledgeFile || k.sound(nil) != "" {
			return false
		}
		total += k.Bytes
	}
	return total <= maxKnowledgeTotal
}

// of holds a manifest against the requirements that it was made of: the same lineage, the same knowledge, and no
// instructions but of folders on the way to a target.
func (c *FrozenContext) of(r *Requirements) bool {
	if r == nil || c.Checks.Requirements != DigestOf(mustJSON(r)) || !bytes.Equal(mustJSON(c.Lineage), mustJSON(lineageOf(r))) {
		return false
	}
	if !slices.EqualFunc(c.Knowledge, r.Knowledge, func(k FrozenKnowledge, pin Knowledge) bool {
		return bytes.Equal(mustJSON(k.Knowledge), mustJSON(pin))
	}) {
		return false
	}
	for _, in := range c.Instructions {
		if in.Scope != "" && !slices.ContainsFunc(r.InstructionTargets, func(t string) bool {
			return t == in.Scope || strings.HasPrefix(t, in.Scope+"/")
		}) {
			return false
		}
	}
	return true
}

// contextWhole is the context of a run, everything that it names read and judged again.
func (s *Store) contextWhole(id TaskID, r *Run) (c FrozenContext, err error) {
	if c, err = s.context(id, r); err != nil {
		return c, err
	}
	b, err := s.GetBlob(r.Admission.GrantDigest, MaxCommand)
	if err != nil {
		return c, lostBlob(err, "the execution grant of turn %d is missing", r.Turn)
	}
	if g, err := ParseGrant(b); err != nil || !c.of(g.Requirements) {
		return c, corrupt("the frozen context of turn %d is not what its execution grant asks for", r.Turn)
	}
	for _, p := range c.parts() {
		b, err := s.GetBlob(p.digest, p.bytes)
		if err != nil {
			return c, lostBlob(err, "a text of the frozen context of turn %d is missing or too long", r.Turn)
		}
		if int64(len(b)) != p.bytes || !utf8.Valid(b) {
			return c, corrupt("a text of the frozen context of turn %d is not what was frozen", r.Turn)
		}
	}
	for _, k := range c.Knowledge {
		b, err := s.GetBlob(k.Digest, k.Bytes)
		if err != nil {
			return c, err
		}
		if why := k.tells(b); why != "" {
			return c, corrupt("knowledge of the frozen context of turn %d %s", r.Turn, why)
		}
	}
	return c, nil
}
