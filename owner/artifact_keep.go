package owner

import (
	"context"
	"encoding/hex"
	"fmt"

	"holdfast/owner/gitguard"
	"holdfast/owner/snapshot"
)

// retain keeps what the turn changed: the bytes of each file as the candidate's snapshot saw it, and as the source's
// did, as blobs, and the manifest that names them, of which it returns the digest. Every blob is on disk before the
// manifest, and that before the result; a crash in between leaves blobs that nothing names.
//
// The candidate is read by its snapshot and nothing runs in it. What was there before a change is no longer in the
// workspace: an earlier turn's blob has it, or the commit that the turn worked from, out of the repository's objects.
func (e *execution) retain(ctx context.Context, a *admittedTurn, candidate *snapshot.Tree) (m Changes, name Digest, err error) {
	m = Changes{V: ChangesSchema, TaskID: e.id, Turn: e.turn, Source: treeDigest(a.source), Candidate: treeDigest(candidate)}
	m.Changes, m.Omitted = differences(a.source, candidate)
	if err := e.keepAfter(ctx, a.place.workspace, candidate, m.Changes); err != nil {
		return m, "", err
	}
	if err := e.keepBefore(ctx, a.place, m.Changes); err != nil {
		return m, "", err
	}
	m.Complete = m.Omitted == 0
	for i := range m.Changes {
		m.Complete = m.Complete && m.Changes[i].whole()
	}
	b := mustJSON(m)
	if len(b) > maxManifest {
		return m, "", fmt.Errorf("the manifest of the changes is longer than %d bytes", maxManifest)
	}
	name, err = e.putBlob(ctx, b)
	return m, name, err
}

// putBlob keeps b, waiting for room on a full disk.
func (e *execution) putBlob(ctx context.Context, b []byte) (d Digest, err error) {
	err = e.wait.do(ctx, func() error { d, err = e.store.PutBlob(b); return err })
	return d, err
}

// keepAfter keeps the files as the turn left them. One that is not as the snapshot saw it is unavailable.
func (e *execution) keepAfter(ctx context.Context, workspace string, candidate *snapshot.Tree, changes []Change) error {
	root, err := snapshot.Open(workspace)
	if err != nil {
		for i := range changes {
			if changes[i].State == StateRetained {
				changes[i].State = StateUnavailable
			}
		}
		return nil
	}
	defer root.Close()
	entries, room := candidate.Entries, int64(maxRetained)
	for i := range changes {
		c := &changes[i]
		if c.State != StateRetained {
			continue
		}
		for entries[0].Path != c.Path { // both in the same order
			entries = entries[1:]
		}
		if c.After.Bytes > room {
			c.State = StateOverLimit
			continue
		}
		b, err := root.Read(&entries[0], maxRetainedFile)
		if err != nil {
			c.State = StateUnavailable
			continue
		}
		if _, err := e.putBlob(ctx, b); err != nil {
			return err
		}
		room -= c.After.Bytes
		c.After.Kept = true
	}
	return nil
}

// keepBefore keeps the files as they were before the turn, of those changes that a patch is to show.
func (e *execution) keepBefore(ctx context.Context, at place, changes []Change) error {
	var missing []*Change
	var paths []string
	room := int64(maxRetained)
	for i := range changes {
		c := &changes[i]
		if !c.whole() || c.Before == nil || c.Before.Kind != "file" {
			continue
		}
		if c.Before.Bytes > maxRetainedFile || c.Before.Bytes > room {
			c.State = StateOverLimit
			continue
		}
		room -= c.Before.Bytes
		if err := e.store.holdBlob(c.Before.Digest, maxRetainedFile); err == nil {
			c.Before.Kept = true
			continue
		}
		missing, paths = append(missing, c), append(paths, c.Path)
	}
	if len(missing) == 0 {
		return nil
	}
	var found map[string][]byte
	if at.commonDir != "" && at.commit != "" {
		// What cannot be read is unavailable below; the turn's result does not depend on git.
		found, _ = gitguard.Repo{CommonDir: at.commonDir}.Contents(ctx, at.commit, paths, maxRetainedFile, maxRetained)
	}
	for _, c := range missing {
		b, ok := found[c.Path]
		if !ok || DigestOf(b) != c.Before.Digest { // a checkout that changed line ends, or uncommitted text
			c.State = StateUnavailable
			continue
		}
		if _, err := e.putBlob(ctx, b); err != nil {
			return err
		}
		c.Before.Kept = true
	}
	return nil
}

func hexDigest(sum []byte) Digest { return Digest("sha256:" + hex.EncodeToString(sum)) }
