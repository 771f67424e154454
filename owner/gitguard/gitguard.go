// Package gitguard is the one place that runs git, and runs nothing else by accident.
//
// A repository is hostile: its configuration, hooks and attributes can name programs, and an agent that wrote in
// it once may have planted some. Git itself is trusted; what a repository can make git start is not. So every call
// here has a cleared environment, an explicit GIT_DIR and GIT_WORK_TREE (no discovery, and no question of who owns
// the folder), no system or global configuration, hooks and the file-system monitor switched off on the command
// line (which a repository cannot override), no transport (a partial clone must not fetch through a planted
// remote helper), a deadline and a bound on what is read back.
//
// Its noun is the Repo: a top level, its Git directory and the common directory that linked worktrees share. Find
// reads these from the file system without running git. Head names the commit that is checked out; AddWorktree
// makes a linked, detached, locked worktree of a commit; RemoveWorktree takes exactly that one away again. Contents
// reads files of a commit out of the object store, and Patch compares bytes that the caller has, in a repository
// made for it. WriteBlobs and Commit put such bytes into the object store as one commit, and CreateBranch names it.
// None of these looks at a working tree or at its index.
//
// Content filters (the filter attribute, Git LFS) run programs by design. A tree that asks for one is refused with
// ErrFilter before any file is written; nothing is checked out unfiltered behind the user's back either.
//
// What is durable: AddWorktree returns after the file system that holds the worktree was synced, so that a caller
// may record it. A crash before that leaves a folder and an entry in the common directory that RemoveWorktree
// clears. CreateBranch returns after the objects, and then the branch, were synced likewise; a crash before the branch
// leaves objects that nothing names, which git's own housekeeping takes.
//
// Limits: the fixed git binary is trusted; so is the operator who named the repository. The package does not lock:
// git's own lock files serialise writers of one repository. Any goroutine may call. It never changes a branch that
// there is, fetches, merges, or runs in a tree that a turn has written.
package gitguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Bounds of one call. Checkout covers everything that writes a tree.
const (
	callTime     = 10 * time.Second
	checkoutTime = 60 * time.Second
	maxOutput    = 64 << 10
)

// candidates are the only places where git is looked for; PATH is never asked.
var candidates = []string{"/usr/bin/git", "/bin/git", "/usr/local/bin/git", "/run/current-system/sw/bin/git"}

// options go before every verb. A -c on the command line wins over every configuration file of the repository.
var options = []string{
	"--no-pager", "--no-optional-locks", "--literal-pathspecs",
	"-c", "core.hooksPath=/dev/null",
	"-c", "core.fsmonitor=false",
	"-c", "core.attributesFile=/dev/null",
	"-c", "core.sparseCheckout=false",
	"-c", "core.untrackedCache=false",
	"-c", "core.splitIndex=false",
	"-c", "i18n.commitEncoding=UTF-8",
	"-c", "submodule.recurse=false",
	"-c", "worktree.useRelativePaths=false",
	"-c", "protocol.allow=never",
}

// call is one run of git.
type call struct {
	repo Repo
	time time.Duration
	args []string
	// magic lets this call use attribute pathspecs, which are otherwise off.
	magic bool
	stdin []byte
	most  int // bytes of output, maxOutput where 0
	env   []string
}

// run returns git's standard output, at most c.most bytes. ErrOutput is returned beyond that, ErrNoGit where no trusted
// git is installed, *ExitError where git refused.
func run(ctx context.Context, c call) ([]byte, error) {
	git, err := binary(candidates)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.time)
	defer cancel()
	args := make([]string, 0, len(options)+len(c.args))
	for _, o := range options {
		if c.magic && o == "--literal-pathspecs" {
			continue
		}
		args = append(args, o)
	}
	cmd := exec.CommandContext(ctx, git, append(args, c.args...)...)
	cmd.Dir = c.repo.Top
	cmd.Env = append(environment(c.repo), c.env...)
	if c.most == 0 {
		c.most = maxOutput
	}
	if c.stdin != nil {
		cmd.Stdin = bytes.NewReader(c.stdin)
	}
	stdout, stderr := &bounded{max: c.most}, &bounded{max: maxOutput, drop: true}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// git starts helpers of its own; the deadline ends the whole group, and pipes that a survivor holds are let go.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	verb := c.args[0]
	var exit *exec.ExitError
	switch {
	case stdout.over:
		return nil, fmt.Errorf("git %s: %w", verb, ErrOutput)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("git %s: %w", verb, context.Cause(ctx))
	case errors.As(err, &exit):
		return nil, &ExitError{Verb: verb, Code: exit.ExitCode(), Message: strings.TrimSpace(stderr.buf.String())}
	case err != nil:
		return nil, fmt.Errorf("git %s: %w", verb, err)
	}
	return stdout.buf.Bytes(), nil
}

// environment is everything git and its children see.
func environment(r Repo) []string {
	return []string{
		"PATH=/usr/bin:/bin",
		"LC_ALL=C",
		"HOME=/nonexistent",
		"GIT_DIR=" + r.GitDir,
		"GIT_WORK_TREE=" + r.Top,
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_NO_LAZY_FETCH=1",
		"GIT_ALLOW_PROTOCOL=none",
	}
}

// binary is the first candidate that only root could have put there.
func binary(from []string) (string, error) {
	for _, p := range from {
		real, err := filepath.EvalSymlinks(p)
		if err != nil {
			continue
		}
		info, err := os.Lstat(real)
		if err != nil {
			continue
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if ok && st.Uid == 0 && info.Mode().IsRegular() && info.Mode().Perm()&0o022 == 0 && info.Mode().Perm()&0o111 != 0 {
			return p, nil
		}
	}
	return "", ErrNoGit
}

// bounded keeps at most max bytes. Beyond that it fails the copy, which ends git by SIGPIPE, or drops.
type bounded struct {
	buf  bytes.Buffer
	max  int
	drop bool
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := min(b.max-b.buf.Len(), len(p))
	b.buf.Write(p[:room])
	if room < len(p) {
		b.over = true
		if !b.drop {
			return room, ErrOutput
		}
	}
	return len(p), nil
}
