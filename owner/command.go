package owner

import (
	"bytes"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const commandSchema = "openagents.coder.task-command.v1"

// commandDoc is the document on the wire; every member is required.
type commandDoc struct {
	Schema    string         `json:"schema"`
	CommandID *string        `json:"command_id"`
	TaskID    *string        `json:"task_id"`
	Expected  jsontext.Value `json:"expected_revision"`
	Action    jsontext.Value `json:"action"`
}

// actionName tells actions apart. The public schema says type; kind is what
// holdfast said before, and what logs of that time hold.
type actionName struct {
	Type string `json:"type,omitzero"`
	Kind string `json:"kind,omitzero"`
}

type submitDoc struct {
	actionName
	Intent *intentDoc `json:"intent"`
}

type intentDoc struct {
	Title     *string `json:"title"`
	Prompt    *string `json:"prompt"`
	Workspace *struct {
		Path           string  `json:"path"`
		SourceRevision *string `json:"source_revision"`
	} `json:"workspace"`
	Configuration *struct {
		Adapter string  `json:"adapter"`
		Model   *string `json:"model"`
	} `json:"configuration"`
}

type cancelDoc struct {
	actionName
	Reason *string `json:"reason"`
}

type correctDoc struct {
	actionName
	Prompt *string `json:"prompt"`
	Reason *string `json:"reason"`
}

type continueDoc struct {
	actionName
	Prompt *string `json:"prompt"`
}

// closed decodes b into v: strict JSON (no duplicate member, valid UTF-8),
// names exact, and none that v does not have.
func closed(b []byte, v any) error {
	return json.Unmarshal(b, v, json.RejectUnknownMembers(true))
}

// lax decodes the members that v has out of b, which is strict JSON, and
// passes over others: to tell another version from nonsense.
func lax(b []byte, v any) error { return json.Unmarshal(b, v) }

// ParseCommand decodes one task command: strict JSON, closed at every level,
// at most MaxCommand bytes. Its error is an *Error, unsupported_schema or
// invalid_command (limit_exceeded for the length).
func ParseCommand(b []byte) (Command, error) {
	if len(b) > MaxCommand {
		return Command{}, refuse("limit_exceeded", "a task command has at most %d bytes", MaxCommand)
	}
	var probe struct {
		Schema *string `json:"schema"`
	}
	if err := json.Unmarshal(b, &probe); err != nil || probe.Schema == nil {
		return Command{}, refuse("invalid_command", "a task command is one strict JSON object with a schema")
	}
	if *probe.Schema != commandSchema {
		return Command{}, refuse("unsupported_schema", "this holdfast reads %s", commandSchema)
	}
	var d commandDoc
	if err := closed(b, &d); err != nil {
		return Command{}, refuse("invalid_command", "a member of the task command is unknown or of the wrong type")
	}
	if d.CommandID == nil || d.TaskID == nil || d.Expected == nil || d.Action == nil {
		return Command{}, refuse("invalid_command", "command_id, task_id, expected_revision and action are required")
	}
	c := Command{CommandID: *d.CommandID, TaskID: TaskID(*d.TaskID)}
	if d.Expected.Kind() != 'n' {
		var n int64
		if err := json.Unmarshal(d.Expected, &n); err != nil || n < 1 {
			return Command{}, refuse("invalid_command", "expected_revision is a whole number from 1, or null")
		}
		c.Expected = &n
	}
	if err := parseAction(d.Action, &c.Action); err != nil {
		return Command{}, err
	}
	if err := c.validate(); err != nil {
		return Command{}, err
	}
	return c, nil
}

func parseAction(b jsontext.Value, a *Action) error {
	var name actionName
	bad := refuse("invalid_command", "the action is unknown, or lacks a member, or has one too many")
	if json.Unmarshal(b, &name) != nil || (name.Type == "") == (name.Kind == "") {
		return bad
	}
	switch name.Type + name.Kind {
	case "submit":
		var d submitDoc
		if closed(b, &d) != nil || d.Intent == nil || d.Intent.Title == nil || d.Intent.Prompt == nil ||
			d.Intent.Workspace == nil || d.Intent.Configuration == nil {
			return bad
		}
		a.Submit = &Intent{Title: *d.Intent.Title, Prompt: *d.Intent.Prompt,
			Workspace:     Workspace{Path: d.Intent.Workspace.Path},
			Configuration: Configuration{Adapter: d.Intent.Configuration.Adapter, Model: d.Intent.Configuration.Model}}
		if r := d.Intent.Workspace.SourceRevision; r != nil {
			if !revisionName(*r) {
				return refuse("invalid_command", "source_revision is 40 or 64 lowercase hex characters, or absent")
			}
			a.Submit.Workspace.SourceRevision = *r
		}
	case "cancel":
		var d cancelDoc
		if closed(b, &d) != nil || d.Reason == nil {
			return bad
		}
		a.Cancel = &CancelAction{Reason: *d.Reason}
	case "correct":
		var d correctDoc
		if closed(b, &d) != nil || d.Prompt == nil || d.Reason == nil {
			return bad
		}
		a.Correct = &CorrectAction{Prompt: *d.Prompt, Reason: *d.Reason}
	case "continue":
		var d continueDoc
		if closed(b, &d) != nil || d.Prompt == nil {
			return bad
		}
		a.Continue = &ContinueAction{Prompt: *d.Prompt}
	default:
		return bad
	}
	return nil
}

// validate holds every rule of a command that needs no task.
func (c Command) validate() error {
	bad := func(why string) error { return refuse("invalid_command", "%s", why) }
	if !identifier(c.CommandID, "") || !identifier(string(c.TaskID), "") {
		return bad("command_id and task_id are 1 to 128 ASCII letters, digits, '.', '_', '-', the first a letter or digit")
	}
	if c.CommandID == string(c.TaskID) {
		return bad("command_id must differ from task_id")
	}
	if (c.Action.Submit != nil) != (c.Expected == nil) {
		return bad("expected_revision is null for submit, and a number for everything else")
	}
	n := 0
	if in := c.Action.Submit; in != nil {
		n++
		switch {
		case !line(in.Title, maxTitle):
			return bad("title is one line of 1 to 256 bytes")
		case !lines(in.Prompt, maxPrompt):
			return bad("prompt is text of 1 to 32,768 bytes")
		case !plainPath(in.Workspace.Path):
			return bad("workspace path is absolute, at most 4,096 bytes, without . and ..")
		case in.Workspace.SourceRevision != "" && !revisionName(in.Workspace.SourceRevision):
			return bad("source_revision is 40 or 64 lowercase hex characters")
		case !identifier(in.Configuration.Adapter, ""):
			return bad("adapter is an identifier")
		case in.Configuration.Model != nil && !identifier(*in.Configuration.Model, "/"):
			return bad("model is an identifier or null")
		}
	}
	if a := c.Action.Cancel; a != nil {
		n++
		if !lines(a.Reason, maxReason) {
			return bad("reason is text of 1 to 2,048 bytes")
		}
	}
	if a := c.Action.Correct; a != nil {
		n++
		if !lines(a.Prompt, maxPrompt) || !lines(a.Reason, maxReason) {
			return bad("prompt is text of 1 to 32,768 bytes and reason of 1 to 2,048")
		}
	}
	if a := c.Action.Continue; a != nil {
		n++
		if !lines(a.Prompt, maxPrompt) {
			return bad("prompt is text of 1 to 32,768 bytes")
		}
	}
	if n != 1 {
		return bad("a command has exactly one action")
	}
	return nil
}

// EncodeCommand is the canonical form of c: members in the order of the
// document, no whitespace. ParseCommand of it gives c again.
func EncodeCommand(c Command) ([]byte, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	var action any
	switch a := c.Action; {
	case a.Submit != nil:
		action = struct {
			actionName
			Intent *Intent `json:"intent"`
		}{actionName{Type: "submit"}, a.Submit}
	case a.Cancel != nil:
		action = cancelDoc{actionName{Type: "cancel"}, &a.Cancel.Reason}
	case a.Correct != nil:
		action = correctDoc{actionName{Type: "correct"}, &a.Correct.Prompt, &a.Correct.Reason}
	case a.Continue != nil:
		action = continueDoc{actionName{Type: "continue"}, &a.Continue.Prompt}
	}
	var buf bytes.Buffer
	err := json.MarshalWrite(&buf, struct {
		Schema    string `json:"schema"`
		CommandID string `json:"command_id"`
		TaskID    TaskID `json:"task_id"`
		Expected  *int64 `json:"expected_revision"`
		Action    any    `json:"action"`
	}{commandSchema, c.CommandID, c.TaskID, c.Expected, action})
	if err != nil {
		return nil, refuse("invalid_command", "the command cannot be encoded")
	}
	if buf.Len() > MaxCommand {
		return nil, refuse("limit_exceeded", "a task command has at most %d bytes", MaxCommand)
	}
	return buf.Bytes(), nil
}

// intentDigest is the SHA-256 of the intent as JSON in the order of its members.
func intentDigest(in Intent) Digest {
	b, err := json.Marshal(in)
	if err != nil {
		panic("owner: a validated intent always encodes: " + err.Error())
	}
	return DigestOf(b)
}
