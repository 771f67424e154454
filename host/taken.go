package host

import "holdfast/owner"

// takenFor is for how many seconds a queued turn waits for a workspace that
// another turn has, before it ends with that turn's name.
const takenFor = 600

// taken is a queued turn whose owner found its task or its workspace taken.
type taken struct {
	since  int64        // by this host's clock; a restart counts anew
	holder owner.TaskID // who had the workspace when it was last looked at, "" for nobody
}

// foundTaken remembers that an owner left because it found the place taken.
// That passes, so the one further launch of a turn waits until it has.
func (s *starter) foundTaken(id owner.TaskID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.taken[id]; !known {
		s.taken[id] = taken{since: s.h.now()}
	}
}

func (s *starter) forgetTaken(id owner.TaskID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, id)
}

// waits reports whether a turn that found its workspace taken has to wait on,
// and once it waited long enough why it does not start, else "". Whether the
// workspace is free only its admission decides; this is to not spend the last
// launch in vain. A turn that never found it taken does not wait: most have a
// worktree of their own.
func (s *starter) waits(t *owner.Task, alone bool) (wait bool, cause string, err error) {
	s.mu.Lock()
	w, was := s.taken[t.ID]
	s.mu.Unlock()
	if !was {
		return false, "", nil
	}
	path := t.Intent.Workspace.Path
	if t.Worktree != nil {
		path = t.Worktree.Path
	}
	if w.holder, err = s.h.store.WorkspaceHolder(path, t.ID, alone); err != nil {
		return false, "", err
	}
	s.mu.Lock()
	s.taken[t.ID] = w
	s.mu.Unlock()
	switch {
	case w.holder == "":
		return false, "", nil
	case s.h.now()-w.since < takenFor:
		return true, "", nil
	}
	return true, w.cause(), nil
}

// unadmitted is the cause of a turn whose owners all ended before admission.
func (s *starter) unadmitted(id owner.TaskID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.taken[id]; w.holder != "" {
		return w.cause()
	}
	return "its owner ended before the turn was admitted"
}

// cause names the holder by the start of its ID: a whole one reads as a secret.
func (w taken) cause() string {
	return "another turn has its workspace, that of task " + cut(string(w.holder), 12)
}
