package owner

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"holdfast/sandbox"
)

// testChildren are the verbs under which tests start this binary again; an init beside each adds it.
var testChildren = map[string]func(args []string) int{}

// The binary of the tests is, as the product is, the sandbox's stages and the owner process too.
func TestMain(m *testing.M) {
	sandbox.Reexec()
	if len(os.Args) > 1 {
		if child := testChildren[os.Args[1]]; child != nil {
			os.Exit(child(os.Args[2:]))
		}
	}
	goleak.VerifyTestMain(m)
}
