package owner

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

// tasks/DIR/checkpoint, all integers big endian:
//
//	"HFTASKCP", u32 version, 32 bytes shape (see checkpointShape), u64 end, 32 bytes hash of the frame that ends there,
//	u32 n, n bytes of JSON (checkpointDoc), 32 bytes SHA-256 of all before
//
// It is what replaying the log up to end gives, so that a process that meets a
// long task for the first time decodes it once and replays the rest. It is a
// hint: the log decides. A reader walks the chain of hashes from the log's
// header to end, and only where it arrives at that very hash is every byte of
// the log up to there what it was when the checkpoint was made; then the rules
// would give the same again. In every other case (none, torn, unsafe, of
// another version or build, of a log that was changed, or followed by what
// does not follow from it) the whole log is replayed, and that says what is
// wrong. Check replays it always, and holds this file against it.
const (
	checkpointName    = "checkpoint"
	checkpointTemp    = ".checkpoint.tmp-0000000000000000" // one name: who writes it holds the task's lock
	checkpointMagic   = "HFTASKCP"
	checkpointVersion = 1
	checkpointHead    = len(checkpointMagic) + 4 + sha256.Size + 8 + sha256.Size + 4
	checkpointEvery   = 256        // records
	maxCheckpoint     = 2 * maxLog // bytes

	// rulesVersion is raised whenever NextCommand or NextEvent make something
	// else of records that they took before. What changes the shape of a Task
	// is noticed without it.
	rulesVersion = 1
)

// checkpointDoc is a state without its place in the log.
type checkpointDoc struct {
	Sequence int64     `json:"sequence"`
	At       int64     `json:"at"`
	Events   int       `json:"events"`
	Task     *Task     `json:"task"`
	Receipts []Receipt `json:"receipts"` // of every command, in the order of their sequences
}

// checkpointShape is the SHA-256 of the rules' version, of the version and the
// commit that this program was built of, where the build says so, and of the
// names and types of everything in a checkpointDoc: a program that may derive
// something else makes its checkpoints anew.
var checkpointShape = sync.OnceValue(func() [sha256.Size]byte {
	var b strings.Builder
	fmt.Fprintf(&b, "rules %d\n", rulesVersion)
	if info, ok := debug.ReadBuildInfo(); ok {
		fmt.Fprintf(&b, "version %s\n", info.Main.Version)
		for _, s := range info.Settings {
			if strings.HasPrefix(s.Key, "vcs.") {
				fmt.Fprintf(&b, "%s %s\n", s.Key, s.Value)
			}
		}
	}
	describeType(&b, reflect.TypeFor[checkpointDoc](), map[reflect.Type]bool{})
	return sha256.Sum256([]byte(b.String()))
})

func describeType(b *strings.Builder, t reflect.Type, seen map[reflect.Type]bool) {
	fmt.Fprintf(b, "%s %s;", t.Kind(), t)
	if seen[t] {
		return
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		describeType(b, t.Elem(), seen)
	case reflect.Map:
		describeType(b, t.Key(), seen)
		describeType(b, t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			fmt.Fprintf(b, "%s %q:", f.Name, f.Tag)
			describeType(b, f.Type, seen)
		}
	}
}

// kept is what is known of the checkpoint on disk; zero where nothing is.
type kept struct {
	sequence int64 // of the last record in it
	end      int64
	size     int64 // of the file
}

// due reports whether the next process would be spared enough: at least
// checkpointEvery records, and half the bytes of the last checkpoint, so that
// all checkpoints together cost no more than the log twice.
func (k kept) due(st *state) bool {
	return st.sequence-k.sequence >= checkpointEvery && st.end-k.end >= k.size/2
}

// encodeCheckpoint is nil where the state does not come back exactly as it is.
func encodeCheckpoint(st *state) []byte {
	doc := checkpointDoc{Sequence: st.sequence, At: st.at, Events: st.events, Task: st.task, Receipts: make([]Receipt, 0, len(st.commands))}
	for _, d := range st.commands {
		doc.Receipts = append(doc.Receipts, d.receipt)
	}
	slices.SortFunc(doc.Receipts, func(a, b Receipt) int { return int(a.Sequence - b.Sequence) })
	payload := mustJSON(doc)
	shape := checkpointShape()
	b := make([]byte, 0, checkpointHead+len(payload)+sha256.Size)
	b = append(b, checkpointMagic...)
	b = binary.BigEndian.AppendUint32(b, checkpointVersion)
	b = append(b, shape[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(st.end))
	b = append(b, st.last[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, payload...)
	sum := sha256.Sum256(b)
	b = append(b, sum[:]...)
	if back, err := decodeCheckpoint(b); err != nil || !reflect.DeepEqual(back, st) {
		return nil
	}
	return b
}

// decodeCheckpoint reads a checkpoint; any error means that there is none.
func decodeCheckpoint(b []byte) (*state, error) {
	if len(b) < checkpointHead+sha256.Size || string(b[:len(checkpointMagic)]) != checkpointMagic {
		return nil, fmt.Errorf("not a checkpoint")
	}
	end := len(b) - sha256.Size
	if sha256.Sum256(b[:end]) != [sha256.Size]byte(b[end:]) {
		return nil, fmt.Errorf("not written whole")
	}
	p := b[len(checkpointMagic):]
	if v := binary.BigEndian.Uint32(p); v != checkpointVersion || [sha256.Size]byte(p[4:]) != checkpointShape() {
		return nil, fmt.Errorf("of another version")
	}
	p = p[4+sha256.Size:]
	st := &state{commands: map[string]done{}}
	st.end = int64(binary.BigEndian.Uint64(p))
	st.last = [sha256.Size]byte(p[8:])
	if uint64(binary.BigEndian.Uint32(p[8+sha256.Size:])) != uint64(end-checkpointHead) {
		return nil, fmt.Errorf("of another length")
	}
	var doc checkpointDoc
	if err := closed(b[checkpointHead:end], &doc); err != nil || doc.Task == nil || st.end < 1 {
		return nil, fmt.Errorf("not readable")
	}
	st.id, st.task, st.sequence, st.at, st.events = doc.Task.ID, doc.Task, doc.Sequence, doc.At, doc.Events
	for _, r := range doc.Receipts {
		st.commands[r.CommandID] = done{r.RequestDigest, r}
	}
	return st, nil
}

// fromCheckpoint is the state at the task's checkpoint, where the log at r of
// size bytes is, up to there and to the byte, the one it was made of.
func fromCheckpoint(d *saferead.Dir, r io.ReaderAt, size int64, id TaskID) (*state, kept) {
	if size < checkpointEvery*(frameHead+frameTail) {
		return nil, kept{} // it is too short to have one
	}
	b, err := d.Read(checkpointName, maxCheckpoint)
	if err != nil {
		return nil, kept{}
	}
	st, err := decodeCheckpoint(b)
	if err != nil || st.id != id || st.end > size {
		return nil, kept{}
	}
	named, hash, n, err := readHeader(io.NewSectionReader(r, 0, size))
	if err != nil || named != id || !chained(r, position{n, hash}, st.position) {
		return nil, kept{}
	}
	return st, kept{st.sequence, st.end, int64(len(b))}
}

// chained reports whether the frames of r from one place on lead to the other:
// each names the hash of the one before, so the last hash speaks for all bytes.
func chained(r io.ReaderAt, from, to position) bool {
	br := bufio.NewReaderSize(io.NewSectionReader(r, from.end, to.end-from.end), 64<<10)
	var b []byte
	for from.end < to.end {
		head, err := br.Peek(frameHead)
		if err != nil || [sha256.Size]byte(head[5:]) != from.last {
			return false
		}
		n := int64(binary.BigEndian.Uint32(head))
		if n == 0 || n > maxFrame {
			return false
		}
		b = slices.Grow(b[:0], int(frameHead+n+frameTail))[:frameHead+n+frameTail]
		if _, err := io.ReadFull(br, b); err != nil {
			return false
		}
		from.end, from.last = from.end+int64(len(b)), sha256.Sum256(b)
	}
	return from == to
}

// checkpoint keeps the state that the log has now, where that is due. The
// caller holds the task's lock and has appended to the log durably. Nothing is
// synced and no error counts: a checkpoint that is not there, or not whole
// after a crash, costs the next process a replay.
func (l *Locked) checkpoint() {
	l.e.mu.Lock()
	st, due := l.e.st, false
	if st != nil && l.e.kept.due(st) {
		// A copy: nobody adds to the log, but readers may replay it again.
		own := *st
		own.commands = maps.Clone(st.commands)
		st, due = &own, true
		l.e.kept.sequence = st.sequence // a failure is not tried again at once
	}
	l.e.mu.Unlock()
	if !due {
		return
	}
	b := encodeCheckpoint(st)
	if b == nil || len(b) > maxCheckpoint || l.writeCheckpoint(b) != nil {
		return
	}
	l.e.mu.Lock()
	l.e.kept = kept{st.sequence, st.end, int64(len(b))}
	l.e.mu.Unlock()
}

func (l *Locked) writeCheckpoint(b []byte) error {
	f, err := l.s.fs.Open(l.d, checkpointTemp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(b, 0); err == nil {
		err = l.s.fs.Rename(l.d, checkpointTemp, checkpointName)
	}
	f.Close()
	if err != nil {
		l.s.fs.Remove(l.d, checkpointTemp) // on a full disk it would take room for nothing
	}
	return err
}

// checkCheckpoint holds a task's checkpoint against its log, replayed from the
// header. The detail says where it is not used.
func checkCheckpoint(d *saferead.Dir, log atomicfile.File) (detail string, err error) {
	b, err := d.Read(checkpointName, maxCheckpoint)
	if err != nil {
		return "", err
	}
	have, err := decodeCheckpoint(b)
	if err != nil {
		return fmt.Sprintf("%v: not used", err), nil
	}
	fi, err := log.Stat()
	if err != nil {
		return "", err
	}
	if have.end > fi.Size() {
		return "", corrupt("the log has lost records: it was %d bytes long at record %d", have.end, have.sequence)
	}
	st, err := start(log, have.end)
	if err != nil {
		return "", err
	}
	if _, err := st.follow(log, have.end, nil); err != nil {
		return "", err
	}
	if !reflect.DeepEqual(st, have) {
		return "", corrupt("is not what the first %d records give", have.sequence)
	}
	return fmt.Sprintf("at record %d", have.sequence), nil
}
