package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/host"
	"holdfast/internal/skip"
	"holdfast/owner"
)

// stage is a tour's machinery in a test: processes of the test binary, a home
// of their own, and much time, for all tests share the machine.
func stage(t *testing.T) (*tour, context.Context) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	t.Cleanup(cancel)
	// A turn outlives the host that a test has killed by now, and its owner still
	// writes for a moment after its result; the folder is removed next.
	t.Cleanup(func() {
		st, err := owner.Open(filepath.Join(dir, "home"), owner.Options{})
		if err != nil {
			return // the test made no home, or has damaged it
		}
		defer st.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := owner.StopOwners(ctx, st, "the test ended"); err != nil {
			t.Logf("stop what still runs: %v", err)
		}
	})
	g := &globals{stdout: t.Output(), stderr: t.Output()}
	return &tour{
		g: g, out: &printer{g: g}, exe: "/proc/self/exe", dir: dir,
		home: filepath.Join(dir, "home"), repo: filepath.Join(dir, "repository"),
	}, ctx
}

func freePort(t *testing.T) string {
	t.Helper()
	addr, err := freeLoopback()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// up starts a host and waits until it serves.
func up(t *testing.T, s *tour, ctx context.Context, args ...string) (*tourProcess, map[string]any) {
	t.Helper()
	p, err := s.spawn(append([]string{"up", "--json", "--home", s.home}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	ready, _, err := p.await(ctx, 0, "ready", isEvent("ready"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.await(ctx, 0, "invitation", isEvent("invitation")); err != nil {
		t.Fatal(err)
	}
	return p, ready
}

// exitOf runs a verb and returns its exit code and error line.
func exitOf(t *testing.T, s *tour, ctx context.Context, args ...string) (int, string) {
	t.Helper()
	err := s.verb(ctx, nil, args...)
	var f *cliFailure
	switch {
	case err == nil:
		return 0, ""
	case errors.As(err, &f):
		return f.exit, f.message
	}
	t.Fatal(err)
	return 0, ""
}

func TestUpTwice(t *testing.T) {
	t.Parallel()
	s, ctx := stage(t)
	port := freePort(t)
	p, first := up(t, s, ctx, "--listen", port)
	if _, err := os.Stat(s.home + "-demo/README.md"); err != nil {
		t.Error("the first start made no demonstration workspace:", err)
	}

	// A second host on the home, and on the port.
	if code, msg := exitOf(t, s, ctx, "up", "--home", s.home, "--listen", freePort(t)); code != exitBusy || !strings.Contains(msg, "host.lock") {
		t.Errorf("second host: exit %d, %s", code, msg)
	}
	if code, msg := exitOf(t, s, ctx, "up", "--home", filepath.Join(s.dir, "other"), "--listen", port); code != exitBusy || !strings.Contains(msg, port) {
		t.Errorf("port in use: exit %d, %s", code, msg)
	}
	var st host.Status
	if err := s.operator(ctx, &st, "status"); err != nil || !st.Serving || len(st.Relays) != 1 || st.Relays[0].State != "open" {
		t.Errorf("status of a serving host: %+v, %v", st, err)
	}

	// Ctrl-C ends in order, and the next start uses what is there.
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-p.ended
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("Ctrl-C: exit %d: %s", code, p.errors.String())
	}
	if err := s.operator(ctx, &st, "status"); err != nil || st.Serving {
		t.Errorf("status without a host: %+v, %v", st, err)
	}
	_, second := up(t, s, ctx)
	for _, k := range []string{"host", "owner", "relay"} {
		if first[k] != second[k] {
			t.Errorf("%s was %v, is %v", k, first[k], second[k])
		}
	}
}

func TestForeignHome(t *testing.T) {
	t.Parallel()
	skip.Root(t, "give a folder to another user")
	s, ctx := stage(t)
	if err := os.Mkdir(s.home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(s.home, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	code, msg := exitOf(t, s, ctx, "up", "--home", s.home, "--listen", freePort(t))
	if code != exitFailed || !strings.Contains(msg, "belongs to user 12345") {
		t.Errorf("foreign home: exit %d, %s", code, msg)
	}
	if list, _ := os.ReadDir(s.home); len(list) != 0 {
		t.Errorf("something was written into it: %v", list)
	}
}

// TestTour is the product's own story, as a newcomer would see it.
func TestTour(t *testing.T) {
	t.Parallel() // it waits more than it works
	dir := t.TempDir()
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "tour")
	c.Env = append(os.Environ(), "TMPDIR="+dir)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "the whole story, as promised: done") {
		t.Errorf("the tour ended without its last line:\n%s", out)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("the tour left %v", left)
	}
}
