//go:build !linux && !darwin

package sandbox

import "runtime"

// Process is never made where nothing can be enforced.
type Process struct{}

// Reexec does nothing where there are no stages.
func Reexec() {}

func launch(Spec) (*Process, error) {
	return nil, notEnforceable("no sandbox exists for "+runtime.GOOS+"; run the host on linux", nil)
}

// Identity returns the zero Identity.
func (p *Process) Identity() Identity { return Identity{} }

// Release returns ErrNotEnforceable.
func (p *Process) Release() error { return ErrNotEnforceable }

// Chunks returns a closed channel.
func (p *Process) Chunks() <-chan Chunk {
	c := make(chan Chunk)
	close(c)
	return c
}

// Stop does nothing.
func (p *Process) Stop() {}

// Wait returns the zero Result.
func (p *Process) Wait() Result { return Result{} }

// Probe reports that nothing can be enforced.
func Probe() Capability {
	return Capability{Gaps: []string{"no sandbox exists for " + runtime.GOOS}}
}

// Gone fails: what was never started cannot be looked for.
func Gone(Identity) (bool, error) { return false, ErrNotEnforceable }

// Report returns the zero Report.
func (p *Process) Report() Report { return Report{} }
