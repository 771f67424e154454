package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

func filling(n, tasks, devices int) Filling {
	f := Filling{Entries: n, At: start}
	for i := range tasks {
		f.Tasks = append(f.Tasks, nip.TaskID(fmt.Sprintf("%064x", i+0xf00)))
	}
	for i := range devices {
		f.Devices = append(f.Devices, device(i+100))
	}
	return f
}

// dump is every key and value below a root, in order.
func dump(t *testing.T, r *rig) []byte {
	t.Helper()
	var out bytes.Buffer
	var walk func(name string, b *bbolt.Bucket) error
	walk = func(name string, b *bbolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			if v == nil {
				if sub := b.Bucket(k); sub != nil {
					return walk(fmt.Sprintf("%s/%x", name, k), sub)
				}
			}
			fmt.Fprintf(&out, "%s %x %x\n", name, k, v)
			return nil
		})
	}
	r.view(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error { return walk(string(name), b) })
	})
	return out.Bytes()
}

// TestFill: what Fill writes is, byte for byte, what the journal writes.
func TestFill(t *testing.T) {
	f := filling(300, 7, 3)
	r, slow := newRig(t), newRig(t)
	for _, one := range []*rig{r, slow} {
		one.tasks.add(task(0), running)
		one.submit(sender(0), command(1, nip.Queue, 5))
	}
	for i := range f.Entries {
		slow.update(func(tx *bbolt.Tx) error {
			e, err := slow.Journal.Record(tx, filled(f, i, start), start)
			if err != nil {
				return err
			}
			e.State, e.Outcome, e.Reason = StateDone, OutcomeRejected, nip.Conflict
			_, err = slow.Journal.Change(tx, e, word(e), start)
			return err
		})
	}
	if err := r.Journal.Fill(context.Background(), r.store, f); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(dump(t, r), dump(t, slow)) {
		t.Error("Fill writes something else than Record and Change")
	}
	r.check()
	if err := r.Journal.Fill(context.Background(), r.store, f); !errors.Is(err, ErrConflict) {
		t.Errorf("filled twice: %v", err)
	}
}
