package owner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/owner/gitguard"
)

// The words of the integration's axis.
const (
	NotAttempted    = "not_attempted"
	IntegrationDone = "applied"  // the newest candidate is a commit on a branch that was made for it
	IntegrationOld  = "outdated" // an earlier candidate is; turns have run since
)

// Integration is the fourth axis: what a person let become of the candidate. No turn, check or device moves it, and
// whether the branch still is there, or was merged, is git's to say.
func (t *Task) Integration() string {
	if t.Applied == nil {
		return NotAttempted
	}
	newer := func(r *Run) bool { return r.Turn > t.Applied.Turn && r.Process != nil }
	if t.Run != nil && newer(t.Run) {
		return IntegrationOld
	}
	for i := range t.Earlier {
		if newer(&t.Earlier[i]) {
			return IntegrationOld
		}
	}
	return IntegrationDone
}

// ownerLeave is how long a person's word waits for an owner that has recorded its result and is about to end.
const ownerLeave = 2 * time.Second

// ApplyCandidate makes the candidate of a task one commit on a new branch of the repository that its worktree was
// made from, and records that. It is for a person's explicit word alone.
//
// The commit's parent is the worktree's base, and its tree is the base with what the turns changed, byte for byte as
// retained. It is made out of blobs by git plumbing: no checkout, index, hook, filter or attribute has a part in it,
// and no workspace is read.
//
// It is refused where a turn runs or waits, where not all of the change was retained, where nothing changed, where the
// branch exists, and where the base moved: HEAD of the repository at the task's root, from which the worktree was
// made, names another commit than then. That is verified in the transaction of git's that makes the branch.
//
// The order: objects, durable; the branch, durable; the event. A crash before the branch leaves objects that nothing
// names. A crash between branch and event leaves a branch that the same call recognises as its own, because its commit
// is a function of the candidate, and then only records. A call that has nothing left to do returns the task as it is.
func (s *Store) ApplyCandidate(ctx context.Context, id TaskID, branch string) (Task, error) {
	return s.applyCandidate(ctx, id, branch, false, func(string) {})
}

// ResumeApply finishes an ApplyCandidate of these words that may have been cut off: where the branch was made it
// records it, and where it was not it refuses with not_found.
func (s *Store) ResumeApply(ctx context.Context, id TaskID, branch string) (Task, error) {
	return s.applyCandidate(ctx, id, branch, true, func(string) {})
}

func (s *Store) applyCandidate(ctx context.Context, id TaskID, branch string, resume bool, fault func(string)) (Task, error) {
	if !gitguard.BranchName(branch) {
		return Task{}, refuse("invalid_command", "that is no name for a new branch")
	}
	if err := s.usable(ctx); err != nil {
		return Task{}, err
	}
	// With owner.lock no turn can begin, and nobody else applies.
	own, err := s.Own(ctx, id, ownerLeave)
	if isRefusal(err, "store_busy") {
		return Task{}, refuse("store_busy", "a process owns the task's turn; wait until it ended, or stop it")
	}
	if err != nil {
		return Task{}, err
	}
	defer own.Release()
	t, err := s.Get(id)
	if err != nil {
		return t, err
	}
	if !t.Ended() {
		return t, refuse("invalid_transition", "the task is %s; its candidate can be applied once its turn has ended", t.Status)
	}
	if t.Worktree == nil {
		return t, refuse("invalid_transition", "the task has no worktree of its own, so its turns could change nothing")
	}
	c, err := s.candidate(&t)
	if err != nil {
		return t, err
	}
	if c.turn == 0 {
		return t, refuse("not_found", "no program of the task ran, so it has no candidate")
	}
	a, err := s.makeBranch(ctx, &t, c, branch, resume)
	if err != nil {
		return t, err
	}
	fault("branch")
	if old := t.Applied; old != nil && old.Branch == a.Branch && old.Commit == a.Commit {
		return t, nil
	}
	a.At = s.now().Unix()
	var epoch Epoch
	if t.Run != nil {
		epoch = t.Run.Epoch
	}
	return s.Append(ctx, id, epoch, Event{Applied: &a})
}

// makeBranch is the part of git's. On return the branch exists and is durable.
func (s *Store) makeBranch(ctx context.Context, t *Task, c candidate, branch string, resume bool) (Applied, error) {
	a := Applied{Turn: c.turn, Candidate: c.digest, Base: t.Worktree.Base, Branch: branch}
	repo, err := s.repositoryOf(t)
	if err != nil {
		return a, err
	}
	edits, writes, err := s.edits(c, a.Base)
	if err != nil {
		return a, err
	}
	if len(edits) == 0 {
		return a, refuse("invalid_transition", "the candidate has no change that git knows, so there is nothing to apply")
	}
	at := time.UnixMilli(c.at)
	commit := gitguard.Commit{Base: a.Base, Edits: edits, At: at, Message: fmt.Sprintf(
		"%s\n\nHoldfast-Task: %s\nHoldfast-Turn: %d\nHoldfast-Candidate: %s\n", t.Intent.Title, t.ID, c.turn, c.digest)}
	taken := refuse("command_conflict", "there is a branch of that name, or one in its way; choose another")
	have, err := repo.Branch(ctx, branch)
	if err != nil {
		return a, applyRefusal(err)
	}
	if have != "" {
		own, err := repo.IsCommit(ctx, have, commit)
		if err != nil {
			return a, applyRefusal(err)
		}
		if !own {
			return a, taken
		}
		a.Commit = have
		return a, nil
	}
	if resume {
		return a, refuse("not_found", "the branch was not made")
	}
	moved := refuse("revision_mismatch", "the base moved: the repository is no longer at commit %.12s, from which the task worked; go back to it, or use task diff", a.Base)
	if head, err := repo.Head(ctx); err != nil {
		return a, applyRefusal(err)
	} else if head != a.Base {
		return a, moved // looked at again below; here it saves the objects
	}
	if err := repo.WriteBlobs(ctx, len(writes), func(i int) ([]byte, string, error) {
		b, err := s.content(writes[i])
		return b, gitguard.ObjectID(a.Base, b), err
	}); err != nil {
		return a, applyRefusal(err)
	}
	if a.Commit, err = repo.Commit(ctx, commit); err != nil {
		return a, applyRefusal(err)
	}
	switch named, err := repo.CreateBranch(ctx, branch, a.Commit, a.Base, at); {
	case err != nil:
		return a, applyRefusal(err)
	case named == gitguard.HeadMoved:
		return a, moved
	case named == gitguard.NameTaken:
		return a, taken
	}
	return a, nil
}

// repositoryOf finds the repository that the task's worktree was made from, at the task's root.
func (s *Store) repositoryOf(t *Task) (gitguard.Repo, error) {
	var no *cannot
	if err := isFolder(t.Intent.Workspace.Path); errors.As(err, &no) {
		return gitguard.Repo{}, refuse(no.code, "%s", no.cause)
	} else if err != nil {
		return gitguard.Repo{}, err
	}
	repo, err := gitguard.Find(t.Intent.Workspace.Path)
	if err != nil {
		return repo, applyRefusal(err)
	}
	if repo.CommonDir != t.Worktree.CommonDir {
		return repo, refuse("unsafe_path", "the task's root is no longer in the repository that its worktree was made from")
	}
	return repo, nil
}

// applyRefusal is a refusal for what a repository can be refused for; the rest stays a fault of the store or of git.
func applyRefusal(err error) error {
	switch {
	case errors.Is(err, gitguard.ErrUnsafe):
		return refuse("unsafe_path", "the repository does not have what the candidate was made from, or takes no such paths; use task diff")
	case errors.Is(err, gitguard.ErrNotRepository), errors.Is(err, gitguard.ErrNotTop), errors.Is(err, gitguard.ErrNoCommit):
		return refuse("unsafe_path", "the task's root: %s", err)
	}
	return err
}

// appliable holds the rules of an applied event.
func appliable(t *Task, a *Applied) error {
	switch {
	case !t.Ended() || t.Worktree == nil:
		return illegal("only the candidate of an ended task with a worktree can be applied")
	case !line(a.Branch, maxTitle) || !revisionName(a.Commit) || !revisionName(a.Base) || !a.Candidate.valid() || a.At < 0:
		return malformed("an applied candidate has a branch, full commit names and a snapshot")
	case a.Base != t.Worktree.Base:
		return malformed("the base is the worktree's")
	}
	r := t.ended(a.Turn)
	if a.Turn < 1 || r == nil || r.Result.Candidate != a.Candidate {
		return malformed("turn %d did not leave that candidate", a.Turn)
	}
	return nil
}
