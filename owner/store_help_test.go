package owner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/sandbox"
)

// deviceTask is a task ID as devices make them.
var deviceTask = TaskID(strings.Repeat("ab", 32))

func fixedClock() time.Time { return time.Unix(1_800_000_000, 0) }

func newStore(t testing.TB) *Store {
	t.Helper()
	return openStore(t, filepath.Join(t.TempDir(), "home"), true)
}

func openStore(t testing.TB, home string, create bool) *Store {
	t.Helper()
	s, err := Open(home, Options{Now: fixedClock, Create: create})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func ptr[T any](v T) *T { return &v }

func encoded(t testing.TB, c Command) []byte {
	t.Helper()
	b, err := EncodeCommand(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func submitOf(id TaskID, command string) Command {
	return Command{CommandID: command, TaskID: id, Action: Action{Submit: &Intent{
		Title: "a title", Prompt: "do <it> & say so", Workspace: Workspace{Path: "/w"},
		Configuration: Configuration{Adapter: BoundedCommand}}}}
}

func cancelOf(id TaskID, command string, at int64) Command {
	return Command{CommandID: command, TaskID: id, Expected: &at, Action: Action{Cancel: &CancelAction{Reason: "enough"}}}
}

func continueOf(id TaskID, command string, at int64) Command {
	return Command{CommandID: command, TaskID: id, Expected: &at, Action: Action{Continue: &ContinueAction{Prompt: "go on " + command}}}
}

func correctOf(id TaskID, command string, at int64) Command {
	return Command{CommandID: command, TaskID: id, Expected: &at, Action: Action{Correct: &CorrectAction{Prompt: "rather " + command, Reason: "better"}}}
}

func mustApply(t testing.TB, s *Store, c Command) Receipt {
	t.Helper()
	r, err := s.Apply(context.Background(), encoded(t, c))
	if err != nil {
		t.Fatalf("apply %s: %v", c.CommandID, err)
	}
	return r
}

func mustAppend(t testing.TB, s *Store, id TaskID, epoch Epoch, ev Event) Task {
	t.Helper()
	n, err := s.Append(context.Background(), id, epoch, ev)
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	return n
}

func admission(t *Task) *Admission {
	return &Admission{GrantDigest: DigestOf([]byte("grant")), Adapter: t.Intent.Configuration.Adapter, Workspace: "/w",
		Program: "/bin/sh", ProgramDigest: DigestOf([]byte("sh")), Network: []byte(`"none"`),
		Prompt: DigestOf([]byte(t.EffectivePrompt())), ReadRevision: t.Revision, TraceFile: TraceName(t.Turn()),
		Owner: sandbox.Identity{PID: 7, BootID: "b"}, At: 1}
}

func exited(code int) *Result {
	return &Result{Ending: fmt.Sprintf("exit %d", code), ExitCode: &code, GroupClear: true, TraceDigest: DigestOf(nil), CostStatus: "unknown"}
}

// wantCode fails unless err is a refusal with that code; "" wants no error.
func wantCode(t testing.TB, err error, code string) {
	t.Helper()
	var refusal *Error
	switch {
	case code == "" && err != nil:
		t.Fatalf("refused: %v", err)
	case code != "" && (!errors.As(err, &refusal) || refusal.Code != code):
		t.Fatalf("got %v, want %s", err, code)
	}
}

// wantErr fails unless err is that sentinel.
func wantErr(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

// wantSound fails unless Check finds nothing.
func wantSound(t testing.TB, s *Store) {
	t.Helper()
	err := s.Check(func(path string, ok bool, detail string) {
		if !ok {
			t.Errorf("check: %s: %s", path, detail)
		}
	})
	if err != nil {
		t.Fatalf("check: %v", err)
	}
}

func logPath(s *Store, id TaskID) string { return filepath.Join(s.TaskDir(id), logName) }

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
