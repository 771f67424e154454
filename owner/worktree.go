package owner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"holdfast/owner/gitguard"
)

// place is where a turn works and what was observed about it.
type place struct {
	workspace string // canonical, what the sandbox binds
	commonDir string // the common Git directory, "" without a repository
	commit    string // HEAD there, "" without a repository
}

// cannot is a refusal before admission: the turn ends cancelled with "Couldn't start: cause". cause is one line
// that names no path; code is the refusal's word for the caller, detail what an operator needs to look further.
type cannot struct {
	code, cause string
	detail      error
}

func (c *cannot) Error() string { return c.code + ": " + c.cause }

// locate finds or makes the place of a turn. The caller holds the task's owner lock, so nobody else makes this
// task's worktree.
//
// A repository: the task's own linked worktree of HEAD, made once, recorded in the log, and kept for all its turns,
// whether they write or read; the user's edits never race a turn. The exception is the local operator's read-only
// bounded-command, which may look at the checkout itself: it reads, has no policy behind it, and may see Git.
//
// No repository: the folder itself, read-only.
func (e *execution) locate(ctx context.Context, t *Task, g *Grant) (place, error) {
	if t.WorktreeGone != 0 {
		return place{}, &cannot{"invalid_transition", "the task's worktree was removed after its time; its changes are kept, make a new task", nil}
	}
	if t.Worktree != nil {
		return e.reuse(ctx, t.Worktree)
	}
	root := t.Intent.Workspace.Path
	if err := isFolder(root); err != nil {
		return place{}, err
	}
	repo, err := gitguard.Find(root)
	if errors.Is(err, gitguard.ErrNotRepository) {
		if g.Write {
			return place{}, &cannot{"not_enforceable", "the workspace is no git repository, so turns there only read", nil}
		}
		if t.Intent.Workspace.SourceRevision != "" {
			return place{}, &cannot{"invalid_command", "the workspace is no git repository and has no revision", nil}
		}
		return e.plain(place{workspace: root})
	}
	if err != nil {
		return place{}, gitRefusal(err)
	}
	head, err := repo.Head(ctx)
	if err != nil {
		return place{}, gitRefusal(err)
	}
	if want := t.Intent.Workspace.SourceRevision; want != "" && want != head {
		return place{}, &cannot{"invalid_command", "the repository is at another revision than the task names", nil}
	}
	if g.Adapter == BoundedCommand && !g.Write && g.PolicyDigest == "" && g.Git == "read" {
		return e.plain(place{workspace: root, commonDir: repo.CommonDir, commit: head})
	}
	return e.makeWorktree(ctx, repo, head)
}

// plain accepts a folder of the user's own, which must be apart from the store both ways.
func (e *execution) plain(p place) (place, error) {
	home, err := filepath.EvalSymlinks(e.store.Home())
	if err != nil {
		return place{}, fmt.Errorf("resolve the home: %w", err)
	}
	if within(p.workspace, home) || within(home, p.workspace) {
		return place{}, &cannot{"unsafe_path", "the workspace and the home of holdfast overlap", nil}
	}
	return p, nil
}

// makeWorktree makes worktrees/TASK/NAME and records it. A crash before the record leaves a folder that the next
// owner takes away and makes anew: no turn has run in it. A crash after the record leaves a whole worktree.
func (e *execution) makeWorktree(ctx context.Context, repo gitguard.Repo, head string) (place, error) {
	parent := e.store.WorktreeRoot(e.id)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return place{}, fmt.Errorf("make the worktree's folder: %w", err)
	}
	parent, err := filepath.EvalSymlinks(parent)
	if err != nil {
		return place{}, fmt.Errorf("make the worktree's folder: %w", err)
	}
	path := filepath.Join(parent, filepath.Base(repo.Top))
	if err := repo.RemoveWorktree(path); err != nil {
		return place{}, err
	}
	tree, err := repo.AddWorktree(ctx, path, head)
	if err != nil {
		return place{}, gitRefusal(err)
	}
	e.fault("worktree")
	w := Worktree{Path: path, Base: head, CommonDir: tree.CommonDir}
	if _, err := e.append(ctx, Event{Worktree: &w}); err != nil {
		return place{}, err
	}
	return place{workspace: path, commonDir: tree.CommonDir, commit: head}, nil
}

// reuse checks that the recorded worktree still is what was recorded.
func (e *execution) reuse(ctx context.Context, w *Worktree) (place, error) {
	if err := isFolder(w.Path); err != nil {
		return place{}, err
	}
	repo, err := gitguard.Find(w.Path)
	if err != nil || repo.CommonDir != w.CommonDir {
		return place{}, &cannot{"unsafe_path", "the task's worktree is no longer the one that was made", nil}
	}
	head, err := repo.Head(ctx)
	if err != nil {
		return place{}, gitRefusal(err)
	}
	return place{workspace: w.Path, commonDir: w.CommonDir, commit: head}, nil
}

// isFolder refuses a workspace that is gone or is reached over a link.
func isFolder(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &cannot{"unsafe_path", "the workspace is gone", nil}
	case err != nil:
		return &cannot{"unsafe_path", "the workspace cannot be read", nil}
	case !info.IsDir():
		return &cannot{"unsafe_path", "the workspace is no folder", nil}
	}
	if real, err := filepath.EvalSymlinks(path); err != nil || real != path {
		return &cannot{"unsafe_path", "the workspace's path leads over a link; name its real path", nil}
	}
	return nil
}

// gitRefusal turns what a repository can be refused for into a cause; everything else stays a fault.
func gitRefusal(err error) error {
	for _, known := range []error{gitguard.ErrNotTop, gitguard.ErrUnsafe, gitguard.ErrNoCommit, gitguard.ErrFilter, gitguard.ErrNoGit} {
		if errors.Is(err, known) {
			return &cannot{"not_enforceable", known.Error(), nil}
		}
	}
	var exit *gitguard.ExitError
	if errors.As(err, &exit) {
		return &cannot{"not_enforceable", "git refused the repository; look at the owner's diagnostics", err}
	}
	return err
}

// within reports whether path is dir or lies in it. Both are canonical.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}
