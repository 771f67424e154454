package commands

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"holdfast/nip"
)

// formatByte begins every entry, transition and row.
const formatByte = 1

// Bounds of stored members, in bytes. They are wider than the wire's, so that
// reading back never refuses what was written.
const (
	maxWord     = 256     // kinds, IDs, names, codes
	maxNote     = 4096    //
	maxText     = 1 << 16 //
	maxDispatch = 1 << 20 //
	maxSteps    = 1 << 20 // transitions of one entry
)

var errEncoding = errors.New("bytes are not an encoding of this format")

// writer appends members; a member beyond its bound is an error at the end.
type writer struct {
	b   []byte
	err error
}

func (w *writer) u8(v uint8)   { w.b = append(w.b, v) }
func (w *writer) u64(v uint64) { w.b = binary.BigEndian.AppendUint64(w.b, v) }
func (w *writer) i64(v int64)  { w.u64(uint64(v)) }

func (w *writer) bytes(b []byte, bound int) {
	if len(b) > bound {
		w.err = fmt.Errorf("a member of %d bytes is over its bound of %d", len(b), bound)
		return
	}
	w.b = binary.BigEndian.AppendUint32(w.b, uint32(len(b)))
	w.b = append(w.b, b...)
}

func (w *writer) str(s string, bound int) { w.bytes([]byte(s), bound) }

// key writes a public key as its 32 bytes, and an absent one as none.
func (w *writer) key(k nip.PubKey) {
	raw, err := hex.DecodeString(string(k))
	if err != nil || (len(raw) != 0 && len(raw) != 32) {
		w.err = errors.New("a public key is not 64 hex characters")
		return
	}
	w.bytes(raw, 32)
}

func (w *writer) entryKey(k Key) {
	w.key(k.Principal)
	w.str(k.Kind, maxWord)
	w.str(k.ID, maxWord)
}

// reader takes members off; the first fault stays and everything after it is zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad = true
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) i64() int64 { return int64(r.u64()) }

func (r *reader) bytes(bound int) []byte {
	head := r.take(4)
	if head == nil {
		return nil
	}
	n := binary.BigEndian.Uint32(head)
	if n > uint32(bound) {
		r.bad = true
		return nil
	}
	return r.take(int(n))
}

func (r *reader) str(bound int) string { return string(r.bytes(bound)) }

func (r *reader) key() nip.PubKey {
	raw := r.bytes(32)
	if len(raw) != 0 && len(raw) != 32 {
		r.bad = true
	}
	return nip.PubKey(hex.EncodeToString(raw))
}

func (r *reader) entryKey() Key {
	return Key{Principal: r.key(), Kind: r.str(maxWord), ID: r.str(maxWord)}
}

// flags packs booleans, the first into the lowest bit.
func flags(set ...bool) (f uint8) {
	for i, on := range set {
		if on {
			f |= 1 << i
		}
	}
	return f
}

// flags unpacks them; an unknown bit is a fault.
func (r *reader) flags(into ...*bool) {
	f := r.u8()
	for i, p := range into {
		*p = f&(1<<i) != 0
	}
	if f>>len(into) != 0 {
		r.bad = true
	}
}

func (r *reader) state() State {
	s := State(r.u8())
	if s > StateDone {
		r.bad = true
	}
	return s
}

func (r *reader) outcome() Outcome {
	o := Outcome(r.u8())
	if o > OutcomeUnknown {
		r.bad = true
	}
	return o
}

func (r *reader) end() error {
	if r.bad || len(r.b) != 0 {
		return errEncoding
	}
	return nil
}

// encodeEntry is the one encoding of an entry. An unedited text is stored once.
func encodeEntry(e Entry) ([]byte, error) {
	w := writer{b: make([]byte, 0, 512+len(e.Command.Text)+len(e.Text)+len(e.Dispatch))}
	w.u8(formatByte)
	w.entryKey(e.Key)
	w.key(e.Sender.Device)
	w.str(string(e.Sender.Grant), maxWord)
	w.i64(e.Sender.Epoch)
	c := e.Command
	w.str(string(c.ID), maxWord)
	w.str(string(c.Task), maxWord)
	w.str(string(c.Action), maxWord)
	w.i64(c.BasedOn)
	w.str(c.Text, maxText)
	w.i64(c.IssuedAt)
	w.str(string(e.Task), maxWord)
	w.u8(flags(c.Emulate, e.Edited, e.Priority, e.Exact))
	if e.Edited {
		w.str(e.Text, maxText)
	}
	w.i64(e.Position)
	w.u8(uint8(e.State))
	w.u8(uint8(e.Then))
	w.u8(uint8(e.Outcome))
	w.str(string(e.Reason), maxWord)
	w.i64(e.Revision)
	w.bytes(e.Dispatch, maxDispatch)
	w.i64(e.ReceivedAt)
	w.i64(e.DecidedAt)
	w.u64(e.Seq)
	if len(e.History) > maxSteps {
		w.err = errors.New("an entry has too many transitions")
	}
	w.u64(uint64(len(e.History)))
	for _, seq := range e.History {
		w.u64(seq)
	}
	w.str(e.Note, maxNote)
	return w.b, w.err
}

func decodeEntry(b []byte) (Entry, error) {
	r := reader{b: b}
	var e Entry
	if r.u8() != formatByte {
		return Entry{}, errEncoding
	}
	e.Key = r.entryKey()
	e.Sender.Device = r.key()
	e.Sender.Grant = nip.GrantID(r.str(maxWord))
	e.Sender.Epoch = r.i64()
	c := &e.Command
	c.ID = nip.CommandID(r.str(maxWord))
	c.Task = nip.TaskID(r.str(maxWord))
	c.Action = nip.Action(r.str(maxWord))
	c.BasedOn = r.i64()
	c.Text = r.str(maxText)
	c.IssuedAt = r.i64()
	e.Task = nip.TaskID(r.str(maxWord))
	r.flags(&c.Emulate, &e.Edited, &e.Priority, &e.Exact)
	e.Text = c.Text
	if e.Edited {
		e.Text = r.str(maxText)
	}
	e.Position = r.i64()
	e.State = r.state()
	e.Then = r.state()
	e.Outcome = r.outcome()
	e.Reason = nip.Code(r.str(maxWord))
	e.Revision = r.i64()
	if d := r.bytes(maxDispatch); len(d) > 0 {
		e.Dispatch = append([]byte(nil), d...) // the transaction's slice dies with it
	}
	e.ReceivedAt = r.i64()
	e.DecidedAt = r.i64()
	e.Seq = r.u64()
	n := r.u64()
	if n > maxSteps || n > uint64(len(r.b)/8) {
		return Entry{}, errEncoding
	}
	e.History = make([]uint64, n)
	for i := range e.History {
		e.History[i] = r.u64()
	}
	e.Note = r.str(maxNote)
	if err := r.end(); err != nil {
		return Entry{}, err
	}
	return e, nil
}

func encodeTransition(t Transition) ([]byte, error) {
	w := writer{b: make([]byte, 0, 384)}
	w.u8(formatByte)
	w.u64(t.Seq)
	w.i64(t.At)
	w.entryKey(t.Key)
	w.str(t.What, maxWord)
	w.u8(uint8(t.State))
	w.u8(uint8(t.Outcome))
	w.str(string(t.Reason), maxWord)
	w.b = append(w.b, t.Entry[:]...)
	w.b = append(w.b, t.Previous[:]...)
	return w.b, w.err
}

func decodeTransition(b []byte) (Transition, error) {
	r := reader{b: b}
	var t Transition
	if r.u8() != formatByte {
		return Transition{}, errEncoding
	}
	t.Seq = r.u64()
	t.At = r.i64()
	t.Key = r.entryKey()
	t.What = r.str(maxWord)
	t.State = r.state()
	t.Outcome = r.outcome()
	t.Reason = nip.Code(r.str(maxWord))
	copy(t.Entry[:], r.take(32))
	copy(t.Previous[:], r.take(32))
	if err := r.end(); err != nil {
		return Transition{}, err
	}
	return t, nil
}

// encodeRow holds what Decide needs of an undecided entry, without its texts,
// so that a long queue is judged without reading it all.
func encodeRow(e Entry) ([]byte, error) {
	w := writer{b: make([]byte, 0, 320)}
	w.u8(formatByte)
	w.entryKey(e.Key)
	w.key(e.Sender.Device)
	w.str(string(e.Sender.Grant), maxWord)
	w.i64(e.Sender.Epoch)
	w.str(string(e.Command.Action), maxWord)
	w.i64(e.Command.BasedOn)
	w.i64(e.Command.IssuedAt)
	w.u8(flags(e.Command.Emulate, e.Edited, e.Priority, e.Exact))
	w.i64(e.Position)
	w.u8(uint8(e.State))
	w.u8(uint8(e.Then))
	return w.b, w.err
}

// decodeRow returns a partial entry: no texts, no bytes, no history.
func decodeRow(seq uint64, task nip.TaskID, b []byte) (Entry, error) {
	r := reader{b: b}
	e := Entry{Seq: seq, Task: task}
	if r.u8() != formatByte {
		return Entry{}, errEncoding
	}
	e.Key = r.entryKey()
	e.Sender.Device = r.key()
	e.Sender.Grant = nip.GrantID(r.str(maxWord))
	e.Sender.Epoch = r.i64()
	e.Command.ID = nip.CommandID(e.Key.ID)
	e.Command.Task = task
	e.Command.Action = nip.Action(r.str(maxWord))
	e.Command.BasedOn = r.i64()
	e.Command.IssuedAt = r.i64()
	r.flags(&e.Command.Emulate, &e.Edited, &e.Priority, &e.Exact)
	e.Position = r.i64()
	e.State = r.state()
	e.Then = r.state()
	if err := r.end(); err != nil {
		return Entry{}, err
	}
	return e, nil
}
