package sandbox

import "os"

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
