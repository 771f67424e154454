package sandbox

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"holdfast/sandbox/proxy"
)

// egress is the supervisor's side of a NetworkAllow turn: init makes the
// listener inside the turn's network namespace and passes it out, and the
// proxy accepts here. No socket of it lies in any file tree, and the turn has no
// other way out. A nil egress is a turn without one.
type egress struct {
	pair   *os.File // where the listener comes from
	child  *os.File // init's end, until init has it
	rules  proxy.Rules
	out    proxy.Outside
	server *proxy.Server // nil before open
}

// newEgress is nil where the Spec needs none.
func newEgress(s Spec) (*egress, error) {
	if s.Network != NetworkAllow {
		return nil, nil
	}
	list, err := s.allowList()
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start sandbox: %w", err)
	}
	e := &egress{
		pair: os.NewFile(uintptr(fds[0]), "egress"), child: os.NewFile(uintptr(fds[1]), "egress"),
		rules: proxy.Allow(list), out: proxy.System(),
	}
	if s.outside != nil {
		e.out = *s.outside
	}
	if !on(layerProxy) {
		e.rules = everything{}
	}
	return e, nil
}

// everything are the rules that are left where layerProxy is off.
type everything struct{}

func (everything) Target(proxy.Endpoint) proxy.Verdict { return proxy.Allowed }
func (everything) Address(proxy.Endpoint, netip.Addr, []netip.Addr) proxy.Verdict {
	return proxy.Allowed
}

// join adds init's end to what init is handed, and tells the plan.
func (e *egress) join(p *plan, files []*os.File) []*os.File {
	if e == nil {
		return files
	}
	p.ProxyPort, p.ProxyFD = proxyPort, len(files)
	return append(files, e.child)
}

// handed lets go of init's end.
func (e *egress) handed() {
	if e != nil {
		e.child.Close()
	}
}

// open takes the listener, which init sent before it said that it is ready, and
// starts the proxy.
func (e *egress) open() error {
	if e == nil {
		return nil
	}
	l, err := takeListener(int(e.pair.Fd()))
	e.pair.Close()
	if err != nil {
		return fmt.Errorf("start sandbox: take the proxy's listener: %w", err)
	}
	e.server = proxy.Start(l, e.rules, e.out)
	return nil
}

// end ends the proxy with all its connections; nil where none was started.
func (e *egress) end() *proxy.Record {
	if e == nil {
		return nil
	}
	e.pair.Close()
	e.child.Close()
	if e.server == nil {
		return nil
	}
	r := e.server.Close()
	return &r
}

// takeListener receives one descriptor and holds it against what was asked for.
func takeListener(pair int) (net.Listener, error) {
	fds, err := receiveFiles(pair, 1, unix.MSG_DONTWAIT)
	if err != nil {
		return nil, err
	}
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "proxy")
		defer files[i].Close() // the listener has a copy
	}
	if len(files) != 1 {
		return nil, fmt.Errorf("%d descriptors instead of one", len(files))
	}
	at, err := unix.Getsockname(fds[0])
	if err != nil {
		return nil, err
	}
	listening, err := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	in4, ok := at.(*unix.SockaddrInet4)
	if err != nil || listening != 1 || !ok || in4.Addr != [4]byte{127, 0, 0, 1} || in4.Port != proxyPort {
		return nil, errors.New("it is no listener on the proxy's port")
	}
	return net.FileListener(files[0])
}

// passListener is init's side: loopback up, the listener made in this namespace
// and passed out. Nothing else of the namespace is ever configured, so what is
// not the proxy is only the turn's own.
func passListener(p plan) error {
	if p.ProxyPort == 0 {
		return nil
	}
	if err := raiseLoopback(); err != nil {
		return notEnforceable("the loopback of a network namespace cannot be brought up; a security profile may take rights in it away", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make the proxy's listener: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: p.ProxyPort, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return fmt.Errorf("make the proxy's listener: %w", err)
	}
	if err := unix.Listen(fd, 128); err != nil {
		return fmt.Errorf("make the proxy's listener: %w", err)
	}
	defer unix.Close(p.ProxyFD)
	if err := unix.Sendmsg(p.ProxyFD, []byte{'L'}, unix.UnixRights(fd), nil, 0); err != nil {
		return fmt.Errorf("pass the proxy's listener out: %w", err)
	}
	return nil
}

func raiseLoopback() error {
	return onLink("lo", func(fd int, r *unix.Ifreq) error {
		if r.Uint16()&unix.IFF_UP != 0 {
			return nil
		}
		r.SetUint16(r.Uint16() | unix.IFF_UP)
		return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
	})
}

// onLink calls fn with the flags of a link of this network namespace.
func onLink(name string, fn func(fd int, r *unix.Ifreq) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, r); err != nil {
		return err
	}
	return fn(fd, r)
}
