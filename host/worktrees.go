package host

import (
	"context"
	"time"

	"holdfast/owner"
)

const (
	worktreesFirst = time.Minute // a host that has just started has better to do
	worktreesEvery = time.Hour
	keepDays       = 14 // where a policy does not say
	// A worktree whose time is over and which stays for what is in it is looked at whole, which may take minutes, only this often.
	worktreesAgain = 24 * 3600 // seconds
)

// worktreeRounds is what the rounds of a serving host remember of the worktrees that stayed though their time was
// over. The goroutine of the rounds owns it.
type worktreeRounds struct {
	h        *Host
	stayed   map[owner.TaskID]stayed
	previous map[owner.TaskID]stayed
}

type stayed struct{ revision, at int64 }

// due reports whether a round need look at the worktree of a task that is as the index has it: its time is over, and
// it was not found to stay at this revision less than a day ago.
func (r *worktreeRounds) due(id owner.TaskID, before int64) bool {
	row, known := r.h.index.get(id)
	if !known {
		return true
	}
	if row.open() || row.UpdatedAt > before {
		return false
	}
	s, ok := r.previous[id]
	if ok && s.revision == row.Revision && r.h.now()-s.at < worktreesAgain && r.h.now() >= s.at {
		r.stayed[id] = s
		return false
	}
	return true
}

// looked takes what came of a look.
func (r *worktreeRounds) looked(w owner.Worked, err error) {
	if row, known := r.h.index.get(w.Task); known && err == nil && w.Kept != "" {
		r.stayed[w.Task] = stayed{row.Revision, r.h.now()}
	}
}

// keepWorktrees is for how many days an ended task keeps its worktree; false where no policy says anything.
func (p *Policy) keepWorktrees() (days int, said bool) {
	if p.KeepWorktreesDays != nil {
		return *p.KeepWorktreesDays, true
	}
	return keepDays, len(p.Rules) > 0
}

// tidyWorktrees removes, while the host lives, the worktrees whose time is over.
func (h *Host) tidyWorktrees(ctx context.Context) error {
	next := time.NewTimer(worktreesFirst)
	defer next.Stop()
	rounds := &worktreeRounds{h: h}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		rounds.previous, rounds.stayed = rounds.stayed, map[owner.TaskID]stayed{}
		err := h.letWorktreesGo(ctx, false, rounds.due, func(w owner.Worked, err error) {
			rounds.looked(w, err)
			switch {
			case err != nil:
				h.log.Error().Err(err).Str("task", string(w.Task)).Msg("a worktree could not be removed; the next round tries again")
			case w.Kept == "":
				h.log.Info().Str("task", string(w.Task)).Int64("bytes", w.Bytes).Msg("removed the worktree of an ended task")
			}
		})
		if err != nil && ctx.Err() == nil {
			if fatal(err) {
				return err
			}
			h.log.Error().Err(err).Msg("worktrees cannot be looked at; the next round tries again")
		}
		next.Reset(worktreesEvery)
	}
}

// letWorktreesGo does what the policy says about the worktrees, and reports each of them; due, where it is not nil, says
// of a task and of the second before which it must have moved last whether to look at all. A fault of one task leaves
// that worktree and goes on with the next. Without a policy all stay; one that cannot be read is an error.
func (c *Core) letWorktreesGo(ctx context.Context, dry bool, due func(owner.TaskID, int64) bool, report func(owner.Worked, error)) error {
	p, _, err := loadPolicy(c.home)
	if err != nil {
		return err
	}
	ids, strangers, err := c.store.Worktrees()
	if err != nil {
		return err
	}
	for _, name := range strangers {
		report(owner.Worked{Path: name, Kept: "no task that can be read has it"}, nil)
	}
	days, said := p.keepWorktrees()
	before := c.now() - int64(days)*24*3600
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !said {
			report(owner.Worked{Task: id, Path: c.store.WorktreeRoot(id), Kept: "there is no policy"}, nil)
			continue
		}
		if due != nil && !due(id, before) {
			continue
		}
		w, err := c.store.LetWorktreeGo(ctx, id, before, dry)
		if err != nil && (fatal(err) || ctx.Err() != nil) {
			return err
		}
		report(w, err)
	}
	return nil
}
