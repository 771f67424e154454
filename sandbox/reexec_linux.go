package sandbox

import (
	"io"
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

// rawFile reads and writes a descriptor without the runtime's poller, so that
// a stage opens no descriptors of its own.
type rawFile int

func (f rawFile) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(f), b)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (f rawFile) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n, err := unix.Write(int(f), b[done:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return len(b), nil
}
