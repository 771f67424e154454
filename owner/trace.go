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
	"os"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"
)

// Bounds of reading a transcript.
const (
	maxTrace      = 64 << 20 // bytes of a transcript that is read at all
	maxFaults     = 64       // faults that are named
	maxKeptSteps  = 1 << 17  // steps of a scan that stays in memory
	maxKeptScans  = 8
	settledTraceS = 2 * time.Second // how old a change must be for its time to prove that nothing changed since
)

// traceScan is what one pass over a transcript found.
type traceScan struct {
	stamp   traceStamp
	digest  Digest
	size    int64
	session bool
	ended   bool
	steps   []traceRef
	faults  []ViewFault
	more    bool // faults beyond maxFaults
	base    [sha256.Size]byte
}

// traceRef is where a step is, and the chain that binds it and all before it.
type traceRef struct {
	offset int64
	length int // without the newline
	chain  [sha256.Size]byte
}

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

func stampOf(f *os.File) (traceStamp, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return traceStamp{}, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return traceStamp{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano()}, nil
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

// at is the prefix digest after n steps.
func (sc *traceScan) at(n int) Digest {
	c := sc.base
	if n > 0 {
		c = sc.steps[n-1].chain
	}
	return Digest("sha256:" + hex.EncodeToString(c[:]))
}

var errOversized = errors.New("transcript is too large to read")

// scanTrace reads a whole transcript, or takes the scan kept from before where
// the file provably did not change since.
func (s *Store) scanTrace(f *os.File, t *Task, turn int) (*traceScan, error) {
	stamp, err := stampOf(f)
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
	if after, err := stampOf(f); err == nil && after == stamp && settled && len(sc.steps) <= maxKeptSteps {
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
	if size > maxTrace {
		return nil, errOversized
	}
	sc := &traceScan{size: size, base: chainBase(t.ID, t.IntentDigest, TraceName(turn))}
	whole := sha256.New()
	br := bufio.NewReaderSize(io.TeeReader(r, whole), int(min(size+1, maxTraceLine)))
	chain, offset := sc.base, int64(0)
	lastStep := int64(0)
	for number := 1; ; number++ {
		b, tooLong, err := readLine(br)
		if err != nil && err != io.EOF {
			return nil, err
		}
		if len(b) == 0 && err == io.EOF {
			break
		}
		start := offset
		offset += int64(len(b)) + tooLong
		kind := "not_json" // a line that is too long was never written whole
		if tooLong == 0 {
			kind = sc.judge(b, err == io.EOF, fmt.Sprintf("%s-%d", t.ID, turn), &lastStep)
		}
		if kind == "step" {
			b = bytes.TrimSuffix(b, []byte("\n"))
			chain = chainNext(chain, b)
			sc.steps = append(sc.steps, traceRef{start, len(b), chain})
		} else if kind != "" {
			sc.fault(number, kind)
		}
		if err == io.EOF {
			break
		}
	}
	sc.digest = Digest("sha256:" + hex.EncodeToString(whole.Sum(nil)))
	sc.size = offset // a file that was cut while it was read is shorter
	return sc, nil
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

func (sc *traceScan) fault(number int, kind string) {
	if len(sc.faults) == maxFaults {
		sc.more = true
		return
	}
	sc.faults = append(sc.faults, ViewFault{Line: number, Kind: kind})
}

// judge returns "step", "" for another sound record, or what is wrong with the line.
func (sc *traceScan) judge(b []byte, last bool, session string, lastStep *int64) string {
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
			ID string `json:"id"`
			At int64  `json:"at"`
		}
		switch {
		case sc.ended:
			return "after_end"
		case sc.session:
			return "repeated_session"
		case lax(b, &d) != nil || d.ID != session:
			return "bad_session"
		}
		sc.session = true
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
		case sc.ended:
			return "after_end"
		case !sc.session:
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
		case sc.ended:
			return "repeated_end"
		case !sc.session:
			return "before_session"
		case lax(b, &d) != nil || d.State != "ended":
			return "unknown_record"
		}
		sc.ended = true
		return ""
	}
	return "unknown_record"
}
