package sandbox_test

import (
	"os"
	"testing"

	"holdfast/internal/leaks"
	"holdfast/sandbox"
)

// The roles of the test binary besides being the tests.
const (
	hostileArg   = "hostile"   // a program of hostile_linux_test.go, inside
	superviseArg = "supervise" // a supervisor to be killed, outside
	crippledArg  = "crippled"  // a supervisor where something is missing
	shareArg     = "share"     // a supervisor where there are no namespaces
)

func TestMain(m *testing.M) {
	sandbox.Reexec()
	if len(os.Args) > 2 && os.Args[1] == hostileArg {
		hostileMain(os.Args[2:])
		os.Exit(0)
	}
	if len(os.Args) > 3 && os.Args[1] == superviseArg {
		supervise(os.Args[2], os.Args[3])
		os.Exit(0)
	}
	if len(os.Args) > 3 && os.Args[1] == crippledArg {
		crippled(os.Args[2], os.Args[3])
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == shareArg {
		shareMain(os.Args[2:])
		os.Exit(0)
	}
	leaks.Main(m)
}
