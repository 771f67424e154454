package commands

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"holdfast/nip"
)

// TestOldJournal opens a journal written by the first format: it must open for
// ever, with every chain link, entry and index as it was. -update writes the file
// only where it is missing: a new format gets a folder of its own.
func TestOldJournal(t *testing.T) {
	path := filepath.Join("testdata", "journal", "v1", "journal.db")
	if _, err := os.Stat(path); *update && errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		r := newRig(t)
		ft := r.tasks.add(task(0), TaskView{Phase: PhaseRunning, Revision: 5, TurnStart: 5, Steering: Steering{Emulate: true}})
		for i := range 4 {
			r.submit(sender(i%2), command(i, nip.Queue, 5))
		}
		r.submit(sender(2), command(4, nip.Send, 5))
		ft.finish(false)
		r.evaluate()
		r.update(func(tx *bbolt.Tx) error {
			k := Key{Principal: device(3), Kind: "device.revoke", ID: string(id(9))}
			if err := r.Journal.Note(tx, k, sender(3), "", "revoke one", OutcomeApplied, "", 0, start); err != nil {
				return err
			}
			return r.Journal.SetLease(tx, task(0), &Lease{Device: device(1), ExpiresAt: start + 60})
		})
		if err := r.store.db.View(func(tx *bbolt.Tx) error { return tx.CopyFile(path, 0o644) }); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(t.TempDir(), "journal.db")
	if err := os.WriteFile(mine, b, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(mine, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bbolt.Tx) error {
		j := Journal{}
		if records, err := j.Check(tx); err != nil || records != 13 {
			t.Errorf("%d records, %v", records, err)
		}
		for i, want := range []string{"applied", "held", "held", "held", "rejected conflict"} {
			s := sender(i % 2)
			if i == 4 {
				s = sender(2)
			}
			e, known, err := j.Get(tx, Key{Principal: s.Device, Kind: KindCommand, ID: string(id(i))})
			if err != nil || !known || short(e) != want || e.Sender != s || e.Text != e.Command.Text {
				t.Errorf("command %d: %v %v %+v", i, err, known, e)
			}
		}
		if l, ok, err := j.Lease(tx, task(0)); err != nil || !ok || l != (Lease{Device: device(1), ExpiresAt: start + 60}) {
			t.Errorf("lease %v %v %v", l, ok, err)
		}
		// And it can be written on.
		_, err := j.Record(tx, entryFor(sender(5), command(20, nip.Queue, 5)), start)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
