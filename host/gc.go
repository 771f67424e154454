package host

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"holdfast/owner"
)

// GCArgs of "gc".
type GCArgs struct {
	DryRun bool `json:"dry_run"`
}

// maxGCRows bounds each list of what a gc says; the counts and the bytes are of all.
const maxGCRows = 1000

// Collected is what a gc removed, or would, and what it left.
type Collected struct {
	DryRun  bool    `json:"dry_run"`
	Freed   int64   `json:"freed"` // bytes on disk; of worktrees as far as they were counted
	Removed []GCRow `json:"removed"`
	Kept    []GCRow `json:"kept"`
	More    int     `json:"more"` // rows of either list that are not shown
}

// GCRow is one thing that a gc looked at.
type GCRow struct {
	Kind  string       `json:"kind"` // worktree, blob, temporary, and index where it could not be made anew
	Task  owner.TaskID `json:"task,omitempty"`
	Path  string       `json:"path,omitempty"`
	Bytes int64        `json:"bytes"`
	Why   string       `json:"why,omitempty"` // it stays
}

func (g *Collected) removed(r GCRow) {
	g.Freed += r.Bytes
	if len(g.Removed) == maxGCRows {
		g.More++
		return
	}
	g.Removed = append(g.Removed, r)
}

func (g *Collected) kept(r GCRow) {
	if len(g.Kept) == maxGCRows {
		g.More++
		return
	}
	g.Kept = append(g.Kept, r)
}

// verbGC removes what nothing needs: worktrees as the policy says, blobs that no log names, and what killed processes
// left; it makes the index of tasks anew. Each part that cannot be done is named among what stays, and the others are done. Doing it twice is doing it
// once, so a stop in the middle needs no mending.
func verbGC(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a GCArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	g := Collected{DryRun: a.DryRun, Removed: []GCRow{}, Kept: []GCRow{}}
	if a.DryRun {
		if err := c.collect(ctx, &g); err != nil {
			return err
		}
		return emit(g)
	}
	if err := c.do(ctx, act{Kind: "gc"}, byHand, nil, func() (actEnd, error) { return actEnd{}, c.collect(ctx, &g) }); err != nil {
		return err
	}
	return emit(g)
}

func (c *Core) collect(ctx context.Context, g *Collected) error {
	// stop is for what ends the whole; the rest is one row.
	stop := func(kind string, err error) error {
		if err == nil || fatal(err) || ctx.Err() != nil {
			return err
		}
		g.kept(GCRow{Kind: kind, Why: err.Error()})
		return nil
	}
	err := c.letWorktreesGo(ctx, g.DryRun, nil, func(w owner.Worked, err error) {
		row := GCRow{Kind: "worktree", Task: w.Task, Path: w.Path, Bytes: w.Bytes, Why: w.Kept}
		if err != nil {
			row.Why = err.Error()
		}
		if row.Why != "" {
			g.kept(row)
		} else {
			g.removed(row)
		}
	})
	if err := stop("worktree", err); err != nil {
		return err
	}
	before := time.Unix(c.now(), 0).Add(-owner.SweepAge)
	swept := func(s owner.Swept) { g.removed(GCRow{Kind: s.Kind, Path: s.Path, Bytes: s.Bytes}) }
	if err := stop("blob", c.store.SweepBlobs(ctx, before, g.DryRun, swept)); err != nil {
		return err
	}
	if err := stop("temporary", c.store.SweepTemporary(ctx, os.TempDir(), before, g.DryRun, swept)); err != nil || g.DryRun {
		return err
	}
	return stop("index", c.reindex(ctx))
}

// reindex makes the store's index of tasks anew: what check found wrong in it is right after a gc.
func (c *Core) reindex(ctx context.Context) error {
	if h := c.serving; h != nil {
		return h.store.Reindex(ctx, h.readIn)
	}
	return c.store.Reindex(ctx, func(_ context.Context, id owner.TaskID) (*owner.Task, error) {
		t, err := c.store.Get(id)
		if err != nil && fatal(err) {
			return nil, err
		}
		if err != nil {
			return nil, nil // it stays live, and whoever reads it says why
		}
		return &t, nil
	})
}
