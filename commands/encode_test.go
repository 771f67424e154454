package commands

import (
	"bytes"
	"testing"

	"holdfast/nip"
)

func fullEntry() Entry {
	return Entry{
		Key: commandKey(sender(0), command(1, nip.Steer, 4)), Sender: sender(0), Command: command(1, nip.Steer, 4), Task: task(0),
		Text: "edited", Edited: true, Priority: true, Exact: true, Position: 12, State: StateDispatching, Then: StateHeld,
		Revision: 5, Dispatch: []byte("bytes"), ReceivedAt: start, DecidedAt: start + 1, Seq: 9, History: []uint64{9, 10}, Note: "note",
	}
}

// The decoders read what lies on disk: no panic, no big allocation, and one
// encoding for each value.

func FuzzDecodeEntry(f *testing.F) {
	for _, e := range []Entry{fullEntry(), {Key: Key{Principal: device(1), Kind: "task.create", ID: "x"}, State: StateDone, Outcome: OutcomeApplied, Seq: 1, History: []uint64{1}}} {
		b, err := encodeEntry(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEntry(b)
		if err != nil {
			return
		}
		if again, err := encodeEntry(e); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("encodes to other bytes: %v", err)
		}
	})
}

func FuzzDecodeTransition(f *testing.F) {
	b, err := encodeTransition(Transition{Seq: 3, At: start, Key: commandKey(sender(0), command(1, nip.Send, 1)), What: "held", State: StateHeld, Reason: nip.Conflict})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		tr, err := decodeTransition(b)
		if err != nil {
			return
		}
		if again, err := encodeTransition(tr); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("encodes to other bytes: %v", err)
		}
	})
}

func FuzzDecodeRow(f *testing.F) {
	b, err := encodeRow(fullEntry())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeRow(7, task(0), b)
		if err != nil {
			return
		}
		if again, err := encodeRow(e); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("encodes to other bytes: %v", err)
		}
	})
}

func TestEncodingKeepsEverything(t *testing.T) {
	e := fullEntry()
	b, err := encodeEntry(e)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeEntry(b)
	if err != nil {
		t.Fatal(err)
	}
	if got.Text != e.Text || got.Command != e.Command || got.Sender != e.Sender || !bytes.Equal(got.Dispatch, e.Dispatch) || got.Then != e.Then || !got.Exact {
		t.Errorf("%+v", got)
	}
	for n := range b { // every truncation is refused
		if _, err := decodeEntry(b[:n]); err == nil {
			t.Fatalf("cut to %d bytes it still decodes", n)
		}
	}
	if _, err := encodeEntry(Entry{Key: Key{Principal: "xyz"}}); err == nil {
		t.Error("a damaged key encodes")
	}
}
