package owner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"holdfast/owner/snapshot"
	"holdfast/sandbox"
)

// admittedTurn is a turn that passed admission, with everything that its dispatch needs.
type admittedTurn struct {
	task   Task // as of the admission
	spec   sandbox.Spec
	unread []Correction // corrections that this turn is the first to read
	place  place
	source *snapshot.Tree // the workspace as it was pinned
	frozen *frozen        // what was kept of it to read; nil without requirements
}

// program is a pinned executable.
type program struct {
	path   string
	digest Digest
	file   *os.File // as long as it is open, no other file is the same
}

// stands reports whether the path still leads to this file, with the same bytes.
func (p program) stands() bool {
	again, err := pinProgram(p.path)
	if err != nil {
		return false
	}
	defer again.file.Close()
	was, err := p.file.Stat()
	is, err2 := again.file.Stat()
	return err == nil && err2 == nil && os.SameFile(was, is) && again.digest == p.digest
}

// admit observes the pins and records the admission. The caller holds owner.lock. What is refused here ends the turn
// as not started, except where the grant is not about the task's present state: that grant is simply the wrong one,
// and where another turn has the workspace: that passes.
func (e *execution) admit(ctx context.Context, grantBytes []byte) (Task, *admittedTurn, error) {
	t, err := e.store.Get(e.id)
	if err != nil {
		return Task{}, nil, err
	}
	if err := e.matches(&t); err != nil {
		return t, nil, err
	}
	e.epoch = t.NextEpoch()
	a, ad, err := e.observe(ctx, &t, grantBytes)
	var no *cannot
	if errors.As(err, &no) {
		return e.notStarted(ctx, t, no)
	}
	if err != nil {
		return t, nil, err
	}
	e.fault("pinned")
	admitted, err := e.claimed(ctx, ad)
	if err != nil {
		return t, nil, err
	}
	a.task = admitted
	return admitted, a, nil
}

// matches holds the grant against the task. Nothing is written for a grant that does not fit: the task may have been
// cancelled or corrected since it was made, and a fitting one may follow.
func (e *execution) matches(t *Task) error {
	c := t.Intent.Configuration
	switch {
	case t.Status != Queued || t.Run != nil:
		return refuse("invalid_transition", "the task is %s, and only a queued turn can start", t.Status)
	case t.IntentDigest != e.grant.IntentDigest:
		return refuse("revision_mismatch", "the execution grant is for another intent")
	case t.Revision != e.grant.ExpectedRevision:
		return refuse("revision_mismatch", "the execution grant is for revision %d, the task is at %d", e.grant.ExpectedRevision, t.Revision)
	case c.Adapter != e.grant.Adapter:
		return refuse("invalid_command", "the execution grant is for another adapter than the task's")
	case c.Model != nil:
		return refuse("invalid_command", "%s takes no model", c.Adapter)
	}
	return nil
}

// notStarted ends the turn before it began. A cancel or correction that came meanwhile wins: the task then is what
// that made of it.
func (e *execution) notStarted(ctx context.Context, t Task, no *cannot) (Task, *admittedTurn, error) {
	after, err := e.append(ctx, Event{NotStarted: &no.cause})
	var refused *Error
	if errors.As(err, &refused) {
		return t, nil, refused
	}
	if err != nil {
		return t, nil, err
	}
	// The detail may name paths: it is for whoever started the owner, and nothing keeps it.
	return after, nil, errors.Join(refuse(no.code, "couldn't start: %s", no.cause), no.detail)
}

// observe looks at everything that is pinned. It writes a worktree, the grant's blob and those of the frozen context,
// all of which may be left without an admission and are found again by the next owner.
func (e *execution) observe(ctx context.Context, t *Task, grantBytes []byte) (*admittedTurn, *Admission, error) {
	g := &e.grant
	network, allow, err := networkOf(g)
	if err != nil {
		return nil, nil, err
	}
	e.ahead = sandbox.Prepare(network, slot(e.id), g.MemoryBytes) // while the machine and the workspace are looked at
	// Asked anew by each owner: what the machine allows can change, and nothing may be admitted that cannot be confined.
	able := e.probe()
	if able.Mechanism == "" {
		able = e.probe() // a start can fail for want of something that is there a moment later; a turn is not ended for that
	}
	if able.Mechanism == "" && !(able.Degraded && g.Degraded) {
		return nil, nil, &cannot{"not_enforceable", "this machine cannot confine turns; run holdfast doctor", nil}
	}
	at, err := e.locate(ctx, t, g)
	if err != nil {
		return nil, nil, err
	}
	source, err := e.pinSource(ctx, at.workspace)
	if err != nil {
		return nil, nil, err
	}
	checks, err := freezeChecks(g.Requirements, at.workspace)
	if err != nil {
		return nil, nil, err
	}
	frozen, err := freezeContext(g.Requirements, at.workspace, source)
	if err != nil {
		return nil, nil, err
	}
	if e.exe, err = pinProgram(g.Program); err != nil {
		return nil, nil, err
	}
	home, err := filepath.EvalSymlinks(e.store.Home())
	if err != nil {
		return nil, nil, fmt.Errorf("resolve the home: %w", err)
	}
	if err := readable(g.Read, home); err != nil {
		return nil, nil, err
	}
	env, missing, err := secretEnvironment(e.store.Home(), g.Environment)
	if err != nil {
		return nil, nil, &cannot{"unsafe_path", "the secrets file cannot be used; look at the owner's diagnostics", err}
	}
	if missing != "" {
		return nil, nil, &cannot{"invalid_command", "the secret " + missing + " is not set", nil}
	}
	owner, err := self()
	if err != nil {
		return nil, nil, err
	}
	var digest Digest
	err = e.wait.do(ctx, func() error { digest, err = e.store.PutBlob(grantBytes); return err })
	if err != nil {
		return nil, nil, err
	}
	prompt := t.EffectivePrompt()
	spec := sandbox.Spec{
		Program: g.Program, Arguments: g.Arguments, Environment: env,
		Workspace: at.workspace, Write: g.Write, GitDir: at.commonDir, Git: sandbox.GitHidden,
		Read: g.Read, Protected: []string{home},
		Network: network, Allow: allow, Degraded: g.Degraded,
		Wall: time.Duration(g.WallSeconds) * time.Second, StreamBytes: int(g.StreamBytes), OutputLimit: maxOutput,
		MemoryBytes: g.MemoryBytes, Slot: slot(e.id),
		ProgramFile: e.exe.file, WorkspaceFile: e.folder,
	}
	if g.Write {
		spec.DiskBytes, spec.DiskFiles = e.disk, maxGrowthFiles
	}
	if g.Git == "read" && at.commonDir != "" {
		spec.Git = sandbox.GitRead
	}
	if g.Adapter == PromptCommand {
		// The whole interface of a prompt command: the prompt on standard input, what came before in
		// HOLDFAST_HISTORY, its reply or question to HOLDFAST_REPLY, the workspace as working directory.
		spec.Stdin, spec.History, spec.ReplyLimit = []byte(prompt), history(t), maxReplyFile
	}
	ad := &Admission{
		GrantDigest: digest, Adapter: g.Adapter, Workspace: at.workspace, SourceRevision: at.commit,
		SourceSnapshot: treeDigest(source),
		Program:        e.exe.path, ProgramDigest: e.exe.digest, Network: g.Network,
		Prompt: DigestOf([]byte(prompt)), ReadRevision: t.Revision, TraceFile: TraceName(t.Turn()),
		Checks: checks, Owner: owner, At: e.now().UnixMilli(),
	}
	if frozen != nil {
		frozen.bind(t.ID, t.Turn(), ad)
		if ad.Context, err = e.keepContext(ctx, frozen); err != nil {
			return nil, nil, err
		}
	}
	return &admittedTurn{spec: spec, unread: t.Unconsumed(), place: at, source: source, frozen: frozen}, ad, nil
}

// pinProgram observes the executable: its own canonical path, regular, executable, and the digest of its bytes. The
// caller closes the file.
func pinProgram(path string) (_ program, err error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return program{}, &cannot{"unsafe_path", "the program is missing", nil}
	}
	if real != path {
		return program{}, &cannot{"unsafe_path", "the program's path leads over a link; name its real path", nil}
	}
	// Non-blocking, so that a pipe in the program's place is refused instead of waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return program{}, &cannot{"unsafe_path", "the program cannot be read", nil}
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return program{}, &cannot{"unsafe_path", "the program is no executable file", nil}
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return program{}, &cannot{"unsafe_path", "the program cannot be read", nil}
	}
	return program{path: path, digest: Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), file: f}, nil
}

// readable checks the further paths of the grant: there, canonical, and no part of the home in sight.
func readable(paths []string, home string) error {
	for _, p := range paths {
		switch real, err := filepath.EvalSymlinks(p); {
		case err != nil:
			return &cannot{"unsafe_path", "a path that the policy lets turns read is missing", nil}
		case real != p:
			return &cannot{"unsafe_path", "a path that the policy lets turns read leads over a link", nil}
		case within(p, home) || within(home, p):
			return &cannot{"unsafe_path", "a path that the policy lets turns read overlaps the home of holdfast", nil}
		}
	}
	return nil
}

// slots is how many users outside the sandbox turns are spread over when the owner runs as root.
const slots = 50_000

// slot spreads tasks over users 200000 and up. It is a hash, so two tasks can meet in one: each still has namespaces
// of its own, and nothing but the user's process count on the host is shared then.
func slot(id TaskID) int {
	h := fnv.New32a()
	h.Write([]byte(id))
	return int(h.Sum32() % slots)
}
