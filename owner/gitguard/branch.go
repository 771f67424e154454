package gitguard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Named is what became of a branch that was to be made.
type Named uint8

// What CreateBranch can end with beside an error. The zero value is none of them.
const (
	_         Named = iota
	Created         // the branch names the commit
	HeadMoved       // HEAD is no longer the base; there is no such branch
	NameTaken       // there is a branch of that name, or one that its name would be a folder of
)

const maxBranch = 200 // bytes; with its lock the last part must still be a file's name

// BranchName reports whether a new branch may have the name: what git takes, and of that nothing that git reads as
// something else (an option, an ID, a revision, a full ref), no more than 200 bytes, all of it printable UTF-8.
func BranchName(name string) bool {
	if name == "" || len(name) > maxBranch || !utf8.ValidString(name) || hexID(name) || name == "HEAD" || name == "@" ||
		name[0] == '-' || strings.HasPrefix(name, "refs/") || strings.HasSuffix(name, ".") ||
		strings.Contains(name, "..") || strings.Contains(name, "@{") || strings.ContainsAny(name, " ~^:?*[\\\"") {
		return false
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}

// Branch is the commit that a branch names, "" where there is no such branch.
func (r Repo) Branch(ctx context.Context, name string) (string, error) {
	if !BranchName(name) {
		return "", fmt.Errorf("look at a branch: no branch's name")
	}
	out, err := run(ctx, call{repo: r.store(), time: callTime, args: []string{"rev-parse", "--verify", "--quiet", "refs/heads/" + name}})
	var exit *ExitError
	if errors.As(err, &exit) && exit.Code == 1 && exit.Message == "" {
		return "", nil
	}
	id := strings.TrimSpace(string(out))
	if err == nil && !hexID(id) {
		err = fmt.Errorf("git rev-parse: %d bytes that are no commit", len(out))
	}
	return id, err
}

// CreateBranch makes a branch that names a commit, if HEAD is still base: both in one transaction of git's, so that
// nobody's commit comes between. It never changes a branch that there is. A crash before it returns leaves the branch
// or none, and Branch tells.
func (r Repo) CreateBranch(ctx context.Context, name, commit, base string, at time.Time) (Named, error) {
	if !BranchName(name) || !hexID(commit) || !hexID(base) {
		return 0, fmt.Errorf("make a branch: it needs a name, a commit and a base")
	}
	// The objects first: a branch that outlives a power cut must name something that did too.
	if err := syncTree(r.CommonDir); err != nil {
		return 0, fmt.Errorf("sync the repository: %w", err)
	}
	in := fmt.Sprintf("verify HEAD %s\ncreate refs/heads/%s %s\n", base, name, commit)
	_, failed := run(ctx, call{repo: r.store(), time: callTime, stdin: []byte(in), env: signed(at),
		args: []string{"update-ref", "-m", "holdfast task apply", "--stdin"}})
	var exit *ExitError
	if failed == nil {
		if err := syncTree(r.CommonDir); err != nil {
			return 0, fmt.Errorf("sync the repository: %w", err)
		}
		return Created, nil
	}
	if !errors.As(failed, &exit) {
		return 0, failed
	}
	// Why git refused is looked up, not read out of its words.
	if have, err := r.Branch(ctx, name); err != nil || have != "" {
		return NameTaken, err
	}
	head, err := r.Head(ctx)
	if errors.Is(err, ErrNoCommit) || err == nil && head != base {
		return HeadMoved, nil
	}
	if err != nil {
		return 0, err
	}
	taken, err := r.inTheWay(ctx, name)
	if err != nil || !taken {
		return 0, errors.Join(err, failed)
	}
	return NameTaken, nil
}

// inTheWay reports whether a branch stands where a folder of the name would be, or the other way round.
func (r Repo) inTheWay(ctx context.Context, name string) (bool, error) {
	for i, c := range name {
		if c != '/' {
			continue
		}
		if have, err := r.Branch(ctx, name[:i]); err != nil || have != "" {
			return true, err
		}
	}
	out, err := run(ctx, call{repo: r.store(), time: callTime, args: []string{"for-each-ref", "--count=1", "--format=%(refname)", "refs/heads/" + name + "/"}})
	return len(out) > 0, err
}
