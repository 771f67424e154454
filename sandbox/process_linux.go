package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// pipes are the descriptors of one first process. The child's ends are closed
// as soon as it has them, or the streams would never end.
type pipes struct {
	plan                   *net.UnixConn // written by the supervisor, once, with descriptors
	control                *os.File      // written by the supervisor
	report, stdout, stderr *os.File      // read by the supervisor
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
	if p.plan != nil {
		p.plan.Close()
	}
	for _, f := range []*os.File{p.control, p.report, p.stdout, p.stderr} {
		if f != nil {
			f.Close()
		}
	}
}

// newPipes returns descriptors in the order in which init expects them from
// number 3 on; owner is the workload's user outside, or -1.
func newPipes(owner int) (_ *pipes, err error) {
	p := &pipes{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if err := p.newPlan(); err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.control, p.child = w, append(p.child, r)
	if r, w, err = os.Pipe(); err != nil {
		return nil, err
	}
	p.report, p.child = r, append(p.child, w)
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

// newPlan makes the pair of sockets over which init is told its plan.
func (p *pipes) newPlan() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	p.child = append(p.child, os.NewFile(uintptr(fds[1]), "plan"))
	own := os.NewFile(uintptr(fds[0]), "plan")
	defer own.Close() // the connection has a copy
	c, err := net.FileConn(own)
	if err != nil {
		return err
	}
	p.plan = c.(*net.UnixConn)
	return nil
}

// handOver sends descriptors to init, which has them once it has read one byte.
// The byte finds room at once: nothing was sent before.
func (p *pipes) handOver(files []*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	_, _, err := p.plan.WriteMsgUnix([]byte{byte(framePlan)}, unix.UnixRights(fds...), nil)
	return err
}

// receiveFiles takes at most limit descriptors, sent with one byte. They are
// closed on execve.
func receiveFiles(socket, limit, flags int) (fds []int, err error) {
	var b [1]byte
	room := make([]byte, unix.CmsgSpace(4*limit))
	var n, size, got int
	for {
		size, n, got, _, err = unix.Recvmsg(socket, b[:], room, flags|unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(room[:n])
	for _, m := range messages {
		rights, rerr := unix.ParseUnixRights(&m)
		fds, err = append(fds, rights...), errors.Join(err, rerr)
	}
	if err == nil && (size != 1 || got&unix.MSG_CTRUNC != 0) {
		err = fmt.Errorf("%d bytes and %d descriptors came, flags %#x", size, len(fds), got)
	}
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func openInput(b []byte) (*os.File, error) {
	if b == nil {
		return os.Open(os.DevNull)
	}
	return sealedInput(b)
}
