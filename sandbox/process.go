//go:build linux || darwin

package sandbox

import (
	"errors"
	"sync"
)

// Process is one turn: an init, the program's process at its gate or running,
// and everything that it starts. Any goroutine may call its methods.
type Process struct {
	id   Identity
	out  *capture
	turn *turn

	release chan chan error
	stop    chan struct{} // closed by Stop
	once    sync.Once
	done    chan struct{} // closed after result is set
	result  Result
}

// Identity names the group for as long as this boot lasts. It is known before
// Release, and meant to be stored before it.
func (p *Process) Identity() Identity { return p.id }

// Report is the confinement that was read back before Start returned.
func (p *Process) Report() Report { return p.turn.report }

// Release lets the program run; the wall clock starts. It may be called once.
// The error means that the program does not run and will not.
func (p *Process) Release() error {
	answer := make(chan error, 1)
	select {
	case p.release <- answer:
		return <-answer
	case <-p.done:
		return errEnded
	}
}

var (
	errEnded    = errors.New("release sandbox: the turn was stopped or ended before")
	errReleased = errors.New("release sandbox: already released")
)

// Chunks delivers the captured output, and is closed when the turn has ended
// and everything was taken. Output is read whether or not anybody takes it:
// what does not fit in StreamBytes becomes a Gap. A consumer that begins must
// go on to the end.
func (p *Process) Chunks() <-chan Chunk { return p.out.chunks() }

// Stop asks for the end of the turn and returns at once: TERM to everything,
// after Grace KILL. Before Release nothing ever runs. Later calls do nothing.
func (p *Process) Stop() { p.once.Do(func() { close(p.stop) }) }

// Wait blocks until the turn has ended, and returns the same Result to every
// caller. It does not wait for Chunks to be taken.
func (p *Process) Wait() Result {
	<-p.done
	return p.result
}
