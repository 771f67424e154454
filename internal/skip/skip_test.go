package skip_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"holdfast/internal/runnable"
	"holdfast/internal/skip"
)

// causeVariable makes the test binary run one cause, as a test of another
// package would.
const causeVariable = "HOLDFAST_TEST_SKIP"

var causes = map[string]func(t *testing.T){
	"root":    func(t *testing.T) { skip.Root(t, "do this") },
	"program": func(t *testing.T) { skip.Program(t, "no-such-program-anywhere") },
	"missing": func(t *testing.T) { skip.Missing(t, "no such thing") },
	"mounts":  func(t *testing.T) { skip.Mounts(t, "no mount here") },
}

func TestCause(t *testing.T) {
	if run := causes[os.Getenv(causeVariable)]; run != nil {
		run(t)
	}
}

// Under CI only a cause that the machine bears out still skips.
func TestSkip(t *testing.T) {
	root := os.Geteuid() == 0
	// No unshare in PATH means that nobody can bear the cause out.
	for _, row := range []struct {
		name, cause, ci, path, want string
	}{
		{"root", "root", "1", os.Getenv("PATH"), map[bool]string{true: "PASS", false: "SKIP"}[root]},
		{"program", "program", "1", os.Getenv("PATH"), "SKIP"},
		{"missing, a developer's machine", "missing", "", os.Getenv("PATH"), "SKIP"},
		{"missing, CI", "missing", "1", os.Getenv("PATH"), "FAIL"},
		{"mounts, a developer's machine", "mounts", "", os.Getenv("PATH"), "SKIP"},
		{"mounts, CI without a probe", "mounts", "1", "/nonexistent", "FAIL"},
		{"mounts, CI and the probe agrees", "mounts", "1", refusing(t), "SKIP"},
		{"mounts, CI and the probe does not", "mounts", "1", agreeing(t), "FAIL"},
	} {
		t.Run(row.name, func(t *testing.T) {
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(exe, "-test.run=^TestCause$", "-test.v")
			cmd.Env = append(os.Environ(), causeVariable+"="+row.cause, "HOLDFAST_CI="+row.ci, "PATH="+row.path)
			out, _ := cmd.CombinedOutput()
			if !strings.Contains(string(out), "--- "+row.want+": TestCause") {
				t.Errorf("want %s:\n%s", row.want, out)
			}
		})
	}
}

// refusing and agreeing are folders with an unshare that stands for a machine.
func refusing(t *testing.T) string {
	return program(t, "#!/bin/sh\necho 'Operation not permitted' >&2\nexit 1\n")
}

func agreeing(t *testing.T) string { return program(t, "#!/bin/sh\nexit 0\n") }

func program(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	if err := runnable.Write(dir+"/unshare", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
