package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"holdfast/owner/gitguard"
	"holdfast/owner/snapshot"
)

// Worked is what became of a task's worktree, or would.
type Worked struct {
	Task  TaskID
	Path  string
	Bytes int64  // what it takes on disk, counted as far as Usage goes
	Kept  string // why it stays; "" where it went, or would
}

// LetWorktreeGo removes the worktree of a task that ended before a Unix second, and its registration in the
// repository. dry says what would happen and changes nothing. Reading the task, its changes and its patch needs no
// worktree; a further turn of the task does not start.
//
// It keeps what it cannot prove to be kept elsewhere: the task has ended and no process owns it; what its turns
// changed is retained whole, turn by turn without a gap, every blob of it read; and the worktree still is, by its
// snapshot, what the last turn left, so that nobody's later work in it is lost. A turn without a candidate, a change
// that could not be retained and an edit by hand keep it for good, until the person removes it.
//
// The event comes first, durable: from then on no turn will use the worktree. A crash after it leaves a folder or a
// part of one, and an entry in the repository, which the next call removes, asking nothing more.
func (s *Store) LetWorktreeGo(ctx context.Context, id TaskID, before int64, dry bool) (Worked, error) {
	return s.letGo(ctx, id, before, dry, func(string) {})
}

func (s *Store) letGo(ctx context.Context, id TaskID, before int64, dry bool, fault func(string)) (Worked, error) {
	w := Worked{Task: id}
	if err := s.usable(ctx); err != nil {
		return w, err
	}
	own, err := s.Own(ctx, id, 0)
	if isRefusal(err, "store_busy") {
		w.Kept = "a process owns its turn"
		return w, nil
	}
	if err != nil {
		return w, err
	}
	defer own.Release()
	t, err := s.Get(id)
	if err != nil {
		return w, err
	}
	if t.Worktree == nil {
		return s.unrecordedGoes(ctx, &t, before, dry)
	}
	w.Path = t.Worktree.Path
	// The path is our own record's, but what is deleted by it is looked at twice.
	root, err := filepath.EvalSymlinks(s.WorktreeRoot(id))
	if errors.Is(err, fs.ErrNotExist) {
		w.Kept = "it is gone already"
		return w, nil
	}
	if err != nil || filepath.Dir(w.Path) != root {
		w.Kept = "it is not where this home keeps worktrees"
		return w, nil
	}
	if t.WorktreeGone == 0 {
		if w.Kept, err = s.mustKeep(ctx, &t, before); err != nil || w.Kept != "" {
			return w, err
		}
	}
	w.Bytes, _ = Usage(ctx, w.Path, maxCounted)
	if dry {
		return w, nil
	}
	if t.WorktreeGone == 0 {
		var epoch Epoch
		if t.Run != nil {
			epoch = t.Run.Epoch
		}
		if _, err := s.Append(ctx, id, epoch, Event{WorktreeGone: true}); err != nil {
			return w, err
		}
	}
	fault("gone")
	if err := opened(w.Path); err != nil {
		return w, fmt.Errorf("remove the worktree of task %s: %w", id, err)
	}
	if err := (gitguard.Repo{CommonDir: t.Worktree.CommonDir}).RemoveWorktree(w.Path); err != nil {
		return w, err
	}
	s.dropSnapshotCache(id)
	_ = os.Remove(root) // empty now, and nothing minds if not
	return w, nil
}

// unrecordedGoes removes what a crash left of making a worktree, before the task ended for another reason: no turn
// ever ran in it.
func (s *Store) unrecordedGoes(ctx context.Context, t *Task, before int64, dry bool) (Worked, error) {
	root := s.WorktreeRoot(t.ID)
	w := Worked{Task: t.ID, Path: root}
	switch {
	case !t.Ended():
		w.Kept = "the task is " + string(t.Status)
		return w, nil
	case t.UpdatedAt > before:
		w.Kept = "its time is not over"
		return w, nil
	}
	w.Bytes, _ = Usage(ctx, root, maxCounted)
	entries, err := os.ReadDir(root)
	if err != nil || dry {
		return w, err
	}
	repo, err := gitguard.Find(t.Intent.Workspace.Path)
	if err != nil {
		repo = gitguard.Repo{} // without a repository there is no entry to clear
	}
	for _, e := range entries {
		path := filepath.Join(root, e.Name())
		if repo.CommonDir == "" {
			err = os.RemoveAll(path)
		} else {
			err = repo.RemoveWorktree(path)
		}
		if err != nil {
			return w, err
		}
	}
	return w, os.Remove(root)
}

// mustKeep says why the worktree of an owned task stays, "" where all that is in it is kept elsewhere.
func (s *Store) mustKeep(ctx context.Context, t *Task, before int64) (string, error) {
	switch {
	case !t.Ended():
		return "the task is " + string(t.Status), nil
	case t.UpdatedAt > before:
		return "its time is not over", nil
	}
	c, err := s.candidate(t)
	var refusal *Error
	if errors.As(err, &refusal) {
		return refusal.Detail, nil
	}
	if err != nil {
		return "", err
	}
	for _, r := range append(t.Earlier[:len(t.Earlier):len(t.Earlier)], lastRun(t)...) {
		if r.Admission.Context != "" {
			if _, err := s.contextWhole(t.ID, &r); err != nil {
				return "", err
			}
		}
		if r.Result.Artifacts == "" {
			continue
		}
		if err := s.keptWhole(t.ID, &r); err != nil {
			return "", err // damage: nothing is thrown away then
		}
	}
	if c.digest == "" {
		return "", nil // no turn was admitted in it: it is a checkout of its commit
	}
	if _, err := os.Lstat(t.Worktree.Path); errors.Is(err, fs.ErrNotExist) {
		return "", nil // only its entry in the repository is left
	}
	if why, err := committedIn(ctx, t.Worktree); err != nil || why != "" {
		return why, err
	}
	ctx, cancel := context.WithTimeout(ctx, snapshotTime)
	defer cancel()
	tree, err := snapshot.Take(ctx, t.Worktree.Path, snapshot.Options{Exclude: excluded, Cache: s.snapshotCache(t.ID), At: s.now()})
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil:
		return "it cannot be opened", nil
	case !tree.Complete():
		return "it cannot be seen whole: " + tree.Faults[0].Why, nil
	case treeDigest(tree) != c.digest:
		return "something changed it after its last turn, and that is kept nowhere else", nil
	}
	return "", nil
}

// committedIn says why the worktree's HEAD speaks for keeping it: a commit that somebody made there may be named by
// nothing else.
func committedIn(ctx context.Context, w *Worktree) (string, error) {
	repo, err := gitguard.Find(w.Path)
	if err != nil || repo.CommonDir != w.CommonDir {
		return "it is no longer the worktree that was made", nil
	}
	repo.Top = repo.CommonDir // git has no business in what turns wrote
	head, err := repo.Head(ctx)
	var exit *gitguard.ExitError
	switch {
	case errors.Is(err, gitguard.ErrNoCommit) || errors.As(err, &exit):
		return "it is no longer the worktree that was made", nil
	case err != nil:
		return "", err
	case head != w.Base:
		return "somebody committed in it", nil
	}
	return "", nil
}

func lastRun(t *Task) []Run {
	if t.Run == nil {
		return nil
	}
	return []Run{*t.Run}
}

// opened lets its user into every folder of a tree that is about to be removed: a turn may have left some that cannot
// be written, which keeps what is in them from being removed. No link is followed.
func opened(path string) error {
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return os.Chmod(p, 0o700)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// dropSnapshotCache removes what only a further turn would have used.
func (s *Store) dropSnapshotCache(id TaskID) {
	d, err := s.taskDir(id)
	if err != nil {
		return
	}
	defer d.Close()
	_ = d.Remove(snapshotCache)
}

// Worktrees lists the tasks that have a folder among the worktrees, and the folders of no task that can be read.
func (s *Store) Worktrees() (ids []TaskID, strangers []string, err error) {
	entries, err := os.ReadDir(filepath.Join(s.home, "worktrees"))
	if err != nil {
		return nil, nil, fmt.Errorf("list worktrees: %w", err)
	}
	for _, e := range entries {
		if !lowerHex(e.Name(), 64) {
			strangers = append(strangers, e.Name())
			continue
		}
		id, err := s.nameOf(e.Name())
		if err != nil {
			strangers = append(strangers, e.Name()) // a log that is damaged stops its own task alone
			continue
		}
		ids = append(ids, id)
	}
	return ids, strangers, nil
}
