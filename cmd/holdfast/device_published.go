package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"holdfast/host/client"
	"holdfast/nip"
)

// hostWait is how long a read waits for the host before it looks for the last
// page that the host published, unless --timeout says otherwise.
const hostWait = 20 * time.Second

// unanswered reports that nobody has said anything about the question.
func unanswered(err error) bool {
	return errors.Is(err, client.ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded)
}

// taskRead is one question of the read verb.
type taskRead struct {
	task   string
	label  nip.Label
	limit  int
	cursor *nip.PageCursor
}

// ask puts the question to the host.
func (q taskRead) ask(ctx context.Context, d *client.Device, wait time.Duration) (nip.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	query := nip.ReadQuery{Task: q.task, Limit: q.limit}
	if q.cursor != nil {
		query.Workspace, query.Revision, query.Cursor = q.cursor.Scope.Workspace, &q.cursor.Scope.Revision, q.cursor
	} else {
		page, err := findTask(ctx, d, q.task, q.label)
		if err != nil {
			return nip.Page{}, err
		}
		query.Workspace = page.Scope.Workspace
	}
	return readTask(ctx, d, query)
}

// read shows the host's answer, or, where it gives none, the last page that it
// published. wait is how long the host has before that page is looked for, all
// how long it has where there is none.
func (v *deviceVerbs) read(ctx context.Context, d *client.Device, q taskRead, wait, all time.Duration) error {
	page, err := q.ask(ctx, d, wait)
	if err == nil {
		return v.emitOutcome(nip.TaskPage{Task: page})
	}
	// A published page does not go on where another one stopped.
	if !unanswered(err) || ctx.Err() != nil || q.cursor != nil {
		return err
	}
	last, found, readErr := lastPage(ctx, d, q, all)
	if found {
		return v.emitPublished(d, last, readErr != nil, true)
	}
	if all <= wait {
		return err
	}
	if page, err = q.ask(ctx, d, all-wait); err != nil {
		return err
	}
	return v.emitOutcome(nip.TaskPage{Task: page})
}

// readOffline shows the last published page without a word to the host.
func (v *deviceVerbs) readOffline(ctx context.Context, d *client.Device, q taskRead) error {
	last, found, err := lastPage(ctx, d, q, v.timeout)
	if found {
		return v.emitPublished(d, last, err != nil, false)
	}
	if err != nil {
		return err
	}
	return &cliError{Exit: exitFailed, Code: "absent", Message: "the host has published no page of this task to this device",
		Hint: "it publishes one when a turn ends or asks, and keeps it on the relay for a week"}
}

// lastPage is the last published page of a task, of what the relay has now and
// of what this device read before. err is why the relay could not be read within
// wait, which is at most 8 s.
func lastPage(ctx context.Context, d *client.Device, q taskRead, wait time.Duration) (last nip.PublishedPage, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(wait, refreshWait))
	defer cancel()
	// The words too: they tell whether the task has moved on since the page.
	if err = d.Refresh(ctx); err == nil {
		err = d.RefreshPages(ctx)
	}
	last, found, readErr := d.LastPage(nip.TaskID(q.task))
	if q.label != "" && last.Page.Scope.Workspace != q.label {
		found = false
	}
	return last, found && readErr == nil, errors.Join(readErr, err)
}

// emitPublished says before all else that this is not the host's answer.
func (v *deviceVerbs) emitPublished(d *client.Device, p nip.PublishedPage, relayAway, asked bool) error {
	doc, newest, err := publishedDocument(d, p)
	if err != nil {
		return err
	}
	if relayAway {
		fmt.Fprintln(v.g.stderr, "the relay could not be read; this is what this device read of it before")
	}
	return v.g.emit(doc, func(w io.Writer) {
		if asked {
			fmt.Fprintf(w, "the host does not answer; this is the last page that it published, of %s\n", clockTime(p.IssuedAt))
		} else {
			fmt.Fprintf(w, "the last page that the host published, of %s\n", clockTime(p.IssuedAt))
		}
		if newest.Sequence > p.Page.Scope.Revision {
			fmt.Fprintf(w, "the task has moved on since, to revision %d: %s\n", newest.Sequence, line(newest.Headline))
		}
		printPage(w, p.Page)
	})
}

// publishedDocument is the outcome that task.read would have had, with a member
// that says what it is instead; and the newest summary of the task.
func publishedDocument(d *client.Device, p nip.PublishedPage) (map[string]any, nip.Summary, error) {
	raw, err := nip.EncodeOutcome(nip.TaskPage{Task: p.Page})
	if err != nil {
		return nil, nip.Summary{}, fmt.Errorf("encode page: %w", err)
	}
	var doc map[string]any
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil {
		return nil, nip.Summary{}, err
	}
	doc = make(map[string]any, len(parts)+1)
	for name, part := range parts {
		doc[name] = part
	}
	newest, ok, err := d.Known(nip.TaskID(p.Page.Scope.Task))
	if err != nil {
		return nil, newest, err
	}
	about := map[string]any{"issued_at": p.IssuedAt, "expires_at": p.ExpiresAt, "newest_revision": nil}
	if ok {
		about["newest_revision"] = newest.Sequence
	}
	doc["published"] = about
	return doc, newest, nil
}

// commandsVerb shows what became of what this device said.
func (v *deviceVerbs) commandsVerb() *cobra.Command {
	var offline bool
	c := &cobra.Command{
		Use: "commands [TASK]", Short: "Show where this device's own commands stand", Args: cobra.MaximumNArgs(1),
		Long: "Shows where each command of this device stands: waiting to be sent, received, held,\n" +
			"being dispatched, applied, refused and why, expired, superseded, removed, or unknown.\n" +
			"The host publishes that; it is read from the relay, and the host may be off.",
		RunE: func(c *cobra.Command, args []string) error {
			var task nip.TaskID
			if len(args) == 1 {
				var err error
				if task, err = taskID(args[0]); err != nil {
					return err
				}
			}
			return v.with(c, min(v.timeout, refreshWait), func(ctx context.Context, d *client.Device) error {
				read := false
				if !offline {
					err := d.Refresh(ctx)
					var owner *client.OwnerError
					if errors.As(err, &owner) {
						err = d.RefreshCommands(ctx) // all that is published to an owner
					}
					owned := errors.As(err, &owner)
					if err != nil && !unanswered(err) && !owned || c.Context().Err() != nil {
						return errors.Join(err, c.Context().Err())
					}
					read = err == nil
					switch {
					case owned:
						fmt.Fprintln(v.g.stderr, "the signer that holds this key reads no publications; this is what the host's replies said")
					case !read:
						fmt.Fprintln(v.g.stderr, "the relay could not be read; this is what this device knew before")
					}
				}
				list, err := d.Commands(task)
				if err != nil {
					return err
				}
				return v.emitCommands(list, read)
			})
		},
	}
	c.Flags().BoolVar(&offline, "offline", false, "show only what this device knows already")
	return c
}

func (v *deviceVerbs) emitCommands(list []client.CommandStatus, read bool) error {
	docs := make([]map[string]any, 0, len(list))
	for _, s := range list {
		docs = append(docs, commandDocument(s))
	}
	return v.g.emit(map[string]any{"commands": docs, "relay_read": read}, func(w io.Writer) {
		if len(list) == 0 {
			fmt.Fprintln(w, "no commands")
		}
		for _, s := range list {
			printCommand(w, s)
		}
	})
}

func commandDocument(s client.CommandStatus) map[string]any {
	doc := map[string]any{"command": s.Command, "task": s.Task, "action": nil, "issued_at": nil, "state": s.State,
		"position": s.Position, "revision": s.Revision, "reason": nil, "at": nil, "in_outbox": s.Queued, "tries": s.Tries, "last_error": s.LastError}
	if s.Action != "" {
		doc["action"], doc["issued_at"] = s.Action, s.IssuedAt
	}
	if s.Reason != "" {
		doc["reason"] = s.Reason
	}
	if s.At != 0 {
		doc["at"] = s.At
	}
	return doc
}

func printCommand(w io.Writer, s client.CommandStatus) {
	at := "                   "
	if s.IssuedAt != 0 {
		at = clockTime(s.IssuedAt)
	}
	fmt.Fprintf(w, "%s  %s  %-9s  %s  of task %s\n", at, s.Command, s.Action, stateWords(s), s.Task)
}

// stateWords says in words where a command stands.
func stateWords(s client.CommandStatus) string {
	words := s.State
	switch {
	case s.State == "waiting" && s.Tries > 0:
		words = fmt.Sprintf("waiting to be sent, %d tries (%s)", s.Tries, line(s.LastError))
	case s.State == "waiting":
		words = "waiting to be sent"
	case s.Position != nil && *s.Position == 0:
		words = "held, the next to run"
	case s.Position != nil:
		words = fmt.Sprintf("held, %d ahead of it", *s.Position)
	case s.Revision != nil:
		words = fmt.Sprintf("applied at revision %d", *s.Revision)
	case s.Reason != "":
		words = fmt.Sprintf("refused: %s", s.Reason)
	case s.State == "unknown":
		words = "unknown: no signed word of it was seen"
	}
	if s.Queued && s.State != "waiting" {
		words += ", without a reply yet"
	}
	return words
}

// emitStates prints one line for each command that stands elsewhere now.
func (v *deviceVerbs) emitStates(list []client.CommandStatus, only nip.TaskID) error {
	for _, s := range list {
		if only != "" && s.Task != only {
			continue
		}
		doc := commandDocument(s)
		doc["event"] = "command"
		if err := v.g.emit(doc, func(w io.Writer) {
			fmt.Fprintf(w, "%s  %s  %s %s  %s\n", clockTime(s.At), s.Task, s.Action, s.Command, stateWords(s))
		}); err != nil {
			return err
		}
	}
	return nil
}

// emitNewPage prints a published page: whole where one task is followed, else
// one line.
func (v *deviceVerbs) emitNewPage(d *client.Device, p nip.PublishedPage, whole bool) error {
	doc, _, err := publishedDocument(d, p)
	if err != nil {
		return err
	}
	about := doc["published"]
	delete(doc, "published")
	return v.g.emit(map[string]any{"event": "page", "outcome": doc, "published": about}, func(w io.Writer) {
		if whole {
			fmt.Fprintf(w, "%s  the host published a page\n", clockTime(p.IssuedAt))
			printPage(w, p.Page)
			return
		}
		fmt.Fprintf(w, "%s  %s  r%-4d  page published: %s\n", clockTime(p.IssuedAt), p.Page.Scope.Task, p.Page.Scope.Revision, line(p.Page.Title))
	})
}

func hintDocuments(h nip.Hints) []map[string]any {
	docs := make([]map[string]any, 0, len(h.Hints))
	for _, i := range h.Hints {
		docs = append(docs, map[string]any{"class": i.Class, "transport": i.Transport, "address": i.Address, "status": i.Status,
			"observed_at": i.ObservedAt})
	}
	return docs
}

func printHints(w io.Writer, h nip.Hints, before string) {
	for _, i := range h.Hints {
		fmt.Fprintf(w, "%s%s %s, %s\n", before, i.Class, line(i.Address), i.Status)
	}
}
