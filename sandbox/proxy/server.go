package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of a Server.
const (
	maxConns  = 64 // at once; more wait to be accepted
	maxAddrs  = 64 // of one name; more refuse it
	maxDials  = 4  // addresses of one name that are tried
	copyBytes = 32 << 10

	headTime    = 15 * time.Second // for a whole head
	resolveTime = 10 * time.Second
	dialTime    = 10 * time.Second // each
	idleTime    = 10 * time.Minute // without a byte either way
	answerTime  = 5 * time.Second
	lingerTime  = time.Second // so that a refusal is read before the connection goes
	lingerBytes = 64 << 10
)

// Outside is what a Server needs of the world. Any goroutine may call it.
type Outside struct {
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	Dial    func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	Own     func() ([]netip.Addr, error) // this machine's addresses
}

// System is the machine's own resolver, network and addresses.
func System() Outside {
	// Go's resolver in every build: it ends with its context.
	resolver := net.Resolver{PreferGo: true}
	var dialer net.Dialer
	return Outside{
		// The final dot keeps the machine's search domains out of it.
		Resolve: func(ctx context.Context, name string) ([]netip.Addr, error) {
			return resolver.LookupNetIP(ctx, "ip", name+".")
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", to.String())
		},
		Own: ownAddresses,
	}
}

func ownAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list own addresses: %w", err)
	}
	var own []netip.Addr
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		if ip, ok := netip.AddrFromSlice(n.IP); ok {
			own = append(own, ip.Unmap())
		}
	}
	return own, nil
}

// Server serves one turn. Its methods may be called from any goroutine.
type Server struct {
	rules  Rules
	out    Outside
	listen net.Listener
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	slots  chan struct{}
	wait   sync.WaitGroup
	tally  tally

	mu     sync.Mutex // guards closed and conns
	closed bool
	conns  map[net.Conn]struct{} // both sides of everything that is open
}

// Start serves l until Close, which must be called and closes l.
func Start(l net.Listener, rules Rules, out Outside) *Server {
	s := &Server{rules: rules, out: out, listen: l, slots: make(chan struct{}, maxConns), conns: map[net.Conn]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wait.Go(s.accept)
	return s
}

// Close ends everything that is open, waits until it has, and returns what it
// all came to. Later calls return the same.
func (s *Server) Close() Record {
	s.cancel()
	s.listen.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wait.Wait()
	return s.Record()
}

// Record is what it came to so far.
func (s *Server) Record() Record { return s.tally.record() }

// accept takes a slot before a connection: a program that opens more than may be
// served waits in its own backlog.
func (s *Server) accept() {
	for {
		select {
		case s.slots <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		c, err := s.listen.Accept()
		if err != nil {
			<-s.slots
			if errors.Is(err, net.ErrClosed) || s.ctx.Err() != nil {
				return
			}
			select { // descriptors may have run out for a moment
			case <-time.After(50 * time.Millisecond):
			case <-s.ctx.Done():
				return
			}
			continue
		}
		s.wait.Go(func() {
			defer func() { <-s.slots }()
			if s.keep(c) {
				s.serve(c)
			}
		})
	}
}

// keep notes an open connection; it is closed at once where the server is.
func (s *Server) keep(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.Close()
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) drop(c net.Conn) {
	c.Close()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
}

// serve is one connection: one request, one answer, and the tunnel or nothing.
func (s *Server) serve(c net.Conn) {
	defer s.drop(c)
	c.SetDeadline(time.Now().Add(headTime))
	r := bufio.NewReaderSize(c, maxHead)
	head, err := readHead(r)
	if err != nil {
		if err != io.EOF && s.ctx.Err() == nil { // EOF: nothing was asked
			s.tally.attempt("", Malformed)
			s.refuse(c, Malformed)
		}
		return
	}
	target, verdict := parseHead(head)
	name := ""
	switch verdict {
	case 0:
		name = target.String()
		verdict = s.rules.Target(target)
	case LiteralAddress:
		name = asked(head)
	case PlainRequest:
		if target.Port != 0 {
			name = target.String()
		}
	}
	var far net.Conn
	if verdict == Allowed {
		far, verdict = s.connect(target)
	}
	key := s.tally.attempt(name, verdict)
	if verdict != Allowed {
		s.refuse(c, verdict)
		return
	}
	if !s.keep(far) {
		return
	}
	defer s.drop(far)
	c.SetDeadline(time.Now().Add(answerTime))
	if _, err := io.WriteString(c, "HTTP/1.1 "+Allowed.status()+"\r\n\r\n"); err != nil {
		return
	}
	c.SetDeadline(time.Time{})
	s.tunnel(c, r, far, key)
}

// asked is the target of a head that parsed, as it was written.
func asked(head []byte) string {
	_, rest, _ := strings.Cut(string(head), " ")
	target, _, _ := strings.Cut(rest, " ")
	return target
}

// refuse says no in plain words. It names no address: what a name leads to is
// not the program's to know.
func (s *Server) refuse(c net.Conn, v Verdict) {
	c.SetDeadline(time.Now().Add(answerTime))
	text := "holdfast: " + v.String() + "\n"
	_, err := fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", v.status(), len(text), text)
	if err != nil {
		return
	}
	closeWrite(c)
	c.SetReadDeadline(time.Now().Add(lingerTime))
	io.Copy(io.Discard, io.LimitReader(c, lingerBytes))
}

// connect resolves once, checks every address, and dials of exactly these.
func (s *Server) connect(target Endpoint) (net.Conn, Verdict) {
	addrs := []netip.Addr{target.Addr}
	if !target.Addr.IsValid() {
		ctx, cancel := context.WithTimeout(s.ctx, resolveTime)
		found, err := s.out.Resolve(ctx, target.Name)
		cancel()
		if err != nil || len(found) == 0 {
			return nil, Unresolved
		}
		addrs = found
	}
	own, err := s.out.Own()
	if err != nil || len(addrs) > maxAddrs {
		return nil, ForbiddenAddress // what cannot be checked is not dialled
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
		if v := s.rules.Address(target, addrs[i], own); v != Allowed {
			return nil, v
		}
	}
	for _, a := range addrs[:min(len(addrs), maxDials)] {
		ctx, cancel := context.WithTimeout(s.ctx, dialTime)
		far, err := s.out.Dial(ctx, netip.AddrPortFrom(a, target.Port))
		cancel()
		if err == nil {
			return far, Allowed
		}
	}
	return nil, Unreachable
}

// tunnel copies both ways until both have ended, or neither moves for idleTime.
func (s *Server) tunnel(near net.Conn, early io.Reader, far net.Conn, key rowKey) {
	var last atomic.Int64 // when a byte came, either way
	last.Store(time.Now().UnixNano())
	var both sync.WaitGroup
	both.Go(func() {
		s.copy(far, near, early, &last, func(n int64) { s.tally.bytes(key, n, 0) })
	})
	s.copy(near, far, far, &last, func(n int64) { s.tally.bytes(key, 0, n) })
	both.Wait()
}

// copy moves bytes from a connection, read through r, to another until the
// first ends, and then ends that direction; a fault ends both.
func (s *Server) copy(to, from net.Conn, r io.Reader, last *atomic.Int64, count func(int64)) {
	buf := make([]byte, copyBytes)
	for {
		from.SetReadDeadline(time.Unix(0, last.Load()).Add(idleTime))
		n, err := r.Read(buf)
		if n > 0 {
			last.Store(time.Now().UnixNano())
			to.SetWriteDeadline(time.Now().Add(idleTime))
			m, werr := to.Write(buf[:n])
			count(int64(m))
			if werr != nil {
				to.Close()
				from.Close()
				return
			}
			last.Store(time.Now().UnixNano())
		}
		var timeout net.Error
		switch {
		case err == nil:
		case err == io.EOF:
			closeWrite(to)
			return
		case errors.As(err, &timeout) && timeout.Timeout() && time.Since(time.Unix(0, last.Load())) < idleTime:
			// The other direction moved since the deadline was set.
		default:
			to.Close()
			from.Close()
			return
		}
	}
}

// closeWrite ends one direction; where a connection cannot, it ends whole.
func closeWrite(c net.Conn) {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
		return
	}
	c.Close()
}
