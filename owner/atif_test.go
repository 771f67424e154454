package owner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// exportDoc is an exported document as tests look at it.
type exportDoc struct {
	Session string `json:"session_id"`
	Agent   struct {
		Name, Version string
		Model         string `json:"model_name"`
	}
	Steps []struct {
		Timestamp, Source, Message string
		Extra                      struct {
			Turn   int
			Line   int
			StepID int `json:"step_id"`
			At     int64
			Extra  json.RawMessage
			Other  json.RawMessage
		}
	}
	Notes   string
	Metrics map[string]any `json:"final_metrics"`
	Extra   struct {
		Whole bool
		Turns []struct {
			Turn     int
			Evidence string
			Steps    int
			Faults   []ViewFault
			Ending   string
			Reply    string
		}
	}
}

func export(t *testing.T, s *Store, id TaskID, turn int) (exportDoc, ATIFExport) {
	t.Helper()
	var b bytes.Buffer
	x, err := s.ExportATIF(context.Background(), &b, id, turn)
	if err != nil {
		t.Fatal(err)
	}
	if err := validATIF(b.Bytes()); err != nil {
		t.Fatalf("%v\n%s", err, b.Bytes())
	}
	var d exportDoc
	if err := json.Unmarshal(b.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Steps) != x.Steps || d.Notes != x.Notes || d.Metrics["total_steps"] != float64(x.Steps) || len(d.Metrics) != 1 {
		t.Fatalf("the document says %d steps, %q, %v; its writer %+v", len(d.Steps), d.Notes, d.Metrics, x)
	}
	return d, x
}

// sealTurn ends the current turn with the transcript as it is.
func sealTurn(t *testing.T, s *Store, turn int) {
	t.Helper()
	r := exited(0)
	r.TraceDigest = DigestOf(readFile(t, filepath.Join(s.TaskDir(deviceTask), TraceName(turn))))
	r.Reply = fmt.Sprint("reply ", turn)
	mustAppend(t, s, deviceTask, 1, Event{Result: r})
}

// nextTurn makes the task's next turn run, with the transcript trace.
func nextTurn(t *testing.T, s *Store, trace []byte) {
	t.Helper()
	task, _ := s.Get(deviceTask)
	mustApply(t, s, continueOf(deviceTask, fmt.Sprint("next-", task.Revision), task.Revision))
	task, _ = s.Get(deviceTask)
	mustAppend(t, s, deviceTask, 1, Event{Admitted: admission(&task)})
	if trace != nil {
		writeFile(t, filepath.Join(s.TaskDir(deviceTask), TraceName(task.Turn())), trace)
	}
}

// What a real turn leaves is a valid document that is whole.
func TestExportOfATurn(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	w.execute("t", w.grant("t", `echo out; echo err >&2; printf '\377'`), nil)
	d, x := export(t, w.s, "t", 0)
	if x.Notes != "" || !d.Extra.Whole || d.Session != "t" || d.Agent.Name != "holdfast" || d.Agent.Version == "" {
		t.Fatalf("%+v %+v", x, d)
	}
	if d.Steps[0].Source != "user" || len(d.Extra.Turns) != 1 || d.Extra.Turns[0].Evidence != "sealed" || d.Extra.Turns[0].Ending != "exit 0" {
		t.Fatalf("%+v", d)
	}
	var raw []byte
	for i, step := range d.Steps {
		if step.Extra.Turn != 1 || step.Extra.StepID != i+1 || step.Extra.Line != i+2 {
			t.Fatalf("step %d: %+v", i, step.Extra)
		}
		var e struct {
			Stream string
			Raw    []byte
		}
		if json.Unmarshal(step.Extra.Extra, &e); e.Stream == "stdout" && e.Raw != nil {
			raw = append(raw, e.Raw...)
		}
	}
	if !bytes.Contains(raw, []byte{0xff}) {
		t.Fatalf("the exact bytes of the output are not there: %q", raw)
	}
}

func TestExportTurns(t *testing.T) {
	s := runningTask(t, traceOf(deviceTask, 1, 2, true))
	sealTurn(t, s, 1)
	nextTurn(t, s, traceOf(deviceTask, 2, 3, true))
	sealTurn(t, s, 2)
	nextTurn(t, s, traceOf(deviceTask, 3, 1, false))
	d, x := export(t, s, deviceTask, 0)
	if x.Steps != 6 || d.Extra.Whole || d.Notes != "turn 3: the transcript is incomplete: it has no end" || d.Session != string(deviceTask) {
		t.Fatalf("%+v", x)
	}
	var turns []int
	for _, step := range d.Steps {
		turns = append(turns, step.Extra.Turn)
	}
	if fmt.Sprint(turns) != "[1 1 2 2 2 3]" || d.Extra.Turns[1].Reply != "reply 2" || d.Extra.Turns[2].Evidence != "incomplete" {
		t.Fatalf("%v %+v", turns, d.Extra)
	}
	d, x = export(t, s, deviceTask, 2)
	if x.Steps != 3 || x.Notes != "" || !d.Extra.Whole || d.Session != string(deviceTask)+"-2" || len(d.Extra.Turns) != 1 {
		t.Fatalf("%+v %+v", x, d)
	}
	for _, turn := range []int{-1, 4} {
		_, err := s.ExportATIF(context.Background(), io.Discard, deviceTask, turn)
		wantCode(t, err, "not_found")
	}
	_, err := s.ExportATIF(context.Background(), io.Discard, "nobody", 0)
	wantCode(t, err, "not_found")
	// A transcript that is gone is said, and the others are exported.
	os.Remove(filepath.Join(s.TaskDir(deviceTask), TraceName(1)))
	d, x = export(t, s, deviceTask, 0)
	if x.Steps != 4 || d.Extra.Whole || !strings.Contains(x.Notes, "turn 1: the transcript cannot be read to its end: missing") {
		t.Fatalf("%+v", x)
	}
}

// Of a damaged transcript the document has what could be read, and its notes every fault.
func TestExportDamaged(t *testing.T) {
	whole := string(traceOf(deviceTask, 1, 3, true))
	line := strings.SplitAfter(whole, "\n")
	odd := `{"type":"step","step_id":3,"at":-5,"source":"agent","message":"odd","tokens":7}` + "\n"
	for _, row := range []struct {
		name, trace string
		steps       int
		evidence    string
		notes       []string
	}{
		{"torn", strings.TrimSuffix(whole, "\n"), 3, "damaged", []string{"damaged", "line 5 torn"}},
		{"a bad line", line[0] + line[1] + "\xff\n" + line[2] + "{\n" + line[4], 2, "damaged", []string{"line 3 not_utf8, line 5 not_json"}},
		{"many", line[0] + line[1] + strings.Repeat("x\n", 80) + line[4], 1, "damaged", []string{"line 66 not_json", ", and more"}},
		{"a member of another version", line[0] + line[1] + line[2] + odd + line[4], 3, "unsealed", []string{"no result seals it"}},
		{"no end", line[0] + line[1], 1, "incomplete", []string{"has no end"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := runningTask(t, []byte(row.trace))
			d, x := export(t, s, deviceTask, 0)
			if x.Steps != row.steps || d.Extra.Whole || d.Extra.Turns[0].Evidence != row.evidence {
				t.Fatalf("%+v %+v", x, d.Extra)
			}
			for _, say := range row.notes {
				if !strings.Contains(d.Notes, say) {
					t.Fatalf("the notes do not say %q: %s", say, d.Notes)
				}
			}
			if last := d.Steps[len(d.Steps)-1]; last.Message == "odd" && (last.Timestamp != "" || last.Extra.At != -5 || string(last.Extra.Other) != `{"tokens":7}`) {
				t.Fatalf("%+v", last)
			}
		})
	}
	s := runningTask(t, []byte(whole))
	sealTurn(t, s, 1)
	writeFile(t, tracePath(s), []byte(line[0]+line[1]+line[4]))
	if d, _ := export(t, s, deviceTask, 0); d.Extra.Turns[0].Evidence != "digest_mismatch" || !strings.Contains(d.Notes, "not the one that the turn's result sealed") {
		t.Fatalf("%+v", d)
	}
	// A trajectory has at least one step: without any there is no document, not even the start of one.
	for name, trace := range map[string][]byte{"no step": []byte(line[0] + line[4]), "no session": []byte(line[1]), "none": nil} {
		var b bytes.Buffer
		_, err := runningTask(t, trace).ExportATIF(context.Background(), &b, deviceTask, 0)
		if wantCode(t, err, "not_found"); b.Len() != 0 {
			t.Fatalf("%s: wrote %s", name, b.Bytes())
		}
	}
	queued := newStore(t)
	mustApply(t, queued, submitOf(deviceTask, "c1"))
	_, err := queued.ExportATIF(context.Background(), io.Discard, deviceTask, 0)
	wantCode(t, err, "not_found")
}

// lean is an output that looks at the memory in use now and then, and may fail.
type lean struct {
	n, looked int64
	most      uint64
	fail      error
}

func (l *lean) Write(b []byte) (int, error) {
	if l.n += int64(len(b)); l.n-l.looked > 4<<20 {
		l.looked = l.n
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		l.most = max(l.most, m.HeapAlloc)
	}
	return len(b), l.fail
}

// An export keeps a line and not a transcript in memory; its output's failure and its caller's end are its own.
func TestExportStreams(t *testing.T) {
	s := runningTask(t, nil)
	tr := ownTrace(t, s, 200, 150_000)
	seal(t, tr)
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	out := &lean{}
	x, err := s.ExportATIF(context.Background(), out, deviceTask, 0)
	if err != nil || x.Steps != 200 || out.n < 30_000_000 || out.most == 0 {
		t.Fatalf("%v %+v, %d bytes", err, x, out.n)
	}
	if grew := int64(out.most) - int64(before.HeapAlloc); grew > 8<<20 {
		t.Fatalf("%d bytes in use", grew)
	}
	full := errors.New("no room")
	if _, err := s.ExportATIF(context.Background(), &lean{fail: full}, deviceTask, 0); !errors.Is(err, full) {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(context.Background())
	stop(full)
	if _, err := s.ExportATIF(ctx, io.Discard, deviceTask, 0); !errors.Is(err, full) {
		t.Fatal(err)
	}
}
