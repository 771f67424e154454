package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/internal/commit"
	"holdfast/nip"
)

const journalKind = "holdfast-bench"

// longJournal decides and commits commands in two journals by turns.
func (b *bench) longJournal(ctx context.Context) ([]benchRow, error) {
	const short = 1000
	long := b.size(1_000_000, 10_000)
	a, err := b.openJournal(ctx, "short.db", short)
	if err != nil {
		return nil, err
	}
	defer a.close()
	z, err := b.openJournal(ctx, "long.db", long)
	if err != nil {
		return nil, err
	}
	defer z.close()
	var few, many samples
	for i := range 20 + b.size(400, 60) {
		x, err := a.command(ctx)
		if err != nil {
			return nil, err
		}
		y, err := z.command(ctx)
		if err != nil {
			return nil, err
		}
		if i >= 20 {
			few, many = append(few, x), append(many, y)
		}
	}
	return []benchRow{{
		Name: "decide-commit-1000-vs-1000000", Value: many.ms(0.5), Unit: "ms", Floor: few.ms(0.5), Aim: "<= 1.1",
		Detail: fmt.Sprintf("median of %d commands, each recorded, decided and committed with %d decided entries in the journal (file: %.0f MiB); floor: the same by turns with %d (p99: %.3g and %.3g ms)",
			len(many), long, float64(z.size)/(1<<20), short, many.ms(0.99), few.ms(0.99)),
	}}, nil
}

// benchJournal is a journal alone, with a task that has ended.
type benchJournal struct {
	db   *commit.DB
	eval *commands.Evaluator
	from commands.Sender
	path string
	size int64
}

func (b *bench) openJournal(ctx context.Context, name string, entries int) (*benchJournal, error) {
	path := filepath.Join(b.dir, name)
	key, err := nip.GenerateSecretKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	j := &benchJournal{path: path, from: commands.Sender{Device: key.Public(), Grant: nip.GrantID(endedTask), Epoch: 0}}
	// The header first, as every store of ours has one.
	if j.db, err = commit.Open(path, commit.Options{Kind: journalKind, Version: 1}); err != nil {
		return nil, err
	}
	if err := j.db.Close(); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := fillJournal(ctx, path, j.from, entries); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	b.say("%d decided entries written in %.1f s", entries, time.Since(began).Seconds())
	if j.db, err = commit.Open(path, commit.Options{Kind: journalKind, Version: 1}); err != nil {
		return nil, err
	}
	if st, err := os.Stat(path); err == nil {
		j.size = st.Size()
	}
	j.eval = &commands.Evaluator{
		DB: j.db, Tasks: ended{}, Now: time.Now,
		Standing: func(*bbolt.Tx, commands.Sender, int64) bool { return true },
	}
	return j, nil
}

func (j *benchJournal) close() { _ = errors.Join(j.db.Close(), os.Remove(j.path)) }

// fillJournal writes decided entries through the journal's own functions, in
// large transactions that are synced once at the end. They are what a
// task.create leaves: decided at once, one transition each.
func fillJournal(ctx context.Context, path string, from commands.Sender, entries int) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true, NoFreelistSync: true, NoGrowSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: 1 << 31})
	if err != nil {
		return err
	}
	var j commands.Journal
	now := time.Now().Unix()
	for at := 0; at < entries && err == nil; {
		if err = ctx.Err(); err != nil {
			break
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			if err := j.Setup(tx); err != nil {
				return err
			}
			for end := min(at+50_000, entries); at < end; at++ {
				// IDs that ascend fill the pages from left to right; where an
				// ID of chance lands afterwards does not depend on it.
				key := commands.Key{Principal: from.Device, Kind: "task.create", ID: fmt.Sprintf("%064x", at)}
				if err := j.Note(tx, key, from, nip.TaskID(endedTask), "task.create", commands.OutcomeApplied, "", 1, now); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return errors.Join(err, db.Sync(), db.Close())
}

// command submits one command whose decision needs no effect.
func (j *benchJournal) command(ctx context.Context) (time.Duration, error) {
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	e, err := j.eval.Submit(ctx, j.from, lateInterrupt(id, began.Unix()), commands.Hooks{})
	took := time.Since(began)
	if err == nil && e.Outcome != commands.OutcomeSuperseded {
		err = fmt.Errorf("a command was decided as %s", e.Outcome)
	}
	return took, err
}

// endedTask is 64 hex of nothing in particular.
var endedTask = hex.EncodeToString([]byte("a task that has ended, 32 bytes."))

// lateInterrupt is an interrupt of a turn that has ended: it is superseded.
func lateInterrupt(id string, at int64) nip.Command {
	return nip.Command{ID: nip.CommandID(id), Task: nip.TaskID(endedTask), Action: nip.Interrupt, BasedOn: 1, IssuedAt: at, Text: "stop"}
}

// ended is a task port that has one task, and nothing to do for it.
type ended struct{}

func (ended) View(context.Context, nip.TaskID) (commands.TaskView, error) {
	return commands.TaskView{Phase: commands.PhaseEnded, Revision: 3, TurnStart: 1}, nil
}

func (ended) Compile(commands.Entry, commands.Effect, commands.TaskView) ([]byte, error) {
	return nil, errors.New("nothing is asked of a task that has ended")
}

func (ended) Apply(context.Context, nip.TaskID, []byte) (commands.Applied, error) {
	return commands.Applied{}, errors.New("nothing is asked of a task that has ended")
}
