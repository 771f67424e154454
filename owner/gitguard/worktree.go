package gitguard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// AddWorktree makes a linked, detached, locked worktree of commit at path, which must not exist; its parent must.
// It returns after the files are on disk. ErrFilter where the tree needs a content filter. What a failed call left
// is removed again; what a crash left, the caller removes by RemoveWorktree before it tries once more.
func (r Repo) AddWorktree(ctx context.Context, path, commit string) (Repo, error) {
	if !filepath.IsAbs(path) || !hexID(commit) {
		return Repo{}, fmt.Errorf("add worktree: the path must be absolute and the commit a full ID")
	}
	// The empty checkout comes first: `worktree add` with a checkout would run filters before they can be refused.
	_, err := run(ctx, call{repo: r, time: checkoutTime, args: []string{"worktree", "add", "--quiet", "--detach", "--no-checkout", "--lock", "--", path, commit}})
	if err != nil {
		return Repo{}, err
	}
	tree, err := fill(ctx, path, commit)
	if err != nil {
		if gone := r.RemoveWorktree(path); gone != nil {
			err = errors.Join(err, gone)
		}
		return Repo{}, err
	}
	return tree, nil
}

// fill reads the commit into the new worktree's index, refuses filters, and only then writes files.
func fill(ctx context.Context, path, commit string) (Repo, error) {
	tree, err := Find(path)
	if err != nil {
		return Repo{}, err
	}
	if _, err := run(ctx, call{repo: tree, time: checkoutTime, args: []string{"read-tree", commit}}); err != nil {
		return Repo{}, err
	}
	if err := tree.refuseFilters(ctx); err != nil {
		return Repo{}, err
	}
	if _, err := run(ctx, call{repo: tree, time: checkoutTime, args: []string{"checkout-index", "--all", "--index", "--quiet"}}); err != nil {
		return Repo{}, err
	}
	// Without this a power cut after the caller's record could leave a recorded worktree with empty files.
	if err := syncTree(path); err != nil {
		return Repo{}, fmt.Errorf("sync the new worktree: %w", err)
	}
	return tree, nil
}

// refuseFilters asks git itself which indexed files have a filter attribute, by the attributes that the checkout
// would use: those of the tree and of the repository's own info/attributes. An unset filter is no filter.
func (r Repo) refuseFilters(ctx context.Context) error {
	out, err := run(ctx, call{repo: r, time: checkoutTime, magic: true,
		args: []string{"ls-files", "--cached", "-z", "--", ":(exclude,attr:!filter)", ":(exclude,attr:-filter)"}})
	if errors.Is(err, ErrOutput) || len(out) > 0 {
		return ErrFilter
	}
	return err
}

// RemoveWorktree takes away exactly the worktree at path: its folder, and its entry in the common directory if one
// points to it. Either may be missing, as after a crash in the middle of AddWorktree. It runs no git, because git
// refuses worktrees that are half there, and `worktree prune` would take other people's entries too.
func (r Repo) RemoveWorktree(path string) error {
	if !filepath.IsAbs(path) || path == r.Top {
		return fmt.Errorf("remove worktree: not a linked worktree of this repository")
	}
	entries, err := os.ReadDir(filepath.Join(r.CommonDir, "worktrees"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove worktree: %w", err)
	}
	for _, e := range entries {
		admin := filepath.Join(r.CommonDir, "worktrees", e.Name())
		if back, err := line(filepath.Join(admin, "gitdir")); err != nil || !same(back, filepath.Join(path, ".git")) {
			continue
		}
		if err := os.RemoveAll(admin); err != nil {
			return fmt.Errorf("remove worktree: %w", err)
		}
	}
	// The folder goes last: while it is there, a repeated call still knows that work is left.
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove worktree: %w", err)
	}
	return nil
}

// same compares two paths of .git files, of which neither needs to exist any more.
func same(a, b string) bool {
	resolve := func(p string) string {
		if dir, err := filepath.EvalSymlinks(filepath.Dir(p)); err == nil {
			return filepath.Join(dir, filepath.Base(p))
		}
		return filepath.Clean(p)
	}
	return a == b || resolve(a) == resolve(b)
}
