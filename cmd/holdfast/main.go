// Command holdfast is the whole product: the resident host, its operator's
// verbs, and the device's side for paired computers and scripts.
//
// The hidden verbs re-execute the binary: a sandbox stage is recognised before
// anything else runs, an execution owner right after.
package main

import (
	"os"

	"holdfast/owner"
	"holdfast/sandbox"
)

func main() {
	sandbox.Reexec()
	if len(os.Args) > 1 && os.Args[1] == owner.OwnerArg {
		os.Exit(owner.RunOwner(os.Args[2:], os.Stderr))
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
