package sandbox

import (
	"errors"
	"os"
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

// pipes are the descriptors of one start. The child's ends are closed as soon
// as it has them, or the streams would never end.
type pipes struct {
	plan, control          *os.File // written by the supervisor
	report, stdout, stderr *os.File // read by the supervisor
	child                  []*os.File
}

func (p *pipes) closeChild() {
	for _, f := range p.child {
		f.Close()
	}
	p.child = nil
}

func (p *pipes) close() {
	p.closeChild()
	for _, f := range []*os.File{p.plan, p.control, p.report, p.stdout, p.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// newPipes returns descriptors in the order in which init expects them from
// number 3 on; owner is the workload's user outside, or -1.
func newPipes(stdin []byte, owner int) (_ *pipes, err error) {
	p := &pipes{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	for _, to := range []**os.File{&p.plan, &p.control} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		*to = w
		p.child = append(p.child, r)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.report = r
	p.child = append(p.child, w)
	input, err := openInput(stdin)
	if err != nil {
		return nil, err
	}
	p.child = append(p.child, input)
	for _, to := range []**os.File{&p.stdout, &p.stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		*to = r
		p.child = append(p.child, w)
		// Opening /dev/stdout inside opens the pipe anew, as its owner.
		if owner >= 0 {
			if err := w.Chown(owner, owner); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

func openInput(b []byte) (*os.File, error) {
	if b == nil {
		return os.Open(os.DevNull)
	}
	return sealedInput(b)
}
