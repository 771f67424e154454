package owner

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
)

// Every bound of a task command: what is exactly at it enters a store, one
// more is refused by name, and what was refused left nothing behind.
func TestCommandBounds(t *testing.T) {
	x := strings.Repeat
	submit := func(change func(*Command, *Intent)) func() (Command, string) {
		return func() (Command, string) {
			c := submitOf("t", "c")
			change(&c, c.Action.Submit)
			return c, ""
		}
	}
	long := "/" + x("d", 255) + x("/"+x("d", 255), 15) // 4,096 bytes
	for _, row := range []struct {
		name string
		c    func() (Command, string)
		code string
	}{
		{"command ID of 1 byte", submit(func(c *Command, _ *Intent) { c.CommandID = "1" }), ""},
		{"command ID of 128 bytes", submit(func(c *Command, _ *Intent) { c.CommandID = x("c", 128) }), ""},
		{"command ID of 129 bytes", submit(func(c *Command, _ *Intent) { c.CommandID = x("c", 129) }), "invalid_command"},
		{"command ID of no byte", submit(func(c *Command, _ *Intent) { c.CommandID = "" }), "invalid_command"},
		{"command ID with . _ -", submit(func(c *Command, _ *Intent) { c.CommandID = "a._-" }), ""},
		{"command ID that begins with -", submit(func(c *Command, _ *Intent) { c.CommandID = "-a" }), "invalid_command"},
		{"command ID with a letter beyond ASCII", submit(func(c *Command, _ *Intent) { c.CommandID = "aé" }), "invalid_command"},
		{"command ID with a space", submit(func(c *Command, _ *Intent) { c.CommandID = "a b" }), "invalid_command"},
		{"task ID of 128 bytes", submit(func(c *Command, _ *Intent) { c.TaskID = TaskID(x("t", 128)) }), ""},
		{"task ID of 129 bytes", submit(func(c *Command, _ *Intent) { c.TaskID = TaskID(x("t", 129)) }), "invalid_command"},
		{"task ID with a slash", submit(func(c *Command, _ *Intent) { c.TaskID = "a/b" }), "invalid_command"},
		{"task ID that is the command ID", submit(func(c *Command, _ *Intent) { c.TaskID = "c" }), "invalid_command"},
		{"title of 256 bytes", submit(func(_ *Command, in *Intent) { in.Title = x("é", 128) }), ""},
		{"title of 257 bytes", submit(func(_ *Command, in *Intent) { in.Title = x("é", 128) + "x" }), "invalid_command"},
		{"title of blanks", submit(func(_ *Command, in *Intent) { in.Title = " \u2003 " }), "invalid_command"},
		{"title with a tab", submit(func(_ *Command, in *Intent) { in.Title = "a\tb" }), "invalid_command"},
		{"title with a C1 control", submit(func(_ *Command, in *Intent) { in.Title = "a\u0085b" }), "invalid_command"},
		{"prompt of 32,768 bytes", submit(func(_ *Command, in *Intent) { in.Prompt = x("p", 32768) }), ""},
		{"prompt of 32,769 bytes", submit(func(_ *Command, in *Intent) { in.Prompt = x("p", 32769) }), "invalid_command"},
		{"prompt with LF, CR and TAB", submit(func(_ *Command, in *Intent) { in.Prompt = "a\r\n\tb" }), ""},
		{"prompt with DEL", submit(func(_ *Command, in *Intent) { in.Prompt = "a\x7f" }), "invalid_command"},
		{"prompt of blanks", submit(func(_ *Command, in *Intent) { in.Prompt = "\n\t " }), "invalid_command"},
		{"path of 4,096 bytes", submit(func(_ *Command, in *Intent) { in.Workspace.Path = long }), ""},
		{"path of 4,097 bytes", submit(func(_ *Command, in *Intent) { in.Workspace.Path = long + "x" }), "invalid_command"},
		{"path that is relative", submit(func(_ *Command, in *Intent) { in.Workspace.Path = "w" }), "invalid_command"},
		{"path with .", submit(func(_ *Command, in *Intent) { in.Workspace.Path = "/a/./b" }), "invalid_command"},
		{"path that ends in ..", submit(func(_ *Command, in *Intent) { in.Workspace.Path = "/a/.." }), "invalid_command"},
		{"path with dots in a name", submit(func(_ *Command, in *Intent) { in.Workspace.Path = "/a/..b/c." }), ""},
		{"path with a line feed", submit(func(_ *Command, in *Intent) { in.Workspace.Path = "/a\nb" }), "invalid_command"},
		{"revision of 40 hex", submit(func(_ *Command, in *Intent) { in.Workspace.SourceRevision = x("a", 40) }), ""},
		{"revision of 64 hex", submit(func(_ *Command, in *Intent) { in.Workspace.SourceRevision = x("0", 64) }), ""},
		{"revision of 41 hex", submit(func(_ *Command, in *Intent) { in.Workspace.SourceRevision = x("a", 41) }), "invalid_command"},
		{"revision in capitals", submit(func(_ *Command, in *Intent) { in.Workspace.SourceRevision = x("A", 40) }), "invalid_command"},
		{"adapter with a slash", submit(func(_ *Command, in *Intent) { in.Configuration.Adapter = "a/b" }), "invalid_command"},
		{"adapter of 129 bytes", submit(func(_ *Command, in *Intent) { in.Configuration.Adapter = x("a", 129) }), "invalid_command"},
		{"model with slashes", submit(func(_ *Command, in *Intent) { in.Configuration.Model = ptr("a/b/c-1.2") }), ""},
		{"model that begins with a slash", submit(func(_ *Command, in *Intent) { in.Configuration.Model = ptr("/b") }), "invalid_command"},
		{"model of 128 bytes", submit(func(_ *Command, in *Intent) { in.Configuration.Model = ptr(x("m", 128)) }), ""},
		{"model of 129 bytes", submit(func(_ *Command, in *Intent) { in.Configuration.Model = ptr(x("m", 129)) }), "invalid_command"},
		{"no model but empty", submit(func(_ *Command, in *Intent) { in.Configuration.Model = ptr("") }), "invalid_command"},
		{"submit at a revision", submit(func(c *Command, _ *Intent) { c.Expected = ptr(int64(1)) }), "invalid_command"},
		{"cancel at no revision", func() (Command, string) { c := cancelOf("old", "c", 1); c.Expected = nil; return c, "" }, "invalid_command"},
		{"cancel reason of 2,048 bytes", func() (Command, string) {
			return Command{CommandID: "c", TaskID: "old", Expected: ptr(int64(1)), Action: Action{Cancel: &CancelAction{x("r", 2048)}}}, ""
		}, ""},
		{"cancel reason of 2,049 bytes", func() (Command, string) {
			return Command{CommandID: "c", TaskID: "old", Expected: ptr(int64(1)), Action: Action{Cancel: &CancelAction{x("r", 2049)}}}, ""
		}, "invalid_command"},
		{"correct prompt of 32,768 and reason of 2,048", func() (Command, string) {
			return Command{CommandID: "c", TaskID: "old", Expected: ptr(int64(1)), Action: Action{Correct: &CorrectAction{x("p", 32768), x("r", 2048)}}}, ""
		}, ""},
		{"correct prompt of 32,769", func() (Command, string) {
			return Command{CommandID: "c", TaskID: "old", Expected: ptr(int64(1)), Action: Action{Correct: &CorrectAction{x("p", 32769), "r"}}}, ""
		}, "invalid_command"},
		{"correct reason of 2,049", func() (Command, string) {
			return Command{CommandID: "c", TaskID: "old", Expected: ptr(int64(1)), Action: Action{Correct: &CorrectAction{"p", x("r", 2049)}}}, ""
		}, "invalid_command"},
		{"continue prompt of 32,768", func() (Command, string) {
			return Command{CommandID: "c", TaskID: "ended", Expected: ptr(int64(2)), Action: Action{Continue: &ContinueAction{x("p", 32768)}}}, ""
		}, ""},
		{"continue prompt of 32,769", func() (Command, string) {
			return Command{CommandID: "c", TaskID: "ended", Expected: ptr(int64(2)), Action: Action{Continue: &ContinueAction{x("p", 32769)}}}, ""
		}, "invalid_command"},
		{"65,536 bytes with whitespace", func() (Command, string) { return submitOf("t", "c"), x(" ", MaxCommand) }, ""},
		{"65,537 bytes with whitespace", func() (Command, string) { return submitOf("t", "c"), x(" ", MaxCommand) + "+" }, "limit_exceeded"},
		{"revision below the task's", func() (Command, string) { return correctOf("ended", "c", 1), "" }, "revision_mismatch"},
		{"revision above the task's", func() (Command, string) { return correctOf("ended", "c", 3), "" }, "revision_mismatch"},
		{"no such task", func() (Command, string) { return correctOf("nobody", "c", 1), "" }, "not_found"},
		{"a task that is there", func() (Command, string) { return submitOf("old", "c"), "" }, "invalid_transition"},
		{"cancel of what has ended", func() (Command, string) { return cancelOf("ended", "c", 2), "" }, "invalid_transition"},
		{"continue of what is queued", func() (Command, string) { return continueOf("old", "c", 1), "" }, "invalid_transition"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := quickStore(t, quickHome(t), true)
			mustApply(t, s, submitOf("old", "o1"))
			mustApply(t, s, submitOf("ended", "e1"))
			mustApply(t, s, cancelOf("ended", "e2", 1))
			before := filesOf(t, s.Home())
			c, blanks := row.c()
			b := looseBytes(t, c)
			if blanks != "" {
				b = append(b, blanks[:len(blanks)-len(b)]...)
			}
			_, err := s.Apply(context.Background(), b)
			wantCode(t, err, row.code)
			if after := filesOf(t, s.Home()); (len(after) > len(before) || after["tasks/"+dirName("ended")+"/log"] != before["tasks/"+dirName("ended")+"/log"] ||
				after["tasks/"+dirName("old")+"/log"] != before["tasks/"+dirName("old")+"/log"]) != (row.code == "") {
				t.Fatal("what was refused left something, or what was accepted nothing")
			}
			if row.code != "" { // a refused command reserves nothing
				mustApply(t, s, submitOf("free", "c"))
			}
			wantSound(t, s)
		})
	}
}

// looseBytes encodes a command that may break every rule.
func looseBytes(t *testing.T, c Command) []byte {
	t.Helper()
	if b, err := EncodeCommand(c); err == nil {
		return b
	}
	var action any
	switch a := c.Action; {
	case a.Submit != nil:
		action = map[string]any{"type": "submit", "intent": a.Submit}
	case a.Cancel != nil:
		action = map[string]any{"type": "cancel", "reason": a.Cancel.Reason}
	case a.Correct != nil:
		action = map[string]any{"type": "correct", "prompt": a.Correct.Prompt, "reason": a.Correct.Reason}
	default:
		action = map[string]any{"type": "continue", "prompt": a.Continue.Prompt}
	}
	return mustJSON(map[string]any{"schema": commandSchema, "command_id": c.CommandID, "task_id": c.TaskID, "expected_revision": c.Expected, "action": action})
}

// The bounds of one log. The numbers are put into what this process knows of
// it, which is what the rule looks at: filling a log takes a minute.
func TestLogBounds(t *testing.T) {
	archived, restored := Event{Archived: &Archived{Reason: "r", By: "owner", At: 1}}, Event{Restored: true}
	for _, row := range []struct {
		name string
		fill func(*state)
		do   func(*Store) error
		code string
	}{
		{"the 2,048th command", func(st *state) { fillCommands(st, maxCommands-1) }, func(s *Store) error {
			_, err := s.Apply(t.Context(), encoded(t, correctOf("a", "last", 2)))
			return err
		}, ""},
		{"the 2,049th command", func(st *state) { fillCommands(st, maxCommands) }, func(s *Store) error {
			_, err := s.Apply(t.Context(), encoded(t, correctOf("a", "last", 2)))
			return err
		}, "limit_exceeded"},
		{"a retry when no command is taken any more", func(st *state) { fillCommands(st, maxCommands) }, func(s *Store) error {
			_, err := s.Apply(t.Context(), encoded(t, submitOf("a", "c0")))
			return err
		}, ""},
		{"the 16,384th event", func(st *state) { st.events = maxOddEvents - 1 }, func(s *Store) error {
			_, err := s.Append(t.Context(), "a", 0, archived)
			return err
		}, ""},
		{"the 16,385th event", func(st *state) { st.events = maxOddEvents }, func(s *Store) error {
			_, err := s.Append(t.Context(), "a", 0, archived)
			return err
		}, "limit_exceeded"},
		{"a restore after as many", func(st *state) { st.events = maxOddEvents }, func(s *Store) error {
			_, err := s.Append(t.Context(), "a", 0, restored)
			return err
		}, "limit_exceeded"},
		{"a turn after as many", func(st *state) { st.events = maxOddEvents }, func(s *Store) error {
			mustApply(t, s, continueOf("a", "more", 2))
			task, err := s.Get("a")
			if err != nil {
				return err
			}
			_, err = s.Append(t.Context(), "a", 1, Event{Admitted: admission(&task)})
			return err
		}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := quickStore(t, quickHome(t), true)
			mustApply(t, s, submitOf("a", "c0"))
			mustApply(t, s, cancelOf("a", "c1", 1))
			row.fill(s.cache[dirName("a")].st)
			wantCode(t, row.do(s), row.code)
		})
	}
}

// A log that has come to its bound takes no command more, says so, takes what a turn needs, and is read as any
// other: from nothing, from its checkpoint, and by the verifier. The bound is 2 MiB here, and with HOLDFAST_LONG_LOG=1
// the real one.
func TestLogPastItsBound(t *testing.T) {
	s := quickStore(t, quickHome(t), true)
	if os.Getenv("HOLDFAST_LONG_LOG") == "" {
		s.fullLog = 2 << 20
	}
	mustApply(t, s, submitOf("a", "c0"))
	prompt := strings.Repeat(`"`, 31<<10) // which JSON makes twice as long
	var refused error
	n := 1
	for ; refused == nil && n < maxCommands; n++ {
		c := correctOf("a", fmt.Sprint("c", n), int64(n))
		c.Action.Correct.Prompt = prompt
		_, refused = s.Apply(t.Context(), encoded(t, c))
	}
	wantCode(t, refused, "limit_exceeded")
	if !strings.Contains(refused.Error(), fmt.Sprint(s.fullLog>>20, " MiB")) {
		t.Fatal(refused)
	}
	if info, err := os.Stat(logPath(s, "a")); err != nil || info.Size() <= s.fullLog || info.Size() > s.fullLog+2*MaxCommand {
		t.Fatalf("%v, %v", info.Size(), err)
	}
	why := "nobody starts it"
	if _, err := s.Append(t.Context(), "a", 1, Event{NotStarted: &why}); err != nil {
		t.Fatal(err)
	}
	cold := quickStore(t, s.Home(), false)
	task, err := cold.Get("a")
	if err != nil || task.Status != Cancelled || len(task.Corrections) != n-2 {
		t.Fatalf("%s, %d corrections of %d, %v", task.Status, len(task.Corrections), n, err)
	}
	wantSound(t, cold)
}

func fillCommands(st *state, n int) {
	for i := 0; len(st.commands) < n; i++ {
		st.commands[fmt.Sprint("filled-", i)] = done{}
	}
}

// Identity is the exact bytes, over the whole store, for good: with more
// commands and tasks than the reference ever takes, the first command's answer
// is still the first receipt, byte for byte and in every process, and its ID is
// nobody else's.
func TestExactBytesForGood(t *testing.T) {
	home := quickHome(t)
	s := quickStore(t, home, true)
	first := encoded(t, submitOf("first", "c"))
	receipt, err := s.Apply(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	const tasks = 1030
	for i := range tasks {
		id := TaskID(fmt.Sprint("task-", i))
		mustApply(t, s, submitOf(id, fmt.Sprint("s-", i)))
		mustApply(t, s, cancelOf(id, fmt.Sprint("x-", i), 1))
	}
	for _, s := range []*Store{s, quickStore(t, home, false)} {
		again, err := s.Apply(t.Context(), first)
		if err != nil || again != receipt {
			t.Fatalf("%+v, %v", again, err)
		}
		for _, row := range []struct {
			name string
			b    []byte
			code string
		}{
			{"one blank more", append(bytes.Clone(first), ' '), "command_conflict"},
			{"members in another order", bytes.Replace(first, []byte(`"command_id":"c","task_id":"first"`), []byte(`"task_id":"first","command_id":"c"`), 1), "command_conflict"},
			{"another action", encoded(t, cancelOf("first", "c", 1)), "command_conflict"},
			{"another task", encoded(t, submitOf("other", "c")), "command_conflict"},
			{"an old ID for an old task", encoded(t, cancelOf("task-7", "s-8", 2)), "command_conflict"},
			{"a new ID for an old task", encoded(t, submitOf("task-7", "new")), "invalid_transition"},
		} {
			_, err := s.Apply(t.Context(), row.b)
			wantCode(t, err, row.code)
			if t.Failed() {
				t.Fatal(row.name)
			}
		}
	}
	if ids, err := s.List(); err != nil || len(ids) != tasks+1 {
		t.Fatal(len(ids), err)
	}
}
