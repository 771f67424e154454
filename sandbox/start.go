package sandbox

// Start is the sandbox's hop of the data path: owner/execute.go hands a Spec in,
// and owner/evidence.go collects from the Process that comes back.
//
// It returns once the view is built, the program's process exists fully
// confined and what was achieved has been read back; the program itself runs
// only after Release, so that a caller can make the Identity durable first. A
// crash of the caller before Release means that nothing ran. The error wraps
// ErrSpec or ErrNotEnforceable, or is a fault of this machine; whatever it is,
// nothing ran and nothing is left.
//
// Every started Process must be waited for. Any goroutine may call.
func Start(spec Spec) (*Process, error) { return (*Prepared)(nil).Start(spec) }
