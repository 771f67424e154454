package sandbox_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"holdfast/sandbox"
)

// TestMain is, besides the tests' entry, the entry of the sandbox's stages and
// of the hostile programs that the tests run inside.
func TestMain(m *testing.M) {
	sandbox.Reexec()
	if len(os.Args) > 1 && os.Args[1] == hostileArg {
		hostileMain(os.Args[2:])
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
