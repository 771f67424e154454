package owner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"holdfast/internal/atomicfile"
	"holdfast/owner/snapshot"
)

const (
	// snapshotTime is how long one look at a workspace may take.
	snapshotTime = 5 * time.Minute
	// snapshotCache is the file in a task's folder with the digests of unchanged files. A hint: any loss costs time.
	snapshotCache = "snapshot.cache"
)

// excluded is what no snapshot of a workspace sees: the pointer of the root, which differs between two worktrees of
// the same commit, or the user's own Git directory, which is not what a turn works on. A .git further down is seen.
var excluded = []string{".git"}

// hold opens the workspace for as long as the execution goes on: no other folder can pass for it then, whatever its path
// leads to meanwhile.
func (e *execution) hold(workspace string) error {
	fd, err := snapshot.OpenRoot(workspace)
	if err != nil {
		return &cannot{"unsafe_path", "the workspace cannot be opened", err}
	}
	e.folder = os.NewFile(uintptr(fd), workspace)
	return nil
}

// takeSnapshot looks at the workspace that is held. The error says that it is not there any more.
func (e *execution) takeSnapshot(ctx context.Context, workspace string, c *snapshot.Cache) (*snapshot.Tree, error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotTime)
	defer cancel()
	return snapshot.Take(ctx, workspace, snapshot.Options{Exclude: excluded, Cache: c, At: e.now(), Is: e.folder})
}

// treeDigest is a snapshot's name in a log; "" of one that is not complete.
func treeDigest(t *snapshot.Tree) Digest {
	if !t.Complete() {
		return ""
	}
	return Digest("sha256:" + t.Digest())
}

// pinSource takes the snapshot that the turn starts from. What was not seen whole is never admitted.
func (e *execution) pinSource(ctx context.Context, workspace string) (*snapshot.Tree, error) {
	if err := e.hold(workspace); err != nil {
		return nil, err
	}
	t, err := e.takeSnapshot(ctx, workspace, e.store.snapshotCache(e.id))
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // the owner is to stop; that says nothing about the workspace
	}
	if err != nil {
		return nil, &cannot{"unsafe_path", "the workspace cannot be opened", err}
	}
	if !t.Complete() {
		return nil, &cannot{"not_enforceable", "the workspace cannot be seen whole: " + t.Faults[0].Why, faultsOf(t)}
	}
	if want := e.grant.ExpectedSnapshot; want != "" && want != treeDigest(t) {
		return nil, &cannot{"invalid_command", "the workspace is not as the execution grant expects it; look at it again", nil}
	}
	return t, nil
}

// holdSource looks once more, just before the dispatch: drifted where the pin no longer holds, else undecided. It is
// outside the task's lock, because a large tree takes a while; what another program of the user changes in the last
// moment shows in the candidate.
func (e *execution) holdSource(ctx context.Context, a *admittedTurn) (verdict, error) {
	t, err := e.takeSnapshot(ctx, a.place.workspace, a.source.Cache())
	switch {
	case ctx.Err() != nil:
		return undecided, nil // the dispatch sees it, and cancels
	case err != nil || !t.Complete():
		return drifted, errors.New("the workspace could no longer be seen whole at dispatch")
	case t.Digest() != a.source.Digest():
		return drifted, errors.New("the workspace changed between admission and dispatch")
	}
	return undecided, nil
}

// lookAfter puts the candidate into the result: the workspace as the turn left it, seen once nothing of the turn can
// change it any more. It returns a word for the transcript. A workspace that cannot be seen whole leaves a result
// without a candidate, and never a failed turn.
func (e *execution) lookAfter(ctx context.Context, a *admittedTurn, r *Result) string {
	if !r.GroupClear {
		return "not looked at: something of the turn may still run"
	}
	t, err := e.takeSnapshot(ctx, a.place.workspace, a.source.Cache())
	if err != nil {
		return "not seen: the workspace cannot be opened"
	}
	e.store.keepSnapshotCache(e.id, t)
	if !t.Complete() {
		return "not seen whole: " + t.Faults[0].Why
	}
	r.Candidate = treeDigest(t)
	if t.Digest() == a.source.Digest() {
		return "unchanged"
	}
	m, name, err := e.retain(ctx, a, t)
	switch {
	case err != nil:
		return "changed; the changes could not be retained"
	case !m.Complete:
		r.Artifacts = name
		return fmt.Sprintf("changed; %d changes listed, not all of them retained", len(m.Changes))
	}
	r.Artifacts = name
	return fmt.Sprintf("changed; %d changes retained", len(m.Changes))
}

// faultsOf is what was not seen, with paths, for the operator's eyes.
func faultsOf(t *snapshot.Tree) error {
	var b strings.Builder
	for _, f := range t.Faults {
		fmt.Fprintf(&b, "%q: %s\n", f.Path, f.Why)
	}
	return errors.New(strings.TrimSpace(b.String()))
}

// snapshotCache reads what the task's last turn left; nothing where it is damaged, unsafe or absent.
func (s *Store) snapshotCache(id TaskID) *snapshot.Cache {
	d, err := s.taskDir(id)
	if err != nil {
		return nil
	}
	defer d.Close()
	b, err := d.Read(snapshotCache, snapshot.MaxCache)
	if err != nil {
		return nil
	}
	return snapshot.ParseCache(b)
}

// keepSnapshotCache leaves the digests for the task's next turn. Nothing depends on it, so nothing fails by it.
func (s *Store) keepSnapshotCache(id TaskID, t *snapshot.Tree) {
	d, err := s.taskDir(id)
	if err != nil {
		return
	}
	defer d.Close()
	_ = atomicfile.WriteIn(atomicfile.OS, d, snapshotCache, t.Cache().Encode())
}
