package owner

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// paperReader reads a task store by docs/disk.md and nothing else: it uses no
// code and no name of this package, so that what the document leaves out, or
// says otherwise than the program does it, shows here.
type paperReader struct{ home string }

// paperTask is what the document lets a reader say of a task.
type paperTask struct {
	ID, Status, Execution, Prompt string
	Revision, Sequence, At        int64
	Turn, Corrections             int
	Epoch                         int64
	Ending, Archived, NotStarted  string
	Worktree                      string
	Unread                        int // corrections that the newest turn which was admitted did not read
	Commands                      map[string]string
}

type paperFrame struct {
	kind    byte
	payload []byte
}

// frames cuts a log into its frames, verified; what a crash left at the end is not one.
func (p paperReader) frames(log []byte) (id string, frames []paperFrame, err error) {
	table := crc32.MakeTable(crc32.Castagnoli)
	u32 := binary.BigEndian.Uint32
	if len(log) < 13 || string(log[:8]) != "HFTASKLG" {
		return "", nil, errors.New("no log")
	}
	if v := u32(log[8:]); v != 1 {
		return "", nil, fmt.Errorf("log version %d", v)
	}
	head := 13 + int(log[12])
	if len(log) < head+4 || crc32.Checksum(log[:head], table) != u32(log[head:]) {
		return "", nil, errors.New("header")
	}
	id = string(log[13:head])
	previous, rest := sha256.Sum256(log[:head+4]), log[head+4:]
	for len(rest) > 0 {
		if len(rest) < 4+1+32+4 || len(bytes.Trim(rest, "\x00")) == 0 {
			return id, frames, nil // cut short, or a run of zeros
		}
		if crc32.Checksum(rest[:37], table) != u32(rest[37:]) {
			return "", nil, errors.New("head of a frame")
		}
		n := int(u32(rest))
		if n < 1 || n > 262_144 || !bytes.Equal(rest[5:37], previous[:]) {
			return "", nil, errors.New("length or chain of a frame")
		}
		if len(rest) < 41+n+4 {
			return id, frames, nil
		}
		if crc32.Checksum(rest[:41+n], table) != u32(rest[41+n:]) {
			return "", nil, errors.New("frame")
		}
		previous = sha256.Sum256(rest[:41+n+4])
		frames = append(frames, paperFrame{rest[4], rest[41 : 41+n]})
		rest = rest[41+n+4:]
	}
	return id, frames, nil
}

// task replays a log by the document's table of what is legal when.
func (p paperReader) task(log []byte) (*paperTask, error) {
	id, frames, err := p.frames(log)
	if err != nil {
		return nil, err
	}
	t := &paperTask{ID: id, Commands: map[string]string{}}
	var corrections []int64
	var read int64 // the revision that the newest admitted turn read
	hasRun := false
	ended := func(groupClear bool, ending string, code *int, stopped bool) {
		t.Ending = ending
		switch {
		case !groupClear:
			t.Status, t.Execution = "unknown", "unknown"
			return
		case stopped || t.Status == "cancel_requested":
			t.Execution = "stopped"
		case code != nil && *code == 0:
			t.Execution = "finished"
		default:
			t.Execution = "failed"
		}
		t.Status = "finished"
	}
	for _, f := range frames {
		t.Sequence++
		switch f.kind {
		case 1:
			n := binary.BigEndian.Uint32(f.payload[8:])
			t.At = int64(binary.BigEndian.Uint64(f.payload))
			receipt, request := f.payload[12:12+n], f.payload[12+n:]
			var c struct {
				CommandID string `json:"command_id"`
				Action    struct {
					Type, Kind string
					Prompt     string
					Intent     struct{ Prompt string }
				}
			}
			if err := json.Unmarshal(request, &c); err != nil {
				return nil, err
			}
			t.Revision++
			switch c.Action.Type + c.Action.Kind {
			case "submit":
				t.Status, t.Execution, t.Turn, t.Prompt = "queued", "not_started", 1, c.Action.Intent.Prompt
			case "cancel":
				t.Status = map[string]string{"queued": "cancelled", "running": "cancel_requested"}[t.Status]
			case "correct":
				t.Corrections++
				corrections = append(corrections, t.Revision)
				t.Prompt = c.Action.Prompt
				if t.Status == "running" {
					t.Status = "cancel_requested"
				}
			case "continue":
				if hasRun {
					t.Turn++
				}
				hasRun, t.Epoch, t.Ending, t.NotStarted = false, 0, "", ""
				t.Status, t.Execution, t.Prompt = "queued", "not_started", c.Action.Prompt
			}
			var r struct {
				Digest            string `json:"request_digest"`
				Sequence          int64
				Revision          int64
				Status, Execution string
			}
			if err := json.Unmarshal(receipt, &r); err != nil {
				return nil, err
			}
			sum := sha256.Sum256(request)
			if r.Digest != "sha256:"+hex.EncodeToString(sum[:]) || r.Sequence != t.Sequence || r.Revision != t.Revision ||
				r.Status != t.Status || r.Execution != t.Execution {
				return nil, fmt.Errorf("the receipt %s is not what the command gives: %+v", receipt, t)
			}
			t.Commands[c.CommandID] = r.Digest
		case 2:
			var e struct {
				Sequence, Epoch, At int64
				Event               map[string]json.RawMessage
			}
			if err := json.Unmarshal(f.payload, &e); err != nil || len(e.Event) != 1 || e.Sequence != t.Sequence {
				return nil, fmt.Errorf("event %s: %v", f.payload, err)
			}
			t.At = e.At
			for name, raw := range e.Event {
				if name != "worktree" {
					t.Revision++
				}
				switch name {
				case "worktree":
					var w struct{ Path string }
					err = json.Unmarshal(raw, &w)
					t.Worktree = w.Path
				case "admitted":
					var a struct {
						ReadRevision int64 `json:"read_revision"`
					}
					err = json.Unmarshal(raw, &a)
					read, hasRun, t.Epoch = a.ReadRevision, true, 1
					t.Status, t.Execution = "running", "running"
				case "result":
					var r struct {
						Ending     string
						ExitCode   *int `json:"exit_code"`
						Stopped    bool `json:"stop_requested"`
						GroupClear bool `json:"group_clear"`
					}
					err = json.Unmarshal(raw, &r)
					ended(r.GroupClear, r.Ending, r.ExitCode, r.Stopped)
				case "owner_lost":
					t.Epoch, t.Status, t.Execution = t.Epoch+1, "unknown", "unknown"
				case "not_started":
					err = json.Unmarshal(raw, &t.NotStarted)
					t.Status, t.Execution = "cancelled", "not_started"
				case "archived":
					var a struct{ Reason string }
					err = json.Unmarshal(raw, &a)
					t.Archived = a.Reason
				case "restored":
					t.Archived = ""
				}
				if err != nil {
					return nil, err
				}
			}
		default:
			return nil, fmt.Errorf("frame type %d", f.kind)
		}
	}
	if t.Sequence == 0 {
		return nil, errors.New("no submit")
	}
	t.Unread = len(corrections) - len(slices.DeleteFunc(slices.Clone(corrections), func(at int64) bool { return at > read }))
	return t, nil
}

// tasks reads all tasks of a home, and holds every command against its reservation.
func (p paperReader) tasks() (map[string]*paperTask, error) {
	marker, err := os.ReadFile(filepath.Join(p.home, "tasks", "store.json"))
	if err != nil {
		return nil, err
	}
	if s := string(marker); s != `{"v":"holdfast.task-store.v3"}`+"\n" && s != `{"v":"holdfast.task-store.v2"}`+"\n" && s != `{"v":"holdfast.task-store.v1"}`+"\n" {
		return nil, fmt.Errorf("marker %q", marker)
	}
	dirs, err := os.ReadDir(filepath.Join(p.home, "tasks"))
	if err != nil {
		return nil, err
	}
	out := map[string]*paperTask{}
	for _, d := range dirs {
		if !d.IsDir() {
			continue
		}
		log, err := os.ReadFile(filepath.Join(p.home, "tasks", d.Name(), "log"))
		if errors.Is(err, os.ErrNotExist) {
			continue // a submit that never committed
		}
		if err != nil {
			return nil, err
		}
		t, err := p.task(log)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.Name(), err)
		}
		if hex64 := len(t.ID) == 64 && strings.Trim(t.ID, "0123456789abcdef") == ""; hex64 != (d.Name() == t.ID) {
			return nil, fmt.Errorf("folder %s of task %s", d.Name(), t.ID)
		} else if sum := sha256.Sum256([]byte(t.ID)); !hex64 && d.Name() != hex.EncodeToString(sum[:]) {
			return nil, fmt.Errorf("folder %s of task %s", d.Name(), t.ID)
		}
		for command, digest := range t.Commands {
			if err := p.reserved(command, t.ID, digest); err != nil {
				return nil, err
			}
		}
		if err := p.checkpoint(d.Name(), log, t); err != nil {
			return nil, err
		}
		out[t.ID] = t
	}
	return out, nil
}

// rest reads the rows of the tasks that are at rest, by folder; nil where nothing of the index counts.
func (p paperReader) rest() (map[string]*paperTask, error) {
	live := map[string]bool{}
	list, err := os.ReadDir(filepath.Join(p.home, "live"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		live[e.Name()] = true
	}
	b, err := os.ReadFile(filepath.Join(p.home, "live", "rows"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	if len(b) < 48 || string(b[:8]) != "HFTASKRW" || binary.BigEndian.Uint32(b[8:]) != 1 || crc32.Checksum(b[:44], table) != binary.BigEndian.Uint32(b[44:]) {
		return nil, errors.New("header of the rows")
	}
	rows := map[string]*paperTask{}
	for b = b[48:]; len(b) > 4; {
		n := int(binary.BigEndian.Uint16(b))
		if binary.BigEndian.Uint16(b[2:]) != ^uint16(n) || len(b) < 8+n || crc32.Checksum(b[:4+n], table) != binary.BigEndian.Uint32(b[4+n:]) {
			break
		}
		payload := b[4 : 4+n]
		b = b[8+n:]
		t := &paperTask{Revision: int64(binary.BigEndian.Uint64(payload)), Turn: int(payload[24])}
		if payload[25] == 1 {
			t.Archived = "archived"
		}
		var texts []string
		for rest := payload[26:]; len(rest) > 0; {
			n := int(binary.BigEndian.Uint16(rest))
			texts = append(texts, string(rest[2:2+n]))
			rest = rest[2+n:]
		}
		if len(texts) != 6 {
			return nil, fmt.Errorf("a row of %d texts", len(texts))
		}
		t.ID, t.Status = texts[0], texts[1]
		dir := t.ID
		if len(dir) != 64 || strings.Trim(dir, "0123456789abcdef") != "" {
			sum := sha256.Sum256([]byte(t.ID))
			dir = hex.EncodeToString(sum[:])
		}
		if rows[dir] = t; live[dir] {
			delete(rows, dir)
		}
	}
	return rows, nil
}

// reserved looks a command up in its shard.
func (p paperReader) reserved(command, task, digest string) error {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := sha256.Sum256([]byte(command))
	b, err := os.ReadFile(filepath.Join(p.home, "identities", hex.EncodeToString(sum[:1])+".log"))
	if err != nil {
		return err
	}
	if len(b) < 16 || string(b[:8]) != "HFIDENTS" || binary.BigEndian.Uint32(b[8:]) != 1 || crc32.Checksum(b[:12], table) != binary.BigEndian.Uint32(b[12:]) {
		return errors.New("shard header")
	}
	for b = b[16:]; len(b) > 4; {
		n := int(binary.BigEndian.Uint16(b))
		if binary.BigEndian.Uint16(b[2:]) != ^uint16(n) || len(b) < 8+n || crc32.Checksum(b[:4+n], table) != binary.BigEndian.Uint32(b[4+n:]) {
			break
		}
		payload := b[4 : 4+n]
		a := int(payload[0])
		c := int(payload[1+a])
		if string(payload[1:1+a]) == command && string(payload[2+a:2+a+c]) == task && "sha256:"+hex.EncodeToString(payload[2+a+c:]) == digest {
			return nil
		}
		b = b[8+n:]
	}
	return fmt.Errorf("command %s is not reserved", command)
}

// checkpoint reads a checkpoint, where there is one, and replays the log's beginning to compare.
func (p paperReader) checkpoint(dir string, log []byte, _ *paperTask) error {
	b, err := os.ReadFile(filepath.Join(p.home, "tasks", dir, "checkpoint"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	body := len(b) - 32
	if sum := sha256.Sum256(b[:body]); string(b[:8]) != "HFTASKCP" || binary.BigEndian.Uint32(b[8:]) != 1 || !bytes.Equal(sum[:], b[body:]) {
		return errors.New("checkpoint")
	}
	end, hash, n := binary.BigEndian.Uint64(b[44:]), b[52:84], binary.BigEndian.Uint32(b[84:])
	var doc struct {
		Sequence, At, Events int64
		Task                 struct {
			Revision          int64
			Status, Execution string
		}
		Receipts []struct {
			CommandID string `json:"command_id"`
			Digest    string `json:"request_digest"`
		}
	}
	if err := json.Unmarshal(b[88:88+n], &doc); err != nil || int(88+n) != body {
		return fmt.Errorf("checkpoint: %v", err)
	}
	t, err := p.task(log[:end])
	if err != nil {
		return err
	}
	// The last frame before end is as long as its own first bytes say.
	if start := p.lastFrame(log[:end]); func() bool { sum := sha256.Sum256(log[start:end]); return !bytes.Equal(sum[:], hash) }() {
		return errors.New("checkpoint of another log")
	}
	if doc.Sequence != t.Sequence || doc.At != t.At || doc.Events != t.Sequence-int64(len(t.Commands)) || len(doc.Receipts) != len(t.Commands) ||
		doc.Task.Revision != t.Revision || doc.Task.Status != t.Status || doc.Task.Execution != t.Execution {
		return fmt.Errorf("checkpoint %+v of %+v", doc, t)
	}
	for _, r := range doc.Receipts {
		if t.Commands[r.CommandID] != r.Digest {
			return fmt.Errorf("checkpoint: receipt of %s", r.CommandID)
		}
	}
	return nil
}

func (p paperReader) lastFrame(log []byte) int {
	at := 13 + int(log[12]) + 4
	for {
		next := at + 41 + int(binary.BigEndian.Uint32(log[at:])) + 4
		if next >= len(log) {
			return at
		}
		at = next
	}
}

// ofTask is what this package says, in the reader's terms.
func ofTask(t testing.TB, s *Store, id TaskID) *paperTask {
	t.Helper()
	task, err := s.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	p := &paperTask{ID: string(id), Status: string(task.Status), Execution: string(task.Execution), Prompt: task.EffectivePrompt(),
		Revision: task.Revision, Turn: task.Turn(), Corrections: len(task.Corrections), NotStarted: task.NotStarted,
		Unread: len(task.Unconsumed()), Commands: map[string]string{}}
	if task.Run != nil {
		p.Epoch = int64(task.Run.Epoch)
		if task.Run.Result != nil {
			p.Ending = task.Run.Result.Ending
		}
	}
	if task.Archived != nil {
		p.Archived = task.Archived.Reason
	}
	if task.Worktree != nil {
		p.Worktree = task.Worktree.Path
	}
	s.read(id, func(st *state) error {
		p.Sequence, p.At = st.sequence, st.at
		for command, d := range st.commands {
			p.Commands[command] = string(d.digest)
		}
		return nil
	})
	return p
}

// A reader that was written from docs/disk.md alone says of every task what
// the program says: of random histories, of the kept store of version 1, with
// a torn tail, and of a task long enough for a checkpoint.
func TestReaderWrittenFromTheDocument(t *testing.T) {
	compare := func(name string, s *Store) {
		t.Helper()
		got, err := paperReader{s.Home()}.tasks()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ids, err := s.List()
		if err != nil || len(ids) != len(got) || len(ids) == 0 {
			t.Fatalf("%s: %d tasks of %d, %v", name, len(got), len(ids), err)
		}
		for _, id := range ids {
			if want := ofTask(t, s, id); !reflect.DeepEqual(got[string(id)], want) {
				t.Fatalf("%s: the reader says\n%+v\nthe program\n%+v", name, got[string(id)], want)
			}
		}
	}
	compare("version 1", openStore(t, oldHome(t), false))
	for seed := range histories(t, 3) {
		r := rand.New(rand.NewPCG(seed, 5))
		s := quickStore(t, quickHome(t), true)
		for _, id := range []TaskID{deviceTask, "b", "c.d_e-f"} {
			mustApply(t, s, submitOf(id, fmt.Sprint("c0-", id)))
			for n := range 70 {
				randomStep(t, r, s, id, n)
			}
		}
		compare(fmt.Sprint("history ", seed), s)
		endedTask(t, s, "at-rest")
		indexed(t, s)
		if n, err := s.PutAway(t.Context(), []TaskID{"at-rest"}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		rows, err := paperReader{s.Home()}.rest()
		if r := rows[dirName("at-rest")]; err != nil || r == nil || r.ID != "at-rest" || r.Status != "cancelled" || r.Revision != 2 || r.Turn != 0 || r.Archived != "" {
			t.Fatalf("the reader says of a task at rest %+v, %v", r, err)
		}
		path := logPath(s, "b")
		log := readFile(t, path)
		for _, tail := range [][]byte{log[len(log)-20:][:7], make([]byte, 300)} {
			writeFile(t, path, append(bytes.Clone(log), tail...))
			compare("torn", quickStore(t, s.Home(), false))
		}
	}
	long, _ := longTask(t, 9)
	compare("with a checkpoint", long)
}
