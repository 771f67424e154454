package owner

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"time"

	"holdfast/internal/atomicfile"
)

// How often and how long a reader looks again when an index does not fit a transcript that just changed: its owner
// may stand between a line and its record.
const (
	indexTries = 20
	indexPause = time.Millisecond
	indexFresh = time.Second // of the transcript's last change
)

// errIndex is an index that does not hold; the transcript is read instead.
var errIndex = errors.New("the index does not fit the transcript")

// traceIndex is an index that was held against its transcript: it is of this turn and this file, its last record says
// how the file looks now, down to the time of its last change, and that the records before it are right was seen to
// by the owner who wrote them. What a page takes from it is checked once more: each record by its sum, its place and
// its neighbour, each step by its line's ends, its chain and its number.
//
// It proves damage, not malice, as the task's log does: whoever may write the home can write both files. A change
// within the clock tick of the owner's own last line is not seen here. Check reads the whole transcript.
type traceIndex struct {
	traceFacts
	trace  atomicfile.File
	index  atomicfile.File
	header []byte
	base   [sha256.Size]byte
	stamp  traceStamp // of the transcript that it was held against
}

// openIndex returns the index of an open transcript, nil where there is none that holds.
func (s *Store) openIndex(trace atomicfile.File, t *Task, turn int) *traceIndex {
	f, err := s.openPart(t, indexName(turn))
	if err != nil {
		return nil
	}
	x := &traceIndex{trace: trace, index: f, base: chainBase(t.ID, t.IntentDigest, TraceName(turn))}
	result := turnResult(t, turn)
	for range indexTries {
		fresh, err := x.hold(sessionID(t.ID, turn))
		if err == nil && (result == nil || result.TraceDigest == x.digest) {
			return x
		}
		if err == nil || !fresh {
			break // an index alone never says that a result names another digest
		}
		time.Sleep(indexPause)
	}
	f.Close()
	return nil
}

// turnResult is the result of a turn, nil without one.
func turnResult(t *Task, turn int) *Result {
	if turn <= len(t.Earlier) {
		return t.Earlier[turn-1].Result
	}
	if t.Run != nil && t.Run.Turn == turn {
		return t.Run.Result
	}
	return nil
}

// hold holds the index against the transcript as both are now. fresh means that the transcript changed a moment ago,
// and that looking again may help.
func (x *traceIndex) hold(session string) (fresh bool, err error) {
	stamp, err := statStamp(x.trace)
	if err != nil || stamp.size > maxTrace {
		return false, errIndex
	}
	// The kernel's time, not the store's: it is compared with what the kernel wrote.
	fresh = time.Since(time.Unix(0, stamp.ctime)) < indexFresh
	fi, err := x.index.Stat()
	if err != nil {
		return false, errIndex
	}
	records := (fi.Size() - indexHeader) / indexRecord
	if records < 1 || (fi.Size()-indexHeader)%indexRecord != 0 || records > stamp.size {
		return fresh, errIndex
	}
	if x.header == nil {
		b := make([]byte, indexHeader)
		if _, err := x.index.ReadAt(b, 0); err != nil || !bytes.Equal(b, encodeIndexHeader(stamp.ino, x.base)) {
			return false, errIndex
		}
		x.header = b
	}
	x.traceFacts, x.stamp = traceFacts{size: stamp.size, total: int(records) - 1}, stamp
	first, err := x.entries(0, 1)
	if err != nil || first[0].kind != indexSession || first[0].offset != 0 || first[0].chain != x.base {
		return fresh, errIndex
	}
	last, err := x.entries(records-1, 1)
	if err != nil || last[0].end() != stamp.size || last[0].mtime != stamp.mtime || last[0].ctime != stamp.ctime {
		return fresh, errIndex
	}
	x.digest = digestOf(last[0].digest)
	if last[0].kind == indexEnd {
		x.total--
	}
	return fresh, x.frame(&first[0], &last[0], session)
}

// frame judges the first and the last line.
func (x *traceIndex) frame(first, last *indexEntry, session string) error {
	step := int64(x.total) - 1
	for _, e := range []*indexEntry{first, last} {
		if e == last && last.kind == indexSession {
			break // it is the first
		}
		b := make([]byte, e.length+1)
		if _, err := x.trace.ReadAt(b, e.offset); err != nil || bytes.IndexByte(b, '\n') != e.length {
			return errIndex
		}
		want := ""
		if e.kind == indexStep {
			want = "step"
		}
		if x.judge(b, false, session, &step) != want {
			return errIndex
		}
	}
	if !x.session || x.ended != (last.kind == indexEnd) {
		return errIndex
	}
	return nil
}

// line reports whether e begins and ends a line.
func (x *traceIndex) line(e *indexEntry) bool {
	var b [1]byte
	for _, at := range []int64{e.offset - 1, e.end() - 1} {
		if at < 0 {
			continue
		}
		if _, err := x.trace.ReadAt(b[:], at); err != nil || b[0] != '\n' {
			return false
		}
	}
	return true
}

// entries reads n records from number on: sound ones of lines that follow each other.
func (x *traceIndex) entries(number int64, n int) ([]indexEntry, error) {
	b := make([]byte, n*indexRecord)
	if _, err := x.index.ReadAt(b, indexHeader+number*indexRecord); err != nil {
		return nil, errIndex
	}
	out := make([]indexEntry, n)
	for i := range out {
		e, ok := decodeIndexEntry(x.header, number+int64(i), b[i*indexRecord:(i+1)*indexRecord])
		if !ok || e.end() > x.size || (e.kind == indexSession) != (number+int64(i) == 0) || i > 0 && e.offset != out[i-1].end() {
			return nil, errIndex
		}
		out[i] = e
	}
	return out, nil
}

func (x *traceIndex) whole() *traceFacts { return &x.traceFacts }

func (x *traceIndex) prefix(n int) ([sha256.Size]byte, error) {
	e, err := x.entries(int64(n), 1) // record 0 is the session's, record n that of step n
	if err != nil {
		return x.base, err
	}
	return e[0].chain, nil
}

func (x *traceIndex) refs(from, n int) ([]traceRef, error) {
	if n == 0 {
		return nil, nil
	}
	// With the line before, which the first step must follow.
	all, err := x.entries(int64(from), n+1)
	if err != nil {
		return nil, err
	}
	out := make([]traceRef, n)
	for i := range out {
		e := &all[i+1]
		if e.kind != indexStep || !x.line(e) {
			return nil, errIndex
		}
		out[i] = e.traceRef
	}
	return out, nil
}

func (x *traceIndex) believe(i int, line []byte) error {
	step := int64(i)
	sound := traceFacts{session: true}
	if bytes.IndexByte(line, '\n') >= 0 || sound.judge(append(bytes.Clone(line), '\n'), false, "", &step) != "step" || step != int64(i)+1 {
		return errIndex
	}
	return nil
}

func (x *traceIndex) broken() error { return errIndex } // the scan says what is true

func (x *traceIndex) close() { x.index.Close() }
