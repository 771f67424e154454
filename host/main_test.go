package host

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"holdfast/internal/diskfault/faulttest"
	"holdfast/internal/leaks"
	"holdfast/owner"
	"holdfast/sandbox"
)

// testChildren are the verbs under which tests start this binary again; an init
// beside each adds it.
var testChildren = map[string]func(args []string) int{
	owner.OwnerArg: func(args []string) int { return owner.RunOwner(args, os.Stderr) },
}

// The binary of the tests is, as the product is, the sandbox's stages and the
// owner process too.
func TestMain(m *testing.M) {
	sandbox.Reexec()
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		child := testChildren[os.Args[1]]
		if child == nil { // never the tests again: they would start more of the same
			fmt.Fprintf(os.Stderr, "no such verb: %q\n", os.Args[1])
			os.Exit(2)
		}
		os.Exit(child(os.Args[2:]))
	}
	leaks.Main(m, goleak.IgnoreAnyFunction(faulttest.IgnoreLeak))
}
