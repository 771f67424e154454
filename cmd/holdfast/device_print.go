package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"holdfast/host/client"
	"holdfast/nip"
)

// rawJSON is canonical JSON that goes into a document as it is.
type rawJSON = json.RawMessage

func clockTime(unix int64) string { return time.Unix(unix, 0).Local().Format("2006-01-02 15:04:05") }

// plain keeps what a host sent from steering the terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}

// line is plain on one line.
func line(s string) string { return strings.Join(strings.Fields(plain(s)), " ") }

// emitOutcome prints an outcome: its own object with --json.
func (v *deviceVerbs) emitOutcome(out nip.Outcome) error {
	raw, err := nip.EncodeOutcome(out)
	if err != nil {
		return fmt.Errorf("encode outcome: %w", err)
	}
	return v.g.emit(rawJSON(raw), func(w io.Writer) { printOutcome(w, out) })
}

func printOutcome(w io.Writer, out nip.Outcome) {
	switch out := out.(type) {
	case nip.Devices:
		for _, e := range out.Devices {
			fmt.Fprintf(w, "%s  %-8s  epoch %d  until %s  %s\n", e.Device, e.State, e.Epoch, clockTime(e.ExpiresAt), joinRights(e.Rights))
		}
	case nip.RevokedDevice:
		fmt.Fprintf(w, "revoked %s, now at epoch %d, %d grants ended\n", out.Device, out.Epoch, len(out.Grants))
	case nip.Dispatched:
		fmt.Fprintf(w, "%s done for %s\n", out.Operation, out.Reference)
	case nip.QueueState:
		printQueue(w, out)
	case nip.Workspaces:
		for _, l := range out.Workspaces {
			fmt.Fprintln(w, line(string(l)))
		}
	case nip.TaskPage:
		printPage(w, out.Task)
	default:
		raw, err := nip.EncodeOutcome(out)
		if err == nil {
			fmt.Fprintln(w, string(raw))
		}
	}
}

func joinRights(rights nip.Rights) string {
	list := make([]string, len(rights))
	for i, r := range rights {
		list[i] = string(r)
	}
	return strings.Join(list, ",")
}

func printQueue(w io.Writer, q nip.QueueState) {
	lease := "no lease"
	if q.Lease != nil {
		lease = fmt.Sprintf("lease of %s until %s", q.Lease.Device, clockTime(q.Lease.ExpiresAt))
	}
	fmt.Fprintf(w, "revision %d, %d held, %s\n", q.Revision, len(q.Items), lease)
	for i, it := range q.Items {
		text := "(of another device)"
		if it.Text != nil {
			text = line(*it.Text)
		}
		mark := " "
		if it.Priority {
			mark = "!"
		}
		fmt.Fprintf(w, "%2d%s %s  %s\n", i+1, mark, it.Command, text)
	}
}

func printPage(w io.Writer, p nip.Page) {
	fmt.Fprintf(w, "%s\n%s  revision %d  %s  in %s\n", p.Scope.Task, line(p.Title), p.Scope.Revision, p.Phase, line(string(p.Scope.Workspace)))
	fmt.Fprintf(w, "execution %s, verification %s, integration %s, termination %s, cleanup %s\n",
		line(p.Execution), line(p.Verification), line(p.Integration), line(p.Termination), line(p.Cleanup))
	fmt.Fprintf(w, "transcript %s, %d steps\n", line(p.Evidence.State), p.Evidence.TotalSteps)
	for _, s := range p.Evidence.Steps {
		if s.Kind == "gap" {
			fmt.Fprintf(w, "%4d  (%s; device original fetches it)\n", s.Index, line(s.Reason))
			continue
		}
		fmt.Fprintf(w, "%4d  %s\n", s.Index, line(stepText(s.Step)))
	}
	for _, a := range p.Artifacts {
		fmt.Fprintf(w, "artifact %s  %s\n", line(a.Label), line(a.State))
	}
	if p.MoreAvailable {
		fmt.Fprintln(w, "more steps follow; --json shows the cursor")
	}
}

// stepText is what people want of a transcript step: who, and the words.
func stepText(raw []byte) string {
	var s struct {
		Source  string `json:"source"`
		Message string `json:"message"`
	}
	if json.Unmarshal(raw, &s) != nil || s.Message == "" {
		return string(raw)
	}
	return s.Source + ": " + s.Message
}

func (v *deviceVerbs) emitExchange(x client.Exchange) error {
	doc := map[string]any{"request": x.Request.ID, "request_event": x.Event.ID, "reply_event": x.ReplyEvent.ID,
		"tries": x.Tries, "took_ms": x.Took.Milliseconds(), "issued_at": x.Reply.IssuedAt, "expires_at": x.Reply.ExpiresAt}
	if r := x.Reply.Refusal; r != nil {
		doc["status"], doc["code"], doc["missing"] = "refused", r.Code, nil
		if r.Missing != "" {
			doc["missing"] = r.Missing
		}
		return v.g.emit(doc, func(io.Writer) {})
	}
	raw, err := nip.EncodeOutcome(x.Reply.Outcome)
	if err != nil {
		return fmt.Errorf("encode outcome: %w", err)
	}
	doc["status"], doc["outcome"] = "ok", rawJSON(raw)
	return v.g.emit(doc, func(w io.Writer) { fmt.Fprintln(w, string(raw)) })
}

func (v *deviceVerbs) emitTasks(rows []listedTask, more bool) error {
	docs := make([]map[string]any, 0, len(rows))
	for _, r := range rows {
		docs = append(docs, map[string]any{"workspace": r.label, "task": r.row.Task, "revision": r.row.Revision,
			"title": r.row.Title, "phase": r.row.Phase, "attempt": r.row.Attempt})
	}
	return v.g.emit(map[string]any{"tasks": docs, "more": more}, func(w io.Writer) {
		for _, r := range rows {
			fmt.Fprintf(w, "%s  %-9s  r%-4d  %s  %s\n", plain(r.row.Task), r.row.Phase, r.row.Revision, line(string(r.label)), line(r.row.Title))
		}
		if more {
			fmt.Fprintln(w, "more tasks follow; raise --limit")
		}
	})
}

// emitUpdate prints a summary, a presence, a grant or hints on one line each.
func (v *deviceVerbs) emitUpdate(u client.Update) error {
	if s := u.Summary; s != nil {
		return v.g.emit(map[string]any{"event": "summary", "task": s.Task, "sequence": s.Sequence, "phase": s.Phase,
			"headline": s.Headline, "attention": s.Attention, "updated_at": s.UpdatedAt}, func(w io.Writer) {
			fmt.Fprintf(w, "%s  %s  r%-4d  %-9s  %s\n", clockTime(s.UpdatedAt), s.Task, s.Sequence, s.Phase, line(s.Headline))
		})
	}
	if g := u.Grant; g != nil {
		return v.g.emit(map[string]any{"event": "grant", "grant": g.ID, "expires_at": g.ExpiresAt}, func(w io.Writer) {
			fmt.Fprintf(w, "%s  grant renewed, now until %s\n", clockTime(g.IssuedAt), clockTime(g.ExpiresAt))
		})
	}
	if h := u.Hints; h != nil {
		return v.g.emit(map[string]any{"event": "hints", "hints": hintDocuments(*h), "expires_at": h.ExpiresAt}, func(w io.Writer) {
			printHints(w, *h, clockTime(h.IssuedAt)+"  the host may be reached by ")
		})
	}
	p := u.Presence
	return v.g.emit(map[string]any{"event": "presence", "generation": p.Generation, "observed_at": p.ObservedAt,
		"capabilities": p.Capabilities}, func(w io.Writer) {
		fmt.Fprintf(w, "%s  host is there, start %d\n", clockTime(p.ObservedAt), p.Generation)
	})
}

func (v *deviceVerbs) emitPage(p nip.Page) error {
	raw, err := nip.EncodeOutcome(nip.TaskPage{Task: p})
	if err != nil {
		return fmt.Errorf("encode page: %w", err)
	}
	return v.g.emit(map[string]any{"event": "page", "outcome": rawJSON(raw)}, func(w io.Writer) { printPage(w, p) })
}
