package main

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"holdfast/owner"
	"holdfast/sandbox"
)

// TestMain lets the test binary be the product: as a sandbox stage, as an
// execution owner, and as the command itself whenever its first argument is no
// flag of the test runner. More tests run at once than there are processors:
// most of their time they wait for clocks, disks and each other's processes.
func TestMain(m *testing.M) {
	sandbox.Reexec()
	if len(os.Args) > 1 && os.Args[1] == owner.OwnerArg {
		os.Exit(owner.RunOwner(os.Args[2:], os.Stderr))
	}
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	flag.Parse()
	flag.Set("test.parallel", strconv.Itoa(parallel))
	testscript.Main(m, map[string]func(){
		"holdfast": func() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// TestScripts runs the verbs as scripts do: exit codes, documents, messages.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOLDFAST_HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("TMPDIR", e.WorkDir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": scriptExits, "flip": scriptFlip},
	})
}
