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
	if j.db, err = commit.Open(path, commit.Options{Kind: journalKind, Version: 1}); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := fillJournal(ctx, j.db, entries); err != nil {
		j.close()
		return nil, err
	}
	b.say("%d decided entries written in %.1f s", entries, time.Since(began).Seconds())
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

// fillJournal writes decided commands of many devices and tasks.
func fillJournal(ctx context.Context, db *commit.DB, entries int) error {
	var j commands.Journal
	if err := db.Update(ctx, j.Setup); err != nil {
		return err
	}
	f := commands.Filling{Entries: entries, At: time.Now().Unix()}
	for range 1000 {
		id, err := nip.NewID(rand.Reader)
		if err != nil {
			return err
		}
		f.Tasks = append(f.Tasks, nip.TaskID(id))
	}
	for range 100 {
		key, err := nip.GenerateSecretKey(rand.Reader)
		if err != nil {
			return err
		}
		f.Devices = append(f.Devices, key.Public())
	}
	return j.Fill(ctx, db, f)
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
