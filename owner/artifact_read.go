package owner

import (
	"context"
	"strings"

	"holdfast/owner/gitguard"
)

// Changes is the manifest of what a turn changed, 0 the newest turn that has a result, verified against that result.
// It needs no workspace. *Error not_found where the turn has no candidate, or kept nothing.
func (s *Store) Changes(id TaskID, turn int) (Changes, error) {
	m, _, err := s.changes(id, turn)
	return m, err
}

func (s *Store) changes(id TaskID, turn int) (Changes, *Run, error) {
	t, err := s.Get(id)
	if err != nil {
		return Changes{}, nil, err
	}
	r := t.ended(turn)
	switch {
	case r == nil:
		return Changes{}, nil, refuse("not_found", "there is no such turn that has ended")
	case r.Result.Candidate == "":
		return Changes{}, nil, refuse("not_found", "turn %d has no candidate: nothing ran, or what it left could not be seen whole", r.Turn)
	case r.Result.Candidate == r.Admission.SourceSnapshot:
		return Changes{V: ChangesSchema, TaskID: id, Turn: r.Turn, Source: r.Admission.SourceSnapshot, Candidate: r.Result.Candidate,
			Complete: true, Changes: []Change{}}, r, nil
	case r.Result.Artifacts == "":
		return Changes{}, nil, refuse("not_found", "the changes of turn %d were not retained", r.Turn)
	}
	m, err := s.manifest(id, r)
	return m, r, err
}

// ended is the run of a turn that has a result; of 0 the newest.
func (t *Task) ended(turn int) *Run {
	runs := t.Earlier
	if t.Run != nil {
		runs = append(runs[:len(runs):len(runs)], *t.Run)
	}
	for i := len(runs) - 1; i >= 0; i-- {
		if r := &runs[i]; r.Result != nil && (turn == 0 || turn == r.Turn) {
			return r
		}
	}
	return nil
}

// manifest reads the blob that a result names.
func (s *Store) manifest(id TaskID, r *Run) (m Changes, err error) {
	b, err := s.GetBlob(r.Result.Artifacts, maxManifest)
	if err != nil {
		return m, err
	}
	if err := closed(b, &m); err != nil {
		return m, undecodable("the manifest of the changes", err)
	}
	if !m.valid(id, r) {
		return m, corrupt("the manifest of turn %d is of another one", r.Turn)
	}
	return m, nil
}

// Artifact is one changed path of a turn, exactly as the manifest spells it, with the bytes of the file as the turn
// left it. *Error not_found where it was not changed, or is no file whose bytes were kept; the change says why.
func (s *Store) Artifact(id TaskID, turn int, path string) (Change, []byte, error) {
	m, err := s.Changes(id, turn)
	if err != nil {
		return Change{}, nil, err
	}
	for _, c := range m.Changes {
		if c.Path != path || c.Raw != nil {
			continue
		}
		if c.After == nil || !c.After.Kept {
			return c, nil, refuse("not_found", "no bytes of that path were kept: %s, %s", c.Kind, c.State)
		}
		b, err := s.GetBlob(c.After.Digest, maxRetainedFile)
		return c, b, err
	}
	return Change{}, nil, refuse("not_found", "turn %d did not change that path", m.Turn)
}

// Patch is what `git apply` takes to come from the source of a turn to its candidate, binary files included. What is
// not in it, m says: every change whose state is not retained, removed, symlink or directory. Empty where the turn
// changed nothing that git knows, as a folder without files.
func (s *Store) Patch(ctx context.Context, id TaskID, turn int) (patch []byte, m Changes, err error) {
	m, r, err := s.changes(id, turn)
	if err != nil {
		return nil, m, err
	}
	var before, after []gitguard.File
	for i := range m.Changes {
		c := &m.Changes[i]
		if !c.whole() {
			continue
		}
		if before, err = s.patchSide(before, c.Path, c.Before); err != nil {
			return nil, m, err
		}
		if after, err = s.patchSide(after, c.Path, c.After); err != nil {
			return nil, m, err
		}
	}
	if len(before)+len(after) == 0 {
		return nil, m, nil
	}
	patch, err = gitguard.Patch(ctx, r.Admission.SourceRevision, before, after)
	return patch, m, err
}

// patchSide adds what git would have at a path; it knows no folders.
func (s *Store) patchSide(to []gitguard.File, path string, side *Side) ([]gitguard.File, error) {
	switch {
	case side == nil:
	case side.Kind == "symlink":
		to = append(to, gitguard.File{Path: path, Mode: "120000", Data: []byte(side.Target)})
	case side.Kind == "file":
		b, err := s.GetBlob(side.Digest, maxRetainedFile)
		if err != nil {
			return nil, err
		}
		mode := "100644"
		if side.Exec {
			mode = "100755"
		}
		to = append(to, gitguard.File{Path: path, Mode: mode, Data: b})
	}
	return to, nil
}

// keptWhole verifies that a run's manifest and every blob that it names are there.
func (s *Store) keptWhole(id TaskID, r *Run) error {
	m, err := s.manifest(id, r)
	if err != nil {
		return err
	}
	for _, c := range m.Changes {
		for _, side := range []*Side{c.Before, c.After} {
			if side == nil || !side.Kept {
				continue
			}
			if _, err := s.GetBlob(side.Digest, maxRetainedFile); err != nil {
				return corrupt("a file of the changes of turn %d: %s", r.Turn, strings.TrimSpace(err.Error()))
			}
		}
	}
	return nil
}
