package sandbox

import (
	"os"

	"golang.org/x/sys/unix"
)

// The stages of this binary, told apart by argv[0]. Whoever starts the binary
// under one of these names gains nothing: a stage only ever takes rights away
// from itself.
const (
	stageInit  = "holdfast-sandbox-init"
	stageHold  = "holdfast-sandbox-hold"
	stageProbe = "holdfast-sandbox-probe"
)

// Reexec runs a stage of a sandbox where this process was started as one, and
// then never returns. It must be the first statement of main, and of TestMain
// in every package whose tests start sandboxes.
func Reexec() {
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case stageInit:
		initMain()
	case stageHold:
		holdMain()
	case stageProbe:
		probeMain()
	default:
		return
	}
	os.Exit(125)
}

// holdMain keeps a user namespace alive until its input ends.
func holdMain() {
	var b [1]byte
	unix.Read(0, b[:])
	os.Exit(0)
}

// A stage begins as early as the language allows: what is initialised after
// this package would only be paid for.
func init() { Reexec() }
