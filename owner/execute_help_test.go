package owner

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/sandbox"
)

// workbench is a home with a store, and a repository with one commit beside it.
type workbench struct {
	t    testing.TB
	dir  string // canonical
	home string
	repo string
	s    *Store
}

func newWorkbench(t testing.TB) *workbench {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &workbench{t: t, dir: dir, home: filepath.Join(dir, "home"), repo: filepath.Join(dir, "project")}
	if err := os.Mkdir(w.repo, 0o755); err != nil {
		t.Fatal(err)
	}
	w.git("init", "-q")
	writeFile(t, filepath.Join(w.repo, "file"), []byte("committed\n"))
	w.git("add", "-A")
	w.git("commit", "-q", "-m", "first")
	w.s = openStore(t, w.home, true)
	return w
}

// git runs plain git in the repository, as its user would.
func (w *workbench) git(args ...string) string {
	w.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = w.repo
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.org", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.org"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// shell is the canonical path of /bin/sh.
func shell(t testing.TB) string {
	t.Helper()
	p, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// submit makes a task of the adapter in the repository.
func (w *workbench) submit(id TaskID, adapter string) Task {
	w.t.Helper()
	return w.submitIn(id, adapter, w.repo)
}

func (w *workbench) submitIn(id TaskID, adapter, path string) Task {
	w.t.Helper()
	mustApply(w.t, w.s, Command{CommandID: "submit-" + string(id), TaskID: id, Action: Action{Submit: &Intent{
		Title: "a task", Prompt: "the prompt of " + string(id), Workspace: Workspace{Path: path},
		Configuration: Configuration{Adapter: adapter}}}})
	return w.get(id)
}

func (w *workbench) get(id TaskID) Task {
	w.t.Helper()
	t, err := w.s.Get(id)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

// grant admits the task as it is now, to run a shell script.
func (w *workbench) grant(id TaskID, script string, change ...func(*Grant)) []byte {
	w.t.Helper()
	t := w.get(id)
	g := Grant{TaskID: id, IntentDigest: t.IntentDigest, ExpectedRevision: t.Revision, Program: shell(w.t),
		Arguments: []string{"-c", script}, WallSeconds: 600, StreamBytes: 64 << 10, MemoryBytes: 1 << 30,
		Adapter: t.Intent.Configuration.Adapter, Network: json.RawMessage(`"none"`), Git: "read"}
	for _, c := range change {
		c(&g)
	}
	b, err := EncodeGrant(g)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

func writing(g *Grant) { g.Write = true }

// probedOnce keeps the tests from probing before each of their turns.
var probedOnce = sync.OnceValue(sandbox.Probe)

// testParts are the real ones with a fault hook.
func testParts(fault func(string)) parts {
	p := realParts()
	p.probe = probedOnce
	if fault != nil {
		p.fault = fault
	}
	return p
}

// execute runs a turn that must be admitted, in this process.
func (w *workbench) execute(id TaskID, grant []byte, fault func(string)) Task {
	w.t.Helper()
	t, err := execute(context.Background(), w.s, id, grant, testParts(fault))
	if err != nil {
		w.t.Fatalf("execute: %v", err)
	}
	return t
}

// cancel asks the task to stop at whatever revision it is.
func (w *workbench) cancel(id TaskID) {
	w.t.Helper()
	if err := w.s.cancel(context.Background(), id, "enough"); err != nil {
		w.t.Fatal(err)
	}
}

// launch starts a detached owner by a grant.
func (w *workbench) launch(id TaskID, grant []byte) *Launched {
	w.t.Helper()
	d, err := w.s.PutBlob(grant)
	if err != nil {
		w.t.Fatal(err)
	}
	l, err := Launch(w.s, id, d)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { waitDone(w.t, l.Done) })
	return l
}

func waitDone(t testing.TB, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the owner process did not end")
	}
}

// eventually waits for a condition with a deadline.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// record is one transcript line as tests look at it.
type record struct {
	Type    string          `json:"type"`
	StepID  int             `json:"step_id"`
	ID      string          `json:"id"`
	State   string          `json:"state"`
	Source  string          `json:"source"`
	Message string          `json:"message"`
	Extra   json.RawMessage `json:"extra"`
}

// extra decodes what a step says about itself.
func (r record) extra(t testing.TB, into any) {
	t.Helper()
	if err := json.Unmarshal(r.Extra, into); err != nil {
		t.Fatalf("extra of %q: %v", r.Message, err)
	}
}

func traceLines(t testing.TB, path string) []record {
	t.Helper()
	var out []record
	lines := bufio.NewScanner(bytes.NewReader(readFile(t, path)))
	lines.Buffer(nil, maxTraceLine+1)
	for lines.Scan() {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%s: %v in %q", path, err, lines.Text())
		}
		out = append(out, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// trace reads the transcript of a turn.
func (w *workbench) trace(id TaskID, turn int) []record {
	w.t.Helper()
	return traceLines(w.t, w.tracePath(id, turn))
}

func (w *workbench) tracePath(id TaskID, turn int) string {
	return filepath.Join(w.s.TaskDir(id), TraceName(turn))
}

// said joins what the program wrote to a stream.
func said(t testing.TB, records []record, stream string) string {
	t.Helper()
	var b strings.Builder
	for _, r := range records {
		if r.Source != "agent" {
			continue
		}
		var e outputExtra
		r.extra(t, &e)
		if e.Stream != stream {
			continue
		}
		if e.Raw != nil {
			b.Write(e.Raw)
		} else {
			b.WriteString(r.Message)
		}
	}
	return b.String()
}

// saying reports whether the task's first transcript holds text by now.
func (w *workbench) saying(id TaskID, text string) func() bool {
	return func() bool {
		b, err := os.ReadFile(w.tracePath(id, 1))
		return err == nil && bytes.Contains(b, []byte(text))
	}
}

// step finds the first step with this message.
func step(t testing.TB, records []record, message string) record {
	t.Helper()
	for _, r := range records {
		if r.Type == "step" && r.Message == message {
			return r
		}
	}
	t.Fatalf("no step %q", message)
	return record{}
}

// wantEnding fails unless the current turn ended like this.
func wantEnding(t testing.TB, task Task, status Status, exec Execution, ending string) {
	t.Helper()
	if task.Run == nil || task.Run.Result == nil {
		t.Fatalf("no result: %+v", task)
	}
	if task.Status != status || task.Execution != exec || task.Run.Result.Ending != ending {
		t.Fatalf("status %s, execution %s, ending %q; want %s, %s, %q", task.Status, task.Execution, task.Run.Result.Ending, status, exec, ending)
	}
}

// wantSealed fails unless the result names the transcript as it is on disk, whole.
func (w *workbench) wantSealed(task Task) {
	w.t.Helper()
	run := task.Run
	b := readFile(w.t, w.tracePath(task.ID, run.Turn))
	if DigestOf(b) != run.Result.TraceDigest {
		w.t.Fatal("the result names another transcript")
	}
	records := w.trace(task.ID, run.Turn)
	if last := records[len(records)-1]; last.Type != "end" || last.State != "ended" || records[0].Type != "session" {
		w.t.Fatalf("the transcript is not whole: %+v", last)
	}
	for i, r := range records[1 : len(records)-1] {
		if r.Type != "step" || r.StepID != i+1 {
			w.t.Fatalf("line %d is %s %d", i+2, r.Type, r.StepID)
		}
	}
}
