package commands

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// senders is what each of two devices may know of task 0, a word a command.
func (r *rig) senders(limit int) (out [2]string) {
	r.t.Helper()
	r.view(func(tx *bbolt.Tx) error {
		lists, err := r.Journal.Senders(tx, task(0), []nip.PubKey{device(0), device(1)}, limit)
		for i := range out {
			var words []string
			for _, w := range lists[device(i)] {
				word := strings.TrimLeft(string(w.Command), "0") + " " + w.State.String()
				if w.State == StateHeld {
					word += fmt.Sprint(" ", w.Ahead)
				}
				if w.State == StateDone {
					word = strings.TrimLeft(string(w.Command), "0") + " " + w.Outcome.String()
				}
				words = append(words, word)
			}
			out[i] = strings.Join(words, ", ")
		}
		return err
	})
	return out
}

// Each sender's commands alone: undecided ones in run order across all senders,
// then decisions, the last one first, also of a message that waited through them.
func TestSenders(t *testing.T) {
	r := newRig(t)
	ft := r.tasks.add(task(0), TaskView{Phase: PhaseRunning, Revision: 1, TurnStart: 1})
	r.tasks.add(task(1), TaskView{Phase: PhaseRunning, Revision: 1, TurnStart: 1})
	r.submit(sender(0), command(1, nip.Queue, 1))
	r.submit(sender(1), command(2, nip.Queue, 1))
	r.submit(sender(0), command(3, nip.Queue, 1))
	for n := 4; n < 7; n++ {
		r.submit(sender(0), command(n, nip.Send, 1)) // refused while the turn runs
	}
	names := func(ns ...int) (out []any) {
		for _, n := range ns {
			out = append(out, strings.TrimLeft(string(id(n)), "0"))
		}
		return out
	}
	want := [2]string{
		fmt.Sprintf("%s held 0, %s held 2, %s rejected, %s rejected, %s rejected", names(1, 3, 6, 5, 4)...),
		fmt.Sprintf("%s held 1", names(2)...),
	}
	if got := r.senders(64); got != want {
		t.Fatalf("%q\nwant %q", got, want)
	}
	ft.finish(false)
	r.evaluate()
	want = [2]string{
		fmt.Sprintf("%s held 1, %s applied, %s rejected", names(3, 1, 6)...),
		fmt.Sprintf("%s held 0", names(2)...),
	}
	if got := r.senders(3); got != want {
		t.Fatalf("%q\nwant %q", got, want)
	}
	if got := r.senders(1); got[0] != fmt.Sprintf("%s held 1", names(3)...) {
		t.Fatalf("%q", got)
	}
	r.check()
}

// A decision that is not listed, or listed and not there, is found; a pruned one
// leaves the list.
func TestDecidedIndex(t *testing.T) {
	one := func(t *testing.T) *rig {
		r := newRig(t)
		r.tasks.add(task(0), TaskView{Phase: PhaseRunning, Revision: 1, TurnStart: 1})
		r.submit(sender(0), command(1, nip.Send, 1))
		r.check()
		return r
	}
	for name, tamper := range map[string]func(b *bbolt.Bucket) error{
		"removed": func(b *bbolt.Bucket) error { k, _ := b.Cursor().First(); return b.Delete(k) },
		"added": func(b *bbolt.Bucket) error {
			_, v := b.Cursor().First()
			return b.Put(decidedKey(task(1), device(0), 9), append([]byte(nil), v...))
		},
		"of nothing": func(b *bbolt.Bucket) error { return b.Put(decidedKey(task(0), device(0), 9), []byte("nothing")) },
	} {
		t.Run(name, func(t *testing.T) {
			r := one(t)
			r.update(func(tx *bbolt.Tx) error { return tamper(tx.Bucket(bucketDecided)) })
			err := r.store.db.View(func(tx *bbolt.Tx) error { _, err := r.Journal.Check(tx); return err })
			if !errors.Is(err, ErrChain) {
				t.Fatalf("not found: %v", err)
			}
		})
	}
	r := one(t)
	r.update(func(tx *bbolt.Tx) error {
		n, err := r.Journal.Prune(tx, start+10*Retention, 100)
		if n == 0 {
			t.Error("nothing pruned")
		}
		return err
	})
	r.check()
	if got := r.senders(64); got != [2]string{} {
		t.Fatalf("%q", got)
	}
}
