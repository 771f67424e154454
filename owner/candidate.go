package owner

import "holdfast/owner/gitguard"

// candidate is what a task's turns made of their worktree, out of what was retained of each: the base with the
// changes of turn after turn.
type candidate struct {
	turn   int    // the newest that ran a program, 0 where none did
	digest Digest // the worktree as that turn left it, or as the first turn found it; "" where none was admitted
	at     int64  // ms, the end of that turn
	net    []net  // by path
}

// net is a path at which the candidate may differ from the base.
type net struct {
	path          string
	before, after *Side
}

// candidate joins the manifests of all turns. It is a refusal where they do not lead from the first turn's source to
// the newest turn's candidate without a gap: then what was retained is not all that is in the worktree. Turns that
// ended before a program ran changed nothing, and are passed over. It reads no workspace.
func (s *Store) candidate(t *Task) (candidate, error) {
	runs := t.Earlier
	if t.Run != nil {
		runs = append(runs[:len(runs):len(runs)], *t.Run)
	}
	var c candidate
	at := map[string]int{}
	for i := range runs {
		r := &runs[i]
		if r.Result == nil {
			return c, refuse("invalid_transition", "turn %d has not ended", r.Turn)
		}
		if r.Process == nil {
			if c.digest == "" {
				c.digest = r.Admission.SourceSnapshot
			}
			continue
		}
		if c.turn != 0 && r.Admission.SourceSnapshot != c.digest {
			return c, refuse("invalid_transition", "something else changed the worktree between turn %d and turn %d, and that was not retained", c.turn, r.Turn)
		}
		m, _, err := s.changes(t.ID, r.Turn)
		if err != nil {
			return c, err
		}
		if err := whole(&m); err != nil {
			return c, err
		}
		for _, ch := range m.Changes {
			k, known := at[ch.Path]
			if !known {
				k = len(c.net)
				at[ch.Path] = k
				c.net = append(c.net, net{ch.Path, ch.Before, nil})
			}
			c.net[k].after = ch.After
		}
		c.turn, c.digest, c.at = r.Turn, r.Result.Candidate, r.Result.At
	}
	return c, nil
}

// whole refuses a manifest that is not all of its turn's change, and says what is missing.
func whole(m *Changes) error {
	if m.Complete {
		return nil
	}
	for i := range m.Changes {
		if c := &m.Changes[i]; !c.whole() {
			return refuse("invalid_transition", "the changes of turn %d are not retained whole: %q is %s", m.Turn, c.Path, c.State)
		}
	}
	return refuse("invalid_transition", "the changes of turn %d are not retained whole: there were %d more than can be", m.Turn, m.Omitted)
}

// edits are the changes as git knows them, in a repository in which like is a full ID: no folders, and nothing that
// turns undid. writes are the sides that the object store may not have yet, in the order of the edits that need them.
func (s *Store) edits(c candidate, like string) (edits []gitguard.Edit, writes []*Side, err error) {
	for i := range c.net {
		n := &c.net[i]
		e := gitguard.Edit{Path: n.path}
		if e.Before, err = s.entry(n.before, like); err != nil {
			return nil, nil, err
		}
		if e.After, err = s.entry(n.after, like); err != nil {
			return nil, nil, err
		}
		if e.Before == e.After {
			continue
		}
		edits = append(edits, e)
		if e.After != (gitguard.Entry{}) {
			writes = append(writes, n.after)
		}
	}
	return edits, writes, nil
}

// entry is what git would have for a side.
func (s *Store) entry(side *Side, like string) (gitguard.Entry, error) {
	mode := gitMode(side)
	if mode == "" {
		return gitguard.Entry{}, nil
	}
	b, err := s.content(side)
	if err != nil {
		return gitguard.Entry{}, err
	}
	return gitguard.Entry{Mode: mode, ID: gitguard.ObjectID(like, b)}, nil
}

// gitMode is "" where git knows nothing of a side.
func gitMode(side *Side) string {
	switch {
	case side == nil:
		return ""
	case side.Kind == "symlink":
		return "120000"
	case side.Kind == "file" && side.Exec:
		return "100755"
	case side.Kind == "file":
		return "100644"
	}
	return ""
}

// content is the bytes that git keeps of a file or a link.
func (s *Store) content(side *Side) ([]byte, error) {
	if side.Kind == "symlink" {
		return []byte(side.Target), nil
	}
	return s.GetBlob(side.Digest, maxRetainedFile)
}
