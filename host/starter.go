package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sort"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
	"holdfast/owner"
)

const (
	sweepEvery  = 10 * time.Second
	maxLaunches = 2
	afterOwner  = 250 * time.Millisecond
)

// starter is the auto-start policy at work. One goroutine sweeps; others only
// wake it. A wake for one task looks at that task; every sweepEvery, and after
// what may concern any task, all open ones are looked at but the inert. What it knows of tasks
// decides only which it reads from the store: whatever it starts was just read.
type starter struct {
	h    *Host
	bell chan struct{}

	// mu guards live, taken, changed and all.
	mu      sync.Mutex
	live    map[owner.TaskID]*owner.Launched // owners that this process started and that were not reaped yet
	taken   map[owner.TaskID]taken           // queued turns whose owner found their place taken
	changed map[owner.TaskID]bool            // tasks to look at
	all     bool                             // look at every open one

	// seen is the sweeping goroutine's own: the open tasks as it read them last;
	// before is what it was ahead of the sweep that is under way.
	seen, before map[owner.TaskID]seenTask
}

type seenTask struct {
	status owner.Status
	turn   int64 // the revision at which it was asked for
	asked  int64 // Unix seconds: its place among those that wait
	byHand bool  // it runs by a grant of the person's own, and has none of the policy's places
}

// wake asks for every open task to be looked at.
func (s *starter) wake() {
	s.mu.Lock()
	s.all = true
	s.mu.Unlock()
	ring(s.bell)
}

// note says that a task may have changed, for whichever look comes next.
func (s *starter) note(id owner.TaskID) {
	s.h.index.stir(id)
	s.mu.Lock()
	s.changed[id] = true
	s.mu.Unlock()
}

// look asks for a task to be looked at.
func (s *starter) look(id owner.TaskID) {
	s.note(id)
	ring(s.bell)
}

func (s *starter) take() (changed []owner.TaskID, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.changed {
		changed = append(changed, id)
	}
	all = s.all
	s.changed, s.all = map[owner.TaskID]bool{}, false
	return changed, all
}

func (s *starter) run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	s.wake()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.bell:
		case <-tick.C:
			s.wake()
		}
		changed, all := s.take()
		var err error
		switch {
		case all:
			err = s.sweep(ctx, changed...)
		case len(changed) > 0:
			err = s.pass(ctx, changed, false)
		}
		if err != nil && ctx.Err() == nil {
			if fatal(err) {
				return err
			}
			s.h.log.Error().Err(err).Msg("sweep failed; the next one tries again")
			s.mu.Lock()
			s.all = true
			s.mu.Unlock()
		}
	}
}

// sweep settles dead runs and starts what the policy admits, in the order in
// which the turns were asked for: a task whose turn has ended is behind every
// other that waits already. Of the tasks that rest it looks at those that changed.
func (s *starter) sweep(ctx context.Context, changed ...owner.TaskID) error {
	s.before, s.seen = s.seen, map[owner.TaskID]seenTask{}
	defer func() { s.before = nil }()
	return s.pass(ctx, append(s.h.index.due(), changed...), true)
}

// read looks at a task in the store and remembers how it stands.
func (s *starter) read(ctx context.Context, id owner.TaskID) (*owner.Task, error) {
	t, err := s.h.settled(ctx, id)
	if err != nil {
		if fatal(err) {
			return nil, err
		}
		s.h.log.Error().Err(err).Str("task", string(id)).Msg("task cannot be swept")
		return nil, nil // the next sweep of all tries again
	}
	if s.h.index.note(&t) {
		// A turn that ended before the store's watch stood is ended in the index
		// from now on, and nobody else would look at what waits for its end.
		s.h.publisher.mark(id)
	}
	if t.Status != owner.Queued {
		s.forgetTaken(id)
	}
	if !occupies(t.Status) && t.Status != owner.Queued {
		delete(s.seen, id)
	} else {
		s.seen[id] = seenTask{t.Status, t.TurnStart(), s.asked(&t), occupies(t.Status) && s.h.byHand(&t)}
	}
	return &t, nil
}

// asked is when the task's turn was asked for, which is its place in the order.
// New words for a turn that waits do not put it behind the others; what a later
// turn lost of that by a restart of the host is its last change.
func (s *starter) asked(t *owner.Task) int64 {
	if t.TurnStart() == 1 {
		return t.CreatedAt
	}
	for _, known := range []map[owner.TaskID]seenTask{s.seen, s.before} {
		if k, ok := known[t.ID]; ok && k.turn == t.TurnStart() {
			return k.asked
		}
	}
	return t.UpdatedAt
}

// byHand reports whether the task's turn runs by an execution grant that no
// policy made.
func (h *Host) byHand(t *owner.Task) bool {
	if t.Run == nil {
		return false
	}
	raw, err := h.store.GetBlob(t.Run.Admission.GrantDigest, owner.MaxCommand)
	if err != nil {
		return false
	}
	g, err := owner.ParseGrant(raw)
	return err == nil && g.PolicyDigest == ""
}

// occupies reports whether a turn of that status has one of the places.
func occupies(status owner.Status) bool {
	return status == owner.Running || status == owner.CancelRequested
}

// pass is a sweep that reads the tasks named, and of the others those that may
// be started now. Where no place is free, only a sweep of all looks at the
// standing behind each queued turn; what takes standing away asks for one.
func (s *starter) pass(ctx context.Context, ids []owner.TaskID, all bool) error {
	h := s.h
	p, digest, err := loadPolicy(h.home)
	h.policyState(err)
	if err != nil {
		p = Policy{} // unreadable is off; dead runs are settled all the same
	}
	fresh := map[owner.TaskID]*owner.Task{}
	for _, id := range ids {
		t, err := s.read(ctx, id)
		if err != nil {
			return err
		}
		if t != nil {
			fresh[id] = t
		}
	}
	type waiting struct {
		id owner.TaskID
		at int64
	}
	var queued []waiting
	active := 0
	for id, t := range s.seen {
		switch {
		case !occupies(t.status):
			queued = append(queued, waiting{id, t.asked})
		case !t.byHand:
			active++
		}
	}
	sort.Slice(queued, func(i, j int) bool {
		if queued[i].at != queued[j].at {
			return queued[i].at < queued[j].at
		}
		return queued[i].id < queued[j].id
	})
	for _, w := range queued {
		t, room := fresh[w.id], p.Enabled && active < p.MaxRunning
		if !room && (t == nil || !all) {
			continue
		}
		if t == nil {
			if t, err = s.read(ctx, w.id); err != nil {
				return err
			}
			if t == nil || t.Status != owner.Queued {
				if t != nil && occupies(t.Status) && !s.seen[t.ID].byHand {
					active++
				}
				continue
			}
		}
		alive, err := h.store.OwnerAlive(t.ID)
		if err == nil && (alive || s.launching(t.ID)) {
			active++ // a start that was not admitted yet occupies a place
			continue
		}
		var started bool
		if err == nil {
			started, err = s.start(ctx, t, &p, digest, active)
		}
		if err != nil {
			if fatal(err) || ctx.Err() != nil {
				return err
			}
			h.log.Error().Err(err).Str("task", string(t.ID)).Msg("task could not be started; the next sweep tries again")
		}
		if started {
			active++
		}
	}
	return nil
}

func (s *starter) launching(id owner.TaskID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[id] != nil
}

// start launches the owner of one queued turn, or ends the turn with a reason.
// A turn whose device lost its standing ends whatever the policy says.
//
// The launch count is committed before the owner exists: a crash in between
// spends one of the two launches and starts nothing twice, because only the
// holder of the task's owner lock can admit the turn.
func (s *starter) start(ctx context.Context, t *owner.Task, p *Policy, digest nip.Digest, active int) (bool, error) {
	h := s.h
	origins, code, err := h.originStanding(t)
	if err != nil {
		return false, err
	}
	if len(origins) == 0 {
		// Inert, and there may be very many: whoever puts a word behind it has it looked at again.
		delete(s.seen, t.ID)
		h.index.rest(t.ID, t.Revision)
		return false, nil
	}
	if code != "" {
		return false, h.notStarted(ctx, t, lostStanding(code))
	}
	if !p.Enabled || active >= p.MaxRunning {
		return false, nil
	}
	ws, err := loadWorkspaces(h.home)
	if err != nil {
		return false, err
	}
	rule, label, ok := ruleOf(p, ws, t.Intent.Workspace.Path)
	if !ok {
		return false, nil
	}
	if made := t.Intent.Configuration.Adapter; rule.Adapter != made {
		// A task keeps its adapter for good, so waiting would be for nothing.
		return false, h.notStarted(ctx, t, fmt.Sprintf("the policy now runs %s here, this task was made for %s; make a new one", rule.Adapter, made))
	}
	if wait, cause, err := s.waits(t, rule.Write); err != nil || wait {
		if cause != "" {
			err = h.notStarted(ctx, t, cause)
		}
		return false, err
	}
	grant, err := owner.EncodeGrant(grantOf(t, &rule, digest))
	if err != nil {
		h.log.Error().Err(err).Str("task", string(t.ID)).Msg("the policy's rule makes no valid grant")
		return false, h.notStarted(ctx, t, "the policy's rule does not fit this task")
	}
	blob, err := h.store.PutBlob(grant)
	if err != nil {
		return false, err
	}
	launches, err := h.countLaunch(ctx, t)
	if err != nil {
		return false, err
	}
	if launches > maxLaunches {
		return false, h.notStarted(ctx, t, s.unadmitted(t.ID))
	}
	l, err := h.opts.Launch(h.store, t.ID, blob)
	if err != nil {
		return false, fmt.Errorf("start the owner of %s: %w", t.ID, err)
	}
	h.log.Info().Str("hop", "start").Str("task", string(t.ID)).Str("workspace", string(label)).
		Bool("local", origins[0].Local).Int("owner", l.PID).Msg("turn handed to its owner")
	s.mu.Lock()
	s.live[t.ID] = l
	s.mu.Unlock()
	h.background(func() {
		select {
		case <-l.Done:
		case <-h.stopped:
			return // the turn goes on, and the next start of the host finds it
		}
		if l.Busy() {
			s.foundTaken(t.ID)
		}
		s.mu.Lock()
		delete(s.live, t.ID)
		s.mu.Unlock()
		s.look(t.ID)
		h.taskChanged(t.ID)
		// An owner that was killed leaves its group a moment to go: the sweep
		// above may come before that, and the next regular one much later.
		select {
		case <-time.After(afterOwner):
			s.look(t.ID)
		case <-h.stopped:
		}
	})
	return true, nil
}

// originStanding rechecks, at this very start, every device whose word made the
// turn: who asked for it and who replaced its instructions. code "" means that
// it may run; no origin at all means that it is inert.
func (h *Host) originStanding(t *owner.Task) (origins []turnOrigin, code nip.Code, err error) {
	err = h.db.View(func(tx *bbolt.Tx) error {
		var err error
		if origins, err = turnOrigins(tx, t.ID, t.TurnStart()); err != nil {
			return err
		}
		seen := map[commands.Sender]bool{} // a turn that was corrected often has one sender many times
		for _, o := range origins {
			if o.Local || seen[o.Sender] {
				continue
			}
			seen[o.Sender] = true
			if code, err = h.standing(tx, o.Sender, nip.Operate, h.now()); err != nil || code != "" {
				return err
			}
		}
		return nil
	})
	return origins, code, err
}

// lostStanding is the cause that a task shows when its device may not ask any more.
func lostStanding(code nip.Code) string {
	switch code {
	case nip.Revoked, nip.Expired:
		return "device " + string(code)
	case nip.Stale:
		return "device revoked" // and paired again since
	case nip.MissingRight:
		return "device may not operate"
	}
	return "device no longer paired"
}

// notStarted ends a queued turn that cannot run. Losing the race to another
// writer is fine: the next sweep sees what is there.
func (h *Host) notStarted(ctx context.Context, t *owner.Task, cause string) error {
	_, err := h.store.Append(ctx, t.ID, epochOfTask(t), owner.Event{NotStarted: &cause})
	h.taskChanged(t.ID)
	var refused *owner.Error
	if errors.As(err, &refused) {
		return nil
	}
	return err
}

// countLaunch counts the starts of this turn at this revision, durably, and returns the count
// with this one.
func (h *Host) countLaunch(ctx context.Context, t *owner.Task) (int64, error) {
	var n int64
	key := string(turnKey(t.ID, t.Revision))
	err := h.db.Update(ctx, func(tx *bbolt.Tx) error {
		n = getCount(tx, bucketLaunches, key) + 1
		return putCount(tx, bucketLaunches, key, n)
	})
	return n, err
}

// ruleOf finds the first rule for any label of the root.
func ruleOf(p *Policy, ws *workspaceFile, root string) (Rule, nip.Label, bool) {
	for _, l := range ws.labelsOf(root) {
		if r, ok := p.ruleFor(l); ok {
			return r, l, true
		}
	}
	return Rule{}, "", false
}

// grantOf is the execution grant that the rule gives this turn.
func grantOf(t *owner.Task, r *Rule, policy nip.Digest) owner.Grant {
	return owner.Grant{
		Schema: "holdfast.execution-grant.v1", TaskID: t.ID, IntentDigest: t.IntentDigest, ExpectedRevision: t.Revision,
		Program: r.Program, Arguments: r.Arguments, Write: r.Write, WallSeconds: r.WallSeconds,
		StreamBytes: r.StreamBytes, MemoryBytes: r.MemoryBytes, Adapter: r.Adapter, Network: json.RawMessage(r.network()),
		Read: r.Read, Environment: r.Environment, Git: r.git(), Degraded: r.Degraded, PolicyDigest: owner.Digest(policy),
	}
}

// policyState remembers, for status, why the policy cannot be read.
func (h *Host) policyState(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.policyFault
	h.policyFault = ""
	if err != nil {
		h.policyFault = err.Error()
		if was == "" {
			h.log.Error().Err(err).Str("file", filepath.Join(h.home, "policy.json")).Msg("policy cannot be read; nothing starts by itself")
		}
	}
}
