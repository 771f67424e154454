package owner

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"holdfast/sandbox"
)

func init() {
	// Starts an owner and dies at once, as a host under kill -9 does.
	testChildren["test-launcher"] = func(args []string) int {
		s, err := Open(args[0], Options{})
		if err != nil {
			fmt.Println(err)
			return 1
		}
		l, err := Launch(s, TaskID(args[1]), Digest(args[2]))
		if err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println(l.PID)
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// status reads one line of /proc/PID/status.
func procStatus(pid int, name string) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func TestLaunchedOwnerOutlivesItsLauncher(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	digest, err := w.s.PutBlob(w.grant("t", "echo started; while [ ! -e go ]; do sleep 0.02; done; echo finished", writing))
	if err != nil {
		t.Fatal(err)
	}
	launcher := exec.Command("/proc/self/exe", "test-launcher", w.home, "t", string(digest))
	out, err := launcher.Output()
	if launcher.ProcessState == nil || launcher.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the launcher did not die: %v %s", err, out)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	eventually(t, "the program's first words", w.saying("t", "started"))
	if ppid := procStatus(pid, "PPid"); ppid == strconv.Itoa(os.Getpid()) || ppid == "" {
		t.Fatalf("owner %d has parent %q", pid, ppid)
	}
	// A closed terminal's signal does nothing to it.
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(w.get("t").Worktree.Path, "go"), nil)
	eventually(t, "the turn's end", func() bool { return w.get("t").Status == Finished })
	task := w.get("t")
	wantEnding(t, task, Finished, ExecFinished, "exit 0")
	if got := said(t, w.trace("t", 1), "stdout"); got != "started\nfinished\n" {
		t.Fatalf("stdout %q", got)
	}
	eventually(t, "the owner to leave", func() bool {
		alive, err := w.s.OwnerAlive("t")
		return err == nil && !alive
	})
}

func TestLaunchInheritsNothing(t *testing.T) {
	t.Setenv("HOLDFAST_TEST_SECRET", "from the environment")
	w := newWorkbench(t)
	// A descriptor that is not close-on-exec, as an inherited one is.
	leak := filepath.Join(w.dir, "leak")
	fd, err := syscall.Open(leak, syscall.O_CREAT|syscall.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	w.submit("t", BoundedCommand)
	l := w.launch("t", w.grant("t", "echo started; sleep 600"))
	eventually(t, "the program's first words", w.saying("t", "started"))
	proc := fmt.Sprintf("/proc/%d", l.PID)
	if env := readFile(t, proc+"/environ"); string(env) != ownerPath+"\x00" {
		t.Fatalf("environment %q", env)
	}
	stat := string(readFile(t, proc+"/stat"))
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if fields[3] != strconv.Itoa(l.PID) {
		t.Fatalf("session %s of owner %d", fields[3], l.PID)
	}
	if dir, err := os.Readlink(proc + "/cwd"); err != nil || dir != "/" {
		t.Fatalf("working directory %q, %v", dir, err)
	}
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fds {
		if to, _ := os.Readlink(proc + "/fd/" + e.Name()); to == leak {
			t.Fatal("a descriptor of the launcher is open in the owner")
		}
	}
	if in, _ := os.Readlink(proc + "/fd/0"); in != os.DevNull {
		t.Fatalf("standard input is %q", in)
	}
	w.cancel("t")
	waitDone(t, l.Done)
}

// SIGTERM, as a shutdown sends it, ends the turn with a result.
func TestOwnerStopsPolitely(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	l := w.launch("t", w.grant("t", "echo started; sleep 600"))
	eventually(t, "the program's first words", w.saying("t", "started"))
	if err := syscall.Kill(l.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitDone(t, l.Done)
	task := w.get("t")
	wantEnding(t, task, Finished, ExecStopped, EndingStopped)
	w.wantSealed(task)
}

func TestDiagnosticsAreBounded(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	path := filepath.Join(w.s.TaskDir("t"), diagnosticName)
	writeFile(t, path, bytes.Repeat([]byte("x"), maxDiagnostic+1))
	l := w.launch("t", w.grant("t", "true", func(g *Grant) { g.Program = w.dir + "/nothing" }))
	waitDone(t, l.Done)
	b := string(readFile(t, path))
	if l.Diagnostic != path || len(b) > 4096 || !strings.Contains(b, "the program is missing") {
		t.Fatalf("diagnostics %q", b)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("diagnostics %v, %v", info, err)
	}
	if task := w.get("t"); task.NotStarted != "the program is missing" {
		t.Fatalf("task %+v", task)
	}
}

func TestRunOwnerExitCodes(t *testing.T) {
	w := newWorkbench(t)
	w.submit("t", BoundedCommand)
	grant := func(b []byte) string {
		d, err := w.s.PutBlob(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(d)
	}
	newer := filepath.Join(w.dir, "newer")
	openStore(t, newer, true)
	writeFile(t, filepath.Join(newer, "tasks", markerName), []byte(`{"v":"holdfast.task-store.v9"}`))
	for _, r := range []struct {
		name string
		args []string
		code int
	}{
		{"no arguments", nil, 2},
		{"unknown flag", []string{"--home", w.home, "--task", "t", "--grant", aDigest, "--more", "x"}, 2},
		{"grant is no digest", []string{"--home", w.home, "--task", "t", "--grant", "x"}, 2},
		{"no store", []string{"--home", w.dir + "/nothing", "--task", "t", "--grant", aDigest}, 1},
		{"newer store", []string{"--home", newer, "--task", "t", "--grant", aDigest}, 4},
		{"no such grant", []string{"--home", w.home, "--task", "t", "--grant", aDigest}, 1},
		{"no such task", []string{"--home", w.home, "--task", "u", "--grant", grant(w.grant("t", "true"))}, 1},
		{"not enforceable", []string{"--home", w.home, "--task", "t", "--grant", grant(w.grant("t", "true"))}, 5},
		{"not queued any more", []string{"--home", w.home, "--task", "t", "--grant", grant(w.grant("t", "true"))}, 1},
	} {
		t.Run(r.name, func(t *testing.T) {
			var stderr bytes.Buffer
			p := testParts(nil)
			if r.code == 5 {
				p.probe = func() sandbox.Capability { return sandbox.Capability{} }
			}
			if code := runOwner(r.args, &stderr, p); code != r.code {
				t.Fatalf("exit %d, want %d: %s", code, r.code, &stderr)
			}
			if lines := strings.Count(stderr.String(), "\n"); lines != 1 {
				t.Fatalf("%d lines on standard error: %s", lines, &stderr)
			}
		})
	}
	if code := ownerExit(refuse("store_busy", "x")); code != 3 {
		t.Fatalf("busy exits %d", code)
	}
}
