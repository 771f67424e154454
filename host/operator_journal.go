package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/nip"
)

// JournalArgs of the journal verbs.
type JournalArgs struct {
	Task   nip.TaskID `json:"task"`
	Device nip.PubKey `json:"device"`
	State  string     `json:"state"`
	Since  int64      `json:"since"`
	ID     string     `json:"id"` // command or request ID
	NoText bool       `json:"no_text"`
	Follow bool       `json:"follow"`
	After  uint64     `json:"after"`
}

const (
	journalPage      = 1000
	journalPageBytes = 2 << 20 // of texts; JSON may need a few bytes for one, and a line of the operator's socket has 8 MiB
)

// filter is what to look for.
func (a *JournalArgs) filter() (commands.Filter, error) {
	f := commands.Filter{Task: a.Task, Device: a.Device, Since: a.Since, After: a.After, Limit: journalPage, Bytes: journalPageBytes}
	if a.State == "" {
		return f, nil
	}
	for s := commands.StateReceived; s <= commands.StateDone; s++ {
		if s.String() == a.State {
			f.State = s
			return f, nil
		}
	}
	for o := commands.OutcomeApplied; o <= commands.OutcomeUnknown; o++ {
		if o.String() == a.State {
			f.Outcome = o
			return f, nil
		}
	}
	return f, fmt.Errorf("%w: state is received, held, dispatching or done, or of a decided entry applied, rejected, expired, superseded, removed or unknown", ErrUsage)
}

// verbJournalList shows entries in arrival order, at most a page of them; next,
// where it is not 0, is the After that goes on.
func verbJournalList(_ context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a JournalArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	f, err := a.filter()
	if err != nil {
		return err
	}
	views := []*EntryView{}
	var next uint64
	err = c.db.View(func(tx *bbolt.Tx) error {
		list, n, err := c.journal.Page(tx, f)
		for _, e := range list {
			views = append(views, entryView(e, a.NoText))
		}
		next = n
		return err
	})
	if err != nil {
		return err
	}
	return emit(map[string]any{"entries": views, "next": next})
}

// verbJournalShow finds an entry by its device and its command or request ID
// and shows each state it passed.
func verbJournalShow(_ context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a JournalArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	if !nip.ValidID(string(a.Device)) || !nip.ValidID(a.ID) {
		return fmt.Errorf("%w: a device and a command or request ID are 64 lowercase hex characters each", ErrUsage)
	}
	var view *EntryView
	err := c.db.View(func(tx *bbolt.Tx) error {
		e, found, err := c.journal.Find(tx, a.Device, a.ID)
		if err != nil || !found {
			return err
		}
		view = entryView(e, a.NoText)
		return c.history(tx, e, view)
	})
	if err == nil && view == nil {
		err = fmt.Errorf("%w: no entry %s of device %s", ErrNotFound, a.ID, a.Device)
	}
	if err != nil {
		return err
	}
	return emit(view)
}

func (c *Core) history(tx *bbolt.Tx, e commands.Entry, view *EntryView) error {
	for _, seq := range e.History {
		ts, err := c.journal.Transitions(tx, seq-1, 1)
		if err != nil {
			return err
		}
		for _, t := range ts {
			if t.Seq == seq {
				view.History = append(view.History, historyRow(t))
			}
		}
	}
	return nil
}

func historyRow(t commands.Transition) HistoryRow {
	r := HistoryRow{Seq: t.Seq, At: t.At, What: t.What, State: t.State.String(), Reason: t.Reason}
	if t.Outcome != commands.OutcomeNone {
		r.Outcome = t.Outcome.String()
	}
	return r
}

// transitionLine is one line of tail and dump.
type transitionLine struct {
	Record string `json:"record"` // "transition"
	HistoryRow
	Device   nip.PubKey `json:"device"`
	Kind     string     `json:"kind"`
	ID       string     `json:"command"`
	Entry    string     `json:"entry"` // SHA-256 of the entry's bytes after this step
	Previous string     `json:"previous"`
}

// endLine is the first and the last line of a dump: the chain's ends.
type endLine struct {
	Record string `json:"record"` // "checkpoint" or "head"
	Seq    uint64 `json:"seq"`
	Hash   string `json:"hash"`
	Pruned uint64 `json:"pruned,omitempty"`
}

// entryLine is one entry of a dump.
type entryLine struct {
	Record string `json:"record"` // "entry"
	*EntryView
}

// verbJournalTail prints every transition after a.After, and goes on while the
// caller stays where Follow.
func verbJournalTail(ctx context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a JournalArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	after := a.After
	for {
		n, err := c.emitTransitions(&after, 1<<64-1, emit)
		if err != nil {
			return err
		}
		if n == journalPage {
			continue
		}
		if !a.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// emitTransitions prints a page of those behind after, none behind last, and
// returns how many the journal had.
func (c *Core) emitTransitions(after *uint64, last uint64, emit func(any) error) (int, error) {
	var ts []commands.Transition
	if err := c.db.View(func(tx *bbolt.Tx) (err error) {
		ts, err = c.journal.Transitions(tx, *after, journalPage)
		return err
	}); err != nil {
		return 0, err
	}
	for _, t := range ts {
		if t.Seq > last {
			return 0, nil
		}
		*after = t.Seq
		line := transitionLine{
			"transition", historyRow(t), t.Key.Principal, t.Key.Kind, t.Key.ID, hex.EncodeToString(t.Entry[:]), hex.EncodeToString(t.Previous[:]),
		}
		if err := emit(line); err != nil {
			return 0, err
		}
	}
	return len(ts), nil
}

// verbJournalDump prints all that the journal has: where its chain begins, every
// transition, every entry as it stands, and the head. What happens while it
// prints is not in the transitions, but may be in the entries.
func verbJournalDump(_ context.Context, c *Core, raw json.RawMessage, emit func(any) error) error {
	var a JournalArgs
	if err := arguments(raw, &a); err != nil {
		return err
	}
	var from, to commands.End
	if err := c.db.View(func(tx *bbolt.Tx) (err error) {
		from, to, err = c.journal.Ends(tx)
		return err
	}); err != nil {
		return err
	}
	if err := emit(endLine{"checkpoint", from.Seq, hex.EncodeToString(from.Hash[:]), from.Count}); err != nil {
		return err
	}
	after := from.Seq
	for n := journalPage; n == journalPage; {
		var err error
		if n, err = c.emitTransitions(&after, to.Seq, emit); err != nil {
			return err
		}
	}
	f := commands.Filter{Limit: 64} // of entries with their texts at once
	for more := true; more; more = f.After != 0 {
		var list []commands.Entry
		if err := c.db.View(func(tx *bbolt.Tx) (err error) {
			list, f.After, err = c.journal.Page(tx, f)
			return err
		}); err != nil {
			return err
		}
		for _, e := range list {
			if err := emit(entryLine{"entry", entryView(e, a.NoText)}); err != nil {
				return err
			}
		}
	}
	return emit(endLine{"head", to.Seq, hex.EncodeToString(to.Hash[:]), 0})
}

func verbJournalCheck(_ context.Context, c *Core, _ json.RawMessage, emit func(any) error) error {
	var n uint64
	if err := c.db.View(func(tx *bbolt.Tx) (err error) {
		n, err = c.journal.Check(tx)
		return err
	}); err != nil {
		return err
	}
	return emit(map[string]any{"ok": true, "records": n})
}

// verbJournalResync lets the journal go on from the clock as it is now; ahead is
// by how many seconds it was ahead.
func verbJournalResync(ctx context.Context, c *Core, _ json.RawMessage, emit func(any) error) error {
	id, err := nip.NewID(rand.Reader)
	if err != nil {
		return err
	}
	var ahead int64
	if err := c.db.Update(ctx, func(tx *bbolt.Tx) (err error) {
		ahead, err = c.journal.Resync(tx, c.actKey("journal.resync", id), c.localSender(), c.now())
		return err
	}); err != nil {
		return err
	}
	if ahead > 0 {
		if err := c.evaluateAll(ctx); err != nil {
			return err
		}
	}
	return emit(map[string]any{"ahead": ahead})
}
