package gitguard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Repo is one working tree. All paths are absolute and canonical.
type Repo struct {
	Top       string // top level of the working tree
	GitDir    string // its own Git directory: Top/.git, or the entry of a linked worktree
	CommonDir string // shared by all worktrees: objects, refs, hooks, configuration
}

// Linked reports whether the tree is a linked worktree.
func (r Repo) Linked() bool { return r.GitDir != r.CommonDir }

// Find reads which repository has path as its top level. It runs nothing. path is canonical. ErrNotRepository,
// ErrNotTop, ErrUnsafe.
func Find(path string) (Repo, error) {
	r, err := at(path)
	if !errors.Is(err, ErrNotRepository) {
		return r, err
	}
	for dir := path; dir != filepath.Dir(dir); {
		dir = filepath.Dir(dir)
		if _, err := at(dir); err == nil {
			return Repo{}, ErrNotTop
		}
	}
	return Repo{}, ErrNotRepository
}

// at looks at path alone.
func at(path string) (Repo, error) {
	dot := filepath.Join(path, ".git")
	info, err := os.Lstat(dot)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return Repo{}, ErrNotRepository
	case err != nil:
		return Repo{}, fmt.Errorf("look for a repository: %w", err)
	case info.IsDir():
		return directory(path, dot)
	case info.Mode().IsRegular():
		return pointer(path, dot)
	default:
		return Repo{}, ErrUnsafe
	}
}

// directory is the case of a .git folder. One without HEAD and objects is some other tool's litter.
func directory(top, dot string) (Repo, error) {
	for _, name := range []string{"HEAD", "objects"} {
		if _, err := os.Lstat(filepath.Join(dot, name)); err != nil {
			return Repo{}, ErrNotRepository
		}
	}
	if _, err := os.Lstat(filepath.Join(dot, "commondir")); err == nil {
		return Repo{}, ErrUnsafe
	}
	return Repo{Top: top, GitDir: dot, CommonDir: dot}, nil
}

// pointer is the case of a .git file, as linked worktrees and submodules have it. A linked worktree's entry must
// point back, so that a planted file cannot borrow another tree's entry.
func pointer(top, dot string) (Repo, error) {
	text, err := line(dot)
	if err != nil {
		return Repo{}, err
	}
	target, ok := strings.CutPrefix(text, "gitdir: ")
	if !ok {
		return Repo{}, ErrUnsafe
	}
	gitDir, err := canonical(top, target)
	if err != nil {
		return Repo{}, ErrUnsafe
	}
	if _, err := os.Lstat(filepath.Join(gitDir, "HEAD")); err != nil {
		return Repo{}, ErrUnsafe
	}
	common, err := line(filepath.Join(gitDir, "commondir"))
	if errors.Is(err, fs.ErrNotExist) {
		return Repo{Top: top, GitDir: gitDir, CommonDir: gitDir}, nil // a submodule
	}
	if err != nil {
		return Repo{}, err
	}
	back, err := line(filepath.Join(gitDir, "gitdir"))
	if err != nil {
		return Repo{}, ErrUnsafe
	}
	if !filepath.IsAbs(back) {
		back = filepath.Join(gitDir, back)
	}
	if real, err := filepath.EvalSymlinks(filepath.Dir(back)); err != nil || real != top || filepath.Base(back) != ".git" {
		return Repo{}, ErrUnsafe
	}
	commonDir, err := canonical(gitDir, common)
	if err != nil {
		return Repo{}, ErrUnsafe
	}
	return Repo{Top: top, GitDir: gitDir, CommonDir: commonDir}, nil
}

// canonical resolves what a pointer file in dir names.
func canonical(dir, target string) (string, error) {
	if !filepath.IsAbs(target) {
		target = filepath.Join(dir, target)
	}
	return filepath.EvalSymlinks(target)
}

// line reads the one line of a small regular file, no link followed, no pipe waited for.
func line(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, syscall.ELOOP) {
			return "", ErrUnsafe
		}
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > 8<<10 {
		return "", ErrUnsafe
	}
	b, err := io.ReadAll(io.LimitReader(f, 8<<10))
	if err != nil {
		return "", err
	}
	text := strings.TrimRight(string(b), "\r\n")
	if text == "" || strings.ContainsAny(text, "\n\x00") {
		return "", ErrUnsafe
	}
	return text, nil
}

// Head is the commit that is checked out, as 40 or 64 hex characters. ErrNoCommit.
func (r Repo) Head(ctx context.Context) (string, error) {
	out, err := run(ctx, call{repo: r, time: callTime, args: []string{"rev-parse", "--verify", "--quiet", "HEAD^{commit}"}})
	var exit *ExitError
	if errors.As(err, &exit) && exit.Code == 1 && exit.Message == "" {
		return "", ErrNoCommit
	}
	if err != nil {
		return "", err
	}
	commit := strings.TrimSpace(string(out))
	if !hexID(commit) {
		return "", fmt.Errorf("git rev-parse: %d bytes that are no commit", len(out))
	}
	return commit, nil
}

func hexID(s string) bool {
	if len(s) != 40 && len(s) != 64 {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
