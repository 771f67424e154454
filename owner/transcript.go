package owner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"runtime/debug"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

// Bounds of a transcript.
const (
	maxTraceLine = 1 << 20
	traceSync    = 250 * time.Millisecond // how long a written step may stay unsynced
)

// traceStep is one step as it is written; step_id is the transcript's own.
type traceStep struct {
	source  string // system, user or agent
	message string // text; lossy where extra holds the raw bytes
	extra   any    // an object, or nil
}

// transcript writes the log of one turn: JSON lines `session`, `step`..., `end`, and beside it the index, by which a
// page is found without reading what lies before it. The turn's owner holds it, in one goroutine.
//
// A line that failed half-way is cut off before anything else is written, so that a full disk leaves no torn line
// behind a retry. The index is a hint that readers verify: see indexWriter.
//
// A crash leaves the lines that were written; a last line without its newline, or a missing `end`, is what readers
// call damaged or incomplete. What is sealed is said by the digest in the turn's result and by nothing else.
type transcript struct {
	file   atomicfile.File
	index  *indexWriter // nil once given up
	size   int64
	steps  int
	digest hash.Hash
	dirty  bool
	synced time.Time
	wait   patience
	now    func() time.Time
}

// session is what the first line says about the turn.
type session struct {
	ID        string // TASK-N
	Adapter   string
	Workspace string
	Base      [sha256.Size]byte // chainBase of the turn, for the index
}

// newTranscript creates the transcript of a turn exclusively: a turn number never gets a second one.
func newTranscript(ctx context.Context, dir string, turn int, s session, fs atomicfile.FS, now func() time.Time, wait patience) (*transcript, error) {
	d, err := saferead.OpenDir(dir)
	if err != nil {
		return nil, fmt.Errorf("create transcript: %w", err)
	}
	defer d.Close()
	t := &transcript{digest: sha256.New(), wait: wait, now: now, synced: now()}
	const flags = os.O_RDWR | os.O_CREATE | os.O_EXCL
	err = wait.do(ctx, func() error { t.file, err = fs.Open(d, TraceName(turn), flags); return err })
	if err != nil {
		return nil, fmt.Errorf("create transcript: %w", err)
	}
	t.index = newIndexWriter(fs, d, turn, t.file, s.Base)
	err = t.write(ctx, indexSession, struct {
		Type  string `json:"type"`
		ID    string `json:"id"`
		Agent struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"agent"`
		Adapter   string `json:"adapter"`
		Workspace string `json:"workspace"`
		At        int64  `json:"at"`
	}{"session", s.ID, struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}{"holdfast", version()}, s.Adapter, s.Workspace, now().UnixMilli()})
	if err == nil {
		// The name itself must survive: the result will carry the digest of this very file.
		err = wait.do(ctx, func() error { return fs.SyncDir(d) })
	}
	if err != nil {
		t.close()
		return nil, fmt.Errorf("create transcript: %w", err)
	}
	return t, nil
}

// step appends one step and syncs when the last sync is traceSync old.
func (t *transcript) step(ctx context.Context, s traceStep) error {
	err := t.write(ctx, indexStep, struct {
		Type    string `json:"type"`
		StepID  int    `json:"step_id"`
		At      int64  `json:"at"`
		Source  string `json:"source"`
		Message string `json:"message"`
		Extra   any    `json:"extra,omitempty"`
	}{"step", t.steps + 1, t.now().UnixMilli(), s.source, s.message, s.extra})
	if err != nil {
		return err
	}
	t.steps++
	if t.now().Sub(t.synced) >= traceSync {
		return t.sync()
	}
	return nil
}

// write appends one line, waiting for room on a full disk, and its record in the index.
func (t *transcript) write(ctx context.Context, kind byte, v any) error {
	b, err := jsonv2.Marshal(v)
	if err != nil {
		return fmt.Errorf("write transcript: %w", err)
	}
	b = append(b, '\n')
	if len(b) > maxTraceLine {
		return fmt.Errorf("write transcript: a line of %d bytes", len(b))
	}
	err = t.wait.do(ctx, func() error {
		if t.index != nil && !t.index.untouched(t.file) {
			t.dropIndex()
		}
		_, err := t.file.WriteAt(b, t.size)
		if err == nil {
			return nil
		}
		if cut := t.file.Truncate(t.size); cut != nil {
			return fmt.Errorf("%w: %w after %w", errTornLine, cut, err)
		}
		if t.index != nil && !t.index.own(t.file, t.size) {
			t.dropIndex()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("write transcript: %w", err)
	}
	t.digest.Write(b)
	t.dirty = true
	if t.index != nil && !t.index.add(t.file, kind, t.size, b[:len(b)-1], t.digest) {
		t.dropIndex()
	}
	t.size += int64(len(b))
	return nil
}

// dropIndex gives the index up. What is in it no longer fits the transcript once another line is written.
func (t *transcript) dropIndex() {
	t.index.file.Close()
	t.index = nil
}

// sync makes all written lines durable. A failed sync is final: what the kernel dropped cannot be asked for again.
func (t *transcript) sync() error {
	if !t.dirty {
		return nil
	}
	if err := t.file.Sync(); err != nil {
		return fmt.Errorf("sync transcript: %w", err)
	}
	t.dirty, t.synced = false, t.now()
	return nil
}

// seal writes the end record, syncs, and returns the digest of all bytes. The file is closed.
func (t *transcript) seal(ctx context.Context) (Digest, error) {
	err := t.write(ctx, indexEnd, struct {
		Type  string `json:"type"`
		State string `json:"state"`
		At    int64  `json:"at"`
	}{"end", "ended", t.now().UnixMilli()})
	if err == nil {
		// Before the result is appended: a sealed digest must never name bytes that a power cut can take back.
		err = t.sync()
	}
	t.close()
	return Digest("sha256:" + hex.EncodeToString(t.digest.Sum(nil))), err
}

func (t *transcript) close() {
	t.file.Close()
	if t.index != nil {
		t.dropIndex()
	}
}

// version is what the running binary was built from.
var version = sync.OnceValue(func() string {
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" {
		return b.Main.Version
	}
	return "unknown"
})

// errTornLine is a half-written line that could not be cut off: what follows it would be read as damage.
var errTornLine = errors.New("a half-written line stays in the transcript")
