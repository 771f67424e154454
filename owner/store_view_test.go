package owner

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/atomicfile"
	"holdfast/internal/saferead"
)

func traceOf(id TaskID, turn, steps int, end bool) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"type":"session","id":"%s-%d","agent":{"name":"holdfast","version":"x"},"adapter":"bounded-command","workspace":"/w","at":1}`+"\n", id, turn)
	for i := range steps {
		fmt.Fprintf(&b, `{"type":"step","step_id":%d,"at":%d,"source":"agent","message":"step %d","extra":{"stream":"stdout"}}`+"\n", i+1, i, i)
	}
	if end {
		b.WriteString(`{"type":"end","state":"ended","at":9}` + "\n")
	}
	return b.Bytes()
}

// runningTask is a store with one admitted task whose transcript is trace.
func runningTask(t testing.TB, trace []byte) *Store {
	t.Helper()
	s := newStore(t)
	mustApply(t, s, submitOf(deviceTask, "c1"))
	task, _ := s.Get(deviceTask)
	mustAppend(t, s, deviceTask, 1, Event{Admitted: admission(&task)})
	if trace != nil {
		writeFile(t, filepath.Join(s.TaskDir(deviceTask), TraceName(1)), trace)
	}
	return s
}

func view(t testing.TB, s *Store, limit int, c *ViewCursor) View {
	t.Helper()
	v, err := s.View(deviceTask, limit, 1<<14, c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestViewPages(t *testing.T) {
	trace := traceOf(deviceTask, 1, 7, false)
	s := runningTask(t, trace)
	path := filepath.Join(s.TaskDir(deviceTask), TraceName(1))
	var c *ViewCursor
	seen := 0
	for {
		v := view(t, s, 3, c)
		for _, step := range v.Steps {
			if step.Index != seen || !bytes.Equal(step.JSON, trace[step.Offset:step.Offset+step.Bytes]) ||
				!strings.Contains(string(step.JSON), fmt.Sprintf(`"message":"step %d"`, seen)) {
				t.Fatalf("step %d: %+v", seen, step)
			}
			seen++
		}
		c = v.Next
		if !v.More {
			break
		}
	}
	if seen != 7 {
		t.Fatalf("%d steps", seen)
	}
	// An exhausted reader polls; appending makes no cursor stale.
	if v := view(t, s, 3, c); len(v.Steps) != 0 || v.More || *v.Next != *c || v.Evidence != "incomplete" {
		t.Fatalf("%+v", v)
	}
	writeFile(t, path, traceOf(deviceTask, 1, 9, true))
	if v := view(t, s, 3, c); len(v.Steps) != 2 || v.Steps[0].Index != 7 || v.Evidence != "unsealed" {
		t.Fatalf("%+v", v)
	}
	// A longer step comes without its bytes.
	v, err := s.View(deviceTask, 1, 10, nil)
	if err != nil || v.Steps[0].JSON != nil || v.Steps[0].Bytes < 50 {
		t.Fatalf("%v %+v", err, v.Steps)
	}
	_, err = s.View(deviceTask, 201, 10, nil)
	wantCode(t, err, "limit_exceeded")
	_, err = s.View("nobody", 1, 10, nil)
	wantCode(t, err, "not_found")
}

// A cursor is bound to what was delivered: a prefix that changed, however
// little, makes it stale, and what was not delivered yet does not.
func TestViewTampered(t *testing.T) {
	trace := traceOf(deviceTask, 1, 6, true)
	s := runningTask(t, trace)
	path := filepath.Join(s.TaskDir(deviceTask), TraceName(1))
	c := view(t, s, 3, nil).Next
	fourth := bytes.Index(trace, []byte(`{"type":"step","step_id":4`))
	for i := bytes.IndexByte(trace, '\n') + 1; i < len(trace)-1; i++ {
		b := bytes.Clone(trace)
		b[i] ^= 1
		writeFile(t, path, b)
		_, err := s.View(deviceTask, 3, 1<<14, c)
		if i < fourth-1 {
			wantCode(t, err, "revision_mismatch")
		} else if i >= fourth && err != nil {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
	writeFile(t, path, trace)
	for name, change := range map[string]func(*ViewCursor){
		"another task":      func(c *ViewCursor) { c.TaskID = "x" },
		"another intent":    func(c *ViewCursor) { c.IntentDigest = DigestOf(nil) },
		"another trace":     func(c *ViewCursor) { c.TraceFile = TraceName(2) },
		"another step":      func(c *ViewCursor) { c.NextStep++ },
		"beyond the end":    func(c *ViewCursor) { c.NextStep = 99 },
		"before the start":  func(c *ViewCursor) { c.NextStep = -1 },
		"another digest":    func(c *ViewCursor) { c.PrefixDigest = DigestOf(nil) },
		"nothing delivered": func(c *ViewCursor) { c.NextStep = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			d := *c
			change(&d)
			_, err := s.View(deviceTask, 3, 1<<14, &d)
			wantCode(t, err, "revision_mismatch")
		})
	}
}

// Cut at every byte a transcript gives the steps that are whole, and says what is wrong.
func TestTraceCutAtEveryByte(t *testing.T) {
	trace := traceOf(deviceTask, 1, 3, true)
	task := &Task{ID: deviceTask}
	for n := range trace {
		sc, err := readTrace(bytes.NewReader(trace[:n]), int64(n), task, 1)
		if err != nil {
			t.Fatal(err)
		}
		whole := bytes.Count(trace[:n], []byte("\n"))
		if len(sc.steps) != min(3, max(0, whole-1)) {
			t.Fatalf("cut at %d: %d steps", n, len(sc.steps))
		}
		torn := n > 0 && trace[n-1] != '\n'
		if (len(sc.faults) == 1 && sc.faults[0] == ViewFault{whole + 1, "torn"}) != torn {
			t.Fatalf("cut at %d: %v", n, sc.faults)
		}
	}
}

func TestTraceFaults(t *testing.T) {
	session := string(bytes.SplitAfter(traceOf(deviceTask, 1, 0, false), []byte("\n"))[0])
	step := func(n int) string {
		return fmt.Sprintf(`{"type":"step","step_id":%d,"at":1,"source":"user","message":"m"}`, n) + "\n"
	}
	end := `{"type":"end","state":"ended","at":9}` + "\n"
	for _, row := range []struct {
		name, trace string
		faults      string
		steps       int
	}{
		{"whole", session + step(1) + end, "[]", 1},
		{"not utf8", session + "\xff\n" + step(1) + end, "[{2 not_utf8}]", 1},
		{"not json", session + "{\n" + step(1) + end, "[{2 not_json}]", 1},
		{"empty line", session + "\n" + end, "[{2 not_json}]", 0},
		{"duplicate member", session + `{"type":"step","type":"end"}` + "\n" + end, "[{2 not_json}]", 0},
		{"no object", session + "[]\n" + end, "[{2 not_json}]", 0},
		{"too long", session + `"` + strings.Repeat("x", maxTraceLine) + "\"\n" + step(1) + end, "[{2 not_json}]", 1},
		{"unknown record", session + `{"type":"note"}` + "\n" + end, "[{2 unknown_record}]", 0},
		{"session of another task", strings.Replace(session, "-1\"", "-2\"", 1) + end, "[{1 bad_session} {2 before_session}]", 0},
		{"step of nobody", session + strings.Replace(step(1), "user", "nobody", 1) + end, "[{2 bad_step}]", 0},
		{"step without a message", session + strings.Replace(step(1), "message", "text", 1) + end, "[{2 bad_step}]", 0},
		{"step numbered twice", session + step(1) + step(1) + end, "[{3 bad_step}]", 1},
		{"extra is no object", session + strings.Replace(step(1), `"m"`, `"m","extra":1`, 1) + end, "[{2 bad_step}]", 0},
		{"repeated session", session + session + end, "[{2 repeated_session}]", 0},
		{"repeated end", session + end + end, "[{3 repeated_end}]", 0},
		{"after end", session + end + step(1), "[{3 after_end}]", 0},
		{"before session", step(1) + session + step(2) + end, "[{1 before_session}]", 1},
		{"torn", session + step(1) + strings.TrimSuffix(end, "\n"), "[{3 torn}]", 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			sc, err := readTrace(strings.NewReader(row.trace), int64(len(row.trace)), &Task{ID: deviceTask}, 1)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(sc.faults); got != row.faults || len(sc.steps) != row.steps {
				t.Fatalf("%s with %d steps, want %s with %d", got, len(sc.steps), row.faults, row.steps)
			}
			if sc.digest != DigestOf([]byte(row.trace)) || sc.size != int64(len(row.trace)) {
				t.Fatal("digest or size is not of the bytes")
			}
		})
	}
	many := session + strings.Repeat("x\n", 100)
	if sc, _ := readTrace(strings.NewReader(many), int64(len(many)), &Task{ID: deviceTask}, 1); len(sc.faults) != maxFaults || !sc.more {
		t.Fatalf("%d faults named, more %v", len(sc.faults), sc.more)
	}
}

// The state of a transcript is the first that holds of the list, whatever else holds too.
func TestEvidenceOf(t *testing.T) {
	whole := &traceFacts{session: true, ended: true, digest: DigestOf(nil)}
	result, other := &Result{TraceDigest: DigestOf(nil)}, &Result{TraceDigest: DigestOf([]byte("x"))}
	damaged, open, bare := *whole, *whole, *whole
	damaged.faults, damaged.ended = []ViewFault{{1, "torn"}}, false
	open.ended = false
	bare.session, bare.faults = false, damaged.faults
	for _, row := range []struct {
		want  string
		r     *Result
		facts *traceFacts
		err   error
	}{
		{"missing", other, &damaged, fs.ErrNotExist},
		{"unavailable_or_unsafe", other, &damaged, ErrUnsafe},
		{"unreadable", other, &damaged, io.ErrUnexpectedEOF},
		{"oversized", other, &damaged, errOversized},
		{"malformed", other, &bare, nil},
		{"digest_mismatch", other, &damaged, nil},
		{"damaged", result, &damaged, nil},
		{"damaged", nil, &damaged, nil},
		{"incomplete", result, &open, nil},
		{"incomplete", nil, &open, nil},
		{"sealed", result, whole, nil},
		{"unsealed", nil, whole, nil},
	} {
		if got := evidenceOf(row.r, row.facts, row.err); got != row.want {
			t.Errorf("%s, want %s", got, row.want)
		}
	}
}

// sickDisk opens transcripts and does not read them.
type sickDisk struct{ atomicfile.FS }

func (d sickDisk) Open(dir *saferead.Dir, name string, flag int) (atomicfile.File, error) {
	f, err := d.FS.Open(dir, name, flag)
	if err != nil || !strings.HasPrefix(name, "turn-") {
		return f, err
	}
	return sickFile{f}, nil
}

type sickFile struct{ atomicfile.File }

func (sickFile) ReadAt([]byte, int64) (int, error) { return 0, syscall.EIO }

func TestEvidence(t *testing.T) {
	whole := traceOf(deviceTask, 1, 2, true)
	for _, row := range []struct {
		name   string
		trace  []byte
		result Digest
		break_ func(path string) error
		want   string
	}{
		{"missing", nil, "", nil, "missing"},
		{"link", whole, "", func(p string) error { os.Rename(p, p+".x"); return os.Symlink(p+".x", p) }, "unavailable_or_unsafe"},
		{"oversized", whole, "", func(p string) error { return os.Truncate(p, maxTrace+1) }, "oversized"},
		{"malformed", []byte("x\n"), "", nil, "malformed"},
		{"mismatch before damage", append(bytes.Clone(whole), 'x'), DigestOf(whole), nil, "digest_mismatch"},
		{"damaged", append(bytes.Clone(whole), 'x'), "", nil, "damaged"},
		{"incomplete", traceOf(deviceTask, 1, 2, false), "", nil, "incomplete"},
		{"sealed", whole, DigestOf(whole), nil, "sealed"},
		{"unsealed", whole, "", nil, "unsealed"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := runningTask(t, row.trace)
			if row.break_ != nil {
				if err := row.break_(filepath.Join(s.TaskDir(deviceTask), TraceName(1))); err != nil {
					t.Fatal(err)
				}
			}
			if row.result != "" {
				r := exited(0)
				r.TraceDigest = row.result
				mustAppend(t, s, deviceTask, 1, Event{Result: r})
			}
			v := view(t, s, 10, nil)
			if v.Evidence != row.want || v.Trace != TraceName(1) || v.Next == nil {
				t.Fatalf("%s, next %v", v.Evidence, v.Next)
			}
		})
	}
	// A disk that does not give the bytes back; what is known of the result changes nothing then.
	sick, err := open(runningTask(t, whole).Home(), Options{Now: fixedClock}, sickDisk{atomicfile.OS})
	if err != nil {
		t.Fatal(err)
	}
	defer sick.Close()
	if v := view(t, sick, 10, nil); v.Evidence != "unreadable" || v.Digest != "" || v.Next == nil {
		t.Fatalf("%+v", v)
	}
	s := newStore(t)
	mustApply(t, s, submitOf(deviceTask, "c1"))
	if v := view(t, s, 10, nil); v.Evidence != "not_started" || v.Next != nil {
		t.Fatalf("%+v", v)
	}
	_, err = s.View(deviceTask, 10, 10, &ViewCursor{TaskID: deviceTask})
	wantCode(t, err, "revision_mismatch")
}

func TestOriginal(t *testing.T) {
	trace := traceOf(deviceTask, 1, 3, true)
	s := runningTask(t, trace)
	mustApply(t, s, correctOf(deviceTask, "c2", 2))
	prompt := "rather c2"
	var got []byte
	for {
		b, total, digest, err := s.Original(deviceTask, "task", int64(len(got)), 4)
		if err != nil || total != int64(len(prompt)) || digest != DigestOf([]byte(prompt)) {
			t.Fatal(total, digest, err)
		}
		if got = append(got, b...); int64(len(got)) == total {
			break
		}
	}
	if string(got) != prompt {
		t.Fatalf("%q", got)
	}
	b, total, digest, err := s.Original(deviceTask, "trace:1", 10, 20)
	if err != nil || !bytes.Equal(b, trace[10:30]) || total != int64(len(trace)) || digest != DigestOf(trace) {
		t.Fatalf("%q %d %v", b, total, err)
	}
	for source, code := range map[string]string{"trace:2": "not_found", "trace:0": "not_found", "trace:01": "invalid_command",
		"trace:": "invalid_command", "../x": "invalid_command", "": "invalid_command"} {
		_, _, _, err := s.Original(deviceTask, source, 0, 1)
		wantCode(t, err, code)
	}
	_, _, _, err = s.Original(deviceTask, "task", 1000, 1)
	wantCode(t, err, "limit_exceeded")
	_, _, _, err = s.Original(deviceTask, "task", 0, maxOriginal+1)
	wantCode(t, err, "limit_exceeded")
}
