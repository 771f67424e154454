package sandbox_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"holdfast/internal/skip"
)

// needed lists, for each test of a threat, the layers without which it must
// fail. Several in one row stop the same attempt, so that each alone would; a
// test in several rows stands on several things. Tests that no layer carries,
// because a refusal comes before anything starts or the kernel needs no help,
// are not here; docs/threat-model.md says so of each.
var needed = []struct{ test, off string }{
	{"TestThreatS1S2", "view,landlock"},
	{"TestThreatS3", "readonly,landlock"},
	{"TestThreatS4S5", "readonly,landlock"},
	{"TestThreatS4S5", "gitpointer"},
	{"TestThreatS13", "readonly,landlock"},
	{"TestThreatS14S15S40", "files"},
	{"TestThreatS14S15S40", "dumpable,caps,landlock"},
	{"TestThreatS9", "dumpable,caps,landlock"},
	{"TestThreatS10", "seccomp"},
	{"TestThreatS18S20", "net,seccomp,landlock"},
	{"TestThreatS18", "net,landlock,seccomp"},
	{"TestThreatS20WithNetwork", "seccomp,landlock"},
	{"TestThreatS21", "seccomp,landlock"},
	{"TestThreatS22", "seccomp"},
	{"TestThreatS24", "seccomp"},
	{"TestThreatS39", "signals,landlock"},
	{"TestThreatS42", "seccomp"},
	{"TestThreatS43", "seccomp"},
	{"TestThreatS44", "seccomp"},
	{"TestThreatS45", "seccomp"},
	{"TestThreatS47", "seccomp"},
	{"TestThreatS48", "seccomp,caps"},
	{"TestThreatS49", "landlock"},
	{"TestThreatS50", "caps"},
	{"TestThreatS58", "seccomp"},
	{"TestThreatS23", "proxy"},
	{"TestThreatS21S49S54S61", "scan"},
	{"TestThreatS32", "rlimits,disk"},
	{"TestSharedTurn", "seccomp"},
}

// TestThreatsNeedTheirLayers runs each test of a threat without what stops the
// threat, and wants it to fail: a test that still passes proves something else.
func TestThreatsNeedTheirLayers(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range needed {
		t.Run(n.test+" without "+n.off, func(t *testing.T) {
			cmd := exec.Command(exe, "-test.run=^"+n.test+"$", "-test.timeout=2m")
			cmd.Env = append(os.Environ(), "HOLDFAST_TEST_LAYERS_OFF="+n.off)
			out, err := cmd.CombinedOutput()
			var ended *exec.ExitError
			failed := errors.As(err, &ended) && ended.ExitCode() == 1 && strings.Contains(string(out), "--- FAIL: "+n.test)
			if !failed {
				t.Errorf("it passes, or ends otherwise: %v\n%s", err, clip(string(out)))
			}
			// Where the sandbox did not start, nothing was tried.
			for _, other := range []string{"start: ", "not enforceable", "panic: "} {
				if strings.Contains(string(out), other) {
					t.Errorf("it fails for another reason:\n%s", clip(string(out)))
				}
			}
		})
	}
}

// enough lists tests that pass although some of what stops their threat is off:
// the layer that stays, Landlock, does it alone.
var enough = []struct{ test, off string }{
	{"TestThreatS3", "readonly"},
	{"TestThreatS14S15S40", "dumpable,caps"},
	{"TestThreatS39", "signals"},
}

// TestLandlockIsEnough shows that the second layer is one. What is written lies
// outside of /tmp, whose rule would allow it.
func TestLandlockIsEnough(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if r, _ := run(t, shell(t, "exit 0")); r.Report.Landlock == 0 {
		skip.Missing(t, "no Landlock on this kernel")
	}
	for _, n := range enough {
		t.Run(n.test+" without "+n.off, func(t *testing.T) {
			cmd := exec.Command(exe, "-test.run=^"+n.test+"$", "-test.timeout=2m")
			cmd.Env = append(os.Environ(), "HOLDFAST_TEST_LAYERS_OFF="+n.off, "TMPDIR=/var/tmp")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, clip(string(out)))
			}
		})
	}
}
