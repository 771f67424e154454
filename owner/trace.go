package owner

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"holdfast/internal/atomicfile"
)

// Bounds of reading a transcript.
const (
	maxTrace      = 64 << 20 // bytes of a transcript that is read at all
	maxFaults     = 64       // faults that are named
	maxKeptSteps  = 1 << 17  // steps of a scan that stays in memory
	maxKeptScans  = 8
	settledTraceS = 2 * time.Second // how old a change must be for its time to prove that nothing changed since
)

// traceFacts is what is known of a transcript as a whole.
type traceFacts struct {
	digest  Digest
	size    int64
	total   int // steps
	session bool
	ended   bool
	faults  []ViewFault
	more    bool // faults beyond maxFaults

	agentName, agentVersion string // of the session, as far as it says
}

// traceMap says where the steps of a transcript are, and what binds them: a scan, or an index that holds.
type traceMap interface {
	whole() *traceFacts
	// prefix is the prefix digest after n steps, 0 to total.
	prefix(n int) ([sha256.Size]byte, error)
	// refs are n steps from step from on, which exist.
	refs(from, n int) ([]traceRef, error)
	// believe judges the bytes that stand where step i is said to be, whose chain holds.
	believe(i int, line []byte) error
	// broken is what it means that a step or a cursor does not have the chain that m binds: errStale of what was
	// read, errIndex of what an index only says.
	broken() error
}

// traceRef is where a step is, and the chain that binds it and all before it.
type traceRef struct {
	offset int64
	length int // without the newline
	chain  [sha256.Size]byte
}

// traceScan is what one pass over a transcript found.
type traceScan struct {
	traceFacts
	stamp traceStamp
	steps []traceRef
	base  [sha256.Size]byte
}

func (sc *traceScan) whole() *traceFacts { return &sc.traceFacts }

func (sc *traceScan) prefix(n int) ([sha256.Size]byte, error) {
	if n > 0 {
		return sc.steps[n-1].chain, nil
	}
	return sc.base, nil
}

func (sc *traceScan) refs(from, n int) ([]traceRef, error) { return sc.steps[from : from+n], nil }

func (sc *traceScan) believe(int, []byte) error { return nil } // the scan judged it

func (sc *traceScan) broken() error { return errStale } // changed since it was scanned

type traceKey struct {
	dir  string
	turn int
}

// traceStamp changes whenever a file's content does: the kernel sets ctime
// itself, and it has a coarse clock, hence settledTraceS.
type traceStamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64 // ns
}

func statStamp(f atomicfile.File) (traceStamp, error) {
	fi, err := f.Stat()
	if err != nil {
		return traceStamp{}, err
	}
	stamp, ok := stampOf(fi)
	if !ok {
		return traceStamp{}, errors.New("this system says nothing about a file's changes")
	}
	return stamp, nil
}

// chainBase is the prefix digest before the first step.
func chainBase(id TaskID, intent Digest, trace string) [sha256.Size]byte {
	h := sha256.New()
	for _, s := range []string{"holdfast.view-prefix.v1", string(id), string(intent), trace} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// chainNext binds one more step, by its exact bytes.
func chainNext(prefix [sha256.Size]byte, step []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write(prefix[:])
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(step)))
	h.Write(n[:])
	h.Write(step)
	return [sha256.Size]byte(h.Sum(nil))
}

// digestOf is how a sum is written.
func digestOf(sum [sha256.Size]byte) Digest { return Digest("sha256:" + hex.EncodeToString(sum[:])) }

var errOversized = errors.New("transcript is too large to read")

// scanTrace reads a whole transcript, or takes the scan kept from before where
// the file provably did not change since.
func (s *Store) scanTrace(f atomicfile.File, t *Task, turn int) (*traceScan, error) {
	stamp, err := statStamp(f)
	if err != nil {
		return nil, err
	}
	key := traceKey{dirName(t.ID), turn}
	s.mu.Lock()
	sc := s.traces[key]
	s.mu.Unlock()
	if sc != nil && sc.stamp == stamp {
		return sc, nil
	}
	sc, err = readTrace(io.NewSectionReader(f, 0, stamp.size), stamp.size, t, turn)
	if err != nil {
		return nil, err
	}
	sc.stamp = stamp
	// The kernel's time, not the store's: it is compared with what the kernel wrote.
	settled := time.Since(time.Unix(0, stamp.ctime)) > settledTraceS
	if after, err := statStamp(f); err == nil && after == stamp && settled && len(sc.steps) <= maxKeptSteps {
		s.mu.Lock()
		for old := range s.traces {
			if len(s.traces) < maxKeptScans {
				break
			}
			delete(s.traces, old)
		}
		s.traces[key] = sc
		s.mu.Unlock()
	}
	return sc, nil
}

// readTrace recovers what a transcript holds. It reports damage and never
// repairs it; errOversized beyond maxTrace.
func readTrace(r io.Reader, size int64, t *Task, turn int) (*traceScan, error) {
	sc := &traceScan{base: chainBase(t.ID, t.IntentDigest, TraceName(turn))}
	chain := sc.base
	err := sc.walk(r, size, sessionID(t.ID, turn), func(_, offset int64, line []byte) error {
		chain = chainNext(chain, line)
		sc.steps = append(sc.steps, traceRef{offset, len(line), chain})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return sc, nil
}

// sessionID is how a turn is called in its transcript.
func sessionID(id TaskID, turn int) string { return fmt.Sprintf("%s-%d", id, turn) }

// walk learns w from a transcript of size bytes, line by line, and calls step for each step that could be read, with
// its line's number, its offset, and its bytes without the newline, which are good until the next call. It keeps one
// line in memory. An error of step ends the walk.
func (w *traceFacts) walk(r io.Reader, size int64, session string, step func(number, offset int64, line []byte) error) error {
	if size > maxTrace {
		return errOversized
	}
	whole := sha256.New()
	br := bufio.NewReaderSize(io.TeeReader(r, whole), int(min(size+1, maxTraceLine)))
	offset, lastStep := int64(0), int64(0)
	for number := int64(1); ; number++ {
		b, tooLong, err := readLine(br)
		if err != nil && err != io.EOF {
			return err
		}
		if len(b) == 0 && err == io.EOF {
			break
		}
		start := offset
		offset += int64(len(b)) + tooLong
		kind := "not_json" // a line that is too long was never written whole
		if tooLong == 0 {
			kind = w.judge(b, err == io.EOF, session, &lastStep)
		}
		if kind == "step" {
			w.total++
			if err := step(number, start, bytes.TrimSuffix(b, []byte("\n"))); err != nil {
				return err
			}
		} else if kind != "" {
			w.fault(int(number), kind)
		}
		if err == io.EOF {
			break
		}
	}
	w.digest = Digest("sha256:" + hex.EncodeToString(whole.Sum(nil)))
	w.size = offset // a file that was cut while it was read is shorter
	return nil
}

// readLine returns the next line with its newline; of one longer than
// maxTraceLine the first part, and how many bytes were passed over.
func readLine(br *bufio.Reader) (b []byte, rest int64, err error) {
	b, err = br.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		return b, 0, err
	}
	b = bytes.Clone(b)
	for err == bufio.ErrBufferFull {
		var more []byte
		more, err = br.ReadSlice('\n')
		rest += int64(len(more))
	}
	return b, max(rest, 1), err
}

func (w *traceFacts) fault(number int, kind string) {
	if len(w.faults) == maxFaults {
		w.more = true
		return
	}
	w.faults = append(w.faults, ViewFault{Line: number, Kind: kind})
}

// judge returns "step", "" for another sound record, or what is wrong with the line.
func (w *traceFacts) judge(b []byte, last bool, session string, lastStep *int64) string {
	if last {
		return "torn" // even if it parses: its end is not known
	}
	b = b[:len(b)-1]
	if !utf8.Valid(b) {
		return "not_utf8"
	}
	if v := jsontext.Value(b); !v.IsValid() || v.Kind() != '{' {
		return "not_json"
	}
	var head struct {
		Type string `json:"type"`
	}
	if lax(b, &head) != nil {
		return "unknown_record"
	}
	switch head.Type {
	case "session":
		var d struct {
			ID    string         `json:"id"`
			At    int64          `json:"at"`
			Agent jsontext.Value `json:"agent"`
		}
		var agent struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		}
		switch {
		case w.ended:
			return "after_end"
		case w.session:
			return "repeated_session"
		case lax(b, &d) != nil || d.ID != session:
			return "bad_session"
		}
		w.session = true
		if d.Agent != nil && lax(d.Agent, &agent) == nil { // for display: a session is one without it, too
			w.agentName, w.agentVersion = agent.Name, agent.Version
		}
		return ""
	case "step":
		var d struct {
			StepID  int64          `json:"step_id"`
			At      int64          `json:"at"`
			Source  string         `json:"source"`
			Message *string        `json:"message"`
			Extra   jsontext.Value `json:"extra"`
		}
		switch {
		case w.ended:
			return "after_end"
		case !w.session:
			return "before_session"
		case lax(b, &d) != nil || d.StepID <= *lastStep || d.Message == nil,
			d.Source != "system" && d.Source != "user" && d.Source != "agent",
			d.Extra != nil && d.Extra.Kind() != '{':
			return "bad_step"
		}
		*lastStep = d.StepID
		return "step"
	case "end":
		var d struct {
			State string `json:"state"`
		}
		switch {
		case w.ended:
			return "repeated_end"
		case !w.session:
			return "before_session"
		case lax(b, &d) != nil || d.State != "ended":
			return "unknown_record"
		}
		w.ended = true
		return ""
	}
	return "unknown_record"
}
