package owner

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"holdfast/internal/atomicfile"
)

// Bounds of one read.
const (
	maxPage     = 200     // steps
	maxPageData = 8 << 20 // bytes of steps; a page ends early rather than exceed it
	maxOriginal = 1 << 20 // bytes of one Original
)

// View is one bounded read of a task and its current transcript.
type View struct {
	Task       Task
	Evidence   string // not_started, missing, unavailable_or_unsafe, unreadable, oversized, malformed, digest_mismatch, damaged, incomplete, sealed, unsealed
	Trace      string // trace file name, "" without a run
	Digest     Digest // of the transcript as it is
	Bytes      int64
	TotalSteps int
	Steps      []ViewStep
	Faults     []ViewFault
	MoreFaults bool
	Next       *ViewCursor // nil without a run; where nothing is left, what to poll with
	More       bool
}

// ViewStep is one transcript step.
type ViewStep struct {
	Index  int    // among the steps that could be read, from 0
	JSON   []byte // the step's line without its newline; nil where it is longer than the caller's step limit
	Bytes  int64
	Offset int64 // in the transcript
}

// ViewFault is one damaged line.
type ViewFault struct {
	Line int // from 1
	Kind string
}

// ViewCursor continues a view; it binds task, intent, trace and the delivered prefix.
type ViewCursor struct {
	TaskID       TaskID `json:"task_id"`
	IntentDigest Digest `json:"intent_digest"`
	TraceFile    string `json:"trace_file"`
	NextStep     int    `json:"next_step"`
	PrefixDigest Digest `json:"prefix_digest"`
}

var errStale = refuse("revision_mismatch", "stale cursor: what was delivered is not what is there; read from the start")

// View reads a page of at most limit steps (1 to 200) from c on, taking no
// lock. Steps longer than stepLimit bytes come without their JSON. *Error
// revision_mismatch ("stale cursor") when the turn or the delivered prefix
// changed; appending to a transcript makes no cursor stale.
func (s *Store) View(id TaskID, limit int, stepLimit int, c *ViewCursor) (View, error) {
	return s.view(id, limit, stepLimit, c, false)
}

// ViewLast is View of the transcript's last steps, at most limit of them.
func (s *Store) ViewLast(id TaskID, limit int, stepLimit int) (View, error) {
	return s.view(id, limit, stepLimit, nil, true)
}

func (s *Store) view(id TaskID, limit int, stepLimit int, c *ViewCursor, last bool) (View, error) {
	if limit < 1 || limit > maxPage || stepLimit < 0 {
		return View{}, refuse("limit_exceeded", "a page has 1 to %d steps", maxPage)
	}
	t, err := s.Get(id)
	if err != nil {
		return View{}, err
	}
	v := View{Task: t, Evidence: "not_started", Steps: []ViewStep{}, Faults: []ViewFault{}}
	if t.Run == nil {
		if c != nil {
			return View{}, errStale
		}
		return v, nil
	}
	turn := t.Run.Turn
	v.Trace = TraceName(turn)
	if c != nil && (c.TaskID != t.ID || c.IntentDigest != t.IntentDigest || c.TraceFile != v.Trace || c.NextStep < 0) {
		return View{}, errStale
	}
	f, err := s.openTrace(&t, turn)
	if err != nil {
		return v.page(nil, noTrace(&t, turn), err, limit, stepLimit, c, last)
	}
	defer f.Close()
	if ix := s.openIndex(f, &t, turn); ix != nil {
		page, err := v.page(f, ix, nil, limit, stepLimit, c, last)
		ix.close()
		if !errors.Is(err, errIndex) {
			return page, err
		}
	}
	sc, err := s.scanTrace(f, &t, turn)
	if err != nil {
		sc = noTrace(&t, turn)
	}
	return v.page(f, sc, err, limit, stepLimit, c, last)
}

// noTrace stands for a transcript that cannot be read.
func noTrace(t *Task, turn int) *traceScan {
	return &traceScan{base: chainBase(t.ID, t.IntentDigest, TraceName(turn))}
}

// page is v with the steps that are asked for, as m knows them; failed is why the transcript could not be read, and m
// knows none then. errIndex where m is an index that does not hold.
func (v View) page(f atomicfile.File, m traceMap, failed error, limit, stepLimit int, c *ViewCursor, last bool) (View, error) {
	t, facts := &v.Task, m.whole()
	v.Digest, v.Bytes, v.TotalSteps = facts.digest, facts.size, facts.total
	v.Faults, v.MoreFaults = append(v.Faults, facts.faults...), facts.more
	v.Evidence = evidenceOf(t.Run.Result, facts, failed)
	from := 0
	if last {
		from = max(0, facts.total-limit)
	}
	if c != nil {
		if from = c.NextStep; from > facts.total {
			return View{}, m.broken()
		}
	}
	before, err := m.prefix(from)
	if err != nil {
		return View{}, err
	}
	if c != nil && c.PrefixDigest != digestOf(before) {
		return View{}, m.broken() // an index alone never calls a cursor stale
	}
	after, err := v.fill(f, m, before, from, limit, stepLimit)
	if err != nil {
		return View{}, err
	}
	next := from + len(v.Steps)
	v.More = next < facts.total
	v.Next = &ViewCursor{t.ID, t.IntentDigest, v.Trace, next, digestOf(after)}
	return v, nil
}

// fill reads the page's steps, and each against the chain: what is delivered is what the prefix digest binds. It
// returns the chain after them.
func (v *View) fill(f atomicfile.File, m traceMap, chain [sha256.Size]byte, from, limit, stepLimit int) ([sha256.Size]byte, error) {
	room := maxPageData
	refs, err := m.refs(from, min(limit, m.whole().total-from))
	if err != nil {
		return chain, err
	}
	for i, ref := range refs {
		step := ViewStep{Index: from + i, Bytes: int64(ref.length), Offset: ref.offset}
		if ref.length <= stepLimit {
			if ref.length > room && i > 0 {
				break
			}
			room -= ref.length
			step.JSON = make([]byte, ref.length)
			if _, err := f.ReadAt(step.JSON, ref.offset); err != nil && err != io.EOF {
				return chain, fmt.Errorf("read transcript: %w", err)
			}
			if chainNext(chain, step.JSON) != ref.chain {
				return chain, m.broken()
			}
			if err := m.believe(step.Index, step.JSON); err != nil {
				return chain, err
			}
		}
		chain = ref.chain
		v.Steps = append(v.Steps, step)
	}
	return chain, nil
}

// evidenceOf is the first that holds, in this order, of a transcript whose turn has the result r, or none; err is why
// it could not be read.
func evidenceOf(r *Result, facts *traceFacts, err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "missing"
	case errors.Is(err, ErrUnsafe):
		return "unavailable_or_unsafe"
	case errors.Is(err, errOversized):
		return "oversized"
	case err != nil:
		return "unreadable"
	case !facts.session:
		return "malformed"
	case r != nil && r.TraceDigest != facts.digest:
		return "digest_mismatch"
	case len(facts.faults) > 0:
		return "damaged"
	case !facts.ended:
		return "incomplete"
	case r != nil:
		return "sealed"
	}
	return "unsealed"
}

// openTrace opens a turn's transcript; fs.ErrNotExist without it, ErrUnsafe.
func (s *Store) openTrace(t *Task, turn int) (atomicfile.File, error) {
	return s.openPart(t, TraceName(turn))
}

// openPart opens a file of a task's folder for reading.
func (s *Store) openPart(t *Task, name string) (atomicfile.File, error) {
	d, err := s.tasks.OpenDir(dirName(t.ID))
	if err != nil {
		return nil, classify(err)
	}
	defer d.Close()
	f, err := s.fs.Open(d, name, os.O_RDONLY)
	return f, classify(err)
}

// Original reads at most limit bytes (1 to 1 MiB) from offset on of "task",
// the whole prompt of the current turn, of "trace:<turn>", a turn's
// transcript, of "manifest:<turn>", what a turn changed, or of
// "artifact:<hex>", a file that one of the task's manifests kept. total and digest are of the whole; a caller that reads on
// compares the digest. *Error not_found, invalid_command, limit_exceeded.
func (s *Store) Original(id TaskID, source string, offset int64, limit int) (data []byte, total int64, digest Digest, err error) {
	if offset < 0 || limit < 1 || limit > maxOriginal {
		return nil, 0, "", refuse("limit_exceeded", "a read has 1 to %d bytes from offset 0 or later", maxOriginal)
	}
	t, err := s.Get(id)
	if err != nil {
		return nil, 0, "", err
	}
	if source == "task" {
		prompt := []byte(t.EffectivePrompt())
		total = int64(len(prompt))
		if offset > total {
			return nil, 0, "", refuse("limit_exceeded", "the prompt has %d bytes", total)
		}
		return prompt[offset:min(total, offset+int64(limit))], total, DigestOf(prompt), nil
	}
	if kind, name, _ := strings.Cut(source, ":"); kind == "manifest" || kind == "artifact" {
		return s.keptOriginal(&t, kind, name, offset, limit)
	}
	word, ok := strings.CutPrefix(source, "trace:")
	turn, err := strconv.Atoi(word)
	if !ok || err != nil || strconv.Itoa(turn) != word {
		return nil, 0, "", refuse("invalid_command", "a source is task, trace:<turn>, manifest:<turn> or artifact:<hex>")
	}
	if turn < 1 || turn > len(t.Earlier) && (t.Run == nil || t.Run.Turn != turn) {
		return nil, 0, "", refuse("not_found", "turn %d has no transcript", turn)
	}
	f, err := s.openTrace(&t, turn)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, "", refuse("not_found", "the transcript of turn %d is missing", turn)
	}
	if err != nil {
		return nil, 0, "", err
	}
	defer f.Close()
	if ix := s.openIndex(f, &t, turn); ix != nil {
		data, err = readPart(f, &ix.traceFacts, offset, limit)
		ix.close()
		// The index speaks of the file as it was when it was held against it.
		if now, serr := statStamp(f); serr == nil && now == ix.stamp {
			return data, ix.size, ix.digest, err
		}
	}
	sc, err := s.scanTrace(f, &t, turn)
	if errors.Is(err, errOversized) {
		return nil, 0, "", refuse("limit_exceeded", "%v", err)
	}
	if err != nil {
		return nil, 0, "", err
	}
	data, err = readPart(f, &sc.traceFacts, offset, limit)
	return data, sc.size, sc.digest, err
}

// readPart reads at most limit bytes of a transcript from offset on.
func readPart(f atomicfile.File, facts *traceFacts, offset int64, limit int) ([]byte, error) {
	if offset > facts.size {
		return nil, refuse("limit_exceeded", "the transcript has %d bytes", facts.size)
	}
	data := make([]byte, min(int64(limit), facts.size-offset))
	n, err := f.ReadAt(data, offset)
	if err == io.EOF {
		err = nil
	}
	return data[:n], err
}
