package sandbox_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/internal/runnable"
	"holdfast/sandbox"
)

// temp is a canonical temporary directory that an ordinary user may enter.
func temp(t testing.TB) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// Closed to others, it would hide from the workload what the view should.
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil {
		t.Fatal(err)
	}
	return dir
}

func canonical(t testing.TB, path string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// shell is a Spec that runs a script in a fresh workspace.
func shell(t testing.TB, script string, args ...string) sandbox.Spec {
	t.Helper()
	return sandbox.Spec{
		Program: canonical(t, "/bin/sh"), Arguments: append([]string{"-c", script, "sh"}, args...),
		Workspace: temp(t), Write: true, Wall: longest(), StreamBytes: 256 << 10,
	}
}

// longest is the wall clock of a turn that ends by itself. A run without one of
// the layers, which is to fail, does not have to take long about it.
func longest() time.Duration {
	if os.Getenv("HOLDFAST_TEST_LAYERS_OFF") != "" {
		return 6 * time.Second
	}
	return 2 * time.Minute
}

// hostile is a Spec that runs one of the programs of this test binary.
func hostile(t testing.TB, name string, args ...string) sandbox.Spec {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := shell(t, "")
	s.Program, s.Arguments = canonical(t, exe), append([]string{hostileArg, name}, args...)
	return s
}

// output is everything that a turn wrote.
type output struct {
	stdout, stderr bytes.Buffer
	gaps           [2]int64
	next           [2]int64
}

func (o *output) take(t testing.TB, c sandbox.Chunk) {
	i := c.Stream - sandbox.Stdout
	if c.Offset != o.next[i] {
		t.Errorf("stream %d: chunk at %d, want %d", c.Stream, c.Offset, o.next[i])
	}
	if c.Stream == sandbox.Stdout {
		o.stdout.Write(c.Bytes)
	} else {
		o.stderr.Write(c.Bytes)
	}
	o.next[i] = c.Offset + int64(len(c.Bytes))
	for _, g := range c.Gaps {
		if g.Offset != o.next[i] || g.Bytes <= 0 {
			t.Errorf("stream %d: gap %+v, want offset %d", c.Stream, g, o.next[i])
		}
		o.gaps[i] += g.Bytes
		o.next[i] += g.Bytes
	}
}

// start starts a turn and sees to it that it ends with the test.
func start(t testing.TB, s sandbox.Spec) *sandbox.Process {
	t.Helper()
	p, err := sandbox.Start(s)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		p.Stop()
		p.Wait()
	})
	return p
}

// run runs a turn to its end.
func run(t testing.TB, s sandbox.Spec) (sandbox.Result, *output) {
	t.Helper()
	p := start(t, s)
	if err := p.Release(); err != nil {
		t.Fatalf("release: %v", err)
	}
	return finish(t, p)
}

func finish(t testing.TB, p *sandbox.Process) (sandbox.Result, *output) {
	t.Helper()
	var o output
	for c := range p.Chunks() {
		o.take(t, c)
	}
	r := p.Wait()
	if !r.Cleanup.Confirmed {
		t.Errorf("cleanup is not confirmed: %+v", r.Cleanup)
	}
	if gone, err := sandbox.Gone(p.Identity()); err != nil || !gone {
		t.Errorf("gone %v, %v", gone, err)
	}
	if o.next[0] != r.Stdout || o.next[1] != r.Stderr {
		t.Errorf("chunks end at %v, result says %d and %d", o.next, r.Stdout, r.Stderr)
	}
	return r, &o
}

// exited fails the test unless the program ended by itself with a code.
func exited(t testing.TB, r sandbox.Result, o *output, code int) {
	t.Helper()
	if r.Ending != sandbox.EndingExit || r.ExitCode == nil || *r.ExitCode != code {
		got := -1
		if r.ExitCode != nil {
			got = *r.ExitCode
		}
		t.Fatalf("ending %d, exit %d, signal %q, fault %q\nstdout: %s\nstderr: %s",
			r.Ending, got, r.Signal, r.Fault, clip(o.stdout.String()), clip(o.stderr.String()))
	}
}

func clip(s string) string {
	if len(s) > 2000 {
		return s[:2000] + "..."
	}
	return s
}

// write makes a file for a test.
func write(t testing.TB, path, content string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := runnable.Write(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, limit time.Duration, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); !is(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

func lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }
