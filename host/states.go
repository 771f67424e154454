package host

import (
	"context"
	"slices"
	"sort"
	"time"

	"go.etcd.io/bbolt"

	"holdfast/commands"
	"holdfast/internal/commit"
	"holdfast/nip"
)

const (
	statesMost   = 64
	statesKept   = 604_800                // seconds: the most that a record may be asked to stay
	statesNoTask = 86_400                 // where there is no such task: whoever names many of them fills little
	statesSettle = 100 * time.Millisecond // a command usually passes two states at once: one record tells both
	statesPause  = time.Second            // between two rounds that told something, at least
	statesShare  = 10                     // a round rests for this many times what it took: much to tell is not all of the host's work
	statesRest   = 10 * time.Second       // but no longer
	statesBatch  = 512                    // transitions of one round
	statesAgain  = 5 * time.Second        // after a round that failed
)

// toldStates is what one device was told last of its commands on one task. The
// same bytes go out again after a restart; another record of the pair is always
// issued later, so that a reader knows which is the newest.
type toldStates struct {
	IssuedAt int64      `json:"issued_at"`
	Commands nip.Digest `json:"commands"` // of what it says, so that nothing is said twice
	Until    int64      `json:"until"`
	Event    *nip.Event `json:"event"`
}

// keyTold is the journal's sequence up to which every transition was told.
const keyTold = "told"

// teller tells every device what became of the commands that it sent: our record
// of command states, beside NIP-HOST. It follows the journal's history by a durable
// cursor: whatever moves a command is a transition, so nothing that moves one
// can forget to tell. A round reads the transitions since the cursor, makes one
// record for each task and sender that they touch, also for those whose held
// messages only moved up, and commits the sealed records, their places in the
// outbox and the cursor together. A crash before that commit makes the next
// start tell; after it the outbox does.
//
// A record goes to the sender of its commands and to nobody else. No right is
// asked for beyond a grant that stands: whoever may send may learn how it ended.
type teller struct {
	h             *Host
	bell          chan struct{}
	settle, pause time.Duration

	// after is the loop's own: the cursor, ahead of the durable one where
	// nothing had to be told.
	after uint64
	begun bool
	swept int64 // when records that ran out were dropped last
}

func (t *teller) wake() { ring(t.bell) }

// tellingDB wakes the teller after each commit of the evaluator, the only way in
// which a command enters the journal or moves in it.
type tellingDB struct {
	*commit.DB
	c *Core
}

func (d tellingDB) Update(ctx context.Context, fn func(tx *bbolt.Tx) error) error {
	err := d.DB.Update(ctx, fn)
	if h := d.c.serving; h != nil && err == nil {
		h.teller.wake()
	}
	return err
}

func (t *teller) run(ctx context.Context) error {
	for {
		began := time.Now()
		told, more, err := t.round(ctx)
		wait := time.Duration(0)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && fatal(err):
			return err
		case err != nil:
			t.h.log.Error().Err(err).Msg("devices could not be told what became of their commands; it is tried again soon")
			more, wait = true, statesAgain
		case told:
			wait = t.restAfter(time.Since(began))
		}
		if !rest(ctx, wait) {
			return nil
		}
		if more {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.bell:
		}
		if !rest(ctx, t.settle) {
			return nil
		}
		if err := t.sweep(ctx); err != nil && fatal(err) && ctx.Err() == nil {
			return err
		}
	}
}

// restAfter is the pause behind a round that told something and took so long.
func (t *teller) restAfter(took time.Duration) time.Duration {
	return max(t.pause, min(statesShare*took, statesRest))
}

// sweep drops, once a day, the records that no relay keeps any more.
func (t *teller) sweep(ctx context.Context) error {
	now := t.h.now()
	if now < t.swept+86_400 {
		return nil
	}
	t.swept = now
	return t.h.db.Update(ctx, func(tx *bbolt.Tx) error { return pruneStates(tx, now) })
}

// rest waits, and reports whether ctx goes on.
func rest(ctx context.Context, wait time.Duration) bool {
	if wait == 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// toldRow is one record on its way: what it says, sealed for a device under the
// epoch that it had.
type toldRow struct {
	device nip.PubKey
	task   nip.TaskID
	epoch  int64
	relay  nip.RelayURL
	states nip.CommandStates
	row    toldStates
}

// round tells what the next transitions changed. told says that something went
// into the outbox, more that there are further transitions.
func (t *teller) round(ctx context.Context) (told, more bool, err error) {
	h := t.h
	var last uint64
	var rows []toldRow
	err = h.db.View(func(tx *bbolt.Tx) error {
		if !t.begun {
			t.after, t.begun = uint64(getCount(tx, bucketMeta, keyTold)), true
		}
		ts, err := h.journal.Transitions(tx, t.after, statesBatch)
		if err != nil || len(ts) == 0 {
			return err
		}
		last, more = ts[len(ts)-1].Seq, len(ts) == statesBatch
		rows, err = t.changed(tx, ts)
		return err
	})
	if err != nil || last == 0 {
		return false, false, err
	}
	kept := rows[:0]
	for _, r := range rows {
		if err := t.seal(&r); err != nil {
			h.log.Error().Err(err).Str("task", string(r.task)).Msg("command states cannot be sealed; the device hears of them by asking")
			continue
		}
		kept = append(kept, r)
	}
	rows = kept
	if len(rows) == 0 && !more {
		t.after = last // the next start looks at these again, and tells nothing
		return false, false, nil
	}
	told, err = t.commit(ctx, rows, last)
	return told, more, err
}

// commit keeps what was sealed, puts it into the outbox and moves the cursor.
func (t *teller) commit(ctx context.Context, rows []toldRow, last uint64) (told bool, err error) {
	err = t.h.db.Update(ctx, func(tx *bbolt.Tx) error {
		live, err := t.readers(tx)
		if err != nil {
			return err
		}
		for _, r := range rows {
			// Sealed before a revocation is told to nobody after it, also not to
			// a device that was paired again meanwhile.
			if g, ok := live[r.device]; !ok || g.Epoch != r.epoch {
				continue
			}
			key := string(r.device) + "/" + string(r.task)
			if err := putJSON(tx, bucketStates, key, r.row); err != nil {
				return err
			}
			if err := putOutbox(tx, statesRow(r.device, r.task, r.relay, r.row)); err != nil {
				return err
			}
		}
		return putCount(tx, bucketMeta, keyTold, int64(last))
	})
	if err != nil {
		return false, err
	}
	t.after = last
	if len(rows) > 0 {
		t.h.outbox.wake()
	}
	return len(rows) > 0, nil
}

func statesRow(device nip.PubKey, task nip.TaskID, relay nip.RelayURL, r toldStates) outboxRow {
	return outboxRow{Device: device, Stream: "commands", Subject: string(task), Relay: relay, Until: r.Until, Event: r.Event}
}

// changed makes the records that differ from what was told last.
func (t *teller) changed(tx *bbolt.Tx, ts []commands.Transition) ([]toldRow, error) {
	h := t.h
	now := h.now() // not the journal's: devices believe no record from a future that a wrong clock left there
	live, err := t.readers(tx)
	if err != nil {
		return nil, err
	}
	touched := map[nip.TaskID]map[nip.PubKey]bool{}
	seen := map[commands.Key]bool{}
	for _, x := range ts {
		if x.Key.Kind != commands.KindCommand || seen[x.Key] {
			continue
		}
		seen[x.Key] = true
		e, known, err := h.journal.Get(tx, x.Key)
		if err != nil {
			h.log.Error().Err(err).Uint64("seq", x.Seq).Msg("a journal entry cannot be read, so its sender is not told")
			continue
		}
		if !known || !nip.ValidID(string(e.Task)) {
			continue // pruned since: it was decided long ago
		}
		if touched[e.Task] == nil {
			touched[e.Task] = map[nip.PubKey]bool{}
		}
		touched[e.Task][x.Key.Principal] = true
	}
	var out []toldRow
	for task, by := range touched {
		named := make([]nip.PubKey, 0, len(by))
		for d := range by {
			named = append(named, d)
		}
		lists, err := h.journal.Senders(tx, task, named, statesMost)
		if err != nil {
			h.log.Error().Err(err).Str("task", string(task)).Msg("the task's commands cannot be read, so their senders are not told")
			continue
		}
		revision := t.revision(task)
		for device, list := range lists {
			g, ok := live[device]
			if !ok || len(list) == 0 {
				continue
			}
			r := toldRow{device: device, task: task, epoch: g.Epoch, relay: g.Relay}
			rows, digest, err := stateRows(list)
			if err != nil {
				return nil, err
			}
			var old toldStates
			if _, err := getJSON(tx, bucketStates, string(device)+"/"+string(task), &old); err != nil {
				return nil, err
			}
			if old.Commands == digest && old.Until > now {
				continue
			}
			r.row = toldStates{IssuedAt: max(now, old.IssuedAt+1), Commands: digest}
			r.row.Until = r.row.IssuedAt + statesKept
			if revision == 0 {
				r.row.Until = r.row.IssuedAt + statesNoTask
			}
			r.states = nip.CommandStates{
				Host: h.self, IssuedAt: r.row.IssuedAt, ExpiresAt: r.row.Until, Task: task, Revision: revision, Commands: rows,
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// retell puts the stored bytes of each device's newest records into the outbox
// again at start: whether the relay still has them is not known.
func (t *teller) retell(ctx context.Context) error {
	return t.h.db.Update(ctx, func(tx *bbolt.Tx) error {
		live, err := t.readers(tx)
		if err != nil {
			return err
		}
		var rows []outboxRow
		issued := map[*nip.Event]int64{}
		now := t.h.now()
		if err := eachJSON(tx, bucketStates, func(key string, r toldStates) error {
			if len(key) < 129 || r.Until <= now {
				return nil
			}
			device, task := nip.PubKey(key[:64]), nip.TaskID(key[65:])
			if g, ok := live[device]; ok {
				rows = append(rows, statesRow(device, task, g.Relay, r))
				issued[r.Event] = r.IssuedAt
			}
			return nil
		}); err != nil {
			return err
		}
		sort.SliceStable(rows, func(i, j int) bool { return issued[rows[i].Event] > issued[rows[j].Event] })
		sent := map[nip.PubKey]int{}
		rows = slices.DeleteFunc(rows, func(r outboxRow) bool {
			sent[r.Device]++
			return sent[r.Device] > republishedTasks
		})
		for _, r := range rows {
			if err := putOutbox(tx, r); err != nil {
				return err
			}
		}
		return nil
	})
}

func pruneStates(tx *bbolt.Tx, now int64) error {
	var gone []string
	err := eachJSON(tx, bucketStates, func(key string, r toldStates) error {
		if r.Until <= now {
			gone = append(gone, key)
		}
		return nil
	})
	for _, key := range gone {
		if err == nil {
			err = tx.Bucket(bucketStates).Delete([]byte(key))
		}
	}
	return err
}
