package gitguard

import (
	"errors"
	"fmt"
)

var (
	// ErrNotRepository is returned for a folder that is in no git repository.
	ErrNotRepository = errors.New("not a git repository")
	// ErrNotTop is returned for a folder inside a repository that is not its top level.
	ErrNotTop = errors.New("not the top level of its git repository; name the top level")
	// ErrUnsafe is returned where .git is a link, or its pointers do not lead to each other.
	ErrUnsafe = errors.New("the .git pointers of this repository do not lead to each other")
	// ErrNoCommit is returned for a repository whose HEAD names no commit.
	ErrNoCommit = errors.New("the repository has no commit; make a first commit")
	// ErrFilter is returned for a tree that needs a content filter, which would run a program.
	ErrFilter = errors.New("the tree needs a content filter such as Git LFS, which is not run")
	// ErrOutput is returned when git says more than its call may read.
	ErrOutput = errors.New("git said more than may be read")
	// ErrNoGit is returned where no root-owned git is installed.
	ErrNoGit = errors.New("git is not installed in a system folder; install it with the package manager")
)

// ExitError is git's own refusal. Message is git's text, at most 64 KiB; it may name paths, so it is for the
// operator's eyes and never for evidence.
type ExitError struct {
	Verb    string
	Code    int
	Message string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("git %s ended with %d: %s", e.Verb, e.Code, e.Message)
}
