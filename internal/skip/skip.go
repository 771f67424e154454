// Package skip is the only place where a test of this tree may skip itself. A
// skipped test reads like a passed one, so each skip has a cause that the
// machine itself gives, and where HOLDFAST_CI is 1 (.ci/run sets it) a cause
// that the machine does not bear out fails the test instead.
//
// There are four causes. Root: the user is not root, which nothing in a test can
// change. Program: a program that the tree does not need is not installed.
// Mounts: the kernel or a container gives no mount namespace; under CI a probe
// of its own has to find the same. Missing: everything else; it skips on a
// developer's machine and always fails under CI.
//
// Only tests import it, from their own goroutine. It writes nothing and reads
// one variable of the environment. A rule at the root of the tree refuses every
// other call of Skip.
package skip

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// ci is true where a skip that the machine does not bear out must fail.
func ci() bool { return os.Getenv("HOLDFAST_CI") == "1" }

// Root skips the test unless it runs as root. only says what root alone can do.
func Root(t testing.TB, only string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can " + only)
	}
}

// Program skips the test when a program that only this test wants is not in
// PATH, under CI too.
func Program(t testing.TB, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip(name + " is not installed")
	}
}

// Missing skips the test for why, or fails it under CI, whose machine has to
// have what is missing.
func Missing(t testing.TB, why string) {
	t.Helper()
	if ci() {
		t.Fatal("a skip where HOLDFAST_CI is 1: " + why)
	}
	t.Skip(why)
}

// Mounts skips the test, which found that it has no mount namespace of its own,
// or no mount in it. Under CI it fails unless unshare and mount of util-linux
// meet the same.
func Mounts(t testing.TB, why string) {
	t.Helper()
	if !ci() {
		t.Skip(why)
	}
	args := []string{"--mount", "mount", "-t", "tmpfs", "probe", t.TempDir()}
	if os.Geteuid() != 0 {
		args = append([]string{"--user", "--map-root-user"}, args...)
	}
	out, err := exec.Command("unshare", args...).CombinedOutput()
	if _, ran := err.(*exec.ExitError); !ran {
		t.Fatalf("a skip where HOLDFAST_CI is 1, and the machine can mount in a namespace (%v): %s", err, why)
	}
	t.Skipf("%s (unshare: %s)", why, strings.TrimSpace(string(out)))
}
