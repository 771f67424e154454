package sandbox

// Stubs so that dependents compile; replaced by the implementation.

type Process struct{}

func Reexec()                           {}
func Start(spec Spec) (*Process, error) { panic("stub") }
func (p *Process) Identity() Identity   { panic("stub") }
func (p *Process) Release() error       { panic("stub") }
func (p *Process) Chunks() <-chan Chunk { panic("stub") }
func (p *Process) Stop()                {}
func (p *Process) Wait() Result         { panic("stub") }
func Probe() Capability                 { panic("stub") }
func Gone(id Identity) (bool, error)    { panic("stub") }
