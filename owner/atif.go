package owner

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The document that a transcript exports as: ATIF, the Agent Trajectory Interchange Format of the Harbor project.
const (
	atifVersion = "ATIF-v1.7"
	atifExtra   = "holdfast.atif-extra.v1" // what we put into the root's extra
	lastTime    = 253_402_300_799_999      // ms: the last moment that ISO 8601 writes with four digits of year
)

// ATIFExport says what an export holds.
type ATIFExport struct {
	Steps int    // of the document
	Notes string // what is not whole about it, one line each; "" where nothing is
}

// atifAgent is who the steps of source agent are by. The program's own model is not known unless the task names one.
type atifAgent struct {
	Name    string  `json:"name"`
	Version string  `json:"version"`
	Model   *string `json:"model_name,omitempty"`
	Extra   struct {
		Adapter string `json:"adapter"`
	} `json:"extra"`
}

// atifStep is one step. What a program says is a message of the agent: what it called inside is not known here, and
// neither are tokens and cost, so no such member is written.
type atifStep struct {
	StepID    int           `json:"step_id"`
	Timestamp string        `json:"timestamp,omitempty"`
	Source    string        `json:"source"`
	Message   string        `json:"message"`
	Extra     atifStepExtra `json:"extra"`
}

// atifStepExtra is what ATIF has no place for.
type atifStepExtra struct {
	Turn   int                       `json:"turn"`
	Line   int64                     `json:"line"`    // of the turn's transcript
	StepID int64                     `json:"step_id"` // in the turn's transcript
	At     int64                     `json:"at"`      // ms
	Extra  jsontext.Value            `json:"extra,omitempty"`
	Other  map[string]jsontext.Value `json:"other,omitempty"` // members of the record that this version does not know
}

// atifTurn is one turn in the root's extra.
type atifTurn struct {
	Turn             int             `json:"turn"`
	Trace            string          `json:"trace"`
	Evidence         string          `json:"evidence"` // as a view says it
	Digest           Digest          `json:"digest,omitempty"`
	Bytes            int64           `json:"bytes"`
	Steps            int             `json:"steps"`
	Faults           []atifFault     `json:"faults"`
	MoreFaults       bool            `json:"more_faults"`
	AgentVersion     string          `json:"agent_version,omitempty"`
	Effect           string          `json:"effect,omitempty"`
	Ending           string          `json:"ending,omitempty"`
	ExitCode         *int            `json:"exit_code,omitempty"`
	StopRequested    bool            `json:"stop_requested"`
	OutputIncomplete bool            `json:"output_incomplete"`
	ElapsedMS        *int64          `json:"elapsed_ms,omitempty"`
	Reply            string          `json:"reply,omitempty"`
	Ask              string          `json:"ask,omitempty"`
	CostStatus       string          `json:"cost_status"`
	Confinement      json.RawMessage `json:"confinement,omitempty"`
	Cleanup          json.RawMessage `json:"cleanup,omitempty"`
	Egress           json.RawMessage `json:"egress,omitempty"`
}

type atifFault struct {
	Line int    `json:"line"`
	Kind string `json:"kind"`
}

// atifTail is what stands after the steps: it is known when they were read.
type atifTail struct {
	Notes   string `json:"notes,omitempty"`
	Metrics struct {
		TotalSteps int `json:"total_steps"`
	} `json:"final_metrics"`
	Extra struct {
		V            string     `json:"v"`
		Task         TaskID     `json:"task"`
		Title        string     `json:"title"`
		Revision     int64      `json:"revision"`
		IntentDigest Digest     `json:"intent_digest"`
		Whole        bool       `json:"whole"` // every transcript here is sealed
		Turns        []atifTurn `json:"turns"`
	} `json:"extra"`
}

// ExportATIF writes the transcripts of all turns of a task, or of one where turn is not 0, to w as one ATIF-v1.7
// document. It takes no lock and keeps one line of a transcript in memory. Of a damaged transcript it exports what
// can be read, and the document's notes name every fault: it never looks whole. A running turn is exported as far as
// it is. *Error not_found for a turn that has no transcript, and where no step at all could be read, for a trajectory
// has at least one; nothing was written then. After another error what was written is no document.
func (s *Store) ExportATIF(ctx context.Context, w io.Writer, id TaskID, turn int) (ATIFExport, error) {
	t, err := s.Get(id)
	if err != nil {
		return ATIFExport{}, err
	}
	runs := append([]Run(nil), t.Earlier...)
	if t.Run != nil {
		runs = append(runs, *t.Run)
	}
	session := string(t.ID)
	if turn != 0 {
		if turn < 0 || turn > len(runs) {
			return ATIFExport{}, refuse("not_found", "turn %d has no transcript", turn)
		}
		runs, session = runs[turn-1:turn], sessionID(t.ID, turn)
	}
	if len(runs) == 0 {
		return ATIFExport{}, refuse("not_found", "the task has no transcript yet")
	}
	x := &atifWriter{ctx: ctx, w: bufio.NewWriter(w), task: &t, session: session}
	x.tail.Extra.V, x.tail.Extra.Task, x.tail.Extra.Title = atifExtra, t.ID, t.Intent.Title
	x.tail.Extra.Revision, x.tail.Extra.IntentDigest, x.tail.Extra.Whole = t.Revision, t.IntentDigest, true
	for i := range runs {
		if err := x.turn(s, &runs[i]); err != nil {
			return ATIFExport{}, fmt.Errorf("export transcript: %w", err)
		}
	}
	notes := strings.Join(x.notes, "\n")
	if x.steps == 0 {
		return ATIFExport{}, refuse("not_found", "no step can be exported: %s", strings.Join(x.notes, "; "))
	}
	x.tail.Notes, x.tail.Metrics.TotalSteps = notes, x.steps
	if err := x.finish(); err != nil {
		return ATIFExport{}, fmt.Errorf("export transcript: %w", err)
	}
	return ATIFExport{Steps: x.steps, Notes: notes}, nil
}

// atifWriter writes one document, front to back.
type atifWriter struct {
	ctx     context.Context
	w       *bufio.Writer
	task    *Task
	session string
	steps   int
	notes   []string
	tail    atifTail
}

// errExport is a failure of the output, told from one of the transcript, which is no failure of the export.
type errExport struct{ error }

func (e errExport) Unwrap() error { return e.error }

// turn writes the steps of one turn.
func (x *atifWriter) turn(s *Store, run *Run) error {
	facts := traceFacts{}
	f, err := s.openTrace(x.task, run.Turn)
	if err == nil {
		defer f.Close()
		var stamp traceStamp
		if stamp, err = statStamp(f); err == nil {
			err = facts.walk(io.NewSectionReader(f, 0, stamp.size), stamp.size, sessionID(x.task.ID, run.Turn),
				func(number, _ int64, line []byte) error { return x.step(run, &facts, number, line) })
		}
	}
	var out errExport
	if errors.As(err, &out) {
		return out.error
	}
	row := atifTurn{
		Turn: run.Turn, Trace: TraceName(run.Turn), Evidence: evidenceOf(run.Result, &facts, err), Digest: facts.digest, Bytes: facts.size,
		Steps: facts.total, Faults: []atifFault{}, MoreFaults: facts.more, AgentVersion: facts.agentVersion, Effect: run.EffectID, CostStatus: "unknown",
	}
	for _, fault := range facts.faults {
		row.Faults = append(row.Faults, atifFault(fault))
	}
	if r := run.Result; r != nil {
		row.Ending, row.ExitCode, row.StopRequested, row.OutputIncomplete, row.ElapsedMS = r.Ending, r.ExitCode, r.StopRequested, r.OutputIncomplete, &r.ElapsedMS
		row.Reply, row.Ask, row.CostStatus, row.Confinement, row.Cleanup, row.Egress = r.Reply, r.Ask, r.CostStatus, r.Confinement, r.Cleanup, r.Egress
	}
	x.note(&row)
	x.tail.Extra.Turns = append(x.tail.Extra.Turns, row)
	return nil
}

// note says what is not whole about a turn, if anything.
func (x *atifWriter) note(row *atifTurn) {
	say := func(format string, args ...any) {
		x.notes = append(x.notes, fmt.Sprintf("turn %d: ", row.Turn)+fmt.Sprintf(format, args...))
	}
	if row.Evidence != "sealed" {
		x.tail.Extra.Whole = false
	}
	switch row.Evidence {
	case "sealed":
	case "unsealed":
		say("the transcript is whole, but no result seals it yet")
	case "incomplete":
		say("the transcript is incomplete: it has no end")
	case "damaged", "malformed":
		say("the transcript is %s; what could be read is here", row.Evidence)
	case "digest_mismatch":
		say("the transcript is not the one that the turn's result sealed; what it says now is here")
	default: // missing and the like; the error itself would name paths
		say("the transcript cannot be read to its end: %s", row.Evidence)
	}
	if len(row.Faults) > 0 {
		lines := make([]string, len(row.Faults))
		for i, f := range row.Faults {
			lines[i] = fmt.Sprintf("line %d %s", f.Line, f.Kind)
		}
		more := ""
		if row.MoreFaults {
			more = ", and more"
		}
		say("not read: %s%s", strings.Join(lines, ", "), more)
	}
	if row.OutputIncomplete {
		say("output is missing; the gaps of the steps say where, as far as it is known")
	}
}

// step writes one step, and what stands before the first.
func (x *atifWriter) step(run *Run, facts *traceFacts, number int64, line []byte) error {
	if err := x.ctx.Err(); err != nil {
		return errExport{context.Cause(x.ctx)}
	}
	var d struct {
		StepID  int64          `json:"step_id"`
		At      int64          `json:"at"`
		Source  string         `json:"source"`
		Message string         `json:"message"`
		Extra   jsontext.Value `json:"extra"`
	}
	other := map[string]jsontext.Value{}
	if err := errors.Join(lax(line, &d), lax(line, &other)); err != nil {
		return errExport{fmt.Errorf("a step that was sound cannot be decoded: %w", err)}
	}
	for _, known := range []string{"type", "step_id", "at", "source", "message", "extra"} {
		delete(other, known)
	}
	x.steps++
	out := atifStep{StepID: x.steps, Source: d.Source, Message: d.Message, Extra: atifStepExtra{
		Turn: run.Turn, Line: number, StepID: d.StepID, At: d.At, Extra: d.Extra, Other: other,
	}}
	if d.At >= 0 && d.At <= lastTime {
		out.Timestamp = time.UnixMilli(d.At).UTC().Format("2006-01-02T15:04:05.000Z")
	}
	if x.steps == 1 {
		if err := x.head(run, facts); err != nil {
			return errExport{err}
		}
	} else if _, err := x.w.WriteString(",\n"); err != nil {
		return errExport{err}
	}
	if err := x.put(out); err != nil {
		return errExport{err}
	}
	return nil
}

// head writes what stands before the steps.
func (x *atifWriter) head(run *Run, facts *traceFacts) error {
	agent := atifAgent{
		Name: cmp.Or(facts.agentName, "holdfast"), Version: cmp.Or(facts.agentVersion, "unknown"), Model: x.task.Intent.Configuration.Model,
	}
	agent.Extra.Adapter = run.Admission.Adapter
	b, err := jsonv2.Marshal(struct {
		Schema  string    `json:"schema_version"`
		Session string    `json:"session_id"`
		Agent   atifAgent `json:"agent"`
	}{atifVersion, x.session, agent})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(x.w, "%s,\"steps\":[\n", b[:len(b)-1])
	return err
}

// finish writes what stands after the steps.
func (x *atifWriter) finish() error {
	b, err := jsonv2.Marshal(x.tail)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(x.w, "\n],%s\n", b[1:]); err != nil {
		return err
	}
	return x.w.Flush()
}

func (x *atifWriter) put(v any) error {
	b, err := jsonv2.Marshal(v, jsonv2.Deterministic(true)) // the same transcript, the same document
	if err == nil {
		_, err = x.w.Write(b)
	}
	return err
}
