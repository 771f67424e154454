package owner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"testing"
)

// aLog is a store with one task that has every kind of record, and its log.
func aLog(t *testing.T) (*Store, []byte) {
	t.Helper()
	s := newStore(t)
	mustApply(t, s, submitOf(deviceTask, "c1"))
	task, _ := s.Get(deviceTask)
	mustAppend(t, s, deviceTask, 1, Event{Admitted: admission(&task)})
	mustApply(t, s, correctOf(deviceTask, "c2", 2))
	mustAppend(t, s, deviceTask, 1, Event{Result: exited(3)})
	return s, readFile(t, logPath(s, deviceTask))
}

// frames are the offsets at which a log's frames begin, and its end.
func frames(t *testing.T, log []byte) []int64 {
	t.Helper()
	st, err := start(bytes.NewReader(log), int64(len(log)))
	if err != nil {
		t.Fatal(err)
	}
	at := []int64{st.end}
	if _, err := st.follow(bytes.NewReader(log), int64(len(log)), func(frame) { at = append(at, st.end) }); err != nil {
		t.Fatal(err)
	}
	return at
}

// At whatever byte a log ends, a reader shows the whole records before it, and
// the next writer carries on from there.
func TestLogCutAtEveryByte(t *testing.T) {
	s, log := aLog(t)
	bounds := frames(t, log)
	for n := range log {
		whole := 0
		for _, b := range bounds[1:] {
			if b <= int64(n) {
				whole++
			}
		}
		st, err := start(bytes.NewReader(log[:n]), int64(n))
		if int64(n) < bounds[0] {
			wantErr(t, err, ErrCorrupt)
			continue
		}
		if err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		torn, err := st.follow(bytes.NewReader(log[:n]), int64(n), nil)
		if err != nil || st.sequence != int64(whole) || torn == (st.end == int64(n)) {
			t.Fatalf("cut at %d: sequence %d of %d, torn %v, %v", n, st.sequence, whole, torn, err)
		}
	}
	// The real thing at some: a torn tail longer than what follows it is cut off first.
	for _, n := range []int64{bounds[2] - 1, bounds[3] - 1, bounds[3] + 3} {
		whole := 2
		if n < bounds[2] {
			whole = 1
		}
		if n > bounds[3] {
			whole = 3
		}
		writeFile(t, logPath(s, deviceTask), log[:n])
		other := openStore(t, s.Home(), false)
		task, err := other.Get(deviceTask)
		if err != nil || task.Revision != int64(whole) {
			t.Fatalf("cut at %d: revision %d, %v", n, task.Revision, err)
		}
		epoch, ev := Epoch(2), Event{OwnerLost: true} // short ones
		if whole == 1 {
			epoch, ev = 0, Event{NotStarted: ptr("x")}
		}
		mustAppend(t, other, deviceTask, epoch, ev)
		if task, err = openStore(t, s.Home(), false).Get(deviceTask); err != nil || task.Revision != int64(whole)+1 {
			t.Fatalf("cut at %d and added to: revision %d, %v", n, task.Revision, err)
		}
	}
}

// A log with any one byte changed is damage, or made by something newer, and
// never passes for a torn tail.
func TestLogChangedAtEveryByte(t *testing.T) {
	_, log := aLog(t)
	for i := range log {
		b := bytes.Clone(log)
		b[i] ^= 0x41
		st, err := start(bytes.NewReader(b), int64(len(b)))
		var torn bool
		if err == nil {
			torn, err = st.follow(bytes.NewReader(b), int64(len(b)), nil)
		}
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer) {
			t.Fatalf("byte %d changed: torn %v, %v", i, torn, err)
		}
	}
}

// Records whose frames are perfect and whose content never happened.
func TestForgedRecords(t *testing.T) {
	_, log := aLog(t)
	bounds := frames(t, log)
	type part struct {
		kind    byte
		payload []byte
	}
	var parts []part
	for i := range len(bounds) - 1 {
		f := log[bounds[i]:bounds[i+1]]
		parts = append(parts, part{f[4], f[frameHead : len(f)-frameTail]})
	}
	command := func(p part, change func(*commandRecord)) part {
		rec, err := decodeCommandRecord(p.payload)
		if err != nil {
			t.Fatal(err)
		}
		change(&rec)
		return part{p.kind, rec.encode()}
	}
	event := func(p part, change func(*eventRecord)) part {
		rec, err := decodeEventRecord(p.payload)
		if err != nil {
			t.Fatal(err)
		}
		change(&rec)
		return part{p.kind, mustJSON(rec)}
	}
	for _, row := range []struct {
		name  string
		forge func([]part) []part
		want  error
	}{
		{"as it was", func(p []part) []part { return p }, nil},
		{"receipt with another status", func(p []part) []part {
			p[0] = command(p[0], func(c *commandRecord) { c.receipt.Status = Finished })
			return p
		}, ErrCorrupt},
		{"receipt with another revision", func(p []part) []part {
			p[2] = command(p[2], func(c *commandRecord) { c.receipt.Revision++ })
			return p
		}, ErrCorrupt},
		{"receipt of other bytes", func(p []part) []part {
			p[2] = command(p[2], func(c *commandRecord) { c.request = append(c.request, ' ') })
			return p
		}, ErrCorrupt},
		{"receipt with another sequence", func(p []part) []part {
			p[2] = command(p[2], func(c *commandRecord) { c.receipt.Sequence++ })
			return p
		}, ErrCorrupt},
		{"event with a sequence used before", func(p []part) []part {
			p[3] = event(p[3], func(e *eventRecord) { e.Sequence-- })
			return p
		}, ErrCorrupt},
		{"event with a gap before it", func(p []part) []part {
			p[3] = event(p[3], func(e *eventRecord) { e.Sequence++ })
			return p
		}, ErrCorrupt},
		{"event of another epoch", func(p []part) []part {
			p[3] = event(p[3], func(e *eventRecord) { e.Epoch = 2 })
			return p
		}, ErrCorrupt},
		{"event dated before the last", func(p []part) []part {
			p[3] = event(p[3], func(e *eventRecord) { e.At-- })
			return p
		}, ErrCorrupt},
		{"record left out", func(p []part) []part { return append(p[:1], p[2:]...) }, ErrCorrupt},
		{"record twice", func(p []part) []part { return append(p, p[3]) }, ErrCorrupt},
		{"records in another order", func(p []part) []part { p[1], p[2] = p[2], p[1]; return p }, ErrCorrupt},
		{"command twice", func(p []part) []part {
			return append(p, command(p[2], func(c *commandRecord) {
				c.request = bytes.Replace(c.request, []byte(`"expected_revision":2`), []byte(`"expected_revision":4`), 1)
				c.receipt.RequestDigest, c.receipt.Sequence, c.receipt.Revision = DigestOf(c.request), 5, 5
				c.receipt.Status, c.receipt.Execution = Finished, ExecStopped
			}))
		}, ErrCorrupt},
		{"the same under a new command ID is sound", func(p []part) []part {
			return append(p, command(p[2], func(c *commandRecord) {
				c.request = bytes.Replace(c.request, []byte(`"expected_revision":2`), []byte(`"expected_revision":4`), 1)
				c.request = bytes.Replace(c.request, []byte(`"c2"`), []byte(`"c3"`), 1)
				c.receipt.CommandID = "c3"
				c.receipt.RequestDigest, c.receipt.Sequence, c.receipt.Revision = DigestOf(c.request), 5, 5
				c.receipt.Status, c.receipt.Execution = Finished, ExecStopped
			}))
		}, nil},
		{"event before the submit", func(p []part) []part { return p[1:] }, ErrCorrupt},
		{"no record", func(p []part) []part { return nil }, ErrCorrupt},
		{"a type that comes later", func(p []part) []part { return append(p, part{3, []byte("checkpoint")}) }, ErrNewer},
		{"an event member that comes later", func(p []part) []part {
			return append(p, part{frameEvent, []byte(`{"sequence":5,"epoch":1,"event":{"tidied":true},"at":1800000000}`)})
		}, ErrNewer},
		{"an event with a duplicate member", func(p []part) []part {
			return append(p, part{frameEvent, []byte(`{"sequence":5,"sequence":5,"epoch":1,"event":{"restored":true},"at":1800000000}`)})
		}, ErrCorrupt},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := appendHeader(nil, deviceTask)
			last := sha256.Sum256(b)
			for _, p := range row.forge(append([]part{}, parts...)) {
				f := appendFrame(nil, p.kind, last, p.payload)
				last = sha256.Sum256(f)
				b = append(b, f...)
			}
			s := newStore(t)
			mustApply(t, s, submitOf(deviceTask, "c1"))
			writeFile(t, logPath(s, deviceTask), b)
			_, err := openStore(t, s.Home(), false).Get(deviceTask)
			if !errors.Is(err, row.want) || row.want == nil && err != nil {
				t.Fatalf("got %v, want %v", err, row.want)
			}
		})
	}
}

func TestLogOfAnotherTask(t *testing.T) {
	s, log := aLog(t)
	mustApply(t, s, submitOf(secondTask, "d1"))
	writeFile(t, logPath(s, secondTask), log)
	other := openStore(t, s.Home(), false)
	_, err := other.Get(secondTask)
	wantErr(t, err, ErrCorrupt)
	_, err = other.List()
	wantErr(t, err, ErrCorrupt)
}

// What an open store has read, it has read: a log that goes back is damage.
func TestLogThatGoesBackWhileOpen(t *testing.T) {
	s, log := aLog(t)
	bounds := frames(t, log)
	writeFile(t, logPath(s, deviceTask), log[:bounds[2]])
	_, err := s.Get(deviceTask)
	wantErr(t, err, ErrCorrupt)
	_, err = s.Append(context.Background(), deviceTask, 1, Event{Restored: true})
	wantErr(t, err, ErrCorrupt)
}

func TestLogHeaderOfANewerVersion(t *testing.T) {
	s, log := aLog(t)
	b := bytes.Clone(log)
	b[len(logMagic)+3] = 2
	writeFile(t, logPath(s, deviceTask), b)
	_, err := openStore(t, s.Home(), false).Get(deviceTask)
	wantErr(t, err, ErrNewer)
}

// The largest result that the rules allow fits in a frame.
func TestLargestEventFits(t *testing.T) {
	r := exited(0)
	r.Reply = string(bytes.Repeat([]byte{1}, maxReply))
	r.Confinement = json.RawMessage(`"` + string(bytes.Repeat([]byte("x"), maxDocument-2)) + `"`)
	r.Cleanup = r.Confinement
	s := newStore(t)
	mustApply(t, s, submitOf(deviceTask, "c1"))
	task, _ := s.Get(deviceTask)
	mustAppend(t, s, deviceTask, 1, Event{Admitted: admission(&task)})
	after := mustAppend(t, s, deviceTask, 1, Event{Result: r})
	got, err := openStore(t, s.Home(), false).Get(deviceTask)
	if err != nil || got.Run.Result.Reply != r.Reply || after.Run.Result.Reply != r.Reply {
		t.Fatal("the reply changed", err)
	}
}

func TestIdentityShardAtEveryByte(t *testing.T) {
	records := []identity{{"c1", "t1", sha256.Sum256([]byte("1"))}, {"c2", "t2", sha256.Sum256([]byte("2"))}}
	b := identHeader()
	for _, r := range records {
		b = append(b, r.encode()...)
	}
	one := len(identHeader()) + len(records[0].encode())
	read := func(b []byte) (got []identity, end int64, err error) {
		end, err = decodeShard(b, 0, func(i identity) { got = append(got, i) })
		return got, end, err
	}
	if got, end, err := read(b); err != nil || end != int64(len(b)) || len(got) != 2 || got[0] != records[0] || got[1] != records[1] {
		t.Fatalf("whole: %v %d %v", got, end, err)
	}
	for n := range b {
		want := 0
		if n >= one {
			want = 1
		}
		if got, _, err := read(b[:n]); err != nil || len(got) != want {
			t.Fatalf("cut at %d: %d records, %v", n, len(got), err)
		}
		c := bytes.Clone(b)
		c[n] ^= 0x41
		if got, _, err := read(c); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewer) {
			t.Fatalf("byte %d changed: %v, %v", n, got, err)
		}
	}
	if got, end, err := read(append(bytes.Clone(b), make([]byte, 40)...)); err != nil || len(got) != 2 || end != int64(len(b)) {
		t.Fatalf("zeros behind: %v %d %v", got, end, err)
	}
}
